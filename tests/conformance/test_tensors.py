"""Tensors of three and four dimensions: slices, MTTKRP, TTM, relations, ragged ones of any depth."""

from __future__ import annotations

from typing import Any

import torch
from conformance.cases import Case, conform, cube, judge, matrix, numbers, sparse, tensor

import tilewright as tw


@tw.program
def slices(t: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i] = tw.sum((j, k), t[i, j, k])


@tw.program
def fibers(t: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.max(k, t[i, j, k])


@tw.program
def mttkrp(t: Any, b: Any, c: Any, y: Any) -> None:
    i, j, k, f = tw.axes("i j k f")
    y[i, f] = tw.sum((j, k), t[i, j, k] * b[j, f] * c[k, f])


@tw.program
def mttkrp_nested(t: Any, b: Any, c: Any, y: Any) -> None:
    i, j, k, f = tw.axes("i j k f")
    y[i, f] = tw.sum(j, b[j, f] * tw.sum(k, t[i, j, k] * c[k, f]))


@tw.program
def ttm(t: Any, c: Any, y: Any) -> None:
    i, j, k, f = tw.axes("i j k f")
    y[i, j, f] = tw.sum(k, t[i, j, k] * c[k, f])


@tw.program
def scaled(t: Any, c: Any, e: Any) -> None:
    i, j, k = tw.axes("i j k")
    e[i, j, k] = t[i, j, k] * c[k] * (100 * i + 10 * j + k)


@tw.program
def together(t: Any, u: Any, y: Any) -> None:
    """Two structures read together."""
    i, j, k = tw.axes("i j k")
    y[i] = tw.sum((j, k), t[i, j, k] * u[i, j, k])


@tw.program
def with_matrix(t: Any, a: Any, y: Any) -> None:
    """A tensor and a matrix, both sparse."""
    i, j, k = tw.axes("i j k")
    y[i] = tw.sum((j, k), t[i, j, k] * a[j, k])


@tw.program
def relations(t: Any, x: Any, w: Any, y: Any) -> None:
    r, i, j, k, l = tw.axes("r i j k l")
    y[i, l] = tw.sum((r, j, k), t[r, i, j] * x[j, k] * w[r, k, l])


@tw.program
def edge_types(a: Any, t: Any, x: Any, w: Any, y: Any) -> None:
    """The relation of an edge is a value on the structure, used as an index."""
    i, j, k, l = tw.axes("i j k l")
    y[i, l] = tw.sum((j, k), a[i, j] * x[j, k] * w[t[i, j], k, l])


@tw.program
def edge_list(p: Any, col: Any, kind: Any, x: Any, w: Any, y: Any) -> None:
    """The same over a list of edges; p says which edges end where."""
    i, e, k, l = tw.axes("i e k l")
    y[i, l] = tw.sum((e, k), p[i, e] * x[col[e], k] * w[kind[e], k, l])


@tw.program
def ragged_three(t: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i] = tw.sum((j, k), t[i, j, k])


@tw.program
def ragged_four(t: Any, y: Any) -> None:
    i, j, k, l = tw.axes("i j k l")
    y[i] = tw.sum((j, k, l), t[i, j, k, l])


@tw.program
def ragged_four_inner(t: Any, y: Any) -> None:
    i, j, k, l = tw.axes("i j k l")
    y[i, j] = tw.max((k, l), t[i, j, k, l])


SHAPE = (4, 5, 6)


def one(format: str, fn: Any) -> Any:
    def make() -> Any:
        T = cube(*SHAPE)
        return [tensor(T, format)], fn(T)

    return make


def longest(T: Any) -> Any:
    return torch.where(T != 0, T, -torch.inf).amax(2)


def decomposition(format: str) -> Any:
    def make() -> Any:
        T, b, c = cube(*SHAPE), numbers(5, 3), numbers(6, 3, seed=2)
        return [tensor(T, format), b, c], torch.einsum("ijk,jf,kf->if", T, b, c)

    return make


def by_matrix(format: str) -> Any:
    def make() -> Any:
        T, c = cube(*SHAPE), numbers(6, 3)
        return [tensor(T, format), c], torch.einsum("ijk,kf->ijf", T, c)

    return make


def by_vector(format: str) -> Any:
    def make() -> Any:
        T, c = cube(*SHAPE), numbers(6)
        at = sum(
            s * torch.arange(n).reshape(d)
            for s, n, d in ((100, 4, (4, 1, 1)), (10, 5, (5, 1)), (1, 6, (6,)))
        )
        return [tensor(T, format), c], T * c * at

    return make


def two(first: str, second: str) -> Any:
    def make() -> Any:
        T, U = cube(*SHAPE, fill=0.5), cube(*SHAPE, fill=0.5, seed=3)
        return [tensor(T, first), tensor(U, second)], (T * U).sum((1, 2))

    return make


def and_matrix() -> Any:
    T, A = cube(*SHAPE, fill=0.5), matrix(5, 6)
    return [tensor(T), sparse(A)], torch.einsum("ijk,jk->i", T, A)


def related(format: str) -> Any:
    def make() -> Any:
        T, x, w = cube(*SHAPE), numbers(6, 5), numbers(4, 5, 3, seed=2)
        return [tensor(T, format), x, w], torch.einsum("rij,jk,rkl->il", T, x, w)

    return make


def typed(wide: int) -> Any:
    def make() -> Any:
        A, x, w = matrix(6, 7), numbers(7, 5), numbers(3, 5, wide, seed=2)
        a = sparse(A)
        kinds = torch.arange(a.nnz) * 7 % 3
        t = a.with_values(kinds)
        at = a.with_values(kinds.float()).to_dense().long()
        return [a, t, x, w], torch.einsum("ij,jk,ijkl->il", A, x, w[at])

    return make


def listed_edges() -> Any:
    A, x, w = matrix(6, 7), numbers(7, 5), numbers(3, 5, 3, seed=2)
    i, j = A.nonzero().T
    kinds = torch.arange(len(i)) * 7 % 3
    p = tw.SparseTensor.from_coo(i, torch.arange(len(i)), A[i, j], (6, len(i)))
    want = torch.zeros(6, 3).index_add(0, i, torch.einsum("e,ek,ekl->el", A[i, j], x[j], w[kinds]))
    return [p, j, kinds, x, w], want


def offsets(lengths: list[int]) -> Any:
    return torch.tensor([0, *lengths]).cumsum(0)


def ragged(depth: int) -> Any:
    """Its values and, by hand, the coordinates of each."""
    lengths = [[2, 0, 3], [1, 2, 0, 2, 1], [2, 1, 0, 3, 1, 2]][: depth - 1]
    ptrs = [offsets(n) for n in lengths]
    shape = (3, *(max(n) for n in lengths))
    values = numbers(int(ptrs[-1][-1]))
    names = {f"indptr{n}": p for n, p in enumerate(ptrs, 1)}
    t = tw.SparseTensor.from_arrays(f"ragged.{depth}", shape, values, **names)
    at = [(i,) for i in range(3)]
    for n in lengths:
        at = [(*c, k) for c, many in zip(at, n) for k in range(many)]
    dense = torch.full(shape, torch.nan)
    for c, v in zip(at, values, strict=True):
        dense[c] = v
    return t, dense


def deep(depth: int) -> Any:
    def make() -> Any:
        t, dense = ragged(depth)
        return [t], dense.nansum(tuple(range(1, depth)))

    return make


def deep_inner() -> Any:
    t, dense = ragged(4)
    return [t], dense.nan_to_num(-torch.inf).amax((2, 3))


CONVERTED = ("bucket.4",)  # a row may stand in several places, so it cannot be searched
NAMES = ("csf", "csf.3.dense", "bucket.4")

CASES = [
    *(Case(f"slices-{f}", slices, one(f, lambda T: T.sum((1, 2)))) for f in NAMES),
    *(Case(f"fibers-{f}", fibers, one(f, longest), converts=f in CONVERTED) for f in NAMES),
    *(Case(f"mttkrp-{f}", mttkrp, decomposition(f)) for f in NAMES),
    *(
        Case(f"mttkrp-nested-{f}", mttkrp_nested, decomposition(f), converts=f in CONVERTED)
        for f in NAMES
    ),
    *(Case(f"ttm-{f}", ttm, by_matrix(f), converts=f in CONVERTED) for f in NAMES),
    *(Case(f"coordinates-{f}", scaled, by_vector(f)) for f in NAMES),
    *(
        Case(f"together-{f}-{s}", together, two(f, s))
        for f, s in (
            ("csf", "csf"),
            ("csf", "csf.3.dense"),
            ("csf.3.dense", "csf"),
            ("bucket.4", "csf"),
        )
    ),
    Case("tensor-and-matrix", with_matrix, and_matrix),
    *(Case(f"relations-{f}", relations, related(f), converts=f in CONVERTED) for f in NAMES),
    *(Case(f"edge-types-{n}", edge_types, typed(n)) for n in (3, 4, 8)),
    Case("edge-list", edge_list, listed_edges),
    Case("ragged-3", ragged_three, deep(3)),
    Case("ragged-4", ragged_four, deep(4)),
    Case("ragged-4-inner", ragged_four_inner, deep_inner),
]


@conform(CASES)
def test_tensors(case: Case, executor: str) -> None:
    judge(case, executor)
