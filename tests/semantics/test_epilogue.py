"""A list of what a product makes, in the product's epilogue: every stage and back end means the same, in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ops.places import INTERPRETER, Place
from semantics.stages import STAGES, run_step
from torch import Tensor

import tilewright as tw
from tilewright import driver
from tilewright.ir.interp import run_flat, run_tile
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.language.trace import trace
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend
from tilewright.ops.entry import Entry
from tilewright.ops.library import run
from tilewright.ops.ready import served
from tilewright.ops.registry import Template, register
from tilewright.schedule.attach import listed
from tilewright.schedule.default_triton import schedule_triton
from tilewright.support.errors import TilewrightError

SMALL = {"bm": 16, "bn": 32, "bk": 16, "group": 2}


def layer(rows: int, columns: int, by_k: bool = False, **how: Any) -> Callable[..., None]:
    """h = relu(x @ w.T + b), and the micro-tiles of h, for each row of them, in which a value is not 0."""

    def layer(x: Any, w: Any, b: Any, h: Any, found: Any, count: Any) -> None:
        i, n, k, I, N = tw.axes("i n k I N")
        p, q = tw.part(I, rows, "p"), tw.part(N, columns, "q")
        value = tw.relu(tw.sum(k, x[i, k] * w[n, k]) + b[n])
        if by_k:
            h[n, i] = value
        else:
            h[i, n] = value
        here = h[q, p] if by_k else h[p, q]
        options = {"over": N, "group": I, "ordered": False, **how}
        tw.append(found, count, N, where=tw.any((p, q), tw.not_equal(here, 0)), **options)

    return layer


TILES = {"32x1": (32, 1), "8x4": (8, 4), "1x16": (1, 16), "2x2": (2, 2), "64x64": (64, 64)}
SHAPES = {
    "odd": (37, 45, 11),
    "few": (34, 9, 3),
    "one": (1, 1, 1),
    "row": (1, 70, 3),
    "tall": (70, 3, 5),
    "no-rows": (0, 5, 3),
    "no-columns": (5, 0, 3),
    "no-k": (5, 7, 0),
    "whole": (64, 64, 32),
}


def inputs(shape: str) -> list[Tensor]:
    """About one value in ten passes the ReLU; row 0 is full, the last one empty."""
    m, n, k = SHAPES[shape]
    made = torch.Generator().manual_seed(m + n)
    x, w = (torch.randn(s, k, generator=made) for s in (m, n))
    x[:1] = 0.0
    x[-1:] = 0.0
    b = torch.randn(n, generator=made) - 1.3 * k**0.5
    return [x, w, b]


def registered(rows: int, columns: int, by_k: bool, **how: Any) -> str:
    name = f"layer_{rows}x{columns}_{by_k}_{len(how)}"
    return register(replace(trace(layer(rows, columns, by_k, **how)), name=name)).traced.name


def told(name: str, given: list[Tensor]) -> str:
    return program_text(name, tuple(dense_arg(n, t) for n, t in zip("xwb", given, strict=True)))


def judge(outs: dict[str, Any], given: list[Tensor], rows: int, columns: int, by_k: bool) -> None:
    x, w, b = (t.double() for t in given)
    h = np.asarray(outs["h"])
    want = (x @ w.T + b).relu().numpy()
    np.testing.assert_allclose(h.T if by_k else h, want, rtol=1e-4, atol=1e-4)
    seen = (h.T if by_k else h) != 0
    for g, (row, n) in enumerate(zip(outs["found"], outs["count"], strict=True)):
        block = seen[g * rows :][:rows]
        kept = [c for c in range(row.shape[0]) if block[:, c * columns :][:, :columns].any()]
        assert sorted(np.asarray(row)[: int(n)].tolist()) == kept


@pytest.mark.parametrize(("tile", "by_k"), [("32x1", True), ("8x4", False), ("1x16", True)])
@pytest.mark.parametrize("stage", STAGES)
def test_stage(stage: str, tile: str, by_k: bool) -> None:
    back, given = "c" if stage == "for-c" else "triton", inputs("few")
    with backend(back):
        steps = Entry(told(registered(*TILES[tile], by_k), given), back).steps
        assert len(steps) == (2 if back == "c" else 1)
        pool, outs = list(given), {}
        for s in steps:
            outs |= run_step(stage, s, pool, [], [])
            pool += [torch.from_numpy(outs[t.name]) for t in s.bound.program.outputs]
    judge(outs, given, *TILES[tile], by_k)


@pytest.mark.parametrize("stage", ["for-triton", "tile"])
def test_values_are_looked_at_after_rounding(stage: str) -> None:
    """Products of 2^-140 are numbers in 32 bits and 0 in bf16: they are not listed."""
    x, w, b = (torch.zeros_like(t).bfloat16() for t in inputs("few"))
    x[:32], x[32:], w[:, 0] = 2.0**-70, 1.0, 2.0**-70
    given = [x, w, b]
    with backend("triton"):
        (step,) = Entry(told(registered(8, 4, True), given), "triton").steps
        outs = run_step(stage, step, given, [], [])
    assert outs["count"].tolist() == [0, 0, 0, 0, 3]


CASES = [("odd", t, by_k) for t in TILES for by_k in (False, True)]
CASES += [(s, "8x4", True) for s in SHAPES if s != "odd"] + [("whole", "32x1", False)]


@pytest.mark.parametrize(("shape", "tile", "by_k"), CASES)
def test_one_kernel(shape: str, tile: str, by_k: bool, tiled: Place) -> None:
    on_back_end(shape, tile, by_k, tiled, 1)


@pytest.mark.parametrize(("shape", "tile"), [("odd", "8x4"), ("no-rows", "32x1")])
def test_two_kernels(shape: str, tile: str) -> None:
    """On a CPU each statement has its own."""
    on_back_end(shape, tile, True, Place("c"), 2)


def on_back_end(shape: str, tile: str, by_k: bool, where: Place, launches: int) -> None:
    given = [t.to(where.device) for t in inputs(shape)]
    with served() as kernels:
        outs = run(told(registered(*TILES[tile], by_k), given), given, [])
    assert len(kernels) == launches
    named = {n: o.cpu().numpy() for n, o in zip(("h", "found", "count"), outs, strict=True)}
    judge(named, [t.cpu() for t in given], *TILES[tile], by_k)


@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize(("tile", "by_k"), [("8x4", True), ("1x16", False)])
def test_tiles_are_independent(tile: str, by_k: bool, order: str) -> None:
    """Many programs share the lists, in any order."""
    given = inputs("odd")
    p = Entry(told(registered(*TILES[tile], by_k), given), "triton").steps[0].bound.program
    made = schedule_triton(lower_to_flat(lower_to_position(p)), SMALL).program
    arrays = {n: t.numpy() for n, t in zip("xwb", given, strict=True)}
    sizes = dict(zip(("n_i", "n_n", "n_k"), SHAPES["odd"], strict=True))
    for q, go in ((made, run_flat), (lower_to_tile(made), run_tile)):
        outs = go(q, arrays, sizes, zeroed=["count"], order=order, seed=1)  # type: ignore[operator]
        judge(outs, given, *TILES[tile], by_k)


@pytest.mark.parametrize("tile", ["32x1", "8x4"])
def test_texts_are_read_back(tile: str) -> None:
    name = registered(*TILES[tile], True)
    p = Entry(told(name, inputs("odd")), "triton").steps[0].bound.program
    flat = lower_to_flat(lower_to_position(p))
    made = schedule_triton(flat, {**SMALL, "bm": 32}).program
    for q in (p, made, lower_to_tile(made)):
        assert text(parse(text(q))) == text(q)


@INTERPRETER
def test_one_c_kernel_of_both_statements() -> None:
    """The pipeline takes both statements at once for a CPU too: two nests, one after the other."""
    given = inputs("odd")
    p = Entry(told(registered(8, 4, False), given), "triton").steps[0].bound.program
    assert listed(lower_to_flat(lower_to_position(p))) == "h"
    kernel = driver.compile_c(p, {})
    m, n, _ = SHAPES["odd"]
    outs = [torch.empty(m, n), torch.empty(5, 12, dtype=torch.int32), torch.zeros(5).int()]
    held, sizes = [*given, *outs], dict(zip(("n_i", "n_n", "n_k"), SHAPES["odd"], strict=True))
    kernel.call(held, [t.data_ptr() for t in held], [sizes[s] for s in kernel.sizes], [])
    named = {k: o.numpy() for k, o in zip(("h", "found", "count"), outs, strict=True)}
    judge(named, given, 8, 4, False)


def elementwise(x: Any, w: Any, b: Any, h: Any, found: Any, count: Any) -> None:
    i, n, I, N = tw.axes("i n I N")
    p, q = tw.part(I, 8, "p"), tw.part(N, 4, "q")
    h[i, n] = tw.relu(x[i, n] * w[i, n] + b[n])
    seen = tw.any((p, q), tw.not_equal(h[p, q], 0))
    tw.append(found, count, N, over=N, group=I, where=seen, ordered=False)


def of_another(x: Any, w: Any, b: Any, h: Any, found: Any, count: Any) -> None:
    i, n, k, I, N = tw.axes("i n k I N")
    p, q = tw.part(I, 8, "p"), tw.part(N, 4, "q")
    h[i, n] = tw.sum(k, x[i, k] * w[n, k]) + b[n]
    seen = tw.any((p, q), tw.not_equal(x[p, q], 0))
    tw.append(found, count, N, over=N, group=I, where=seen, ordered=False)


def summed(x: Any, w: Any, b: Any, h: Any, found: Any, count: Any) -> None:
    """Two reductions over each micro-tile."""
    i, n, k, I, N = tw.axes("i n k I N")
    p, q = tw.part(I, 8, "p"), tw.part(N, 4, "q")
    h[i, n] = tw.sum(k, x[i, k] * w[n, k]) + b[n]
    seen = tw.max((p, q), h[p, q]) + tw.min((p, q), h[p, q]) > 0
    tw.append(found, count, N, over=N, group=I, where=seen, ordered=False)


APART = {
    "in order": layer(8, 4, ordered=True),
    "no power of two": layer(12, 4),
    "larger than a tile": layer(128, 1),
    "too thin": layer(1, 2),
    "one list": layer(8, 4, group=()),
    "no product": elementwise,
    "a list of another tensor": of_another,
    "two reductions": summed,
}


@pytest.mark.parametrize("name", APART)
def test_what_stays_apart(name: str) -> None:
    assert len(Template(trace(APART[name])).joined) == 2
    assert len(Template(trace(layer(8, 4))).joined) == 1


def test_a_sparse_operand_has_launches_of_its_own() -> None:
    with backend("triton"):
        made = tw.program(layer(8, 4))
        x = tw.SparseTensor.from_dense(inputs("odd")[0])
        h, _, count = made(x, *inputs("odd")[1:])
    judge({"h": h, "found": _, "count": count}, inputs("odd"), 8, 4, False)


def test_a_tile_that_does_not_hold_micro_tiles() -> None:
    p = Entry(told(registered(64, 64, False), inputs("odd")), "triton").steps[0].bound.program
    with pytest.raises(TilewrightError, match="tiles of 16 do not hold micro-tiles of 64"):
        schedule_triton(lower_to_flat(lower_to_position(p)), SMALL)
