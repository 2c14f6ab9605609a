"""Reductions of rows and segments, ragged batches, sparse softmax."""

from __future__ import annotations

from typing import Any

import torch
from conformance.cases import Case, conform, judge, matrix, numbers, sparse
from torch import Tensor

import tilewright as tw

LENGTHS = [3, 0, 5, 1]


@tw.program
def row_sum(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j])


@tw.program
def row_max(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.max(j, tw.relu(a[i, j]) - 1.0)


@tw.program
def row_mean(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.mean(j, a[i, j])


@tw.program
def column_min(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[j] = tw.min(i, a[i, j])


@tw.program
def column_max(a: Any, b: Any, y: Any) -> None:
    """Reduced over rows, with the column fixed outside."""
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.max(k, a[k, i] - b[j, k])


@tw.program
def total(a: Any, y: Any) -> None:
    """A sum with no index left, by a dense axis of one."""
    i, j, n = tw.axes("i j n")
    y[n] = tw.sum((i, j), a[i, j, n])


@tw.program
def segment_sum(x: Any, y: Any) -> None:
    b, t, f = tw.axes("b t f")
    y[b, f] = tw.sum(t, x[b, t, f])


@tw.program
def segment_max(x: Any, y: Any) -> None:
    b, t, f = tw.axes("b t f")
    y[b, f] = tw.max(t, x[b, t, f])


@tw.program
def ragged_matmul(x: Any, w: Any, e: Any) -> None:
    b, t, k, f = tw.axes("b t k f")
    e[b, t, f] = tw.sum(k, x[b, t, k] * w[b, k, f])


@tw.program
def masked_matmul(m: Any, x: Any, w: Any, e: Any) -> None:
    """The rows that exist, of a padded batch."""
    b, t, k, f = tw.axes("b t k f")
    e[b, t, f] = m[b, t] * tw.sum(k, x[b, t, k] * w[b, k, f])


@tw.program
def softmax(a: Any, lse: Any, e: Any) -> None:
    """Two statements: the second stands on the structure of a."""
    i, j = tw.axes("i j")
    lse[i] = tw.logsumexp(j, a[i, j])
    e[i, j] = tw.exp(a[i, j] - lse[i])


@tw.program
def softmax_of_mask(m: Any, a: Any, lse: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    lse[i] = tw.logsumexp(j, a[i, j])
    e[i, j] = m[i, j] * tw.exp(a[i, j] - lse[i])


def ragged(width: int) -> tuple[Any, Tensor, Tensor]:
    """The batch on its structure, padded with zeros, and which rows exist."""
    r = tw.ragged(lengths=LENGTHS)
    packed = numbers(r.total, width)
    held = torch.arange(r.max_len) < torch.tensor(LENGTHS)[:, None]
    return tw.SparseTensor(r.structure, packed), r.pad(packed), held


def rows(format: str, fn: Any, block: tuple[int, int] | None = None) -> Any:
    def make() -> Any:
        A = matrix(8, 12) if block else matrix()
        return [sparse(A, format, block)], fn(A)

    return make


def filled(A: Tensor, with_: float) -> Tensor:
    return torch.where(A != 0, A, torch.tensor(with_))


def columns() -> Any:
    A = matrix()
    return [sparse(A)], filled(A, torch.inf).amin(0)


def maxima(format: str) -> Any:
    def make() -> Any:
        A, b = matrix(5, 4), numbers(3, 5)
        A[:, 1] = 0
        terms = A.T[:, None, :] - b[None]
        return [sparse(A, format), b], torch.where((A != 0).T[:, None, :], terms, -torch.inf).amax(
            2
        )

    return make


def everything() -> Any:
    A = matrix()
    s = sparse(A)
    return [s.with_values(s.values[:, None])], A.sum()[None]


def segments(how: str) -> Any:
    def make() -> Any:
        x, padded, held = ragged(6)
        if how == "sum":
            return [x], padded.sum(1)
        return [x], padded.masked_fill(~held[:, :, None], -torch.inf).amax(1)

    return make


def matmul() -> Any:
    x, padded, _ = ragged(3)
    w = numbers(4, 3, 5, seed=2)
    return [x, w], torch.einsum("btk,bkf->btf", padded, w)


def matmul_by_mask() -> Any:
    _, padded, held = ragged(3)
    w = numbers(4, 3, 5, seed=2)
    m = sparse(held.float())
    return [m, padded, w], torch.einsum("btk,bkf->btf", padded, w)


def normalised(format: str) -> Any:
    def make() -> Any:
        A = matrix()
        lse = torch.logsumexp(filled(A, -torch.inf), 1)
        return [sparse(A, format)], (lse, torch.where(A != 0, torch.exp(A - lse[:, None]), 0.0))

    return make


def by_mask() -> Any:
    inputs, want = normalised("csr")()
    return [inputs[0].map(torch.ones_like), *inputs], want


CASES = [
    *(
        Case(f"row-sum-{f}", row_sum, rows(f, lambda A: A.sum(1)))
        for f in (
            "csr",
            "csc",
            "coo",
            "dcsr",
            "ell",
            "padded.4",
            "dbsr.4.4",
            "srbcrs.4.2",
            "dia",
            "bitmap",
        )
    ),
    Case("row-sum-bsr", row_sum, rows("bsr", lambda A: A.sum(1), (4, 4))),
    *(
        Case(
            f"row-max-{f}",
            row_max,
            rows(f, lambda A: torch.where(A != 0, A.relu() - 1, -torch.inf).amax(1)),
        )
        for f in ("csr", "dcsr", "ell", "padded.4", "bitmap")
    ),
    *(
        Case(f"row-mean-{f}", row_mean, rows(f, lambda A: A.sum(1) / (A != 0).sum(1).clamp(min=1)))
        for f in ("csr", "ell")
    ),
    Case("column-min", column_min, columns),
    *(
        Case(f"column-max-{f}", column_max, maxima(f), converts=f in ("ell", "padded.4"))
        for f in ("csr", "coo", "ell", "padded.4")
    ),
    *(
        Case(f"column-max-{f}", column_max, maxima(f))
        for f in ("dcsr", "csf.2", "csf.2.dense", "bitmap")
    ),
    Case("total", total, everything),
    Case("segment-sum", segment_sum, segments("sum")),
    Case("segment-max", segment_max, segments("max")),
    Case("ragged-matmul", ragged_matmul, matmul),
    Case("ragged-matmul-mask", masked_matmul, matmul_by_mask),
    *(Case(f"softmax-{f}", softmax, normalised(f)) for f in ("csr", "coo", "csc", "dcsr", "ell")),
    Case("softmax-mask", softmax_of_mask, by_mask),
]


@conform(CASES)
def test_rows(case: Case, executor: str) -> None:
    judge(case, executor)
