"""Tiles of registers and folds across lanes in C: which folds have them, and that all sizes are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.matrices import randn

import tilewright as tw

I, J, E, F, H = tw.axes("i j e f h")
INF = float("inf")


def scored(q: Any, k: Any, v: Any, y: Any) -> None:
    y[I, F] = tw.softmax_sum(J, tw.sum(E, q[I, E] * k[J, E]), v[J, F])


def gated(q: Any, k: Any, v: Any, y: Any) -> None:
    y[I, F] = tw.sum(J, tw.sigmoid(tw.sum(E, q[I, E] * k[J, E])) * v[J, F])


def weighed(a: Any, x: Any, y: Any) -> None:
    y[I, F] = tw.softmax_sum(J, a[I, J], x[J, F])


def headed(a: Any, s: Any, x: Any, y: Any) -> None:
    y[I, H, F] = tw.softmax_sum(J, a[I, J] * s[J, H], x[J, H, F])


def spread(a: Any, y: Any) -> None:
    y[I] = tw.logsumexp(J, a[I, J])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("e", "f"), [(16, 16), (64, 48), (5, 33), (40, 128)])
@pytest.mark.parametrize("n", [3, 64, 100])
def test_scores(n: int, e: int, f: int, dtype: torch.dtype) -> None:
    q, k, v = randn(n, e).to(dtype), randn(70, e).to(dtype), randn(70, f).to(dtype)
    s, close = q.double() @ k.double().T, 2e-2 if dtype == torch.bfloat16 else 1e-4
    for fn, want in ((scored, s.softmax(1)), (gated, s.sigmoid() / 70)):
        got = tw.program(fn)(q, k, v).double() / (70 if fn is gated else 1)
        torch.testing.assert_close(got, want @ v.double(), rtol=close, atol=close)
    (kernel,) = tw.program(scored).kernels(q, k, v)
    assert "at_once(j_i)" in map(str, kernel.schedule)
    assert "packed" in kernel.text and "tw_across" not in kernel.text


def rows(lengths: list[int], columns: int = 90) -> tw.SparseTensor:
    """Rows of these lengths; the first numbers of some are infinite, or none."""
    dense = torch.zeros(len(lengths), columns)
    for i, n in enumerate(lengths):
        dense[i, torch.randperm(columns)[:n]] = randn(n) + 3.0
    return tw.SparseTensor.from_dense(dense)


def masked(a: tw.SparseTensor) -> torch.Tensor:
    dense = a.to_dense()
    return torch.where(dense == 0, -INF, dense).double()


LENGTHS = [0, 1, 2, 9, 10, 11, 15, 16, 17, 31, 32, 33, 64, 65, 90, 0]


@pytest.mark.parametrize("width", [1, 8, 16, 31, 64])
def test_rows(width: int) -> None:
    a, x = rows(LENGTHS), randn(90, width)
    s = masked(a)
    want = s.softmax(1).nan_to_num(0.0) @ x.double()
    got = tw.program(weighed)(a, x)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    totals = tw.program(spread)(a)
    torch.testing.assert_close(totals.double(), s.logsumexp(1), rtol=1e-4, atol=1e-5)
    (kernel,) = tw.program(weighed).kernels(a, x)
    assert "by_length(p_j, 10)" in map(str, kernel.schedule)
    assert "tw_across_max_f32" in kernel.text


@pytest.mark.parametrize("heads", [1, 3, 8, 20])
def test_heads(heads: int) -> None:
    a, s, x = rows(LENGTHS), randn(90, heads), randn(90, heads, 16)
    score = masked(a)[:, :, None] * s.double()
    score = torch.where(masked(a)[:, :, None] == -INF, -INF, score)
    want = torch.einsum("ijh,jhf->ihf", score.softmax(1).nan_to_num(0.0), x.double())
    torch.testing.assert_close(tw.program(headed)(a, s, x).double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("odd", [INF, -INF, float("nan")])
@pytest.mark.parametrize("place", [0, 14, 15, 16, 31, 32, 40])
def test_odd_numbers(place: int, odd: float) -> None:
    """A score of -inf weighs nothing; one of inf, or no number, makes its row none."""
    a, x = rows([3, 41, 3]), randn(90, 16)
    first = int(a.structure.indptr[1])
    values = a.values.clone()
    values[first + place] = odd
    got = tw.program(weighed)(a.with_values(values), x)
    assert got[[0, 2]].isfinite().all()
    assert got[1].isfinite().all() if odd == -INF else got[1].isnan().all()
    totals = tw.program(spread)(a.with_values(values))
    torch.testing.assert_close(totals[1].isfinite(), torch.tensor(odd == -INF))


def test_nothing_but_minus_infinity() -> None:
    a, x = rows([40, 5]), randn(90, 16)
    least = a.with_values(torch.full_like(a.values, -INF))
    assert (tw.program(weighed)(least, x) == 0).all()
    assert (tw.program(spread)(least) == -INF).all()
