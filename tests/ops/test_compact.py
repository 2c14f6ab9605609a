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


# axis, micro-tile, and the tile that a detector looks for
CASES = {"rows": ("i", 1, (1, None)), "row-tiles": ("i", 16, (16, None))}
CASES |= {"k": ("k", 1, (None, 1)), "k-tiles": ("k", 8, (None, 8))}


def made(name: str) -> Traced:
    axis, tile, _ = CASES[name]
    t = compact(trace(product), axis, "x", tile)
    register(t)
    return t


def data(device: Any = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(37, 29)
    x[torch.rand(37) < 0.6] = 0.0
    x[:, torch.rand(29) < 0.5] = 0.0
    return x.to(device), torch.randn(21, 29).to(device)


def given(name: str, x: torch.Tensor, w: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
    index = tw.Index.from_values(x, CASES[name][2])
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
    want = x @ w.T
    axis = 0 if CASES[name][0] == "i" else 1
    kept = torch.zeros(x.shape[axis], dtype=torch.bool)
    tile, n = CASES[name][1], int(held[3])
    for p in held[2][:n].tolist():
        kept[p * tile : (p + 1) * tile] = True
    held[0] = x.clone()
    held[0][(~kept,) if axis == 0 else (slice(None), ~kept)] = float("nan")
    if axis:
        held[1] = w.clone()
        held[1][:, ~kept] = float("nan")
    held[2] = held[2].clone()
    held[2][n:] = 2**30
    torch.testing.assert_close(run(program, held, [])[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 37])
@pytest.mark.parametrize("name", ["rows", "k"])
def test_nothing_and_everything(name: str, kept: int, where: Place) -> None:
    x, w = data(where.device)
    x = torch.ones_like(x) if kept else torch.zeros_like(x)
    program, held = given(name, x, w)
    torch.testing.assert_close(run(program, held, [])[0], x @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", CASES)
def test_stage(name: str, stage: str) -> None:
    x, w = data()
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


REFUSED = {
    "bias": (lambda: compact(trace(biased), "i", "x"), "where x is 0, b[n] is left"),
    "not zero": (lambda: compact(trace(gated), "i", "x"), "outputs would be 0.5"),
    "order": (lambda: compact(trace(convolution), "i", "x"), "x[i + r] computes with it"),
    "operand": (lambda: compact(trace(product), "n", "x"), "x is not skipped along it"),
    "axis": (lambda: compact(trace(product), "z", "x"), "axes i, n, k"),
    "tile": (lambda: compact(trace(product), "i", "x", 0), "tile=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    action, told = REFUSED[name]
    with pytest.raises(TilewrightError) as why:
        action()
    assert told in str(why.value)


def test_no_gradient() -> None:
    x, w = data()
    program, held = given("rows", x.requires_grad_(), w)
    with pytest.raises(TilewrightError, match="compacted axis"):
        run(program, held, [])[0].sum().backward()


def test_a_tile_called_like_a_size(where: Place) -> None:
    x, w = torch.randn(70, 5, device=where.device), torch.randn(130, 5, device=where.device)
    torch.testing.assert_close(tw.program(transposed)(x, w), x @ w.T, rtol=1e-4, atol=1e-5)
