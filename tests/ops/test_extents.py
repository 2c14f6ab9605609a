"""Several reductions of their own lengths in one statement: lanes for one of them are not too few for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.places import Place
from torch import Tensor

import tilewright as tw


@tw.program
def beside(x: Any, z: Any, k: Any, v: Any, ks: Any, count: Any, y: Any) -> None:
    i, f, g = tw.axes("i f g")
    y[i] = tw.sum(f, x[i, f]) * tw.logsumexp(g, z[i, g])


@tw.program
def nested(x: Any, z: Any, k: Any, v: Any, ks: Any, count: Any, y: Any) -> None:
    i, f, g = tw.axes("i f g")
    y[i] = tw.softmax_sum(g, tw.sum(f, x[i, f] * k[f, g]), v[g])


@tw.program
def listed_outside(x: Any, z: Any, k: Any, v: Any, ks: Any, count: Any, y: Any) -> None:
    i, f, r = tw.axes("i f r")
    g = tw.listed("g", ks[r], r, below=count[0])
    y[i] = tw.softmax_sum(g, tw.sum(f, x[i, f] * k[f, g]), v[g])


PROGRAMS: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "beside": (beside, lambda x, z, k, v: x.sum(1) * z.logsumexp(1)),
    "nested": (nested, lambda x, z, k, v: (x @ k).softmax(1) @ v),
    "listed outside": (listed_outside, lambda x, z, k, v: (x @ k).softmax(1) @ v),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_reductions_of_other_lengths(name: str, tiled: Place) -> None:
    program, expected = PROGRAMS[name]
    for f, g in ((3, 2), (3, 150), (150, 3)):  # in turn: kernels of one size are asked for another
        shapes = ((2, f), (2, g), (f, g), (g,))
        x, z, k, v = (torch.rand(s, dtype=torch.float64, device=tiled.device) for s in shapes)
        ks = torch.randperm(g, dtype=torch.int32, device=tiled.device)
        count = torch.tensor([g], dtype=torch.int32, device=tiled.device)
        torch.testing.assert_close(program(x, z, k, v, ks, count), expected(x, z, k, v))
