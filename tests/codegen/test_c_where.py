"""Choices between what is read, in C: gcc 12 would mask the loads of one vector by the condition of another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.matrices import randn
from ops.places import INTERPRETER

import tilewright as tw


@tw.program
def passed(h: Any, d: Any, z: Any) -> None:
    i, n = tw.axes("i n")
    z[i, n] = tw.where(h[i, n] <= 0, 0.0, d[i, n])


@tw.program
def nested(h: Any, d: Any, z: Any) -> None:
    i, n = tw.axes("i n")
    z[i, n] = tw.where(h[i, n] <= 0, tw.where(d[i, n] > 0, h[i, n], 1.0), d[i, n])


@INTERPRETER
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("width", [6, 12])
def test_where(width: int, dtype: torch.dtype) -> None:
    h, d = (randn(9, width, seed=s, dtype=dtype) for s in (1, 2))
    assert torch.equal(passed(h, d), torch.where(h <= 0, 0.0, d))
    assert torch.equal(nested(h, d), torch.where(h <= 0, torch.where(d > 0, h, 1.0), d))
