"""Products over lists on drawn patterns, against torch on whole operands in double: results and gradients.

    python -m fuzz.run --count 0 --lists 0 --products 2000      # as `make fuzz` does, after its lists

Few widths are drawn, since C is compiled for each; heights, patterns, dtypes and what is asked are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fuzz.draws import each
from fuzz.lists import KINDS, pattern
from torch import Tensor

from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops import Index, grouped_matmul, linear, linear_relu, masked_linear, matmul
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend
from tilewright.ops.library import run as call
from tilewright.ops.registry import register
from tilewright.pit.compact import compact

KS, NS = (33, 64), (21, 64)
ERROR = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
FAMILIES = ("rows", "k", "columns", "index", "mask", "code", "masked", "grouped", "layers")
Run = Callable[[], tuple[list[Tensor], list[Tensor]]]


@dataclass(frozen=True)
class Draw:
    """One product: what gives the results and the right ones, and how near they must be."""

    number: int
    where: str
    words: str
    dtype: torch.dtype
    both: Run


def draw(seed: int, number: int, triton: float = 0.02, where: str = "") -> Draw:
    rng = np.random.default_rng([seed, number, 1])
    family, kind = str(rng.choice(FAMILIES)), str(rng.choice(KINDS))
    where = where or ("triton" if rng.random() < triton else "c")
    dtypes = list(ERROR)[: 3 if where == "triton" else 4]  # bf16 is wrong in Triton's interpreter
    dtype = dtypes[int(rng.integers(len(dtypes)))]
    rows, k, n = int(rng.integers(0, 80)), int(rng.choice(KS)), int(rng.choice(NS))
    x = tensor(rng, pattern(rng, kind, rows, k), dtype)
    w = tensor(rng, np.ones((n, k), bool), dtype)
    made, words = MAKERS[family](rng, x, w)
    words = f"{family} {words} of {kind} {rows} x {k} x {n} {dtype}"
    return Draw(number, where, words, dtype, made)


def tensor(rng: np.random.Generator, keep: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(rng.standard_normal(keep.shape) * keep).to(dtype)


def differs(got: list[Tensor], want: list[Tensor], dtype: torch.dtype) -> str | None:
    for n, (a, e) in enumerate(zip(got, want, strict=True)):
        if a.shape != e.shape or a.dtype != dtype:
            return f"result {n} is {a.dtype} {tuple(a.shape)} instead of {dtype} {tuple(e.shape)}"
        size = max(1.0, float(e.abs().max())) if e.numel() else 1.0
        far = float((a.double() - e).abs().max()) / size if e.numel() else 0.0
        if not far <= ERROR[dtype]:
            return f"result {n} is off by {far:.2g}"
    return None


def whole(y: Tensor, of: tuple[Tensor, ...]) -> list[Tensor]:
    """A result and the gradients of its sum of squares."""
    return [y.detach(), *torch.autograd.grad(y.square().sum(), of)]


def leaves(*of: Tensor, double: bool = False) -> tuple[Tensor, ...]:
    return tuple((t.detach().double() if double else t.detach()).requires_grad_() for t in of)


def compared(
    op: Callable[..., Tensor], right: Callable[..., Tensor], *of: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    mine, theirs = leaves(*of), leaves(*of, double=True)
    return whole(op(*mine), mine), whole(right(*theirs), theirs)


# --- families ---------------------------------------------------------------------------------------


def found(what: str) -> Callable[..., tuple[Run, str]]:
    """Zeros of an operand: nothing may change."""

    def make(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
        first, second = (w, x) if what == "columns" else (x, w)  # the zeros are in b's columns
        b = second.t() if what == "rows" else second.t().contiguous()
        op: Any = lambda a, b: matmul(a, b, sparse=what)
        return lambda: compared(op, torch.matmul, first, b), ""

    return make


def by_index(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
    """Rows, k's, or k's of groups of rows: what is not named is no part of the computation."""
    size, tile = int(rng.choice([1, 3, 16, 32])), int(rng.choice([1, 8]))
    shape: Any = [(size, None), (None, tile), (size, tile)][int(rng.integers(3))]
    grouped = None not in shape

    def run() -> tuple[list[Tensor], list[Tensor]]:
        index = Index.from_values(x, shape, grouped=grouped)
        used = spread(x != 0, shape[0] or x.shape[0], shape[1] or x.shape[1])
        both = used if shape[0] is not None else used[:1]
        kept = both if shape[0] is None and len(x) else torch.ones_like(w[:1], dtype=torch.bool)
        right: Any = lambda a, b: torch.nn.functional.linear(a * used, b * kept)
        return compared(lambda a, b: linear(a, b, sparse=index), right, x, w)

    return run, f"{shape}"


def by_mask(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
    mask = torch.from_numpy(rng.random(len(x)) < rng.choice([0.0, 0.3, 1.0]))
    poison = torch.where(mask[:, None], x, float("nan"))
    clean = torch.where(mask[:, None], x, 0.0)

    def run() -> tuple[list[Tensor], list[Tensor]]:
        mine, theirs = leaves(poison, w), leaves(clean, w, double=True)
        y = linear(*mine, sparse=mask)
        return whole(y, mine), whole(masked_rows(*theirs, mask), theirs)

    return run, f"{int(mask.sum())} rows"


def masked_rows(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    return torch.nn.functional.linear(x * mask[:, None], w)


def product(x: Param, w: Param, y: Param) -> None:
    i, n, k = axes("i n k")
    y[i, n] = fn.sum(k, x[i, k] * w[n, k])


def generated(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
    """The program itself, which operators on a CPU leave to torch."""
    axis, tile = str(rng.choice(["i", "k"])), int(rng.choice([1, 8]))
    size = int(rng.choice([0, 3, 16])) if axis == "k" else 0

    def run() -> tuple[list[Tensor], list[Tensor]]:
        t = compact(trace(product), axis, "x", tile, ("i", size) if size else None)
        register(t)
        shape: Any = (size, tile) if size else (None, tile) if axis == "k" else (tile, None)
        index = Index.from_values(x, shape, grouped=size > 0)
        held = [x, w, index.positions, index.counts]
        args = tuple(dense_arg(n, v) for n, v in zip(t.inputs, held, strict=True))
        y = call(program_text(t.name, args), held, [])[0]
        return [y], [x.double() @ w.double().T]

    return run, f"{axis} by {tile} for {size}"


def by_weight(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
    block = [(1, 1), (16, 16), (16, 32), (3, 5)][int(rng.integers(4))]
    grid = [-(-n // b) for n, b in zip(w.shape, block, strict=True)]
    mask = torch.from_numpy(rng.random(grid) < rng.choice([0.0, 0.2, 1.0]))
    used = mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    used = used[: w.shape[0], : w.shape[1]]
    b = tensor(rng, np.ones(len(w), bool), w.dtype)
    told = tuple(-(-n // m) for n, m in zip(w.shape, grid, strict=True))  # as the shape says it
    mask = mask if told == block else used
    right: Any = lambda x, w, b: torch.nn.functional.linear(x, w * used, b)
    return lambda: compared(
        lambda x, w, b: masked_linear(x, w, mask, b), right, x, w, b
    ), f"{block}"


def two_layers(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
    """A layer and the index that it makes, then a layer over that index: nothing may change."""
    tile = tuple(int(rng.choice([1, 2, 8, 32])) for _ in range(2))
    layout = [None, "rows", "k"][int(rng.integers(3))]
    w = w / 8  # two products on end: gradients of 16 bits stay finite
    b = tensor(rng, np.ones(len(w), bool), w.dtype) - float(rng.choice([0.0, 1.0, 9.0]))

    def op(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        h, index = linear_relu(x, w, b, tile=tile, layout=layout)  # type: ignore[arg-type]
        return linear(h, w.t(), sparse=index)

    right: Any = lambda x, w, b: torch.nn.functional.linear(x, w, b).relu() @ w
    return lambda: compared(op, right, x, w, b), f"{tile} {layout}"


def by_experts(rng: np.random.Generator, x: Tensor, w: Tensor) -> tuple[Run, str]:
    experts, slots = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    ids = torch.from_numpy(rng.integers(-1, experts, (len(x), slots)))
    weights = tensor(rng, np.ones((experts, x.shape[1], 21), bool), x.dtype)
    gates = tensor(rng, np.ones((len(x), slots), bool), x.dtype)

    def op(x: Tensor, w: Tensor, gates: Tensor) -> Tensor:
        return grouped_matmul(x, w, Index.from_choices(ids, experts), weights=gates)

    def right(x: Tensor, w: Tensor, gates: Tensor) -> Tensor:
        every = torch.cat([w, torch.zeros_like(w[:1])])[ids]
        return torch.einsum("tk,tskn,ts->tn", x, every, gates)

    return lambda: compared(op, right, x, weights, gates), f"{experts} experts, {slots} slots"


def spread(seen: Tensor, rows: int, columns: int) -> Tensor:
    """Where a micro-tile holds something, element by element."""
    made = torch.zeros_like(seen)
    for i in range(0, seen.shape[0], max(rows, 1)):
        for k in range(0, seen.shape[1], max(columns, 1)):
            part = slice(i, i + rows), slice(k, k + columns)
            made[part] = seen[part].any()
    return made


MAKERS: dict[str, Callable[..., tuple[Run, str]]] = {
    **{what: found(what) for what in ("rows", "k", "columns")},
    "index": by_index,
    "mask": by_mask,
    "code": generated,
    "masked": by_weight,
    "grouped": by_experts,
    "layers": two_layers,
}


def judge(d: Draw) -> str | None:
    with backend(d.where):
        return differs(*d.both(), d.dtype)


def run(count: int, seed: int) -> Iterator[str]:
    return each("product", draw, judge, count, seed)
