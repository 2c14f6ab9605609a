"""The programs under test: arguments of the registered operator, and a dense NumPy reference in f64.

    case = CASES["spmm-max"](PATTERNS["giant"], torch.float32, width=33, device="cpu")
    case.call        # (program text, tensors, ints, floats) for torch.ops.tilewright.run
    case.want        # NumPy, from the very numbers the tensors hold

Rows of dense operands that no entry uses hold NaN and inf: they must not show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from semantics.structures import Pattern
from torch import Tensor

import tilewright as tw
from tilewright.language.trace import Traced
from tilewright.ops import attention, linear, sddmm, spmm  # noqa: F401
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.attention import _call as attention_call
from tilewright.ops.call import with_lists
from tilewright.ops.linear import _call as linear_call
from tilewright.ops.sddmm import _call as sddmm_call
from tilewright.ops.sparse import bundle, rows_first
from tilewright.ops.spmm import _call as spmm_call
from tilewright.schedule.options import Setting

Call = tuple[str, list[Tensor], list[int], list[float]]


@dataclass(frozen=True)
class Case:
    """call: made late, because it asks which back end is in force."""

    make: Callable[[], tuple[Any, ...]]
    want: np.ndarray

    @property
    def call(self) -> Call:
        program, tensors, ints, *floats = self.make()
        return program, tensors, ints, floats[0] if floats else []

    def run(self) -> Tensor:
        made: Tensor = torch.ops.tilewright.run.default(*self.call)[0]
        return made


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@tw.program
def graph_attention(a: Any, s: Any, t: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * tw.leaky_relu(s[i] + t[j], 0.25), x[j, f])


# --- numbers ----------------------------------------------------------------------------------------


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
    made = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(made).to(dtype).to(device)


def exact(t: Tensor) -> np.ndarray:
    """The numbers a tensor really holds, in f64."""
    return t.detach().cpu().double().numpy()


def spoiled(t: Tensor, used: np.ndarray) -> Tensor:
    """Rows that nobody uses hold NaN, the first of them inf."""
    unused = torch.from_numpy(np.flatnonzero(~used)).to(t.device)
    t[unused] = float("nan")
    t[unused[:1]] = float("inf")
    return t


# --- products ---------------------------------------------------------------------------------------


def by_row(p: Pattern, terms: Callable[[np.ndarray, int], np.ndarray], how: str, width: int) -> Any:
    """Each row reduced over its entries; terms(positions, row) -> [entries, width]."""
    rows, _ = p.entries()
    empty = {"sum": 0.0, "mean": 0.0, "max": -np.inf, "min": np.inf}[how]
    made = np.full((p.shape[0], width), empty)
    for i in range(p.shape[0]):
        at = np.flatnonzero(rows == i)
        if len(at):
            made[i] = getattr(np, how)(terms(at, i), axis=0)
    return made


def product(how: str) -> Callable[..., Case]:
    def build(p: Pattern, dtype: torch.dtype, width: int, device: Any) -> Case:
        a = p.tensor(device)
        a = a.with_values(numbers(1, (a.nnz,), dtype, device))
        x = spoiled(numbers(2, (p.columns, width), dtype, device), p.used(1))
        v, dense, cols = exact(a.values), exact(x), p.entries()[1]
        want = by_row(p, lambda at, i: v[at, None] * dense[cols[at]], how, width)
        return Case(lambda: spmm_call(a, x, how, None), want)

    return build


def sampled(op: str) -> Callable[..., Case]:
    def build(p: Pattern, dtype: torch.dtype, width: int, device: Any) -> Case:
        a = p.tensor(device)
        a = a.with_values(numbers(1, (a.nnz,), dtype, device))
        x = spoiled(numbers(2, (p.shape[0], width), dtype, device), p.used(0))
        z = spoiled(numbers(3, (p.columns, width), dtype, device), p.used(1))
        (rows, cols), v = p.entries(), exact(a.values)
        left, right = exact(x)[rows], exact(z)[cols]
        want = v * (left * right).sum(1) if op == "dot" else v[:, None] * (left + right)
        return Case(lambda: sddmm_call(a, x, z, op, None), want)

    return build


def rows_product(p: Pattern, dtype: torch.dtype, width: int, device: Any) -> Case:
    """The rows of the pattern that hold entries are the rows to compute."""
    used = p.used(0)
    x = spoiled(numbers(1, (p.shape[0], width), dtype, device), used)
    w = numbers(2, (p.columns, width), dtype, device)
    rows = torch.from_numpy(np.flatnonzero(used)[::-1].copy()).to(p.index).to(device)
    want = np.zeros((p.shape[0], p.columns))
    want[used] = exact(x)[used] @ exact(w).T
    return Case(lambda: linear_call(x, w, rows, None), want)


def block_attention(p: Pattern, dtype: torch.dtype, width: int, device: Any) -> Case:
    """Entries of the pattern are blocks of 4 x 4; the last blocks stick out; two query heads share one key head."""
    bits = torch.zeros(p.shape, dtype=torch.bool)
    bits[p.entries()] = True
    size = (p.shape[0] * 4 - 1, p.shape[1] * 4 - 2)
    mask = tw.block_mask(bits.to(device), 4, size)
    wide = bits.numpy().repeat(4, 0).repeat(4, 1)[: size[0], : size[1]]
    q = numbers(1, (2, size[0], 5), dtype, device)
    k, v = (
        numbers(2, (1, size[1], 5), dtype, device),
        numbers(3, (1, size[1], width), dtype, device),
    )
    spoiled(q[0], wide.any(1)), spoiled(k[0], wide.any(0)), spoiled(v[0], wide.any(0))
    want = np.stack([masked_softmax(exact(q[h]), exact(k[0]), exact(v[0]), wide) for h in (0, 1)])
    return Case(lambda: attention_call(q, k, v, mask, 0.5, None), want[None])


def masked_softmax(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    made = np.zeros((len(q), v.shape[1]))
    for i in np.flatnonzero(mask.any(1)):
        s = k[mask[i]] @ q[i] * 0.5
        made[i] = softmax(s) @ v[mask[i]]
    return made


def softmax(s: np.ndarray) -> np.ndarray:
    made = np.exp(s - s.max())
    return np.asarray(made / made.sum())


# --- programs of users ------------------------------------------------------------------------------


def user_call(
    traced: Traced,
    a: tw.SparseTensor,
    dense: dict[str, Tensor],
    setting: Setting | None = None,
) -> tuple[Any, ...]:
    """setting: of rows from a work list."""
    arg, tensors, ints = bundle("a", rows_first(a))
    if setting is not None:
        arg, tensors, ints = with_lists(arg, tensors, ints, a, dense, traced.name, setting)
    args = (arg, *(dense_arg(n, t) for n, t in dense.items()))
    return program_text(traced.name, args), [*tensors, *dense.values()], ints


def user_relu_max(p: Pattern, dtype: torch.dtype, width: int, device: Any) -> Case:
    a = p.tensor(device)
    a = a.with_values(numbers(1, (a.nnz,), dtype, device))
    x = spoiled(numbers(2, (p.columns, width), dtype, device), p.used(1))
    v, dense, cols = exact(a.values), exact(x), p.entries()[1]
    want = by_row(p, lambda at, i: v[at, None] * np.maximum(dense[cols[at]], 0), "max", width)
    return Case(lambda: user_call(relu_max.trace(), a, {"x": x}), want)


def user_attention(
    p: Pattern, dtype: torch.dtype, width: int, device: Any, setting: Setting | None = None
) -> Case:
    a = p.tensor(device)
    a = a.with_values(numbers(1, (a.nnz,), dtype, device))
    s = spoiled(numbers(2, (p.shape[0],), dtype, device), p.used(0))
    t = spoiled(numbers(3, (p.columns,), dtype, device), p.used(1))
    x = spoiled(numbers(4, (p.columns, width), dtype, device), p.used(1))
    v, cols, dense = exact(a.values), p.entries()[1], {"s": s, "t": t, "x": x}
    left, right, wide = exact(s), exact(t), exact(x)

    def weighted(at: np.ndarray, i: int) -> np.ndarray:
        score = left[i] + right[cols[at]]
        weights = softmax(v[at] * np.where(score < 0, 0.25 * score, score))
        return weights[:, None] * wide[cols[at]]

    want = by_row(p, weighted, "sum", width)
    return Case(lambda: user_call(graph_attention.trace(), a, dense, setting), want)


CASES: dict[str, Callable[..., Case]] = {
    **{f"spmm-{how}": product(how) for how in ("sum", "mean", "max", "min")},
    **{f"sddmm-{op}": sampled(op) for op in ("dot", "add")},
    "rows-product": rows_product,
    "block-attention": block_attention,
    "user-relu-max": user_relu_max,
    "user-graph-attention": user_attention,
}
