"""Elementwise programs, norms, softmax and sums over a compacted token axis: what is not listed is not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ops.places import Place
from semantics.stages import STAGES, run_step
from torch import Tensor

import tilewright as tw
from tilewright.language.trace import trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend
from tilewright.ops.entry import Entry
from tilewright.ops.library import run
from tilewright.ops.registry import register
from tilewright.pit.compact import compact


def elementwise(x: Any, y: Any) -> None:
    t, f = tw.axes("t f")
    y[t, f] = tw.exp(x[t, f]) + 1.0


def layer_norm(x: Any, y: Any) -> None:
    t, f, g, h = tw.axes("t f g h")
    mean = tw.mean(g, x[t, g])
    spread = tw.mean(h, (x[t, h] - mean) * (x[t, h] - mean))
    y[t, f] = (x[t, f] - mean) * tw.rsqrt(spread + 1e-5)


def softmax(x: Any, y: Any) -> None:
    t, f, g, h = tw.axes("t f g h")
    top = tw.max(g, x[t, g])
    y[t, f] = tw.exp(x[t, f] - top) / tw.sum(h, tw.exp(x[t, h] - top))


def token_sums(x: Any, y: Any) -> None:
    t, f = tw.axes("t f")
    y[t] = tw.sum(f, x[t, f] * x[t, f])


def pooled(x: Any, y: Any) -> None:
    t, f = tw.axes("t f")
    y[f] = tw.sum(t, x[t, f])


def wanted(name: str, x: Tensor, kept: Tensor) -> Tensor:
    """What each program says of the tokens that are kept; the others are 0."""
    row = kept[:, None]
    whole = {
        "elementwise": lambda: (x.exp() + 1) * row,
        "layer_norm": lambda: torch.nn.functional.layer_norm(x, x.shape[1:]) * row,
        "softmax": lambda: x.softmax(1) * row,
        "token_sums": lambda: x.square().sum(1) * kept,
        "pooled": lambda: (x * row).sum(0),
    }
    return whole[name]()


# the operand whose zeros are skipped, where the axis is summed up; None: outputs are not asked for
PROGRAMS = {p.__name__: (p, None) for p in (elementwise, layer_norm, softmax, token_sums)}
PROGRAMS |= {"pooled": (pooled, "x")}


def call(name: str, x: Tensor, kept: Tensor) -> tuple[str, list[Tensor]]:
    program, zeros = PROGRAMS[name]
    t = compact(trace(program), "t", zeros)
    register(t)
    index = tw.Index.from_mask(kept, (1, None))
    held = [torch.where(kept[:, None], x, float("nan")), index.positions, index.counts]
    args = tuple(dense_arg(n, v) for n, v in zip(t.inputs, held, strict=True))
    return program_text(t.name, args), held


@pytest.mark.parametrize("kind", ["some", "none", "all", "one"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, kind: str, where: Place) -> None:
    if where.slow and kind in ("none", "all"):
        pytest.skip("enough of Triton's interpreter")
    x = torch.randn(23, 19, device=where.device)
    kept = torch.full((23,), kind == "all", device=where.device)
    if kind == "some":
        kept[::3] = True
    if kind == "one":
        kept[22] = True
    got = run(*call(name, x, kept), [])[0]
    torch.testing.assert_close(got, wanted(name, x, kept), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_stage(name: str, stage: str) -> None:
    x, kept = torch.randn(11, 7), torch.arange(11) % 2 == 1
    back = "c" if stage == "for-c" else "triton"
    with backend(back):
        text, held = call(name, x, kept)
        got = run_step(stage, Entry(text, back).steps[0], held, [], [])["y"]
    np.testing.assert_allclose(got, wanted(name, x, kept).numpy(), rtol=1e-4, atol=1e-5)


def test_a_softmax_of_zeros_is_not_known() -> None:
    """Rows of zeros have a softmax: skipping them as zeros is refused."""
    with pytest.raises(tw.TilewrightError, match=r"a known output|outputs that are 0"):
        compact(trace(softmax), "t", "x")
