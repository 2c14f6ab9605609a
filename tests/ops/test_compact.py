"""Programs over compacted axes: what a list names is computed, the rest is 0, whatever operands hold there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ops.places import Place
from semantics.stages import STAGES, run_step

import tilewright as tw
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.language.trace import Traced, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend
from tilewright.ops.entry import Entry
from tilewright.ops.library import run
from tilewright.ops.registry import register
from tilewright.pit.compact import compact
from tilewright.support.errors import TilewrightError


def product(x: Any, w: Any, y: Any) -> None:
    i, n, k = tw.axes("i n k")
    y[i, n] = tw.sum(k, x[i, k] * w[n, k])


def biased(x: Any, w: Any, b: Any, y: Any) -> None:
    i, n, k = tw.axes("i n k")
    y[i, n] = tw.sum(k, x[i, k] * w[n, k]) + b[n]


def gated(x: Any, y: Any) -> None:
    i, k = tw.axes("i k")
    y[i] = tw.sigmoid(tw.sum(k, x[i, k]))


def convolution(x: Any, w: Any, o: Any, y: Any) -> None:
    i, r = tw.axes("i r")
    y[i] = tw.sum(r, x[i + r] * w[r]) * o[i]


def transposed(x: Any, w: Any, y: Any) -> None:
    """The tiles of n are called n_i, and so is the size of i."""
    n, i, k = tw.axes("n i k")
    y[n, i] = tw.sum(k, x[n, k] * w[i, k])


def chosen(x: Any, w: Any, m: Any, y: Any) -> None:
    """Outputs that a mask keeps."""
    i, n, k = tw.axes("i n k")
    y[i, n] = m[i, n] * tw.sum(k, x[i, k] * w[n, k])


# axis, values for each entry of a list, group: what a detector looks for follows
CASES: dict[str, tuple[str, int, tuple[str, int] | None]] = {
    "rows": ("i", 1, None),
    "row-tiles": ("i", 16, None),
    "k": ("k", 1, None),
    "k-tiles": ("k", 8, None),
    "k-by-16": ("k", 1, ("i", 16)),
    "k-tiles-by-16": ("k", 8, ("i", 16)),
    "k-by-3": ("k", 1, ("i", 3)),
    "k-by-1": ("k", 1, ("i", 1)),
}


def made(name: str) -> Traced:
    t = compact(trace(product), CASES[name][0], "x", *CASES[name][1:])
    register(t)
    return t


def listed(name: str, x: torch.Tensor) -> tw.Index:
    axis, tile, group = CASES[name]
    if group is not None:
        return tw.Index.from_values(x, (group[1], tile), grouped=True)
    return tw.Index.from_values(x, (tile, None) if axis == "i" else (None, tile))


def kept(name: str, x: torch.Tensor, index: tw.Index) -> torch.Tensor:
    """What the lists name, element by element."""
    axis, tile, group = CASES[name]
    lists = index.compact() if group is not None else (index.compact(),)
    made = torch.zeros_like(x, dtype=torch.bool)
    for g, places in enumerate(lists):
        rows = slice(None) if group is None else slice(g * group[1], (g + 1) * group[1])
        for p in places.tolist():
            part = slice(p * tile, (p + 1) * tile)
            made[(part, slice(None)) if axis == "i" else (rows, part)] = True
    return made


def data(
    device: Any = "cpu", i: int = 37, k: int = 29, n: int = 21
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(i, k)
    x[torch.rand(i) < 0.6] = 0.0
    x[:, torch.rand(k) < 0.5] = 0.0
    return x.to(device), torch.randn(n, k).to(device)


def given(name: str, x: torch.Tensor, w: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
    index = listed(name, x)
    held = [x, w, index.positions, index.counts]
    t = made(name)
    args = tuple(dense_arg(n, v) for n, v in zip(t.inputs, held, strict=True))
    return program_text(t.name, args), held


@pytest.mark.parametrize("name", CASES)
def test_product(name: str, where: Place) -> None:
    x, w = data(where.device)
    program, held = given(name, x, w)
    got = run(program, held, [])[0]
    torch.testing.assert_close(got, x @ w.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_listed_is_not_read(name: str, where: Place) -> None:
    """NaN stands in what no list names, and behind the entries of the list."""
    x, w = data(where.device)
    program, held = given(name, x, w)
    want, index = x @ w.T, listed(name, x)
    used = kept(name, x, index)
    held[0] = torch.where(used, x, float("nan"))
    if CASES[name][0] == "k":
        held[1] = torch.where(used.any(0), w, float("nan"))
    held[2] = held[2].clone()
    room = held[2].shape[-1]
    beyond = torch.arange(room, device=where.device) >= held[3][:, None]
    held[2][beyond.reshape(held[2].shape)] = 2**30
    torch.testing.assert_close(run(program, held, [])[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("name", ["rows", "k", "k-by-16"])
def test_nothing_and_everything(name: str, value: float, where: Place) -> None:
    x, w = data(where.device)
    x = torch.full_like(x, value)
    program, held = given(name, x, w)
    torch.testing.assert_close(run(program, held, [])[0], x @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", CASES)
def test_stage(name: str, stage: str) -> None:
    x, w = data("cpu", 19, 13, 9)  # interpreters take their time
    back = "c" if stage == "for-c" else "triton"
    with backend(back):
        program, held = given(name, x, w)
        got = run_step(stage, Entry(program, back).steps[0], held, [], [])["y"]
    np.testing.assert_allclose(got, (x @ w.T).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_texts_are_read_back(name: str) -> None:
    program, _ = given(name, *data())
    p = Entry(program, "c").steps[0].bound.program
    assert "listed(" in text(p) and text(parse(text(p))) == text(p)


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "masked"])
@pytest.mark.parametrize("size", [16, 5])
def test_sparse_outputs(size: int, asked: bool, where: Place) -> None:
    """A list of columns for each group of rows: those of a mask, or simply those that are asked for."""
    x, w = data(where.device)
    m = (torch.rand(37, 21, device=where.device) < 0.2).float()
    index = tw.Index.from_values(m, (size, 1), grouped=True)
    t = compact(trace(product if asked else chosen), "n", None if asked else "m", 1, ("i", size))
    register(t)
    held = [x, w, *([] if asked else [m]), index.positions, index.counts]
    program = program_text(
        t.name, tuple(dense_arg(n, v) for n, v in zip(t.inputs, held, strict=True))
    )
    some = m.new_zeros(m.shape)
    for g, columns in enumerate(index.compact()):
        some[g * size : (g + 1) * size, columns.long()] = 1.0
    want = (x @ w.T) * (some if asked else m)
    torch.testing.assert_close(run(program, held, [])[0], want, rtol=1e-4, atol=1e-5)


REFUSED = {
    "bias": (lambda: compact(trace(biased), "i", "x"), "where x is 0, b[n] is left"),
    "not zero": (lambda: compact(trace(gated), "i", "x"), "outputs would be 0.5"),
    "order": (lambda: compact(trace(convolution), "i", "x"), "x[i + r] computes with it"),
    "operand": (lambda: compact(trace(product), "n", "x"), "x is not skipped along it"),
    "axis": (lambda: compact(trace(product), "z", "x"), "axes i, n, k"),
    "tile": (lambda: compact(trace(product), "i", "x", 0), "tile=0"),
    "reduced": (lambda: compact(trace(product), "k", None), "what is left out would be missing"),
    "same for all": (
        lambda: compact(trace(product), "k", "w", 1, ("i", 8)),
        "w is the same for all i",
    ),
    "group": (lambda: compact(trace(product), "i", "x", 1, ("k", 8)), "group=('k', 8)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    action, told = REFUSED[name]
    with pytest.raises(TilewrightError) as why:
        action()
    assert told in str(why.value)


@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str, where: Place) -> None:
    """That of what is named; w has the one of the whole product, since nothing but zeros is left out."""
    x, w = (t.requires_grad_() for t in data(where.device))
    program, held = given(name, x, w)
    y = run(program, held, [])[0]
    back = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, (x, w), back)
    want = torch.autograd.grad(x @ w.T, (x, w), back)
    named = kept(name, x.detach(), listed(name, x.detach()))
    torch.testing.assert_close(dx, want[0] * named, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dw, want[1], rtol=1e-4, atol=1e-4)


def test_a_tile_called_like_a_size(where: Place) -> None:
    x, w = torch.randn(70, 5, device=where.device), torch.randn(130, 5, device=where.device)
    torch.testing.assert_close(tw.program(transposed)(x, w), x @ w.T, rtol=1e-4, atol=1e-5)
