"""The terms of a product of two structures: its places, and what is multiplied for each. In linear passes and a sort.

In: csr structures. Out: the places as csr without duplicates, rows and columns in order; terms by place, some twice
where entries are. On the device, but waits for it, for the numbers of terms and of entries.

    product(a, b)      # the places of a @ b, and which entries of a and b are multiplied for each
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside

FIT = 1 << 17  # terms that are sorted at a time
# Rows and entries of a matrix, each from and to, and how many terms they have.
Part = tuple[int, int, int, int, int]


class Terms(NamedTuple):
    """a @ b: its places; for each of them, as a row, the entries of a; for each of these, the entry of b.

    Entries are numbered as values are.
    """

    places: Structure
    of_a: Structure
    of_b: Tensor


@outside
def product(a: Structure, b: Structure) -> Terms:
    """Each entry (i, j) of a with each entry of row j of b, by the place (i, k) that they add to."""
    a, b = a.as_csr(), b.as_csr()
    assert a.indptr is not None and a.indices is not None and b.indptr is not None
    many = b.indptr.diff().long().index_select(0, a.indices)
    before = index.sums(many)
    total = int(before[-1])
    fits = torch.compiler.is_compiling() or max(total, b.shape[1]) <= index.INT32
    dtype = a.index_dtype if fits else torch.int64
    parts = [[t.to(dtype) for t in _terms(a, b, many, p)] for p in _parts(a, before, total)]
    cols, length, alone, of_a, of_b = (torch.cat(p) for p in zip(*parts, strict=True))
    places = Structure("csr", (a.shape[0], b.shape[1]), _ends(length), cols, check=False)
    sums = Structure("csr", (places.nnz, a.nnz), _ends(alone), _source(a, of_a), check=False)
    return Terms(places, sums, _source(b, of_b))


def _parts(a: Structure, before: Tensor, total: int) -> list[Part]:
    """All of a at once; on a CPU so many rows at a time as have terms that fit the caches."""
    rows = a.shape[0]
    if torch.compiler.is_compiling() or before.device.type != "cpu" or total <= FIT:
        return [(0, rows, 0, a.nnz, total)]
    assert a.indptr is not None
    ends = before.index_select(0, a.indptr)
    wanted = torch.arange(FIT, total, FIT, device=ends.device)
    inner = torch.searchsorted(ends, wanted).tolist()
    cuts = ends.new_tensor(sorted({0, *inner, rows}))
    entries, terms = a.indptr.index_select(0, cuts), ends.index_select(0, cuts).diff()
    made = [[*itertools.pairwise(t.tolist())] for t in (cuts, entries)]
    return [(*r, *e, n) for r, e, n in zip(*made, terms.tolist(), strict=True)]


def _terms(a: Structure, b: Structure, many: Tensor, part: Part) -> tuple[Tensor, ...]:
    """The columns of places, how many each row has; how many terms each place has, and their entries of a and b."""
    assert a.indptr is not None and a.indices is not None
    assert b.indptr is not None and b.indices is not None
    top, bottom, first, last, total = part
    across, many = max(b.shape[1], 1), many[first:last]
    of_a = torch.repeat_interleave(many, output_size=total)
    shift = b.indptr.long().index_select(0, a.indices[first:last]) - index.sums(many)[:-1]
    of_b = shift.index_select(0, of_a) + torch.arange(total, device=of_a.device)
    row = index.expand(a.indptr[top : bottom + 1].long() - first, last - first) * across
    keys, order = index.sort(row.index_select(0, of_a) + b.indices.index_select(0, of_b))
    starts = index.starts(keys).nonzero().squeeze(1)
    row, col = index.split(keys.index_select(0, starts), across)
    length = torch.bincount(row, minlength=bottom - top)
    alone = torch.diff(starts, append=starts.new_full((1,), total))
    return col, length, alone, of_a.index_select(0, order) + first, of_b.index_select(0, order)


def _ends(counts: Tensor) -> Tensor:
    return index.sums(counts).to(counts.dtype)


def _source(s: Structure, entries: Tensor) -> Tensor:
    """Entries as their values are numbered."""
    return entries if s.perm is None else s.perm.index_select(0, entries).to(entries.dtype)
