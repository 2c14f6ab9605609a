"""The places that one of two matrices has: what A + B is made on, and where the entries of each stand there.

In: csr structures in order, each place once. Out: the places as csr, and for each entry of a and b, as values are
numbered, its place. A program merges their rows; all else is running sums and scatters.

    union(a, b).places        # kept with a from the second time on
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.transforms import outside
from tilewright.ir.coord import Place, Stored
from tilewright.language.trace import Param, Traced, axes, trace
from tilewright.ops.args import in_rows
from tilewright.ops.call import arguments
from tilewright.ops.dtypes import name_of
from tilewright.ops.library import plainly, run
from tilewright.ops.meeting import of_pair
from tilewright.ops.registry import register
from tilewright.runtime import pages


class Union(NamedTuple):
    """The places of a and b, and which of them their entries have."""

    places: Structure
    of_a: Tensor
    of_b: Tensor


def merged(index: str) -> Traced:
    """Which entry of b each of a's entries meets, or -1 - (the first behind it)."""

    def program(a: Param, b: Param, e: Param) -> None:
        i, j = axes("i j")
        e.typed(index)
        e[i, j] = Stored(a[i, j], "i64") * Place(b[i, j])

    program.__name__ = f"merged_{index}"
    return trace(program)


for _index in ("i32", "i64"):
    register(merged(_index))


def union(a: Structure, b: Structure) -> Union:
    """Their union; rows and columns are in order in all of them."""
    if torch.compiler.is_compiling():
        return _union(a, b)
    return of_pair(a, b, "union", lambda: _union(a, b)) or _union(a, b)


@outside
def _union(a: Structure, b: Structure) -> Union:
    assert a.indptr is not None and a.indices is not None
    assert b.indptr is not None and b.indices is not None
    fits = torch.compiler.is_compiling() or a.nnz + b.nnz <= index.INT32
    dtype = torch.promote_types(a.index_dtype, b.index_dtype) if fits else torch.int64
    at = _met(a, b, f"merged_{name_of(dtype)}")
    alone = torch.lt(at, 0, out=_room(a.nnz, dtype, at))  # entries of a that b does not have
    before = _room(a.nnz + 1, dtype, at)
    before[:1] = 0
    torch.cumsum(alone, 0, dtype=dtype, out=before[1:])
    total = b.nnz + int(before[-1])
    behind = torch.bitwise_not(at, out=_room(a.nnz, dtype, at))
    torch.maximum(at, behind, out=behind)
    of_a = torch.add(before[:-1], behind, out=_room(a.nnz, torch.int64, at))
    steps = _room(b.nnz + 1, dtype, at).fill_(1)
    steps[:1] = 0
    steps.index_add_(0, behind, alone)
    of_b = torch.cumsum(steps[:-1], 0, out=_room(b.nnz, torch.int64, at))
    cols = _room(total, dtype, at)
    cols.scatter_(0, of_a, a.indices.to(dtype)).scatter_(0, of_b, b.indices.to(dtype))
    ends = before.index_select(0, a.indptr).add_(b.indptr)
    places = Structure("csr", (a.shape[0], a.shape[1]), ends, cols, check=False)
    places.plans["sorted"] = True
    return Union(places, _by_source(a, of_a), _by_source(b, of_b))


def _met(a: Structure, b: Structure, program: str) -> Tensor:
    """What a program says of each entry of a, in the order of storage."""
    plain = (Structure("csr", s.shape, s.indptr, s.indices, check=False) for s in (a, b))
    text, tensors, ints = arguments(program, dict(zip("ab", map(SparseTensor, plain), strict=True)))
    return run(in_rows(text, ("b",)), tensors, ints)[0]


def _room(size: int, dtype: torch.dtype, like: Tensor) -> Tensor:
    """An array with any content; a large one of a CPU lies where others have been."""
    if like.device.type != "cpu" or not plainly((like,)):
        return torch.empty(size, dtype=dtype, device=like.device)
    return pages.empty((size,), dtype)


def _by_source(s: Structure, places: Tensor) -> Tensor:
    """As values are numbered."""
    return places if s.perm is None else torch.empty_like(places).scatter_(0, s.perm.long(), places)
