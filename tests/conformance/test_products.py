"""Products of one sparse matrix with dense ones, in every format that walks; formats rewritten as sums of parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conformance.cases import Case, conform, judge, matrix, numbers, sparse
from torch import Tensor

import tilewright as tw


@tw.program
def product(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f])


@tw.program
def over_all_columns(a: Any, b: Any, x: Any, y: Any) -> None:
    """Neither structure is a factor of the whole: all columns, both looked up, misses are zero."""
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, (a[i, j] + b[i, j]) * x[j, f])


@tw.program
def transposed(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[j, f] = tw.sum(i, a[i, j] * x[i, f])


@tw.program
def with_dense(a: Any, x: Any, b: Any, c: Any, y: Any) -> None:
    """Two sums for each row, one over its entries, one over a dense axis."""
    i, j, k, f = tw.axes("i j k f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f]) + tw.sum(k, b[i, k] * c[k, f])


@tw.program
def by_blocks(a: Any, x: Any, y: Any) -> None:
    """Blocks are dense dimensions inside the entries."""
    i, j, r, c, f = tw.axes("i j r c f")
    y[i, r, f] = tw.sum((j, c), a[i, j, r, c] * x[j, c, f])


@tw.program
def batched(a: Any, x: Any, y: Any) -> None:
    b, i, j, f = tw.axes("b i j f")
    y[b, i, f] = tw.sum(j, a[i, j] * x[b, j, f])


def plain(format: str, rows: int = 9, cols: int = 11, width: int = 5, seed: int = 0) -> Any:
    def make() -> Any:
        A, x = matrix(rows, cols, seed=seed), numbers(cols, width)
        return [sparse(A, format), x], A @ x

    return make


def and_dense() -> Any:
    A, x, b, c = matrix(9, 11), numbers(11, 5), numbers(9, 4, seed=2), numbers(4, 5, seed=3)
    return [sparse(A), x, b, c], A @ x + b @ c


def giant() -> Any:
    """One row so long that several programs share it, among rows of one entry."""
    A, x = matrix(90, 600, 0.001), numbers(600, 3)
    return [sparse(A), x], A @ x


def blocked(b0: int, b1: int, rows: int = 8, cols: int = 12, width: int = 5) -> Any:
    def make() -> Any:
        A, x = matrix(rows, cols, 0.1), numbers(cols, width)
        return [sparse(A, "bsr", (b0, b1)), x], A @ x

    return make


def slotted(format: str) -> Any:
    """Two of every four columns at most."""

    def make() -> Any:
        A, x = torch.zeros(16, 16), numbers(16, 5)
        A[::2, 1::4] = numbers(8, 4, seed=7)
        A[1::3, 2::8] = numbers(5, 2, seed=8)
        return [sparse(A, format), x], A @ x

    return make


def all_columns() -> Any:
    A, B, x = matrix(), matrix(seed=3), numbers(11, 5)
    return [sparse(A), sparse(B), x], (A + B) @ x


def by_columns() -> Any:
    A, x = matrix(), numbers(9, 5)
    return [sparse(A), x], A.T @ x


def strided() -> Any:
    A, x = matrix(), numbers(5, 22)[:, ::2].T
    return [sparse(A), x], A @ x


def block_ell(format: str) -> Any:
    def make() -> Any:
        held, x = matrix(4, 5).nonzero(), numbers(5, 3, 6)
        values = numbers(len(held), 2, 3)
        a = tw.SparseTensor.from_coo(held[:, 0], held[:, 1], values, (4, 5))
        dense = torch.zeros(4, 5, 2, 3)
        dense[held[:, 0], held[:, 1]] = values
        return [a.to_format(format), x], torch.einsum("ijrc,jcf->irf", dense, x)

    return make


def in_batches(format: str, block: tuple[int, int] | None = None) -> Any:
    def make() -> Any:
        A, x = matrix(8, 12), numbers(3, 12, 5)
        return [sparse(A, format, block), x], torch.einsum("ij,bjf->bif", A, x)

    return make


# --- sums of parts ----------------------------------------------------------------------------------


def parts_of(A: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Blocks that are at least a third full, and the rest."""
    rows, cols = (-(-n // b) for n in A.shape)
    wide = torch.zeros(rows * b, cols * b)
    wide[: A.shape[0], : A.shape[1]] = A
    full = (wide != 0).reshape(rows, b, cols, b).float().mean((1, 3)) > 1 / 3
    kept = full.repeat_interleave(b, 0).repeat_interleave(b, 1)[: A.shape[0], : A.shape[1]]
    return A * kept, A * ~kept


def two_products(p: Any, q: Any, x: Any) -> Any:
    return product(p, x) + product(q, x)


def decomposed(b: int, rest: str) -> Any:
    def make() -> Any:
        n = 32
        A, x = matrix(n, n, 0.15), numbers(n, 3)
        A[3:12, 4:13] = numbers(9, 9, seed=5)
        one, two = parts_of(A, b)
        first = tw.SparseTensor.from_dense(one).to_format("bsr", (b, b))
        return [first, sparse(two, rest), x], A @ x

    return make


def ell_parts(*parts: Any) -> Any:
    *matrices, x = parts
    made: Any = sum(product(m, x) for m in matrices)
    return made


def by_length() -> Any:
    """Rows by length: up to 2, up to 4, the rest; each an ELL of its own width."""
    A, x = matrix(20, 18, 0.2), numbers(18, 5)
    n = (A != 0).sum(1)
    kept = [n <= 2, (n > 2) & (n <= 4), n > 4]
    return [*(sparse(A * k[:, None], "ell") for k in kept), x], A @ x


CASES = [
    *(Case(f"csrmm-{f}", product, plain(f)) for f in ("csr", "csc", "coo", "dcsr", "bitmap")),
    *(Case(f"csrmm-{f}", product, plain(f)) for f in ("ell", "padded.4", "padded.32")),
    Case("csrmm-width-33", product, plain("csr", width=33)),
    Case("csrmm-width-1", product, plain("csr", width=1)),
    Case("csrmm-giant-row", product, giant),
    Case("csrmm-and-dense", with_dense, and_dense),
    Case("all-columns", over_all_columns, all_columns),
    Case("by-columns", transposed, by_columns),
    Case("strided", product, strided),
    *(Case(f"bsrmm-{b0}x{b1}", product, blocked(b0, b1)) for b0, b1 in ((2, 3), (4, 4))),
    Case("bsrmm-16x16", product, blocked(16, 16, 16, 32)),
    Case("bsrmm-width-16", product, blocked(4, 4, width=16)),
    *(Case(f"blocked-{f}mm", by_blocks, block_ell(f)) for f in ("ell", "csr")),
    *(Case(f"srbcrs-{t}-{g}", product, slotted(f"srbcrs.{t}.{g}")) for t, g in ((8, 4), (4, 2))),
    *(Case(f"{f}-mm", product, slotted(f)) for f in ("dia", "two_four")),
    *(Case(f"{f}-mm", product, slotted(f)) for f in ("dbsr.4.4", "dbsr.3.5")),
    Case("batched-bsr", batched, in_batches("bsr", (4, 4))),
    Case("batched-csr", batched, in_batches("csr")),
    *(
        Case(f"bsr-{b}-and-{r}", two_products, decomposed(b, r))
        for b, r in ((4, "csr"), (16, "ell"), (32, "padded.32"))
    ),
    Case("ell-parts", ell_parts, by_length),
]


@conform(CASES)
def test_products(case: Case, executor: str) -> None:
    judge(case, executor)


@pytest.mark.parametrize("b", [4, 16, 32])
def test_every_entry_is_in_one_part(b: int) -> None:
    A = matrix(32, 32, 0.15)
    one, two = parts_of(A, b)
    assert torch.equal(one + two, A) and not (one * two).any()
