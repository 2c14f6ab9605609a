"""Results on a structure: elementwise, both coordinates of an entry, sampled products, gathers and scatters."""

from __future__ import annotations

from typing import Any

import torch
from conformance.cases import Case, conform, judge, matrix, numbers, sparse

import tilewright as tw


@tw.program
def elementwise(a: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * tw.sigmoid(a[i, j]) * 2.0


@tw.program
def where_it_stands(a: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * (1000 * i + j)


@tw.program
def sampled(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, x[i, f] * z[j, f])


@tw.program
def sampled_heads(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, h, f = tw.axes("i j h f")
    e[i, j, h] = a[i, j] * tw.sum(f, x[i, h, f] * z[j, h, f])


@tw.program
def into_blocks(m: Any, a: Any, e: Any) -> None:
    """csr -> bsr: on the blocks of m, what a has there."""
    i, j = tw.axes("i j")
    e[i, j] = m[i, j] * a[i, j]


@tw.program
def scattered_blocks(block: Any, row: Any, column: Any, v: Any, m: Any, e: Any) -> None:
    """csr -> bsr: each value is written through three index arrays."""
    (p,) = tw.axes("p")
    e.sized(m.dim(0), m.dim(1), m.dim(2))
    e[block[p], row[p], column[p]] = v[p]


@tw.program
def gather(r: Any, x: Any, y: Any) -> None:
    n, f = tw.axes("n f")
    y[n, f] = x[r[n], f]


@tw.program
def gather_twice(r: Any, s: Any, x: Any, y: Any) -> None:
    n, f = tw.axes("n f")
    y[n, f] = x[s[r[n]], f]


@tw.program
def scatter(r: Any, x: Any, like: Any, y: Any) -> None:
    n, f = tw.axes("n f")
    y.sized(like.dim(0), x.dim(1))
    y[r[n], f] = x[n, f]


@tw.program
def scatter_add(p: Any, x: Any, y: Any) -> None:
    """The list of targets is a structure: one entry in each column."""
    i, n, f = tw.axes("i n f")
    y[i, f] = tw.sum(n, p[i, n] * x[n, f])


@tw.program
def scatter_add_compared(r: Any, x: Any, like: Any, y: Any) -> None:
    i, n, f = tw.axes("i n f")
    there = tw.where(r[n] < i, 0.0, tw.where(i < r[n], 0.0, x[n, f] * like[i]))
    y[i, f] = tw.sum(n, there)


@tw.program
def scatter_add_equal(r: Any, x: Any, like: Any, y: Any) -> None:
    i, n, f = tw.axes("i n f")
    y[i, f] = tw.sum(n, tw.where(tw.equal(r[n], i), x[n, f] * like[i], 0.0))


def held(format: str, fn: Any, block: tuple[int, int] | None = None) -> Any:
    def make() -> Any:
        A = matrix(8, 12)
        return [sparse(A, format, block)], fn(A)

    return make


def places(A: Any) -> Any:
    return A * (1000 * torch.arange(A.shape[0])[:, None] + torch.arange(A.shape[1]))


def samples(format: str, block: tuple[int, int] | None = None, width: int = 5) -> Any:
    def make() -> Any:
        A, x, z = matrix(8, 12), numbers(8, width), numbers(12, width, seed=2)
        return [sparse(A, format, block), x, z], A * (x @ z.T)

    return make


def heads() -> Any:
    A, x, z = matrix(8, 12), numbers(8, 3, 5), numbers(12, 3, 5, seed=2)
    return [sparse(A), x, z], A[:, :, None] * torch.einsum("ihf,jhf->ijh", x, z)


def blocks(format: str) -> Any:
    def make() -> Any:
        A = matrix(8, 12)
        return [sparse(A, "bsr", (4, 4)).map(torch.ones_like), sparse(A, format)], A

    return make


def block_arrays() -> Any:
    A = matrix(8, 12)
    m = sparse(A, "bsr", (4, 4))
    i, j = A.nonzero().T
    s = m.structure
    at = [(k, c) for k in range(2) for c in s.indices[s.indptr[k] : s.indptr[k + 1]].tolist()]
    pairs = zip((i // 4).tolist(), (j // 4).tolist(), strict=True)
    block = torch.tensor([at.index(p) for p in pairs], dtype=torch.int64)
    return [block, i % 4, j % 4, A[i, j], m.values], m.values


def picked() -> Any:
    x, r = numbers(9, 5), torch.tensor([3, 0, 3, 8])
    return [r, x], x[r]


def picked_twice() -> Any:
    x, r, s = numbers(9, 5), torch.tensor([3, 0, 3, 1]), torch.tensor([4, 8, 0, 2])
    return [r, s, x], x[s[r]]


def put() -> Any:
    x, r = numbers(4, 5), torch.tensor([3, 0, 7, 8])
    return [r, x, numbers(9)], torch.zeros(9, 5).index_copy(0, r, x)


TARGETS = torch.tensor([3, 0, 3, 3, 8, 1])


def added() -> Any:
    x = numbers(6, 5)
    p = tw.SparseTensor.from_coo(TARGETS, torch.arange(6), None, (9, 6))
    return [p, x], torch.zeros(9, 5).index_add(0, TARGETS, x)


def added_compared() -> Any:
    x = numbers(6, 5)
    return [TARGETS, x, torch.ones(9)], torch.zeros(9, 5).index_add(0, TARGETS, x)


FORMATS = (
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

CASES = [
    *(
        Case(f"elementwise-{f}", elementwise, held(f, lambda A: 2 * A * A.sigmoid()))
        for f in FORMATS
    ),
    Case("elementwise-bsr", elementwise, held("bsr", lambda A: 2 * A * A.sigmoid(), (2, 3))),
    *(Case(f"coordinates-{f}", where_it_stands, held(f, places)) for f in FORMATS),
    Case("coordinates-bsr", where_it_stands, held("bsr", places, (2, 3))),
    *(Case(f"sddmm-{f}", sampled, samples(f)) for f in FORMATS),
    Case("sddmm-bsr", sampled, samples("bsr", (4, 4))),
    Case("sddmm-width-33", sampled, samples("csr", width=33)),
    Case("sddmm-heads", sampled_heads, heads),
    *(Case(f"{f}-to-bsr", into_blocks, blocks(f)) for f in ("csr", "coo")),
    Case("csr-to-bsr-scattered", scattered_blocks, block_arrays),
    Case("gather", gather, picked),
    Case("gather-twice", gather_twice, picked_twice),
    Case("scatter", scatter, put),
    Case("scatter-add", scatter_add, added),
    Case("scatter-add-compared", scatter_add_compared, added_compared),
    Case(
        "scatter-add-equal",
        scatter_add_equal,
        added_compared,
    ),
]


@conform(CASES)
def test_entries(case: Case, executor: str) -> None:
    judge(case, executor)
