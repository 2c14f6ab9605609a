"""When C may add in any order: sums over lanes of plain products, nothing whose meaning depends on rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.ir.flat import Program
from tilewright.ir.parse import parse
from tilewright.schedule.default_c import any_order


@tw.program
def products(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, x[i, f] * z[j, f])


@tw.program
def differences(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, (x[i, f] + z[j, f]) - z[j, f])


@tw.program
def powers(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, tw.exp(x[i, f]) * z[j, f])


@tw.program
def largest(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.max(f, x[i, f] * z[j, f])


@pytest.mark.parametrize(
    "program,free", [(products, True), (differences, False), (powers, False), (largest, False)]
)
def test_any_order(program: Any, free: bool) -> None:
    a = tw.SparseTensor.from_dense(torch.eye(6))
    (kernel,) = program.kernels(a, torch.rand(6, 64), torch.rand(6, 64))
    made = parse(kernel.stages["scheduled"])
    assert isinstance(made, Program) and any_order(made) == free


def test_small_numbers_beside_large_ones_stay() -> None:
    """(x + z) - z loses the digits of x that z pushes out: an optimiser that adds in another order would keep them."""
    a = tw.SparseTensor.from_dense(torch.eye(4))
    x, z = torch.full((4, 64), 0.25), torch.full((4, 64), 1e9)
    assert differences(a, x, z).values.tolist() == [0.0] * 4
