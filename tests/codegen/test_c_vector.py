"""Sums over lanes as vectors of C: which states qualify, and that those which do not are right as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import randn

import tilewright as tw

I, J, F = tw.axes("i j f")


def product(a: Any, x: Any, y: Any) -> None:
    y[I, F] = tw.sum(J, a[I, J] * x[J, F])


def scaled(a: Any, x: Any, s: Any, y: Any) -> None:
    y[I, F] = tw.sum(J, a[I, J] * x[J, F] + s[J]) / (s[I] + 2.0)


def by_row(a: Any, x: Any, z: Any, y: Any) -> None:
    y[I, F] = tw.sum(J, a[I, J] * (x[J, F] - z[I, F]))


def activated(a: Any, x: Any, y: Any) -> None:
    y[I, F] = tw.sum(J, a[I, J] * tw.relu(x[J, F]))


def turned(a: Any, x: Any, y: Any) -> None:
    y[I, F] = tw.sum(J, a[I, J] * x[F, J])


def squared(a: Any, x: Any, y: Any) -> None:
    total = tw.sum(J, a[I, J] * x[J, F])
    y[I, F] = tw.relu(total) * 2.0


def greatest(a: Any, x: Any, y: Any) -> None:
    y[I, F] = tw.max(J, a[I, J] * x[J, F])


Case = tuple[Callable[..., None], Callable[..., torch.Tensor], bool]
CASES: dict[str, Case] = {
    "product": (product, lambda a, x, s, z: a @ x, True),
    "numbers": (
        scaled,
        lambda a, x, s, z: (a @ x + (a != 0).to(a) @ s[:, None]) / (s[:, None] + 2.0),
        True,
    ),
    "a row of its own": (by_row, lambda a, x, s, z: a @ x - a.sum(1)[:, None] * z, True),
    "a function": (activated, lambda a, x, s, z: a @ x.relu(), False),
    "columns": (turned, lambda a, x, s, z: a @ x.T, False),
    "a function after it": (squared, lambda a, x, s, z: (a @ x).relu() * 2.0, False),
}


def run(name: str, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, str]:
    fn, want, _ = CASES[name]
    program = tw.program(fn)
    dense = randn(40, 40).relu().to(dtype)
    x, s, z = randn(40, width).to(dtype), randn(40).abs().to(dtype), randn(40, width).to(dtype)
    given = {"x": x if name != "columns" else x.T.contiguous(), "s": s, "z": z}
    A = tw.SparseTensor.from_dense(dense)
    mine = [given[n] for n in fn.__code__.co_varnames[: fn.__code__.co_argcount] if n in given]
    (kernel,) = program.kernels(A, *mine)
    return program(A, *mine), want(dense, given["x"], s, z), kernel.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [16, 32, 33, 48, 128, 256, 640])
@pytest.mark.parametrize("name", CASES)
def test_sums(name: str, width: int, dtype: torch.dtype) -> None:
    got, want, text = run(name, width, dtype)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    whole = width not in (33, 640)  # whole lines, and a width that kernels are made for
    assert ("TW_F32S" in text or "TW_F64S" in text) == (CASES[name][2] and whole)


def test_other_dtypes_and_reductions() -> None:
    """Numbers that are widened, and maxima, are arrays that gcc makes vectors of."""
    A, x = tw.SparseTensor.from_dense(randn(40, 40).relu()), randn(40, 64)
    (kernel,) = tw.program(greatest).kernels(A, x)
    assert "tw_f32s" not in kernel.text
    half = A.with_values(A.values.bfloat16())
    (kernel,) = tw.program(product).kernels(half, x.bfloat16())
    assert "tw_f32s" not in kernel.text


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_x_that_begins_anywhere(offset: int) -> None:
    A, room = tw.SparseTensor.from_dense(randn(40, 40).relu()), randn(40 * 64 + 8)
    x = room[offset : offset + 40 * 64].view(40, 64)
    torch.testing.assert_close(tw.spmm(A, x), A.to_dense() @ x, rtol=1e-4, atol=1e-4)
