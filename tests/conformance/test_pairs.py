"""Two sparse structures in one program: hypergraphs, sparse times sparse, products and sums by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from conformance.cases import Case, conform, judge, matrix, numbers, sparse
from torch import Tensor

import tilewright as tw


@tw.program
def hypergraph(h: Any, g: Any, x: Any, y: Any) -> None:
    """y = h h^T x, with g = h^T: a reduction inside a reduction, over another structure."""
    i, e, j, f = tw.axes("i e j f")
    y[i, f] = tw.sum(e, h[i, e] * tw.sum(j, g[e, j] * x[j, f]))


@tw.program
def hypergraph_one(h: Any, x: Any, y: Any) -> None:
    """The same with h alone, read by rows and by columns."""
    i, e, j, f = tw.axes("i e j f")
    y[i, f] = tw.sum(e, h[i, e] * tw.sum(j, h[j, e] * x[j, f]))


@tw.program
def hypergraph_two(h: Any, x: Any, z: Any, y: Any) -> None:
    """The same in two statements."""
    i, e, j, f = tw.axes("i e j f")
    z[e, f] = tw.sum(j, h[j, e] * x[j, f])
    y[i, f] = tw.sum(e, h[i, e] * z[e, f])


@tw.program
def dense_result(a: Any, b: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.sum(k, a[i, k] * b[k, j])


@tw.program
def on_pattern(m: Any, a: Any, b: Any, e: Any) -> None:
    """m is the pattern of the product, from a symbolic pass."""
    i, j, k = tw.axes("i j k")
    e[i, j] = m[i, j] * tw.sum(k, a[i, k] * b[k, j])


@tw.program
def times(a: Any, b: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * b[i, j]


@tw.program
def plus(a: Any, b: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] + b[i, j]


@tw.program
def alone(a: Any, b: Any, y: Any) -> None:
    """The only sparse operand drives, though it stands in a reduction over another axis."""
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.mean(k, a[i, j] + b[k, j])


@tw.program
def plus_on_union(m: Any, a: Any, b: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = m[i, j] * (a[i, j] + b[i, j])


@tw.program
def row_products(a: Any, b: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * b[i, j])


@tw.program
def three(a: Any, b: Any, c: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * (b[i, j] + c[i, j]))


def hyper(first: str, second: str) -> Any:
    def make() -> Any:
        H, x = matrix(8, 6), numbers(8, 5)
        return [sparse(H, first), sparse(H.T.contiguous(), second), x], H @ H.T @ x

    return make


def hyper_one() -> Any:
    H, x = matrix(8, 6), numbers(8, 5)
    return [sparse(H), x], H @ H.T @ x


def hyper_two() -> Any:
    H, x = matrix(8, 6), numbers(8, 5)
    return [sparse(H), x], (H.T @ x, H @ H.T @ x)


def factors() -> tuple[Tensor, Tensor]:
    return matrix(8, 12), matrix(12, 8, seed=4)


def spgemm(first: str, second: str, block: tuple[int, int] | None = None) -> Any:
    def make() -> Any:
        A, B = factors()
        return [sparse(A, first), sparse(B, second, block)], A @ B

    return make


def masked(format: str) -> Any:
    def make() -> Any:
        A, B = factors()
        m = ((A != 0).float() @ (B != 0).float() > 0).float()
        return [sparse(m, format), sparse(A), sparse(B)], A @ B

    return make


def pair(first: str, second: str, fn: Any) -> Any:
    def make() -> Any:
        A, B = matrix(8, 12), matrix(8, 12, seed=4)
        return [sparse(A, first), sparse(B, second)], fn(A, B)

    return make


def union() -> Any:
    A, B = matrix(8, 12), matrix(8, 12, seed=4)
    m = ((A != 0) | (B != 0)).float()
    return [sparse(m), sparse(A), sparse(B)], A + B


def doubled() -> Any:
    """The second operand has duplicates: they add up before the search."""
    A, B = matrix(8, 12), matrix(8, 12, seed=4)
    i, j = torch.cat([B.nonzero(), B.nonzero()]).T
    b = tw.SparseTensor.from_coo(i, j, B[i, j] * 0.5, (8, 12))
    return [sparse(A), b], A * B


def any_order(format: str, twice: bool) -> Any:
    """The second operand as its user holds it: entries in any order, sometimes twice."""

    def make() -> Any:
        A, B = matrix(8, 12), matrix(8, 12, seed=4)
        at = torch.cat([B.nonzero()] * (1 + twice))
        at = at[torch.from_numpy(np.random.default_rng(0).permutation(len(at)))]
        b = tw.SparseTensor.from_coo(at[:, 0], at[:, 1], B[at[:, 0], at[:, 1]], (8, 12))
        return [sparse(A), b.to_format(format)], A + B * (1 + twice)

    return make


def alone_doubled(format: str) -> Any:
    def make() -> Any:
        at, b = torch.tensor([[0, 0, 1], [1, 1, 0]]), numbers(3, 2)
        a = tw.SparseTensor.from_coo(at[0], at[1], torch.tensor([1.0, 2.0, 4.0]), (2, 2))
        there = a.to_dense() != 0
        return [a.to_format(format), b], torch.where(there, a.to_dense() + b.mean(0), 0)

    return make


def trio() -> Any:
    A, B, C = (matrix(8, 12, seed=s) for s in (0, 4, 5))
    return [sparse(A), sparse(B), sparse(C)], (A * (B + C)).sum(1)


CONVERTED = ("ell", "padded.4")  # cannot be searched: read as csr
SECOND = ("csr", "csc", "coo", "dcsr", "bitmap", "csf.2", "ell", "padded.4")

CASES = [
    *(
        Case(f"hypergraph-{f}-{s}", hypergraph, hyper(f, s))
        for f, s in (("csr", "csr"), ("csr", "csc"), ("ell", "csr"), ("csr", "dcsr"))
    ),
    Case("hypergraph-one", hypergraph_one, hyper_one),
    Case("hypergraph-two", hypergraph_two, hyper_two),
    *(
        Case(f"spmspm-csr-{s}", dense_result, spgemm("csr", s), converts=s in CONVERTED)
        for s in SECOND
    ),
    Case("spmspm-dcsr-csr", dense_result, spgemm("dcsr", "csr")),
    Case("spmspm-ell-csr", dense_result, spgemm("ell", "csr")),
    Case("spmspm-csr-bsr", dense_result, spgemm("csr", "bsr", (4, 4))),
    *(Case(f"spmspm-on-pattern-{f}", on_pattern, masked(f)) for f in ("csr", "coo", "dcsr")),
    *(
        Case(f"times-csr-{s}", times, pair("csr", s, lambda A, B: A * B), converts=s in CONVERTED)
        for s in SECOND
    ),
    Case("times-coo-csr", times, pair("coo", "csr", lambda A, B: A * B)),
    Case("times-dia-csr", times, pair("dia", "csr", lambda A, B: A * B)),
    Case("times-doubled", times, doubled),
    *(
        Case(f"plus-csr-{s}", plus, pair("csr", s, lambda A, B: A + B), converts=s in CONVERTED)
        for s in SECOND
    ),
    *(Case(f"plus-csr-any-order-{s}", plus, any_order(s, False)) for s in ("csr", "coo", "csc")),
    *(Case(f"plus-csr-any-order-{s}", plus, any_order(s, False)) for s in ("dcsr", "csf.2")),
    *(Case(f"plus-csr-twice-{s}", plus, any_order(s, True)) for s in ("csr", "coo", "csc")),
    *(Case(f"plus-csr-twice-{s}", plus, any_order(s, True)) for s in ("dcsr", "csf.2")),
    *(Case(f"alone-twice-{s}", alone, alone_doubled(s)) for s in ("csr", "dcsr")),
    Case("spmspm-csr-bsr-1x4", dense_result, spgemm("csr", "bsr", (1, 4))),
    Case("plus-on-union", plus_on_union, union),
    Case("row-products", row_products, pair("csr", "csr", lambda A, B: (A * B).sum(1))),
    Case("three", three, trio),
]


@conform(CASES)
def test_pairs(case: Case, executor: str) -> None:
    judge(case, executor)
