"""Sums and products of sparse matrices: A + B on the union of their places, A * B on A's, A @ B on the product's.

A + B adds what each of them has at its places. A * B is a program over the structure of A, which looks B up.
A @ B sums up, for each of its places, the terms that were found with it: rows of a matrix times a's values.

Results have the dtype that torch gives those of A and B: narrow whole numbers are multiplied in 64 bits, and wrap.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.convert import one_by_one, ones
from tilewright.formats.distinct import distinct
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.tree import Tree
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.call import call
from tilewright.ops.dtypes import NAMES
from tilewright.ops.meeting import terms
from tilewright.ops.registry import register
from tilewright.ops.sparse import as_rows, rows_first, stored_rank, without_duplicates
from tilewright.ops.union import union
from tilewright.support.errors import error, said

NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)  # kernels read some of them as flags


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
    given = _matrices("A + B" if times > 0 else "A - B", a, b)
    dtype = _dtype(*given)
    a, b = (
        without_duplicates(SparseTensor(t.structure.as_csr(), _entries(t, dtype))) for t in given
    )
    places, of_a, of_b = union(a.structure, b.structure)
    summed = torch.zeros(places.nnz, dtype=dtype, device=places.device)
    summed = summed.scatter(0, of_a, a.values)
    return SparseTensor(places, summed.scatter_add(0, of_b, b.values if times > 0 else -b.values))


def multiply(a: Any, b: Any) -> SparseTensor:
    """a * b, elementwise, on the places of a; inside torch.compile on its entries, which may share a place."""
    a, b, dtype = _computed("A * B", *_matrices("A * B", a, b))
    b = without_duplicates(b)
    if torch.compiler.is_compiling():
        places, place = distinct(a.structure)
        found = call("sparse_multiply", {"a": _ones(places, b), "b": b}, []).values
        return a.map(lambda v: (v * found.index_select(0, place)).to(dtype))
    made: SparseTensor = call("sparse_multiply", {"a": without_duplicates(a), "b": b}, [])
    return made.to(dtype)


def matmul(a: Any, b: Any) -> SparseTensor:
    """a @ b with a sparse result: its places and their terms first, then the sum of these."""
    a, b, dtype = _computed("A @ B", *_matrices("A @ B", a, b, inner=True))
    places, of_a, of_b = terms(a.structure, b.structure)
    inner = torch.int64 if dtype in NARROW else dtype
    rows = SparseTensor(of_a, _entries(b, inner).index_select(0, of_b))
    summed = call("sparse_terms", {"s": rows, "a": _entries(a, inner)}, [])
    return SparseTensor(places, summed.to(dtype))


def _computed(
    where: str, a: SparseTensor, b: SparseTensor
) -> tuple[SparseTensor, SparseTensor, torch.dtype]:
    """Both in the dtype in which they are multiplied, and that of the result."""
    for name, t in (("A", a), ("B", b)):
        if t.dtype not in (*NAMES, *NARROW):
            expected = "a floating point dtype of 16 bits or more, or whole numbers"
            raise error("dtype", where=where, name=name, got=t.dtype, expected=expected)
    dtype = _dtype(a, b)
    inner = torch.int64 if dtype in NARROW else dtype
    bare = lambda t: t.values is None and (inner.is_floating_point or t.format == "block_mask")
    a, b = (t if bare(t) else t.to(inner) for t in (a, b))
    return a, b, dtype


def _dtype(a: SparseTensor, b: SparseTensor) -> torch.dtype:
    """That of a result: ones take the other's, and by themselves the default."""
    held = [t.values.dtype for t in (a, b) if t.values is not None]
    return functools.reduce(torch.promote_types, held) if held else torch.get_default_dtype()


def _entries(a: SparseTensor, dtype: torch.dtype) -> Tensor:
    """The values one by one, those of blocks and masks too."""
    s = a.structure
    if a.values is None:
        return ones(s.as_csr(), dtype)
    if isinstance(s, Tree):
        return a.values.flatten(0, stored_rank(s) - 1).to(dtype)
    held = one_by_one(s, a.values)
    assert held is not None
    return held.to(dtype)


def _ones(s: Structure, a: SparseTensor) -> SparseTensor:
    """Ones at the places of a result; whole numbers where those of a are, whose bits a float has not all."""
    return SparseTensor(s, ones(s, a.dtype) if a.dtype in (torch.int32, torch.int64) else None)


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
