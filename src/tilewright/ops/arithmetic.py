"""Sums and products of sparse matrices: A + B on the union of their places, A * B on A's, A @ B on the product's.

A + B adds what each of them has at its places. A * B is a program over the structure of A, which looks B up.
A @ B sums up, for each of its places, the terms that were found with it: rows of a matrix times a's values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.formats.convert import ones
from tilewright.formats.distinct import distinct
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.call import call
from tilewright.ops.meeting import terms
from tilewright.ops.registry import register
from tilewright.ops.sparse import as_rows, rows_first, stored_rank, without_duplicates
from tilewright.ops.union import union
from tilewright.support.errors import error, said


def sparse_multiply(a: Param, b: Param, e: Param) -> None:
    i, j = axes("i j")
    e[i, j] = a[i, j] * b[i, j]


def sparse_terms(s: Param, a: Param, e: Param) -> None:
    o, p = axes("o p")
    e[o] = fn.sum(p, s[o, p] * a[p])


for _program in (sparse_multiply, sparse_terms):
    register(trace(_program))


def add(a: Any, b: Any, times: int = 1) -> SparseTensor:
    """a + times * b, on the places that either has."""
    a, b = map(without_duplicates, _matrices("A + B" if times > 0 else "A - B", a, b))
    places, of_a, of_b = union(a.structure, b.structure)
    dtype = torch.promote_types(a.dtype, b.dtype)
    summed = torch.zeros(places.nnz, dtype=dtype, device=places.device)
    summed = summed.scatter(0, of_a, a.explicit_values().to(dtype))
    more = b.explicit_values().to(dtype)
    return SparseTensor(places, summed.scatter_add(0, of_b, more if times > 0 else -more))


def multiply(a: Any, b: Any) -> SparseTensor:
    """a * b, elementwise, on the places of a; inside torch.compile on its entries, which may share a place."""
    a, b = _matrices("A * B", a, b)
    b = without_duplicates(b)
    if torch.compiler.is_compiling():
        places, place = distinct(a.structure)
        found = call("sparse_multiply", {"a": _ones(places, b, b), "b": b}, []).values
        return a.map(lambda v: v * found.index_select(0, place))
    made: SparseTensor = call("sparse_multiply", {"a": without_duplicates(a), "b": b}, [])
    return made


def matmul(a: Any, b: Any) -> SparseTensor:
    """a @ b with a sparse result: its places and their terms first, then the sum of these."""
    a, b = _matrices("A @ B", a, b, inner=True)
    places, of_a, of_b = terms(a.structure, b.structure)
    dtype = torch.promote_types(a.dtype, b.dtype)
    rows = SparseTensor(of_a, _entries(b).index_select(0, of_b).to(dtype))
    summed = call("sparse_terms", {"s": rows, "a": _entries(a).to(dtype)}, [])
    return SparseTensor(places, summed)


def _entries(a: SparseTensor) -> Tensor:
    """The values one by one, those of blocks and masks too."""
    if a.values is None:
        return ones(a.structure.as_csr(), a.dtype)
    return a.values.flatten(0, stored_rank(a.structure) - 1)


def _ones(s: Structure, a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Ones at the places of a result; whole numbers where those of a and b are, whose bits a float has not all."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return SparseTensor(s, ones(s, dtype) if dtype in (torch.int32, torch.int64) else None)


def _matrices(where: str, a: Any, b: Any, inner: bool = False) -> tuple[SparseTensor, SparseTensor]:
    for name, t in (("A", a), ("B", b)):
        if not isinstance(t, SparseTensor):
            raise error("not-sparse", where=where, name=name, got=type(t).__name__)
        if t.values is not None and t.values.dim() > stored_rank(t.structure):
            got, expected = tuple(t.values.shape), "one value for each entry"
            raise error("shape", where=where, name=f"{name}'s values", got=got, expected=expected)
    fits = a.shape[1] == b.shape[0] if inner else tuple(a.shape) == tuple(b.shape)
    if not fits:
        expected = f"{a.shape[1]} rows" if inner else f"{said(tuple(a.shape))}, as A"
        raise error("shape", where=where, name="B", got=tuple(b.shape), expected=expected)
    return rows_first(as_rows(a)), rows_first(as_rows(b))
