"""Where two structures meet: their union, and the pattern of their product. On the device, in linear passes and a sort.

In: csr structures. Out: a csr structure without duplicates, rows and columns in order. Waits for the device once,
for the number of entries.

    union(a, b); product(a, b)       # the places of a + b, of a @ b
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.convert import source_coordinates
from tilewright.formats.structure import Structure


def union(a: Structure, b: Structure) -> Structure:
    """The places that a or b has."""
    keys = [rows.long() * a.shape[1] + cols for rows, cols in map(source_coordinates, (a, b))]
    return _from_keys(torch.cat(keys), (a.shape[0], a.shape[1]), a.index_dtype)


def product(a: Structure, b: Structure) -> Structure:
    """The places where a @ b may have an entry: each entry (i, j) of a with each entry of row j of b."""
    a, b = a.as_csr(), b.as_csr()
    assert a.indices is not None and b.indptr is not None and b.indices is not None
    many = b.indptr.diff().long().index_select(0, a.indices)
    total = int(many.sum())
    at = torch.repeat_interleave(many, output_size=total)
    start = torch.cumsum(many, 0) - many
    nth = torch.arange(total, device=at.device) - start.index_select(0, at)
    first = b.indptr.long().index_select(0, a.indices)
    cols = b.indices.index_select(0, first.index_select(0, at) + nth)
    rows = a.rows_stored().index_select(0, at)
    shape = (a.shape[0], b.shape[1])
    return _from_keys(rows.long() * shape[1] + cols, shape, a.index_dtype)


def _from_keys(keys: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Structure:
    keys = torch.unique(keys)
    across = max(shape[1], 1)
    rows = torch.div(keys, across, rounding_mode="floor")
    cols = (keys - rows * across).to(dtype)
    return Structure("csr", shape, index.pointers(rows.to(dtype), shape[0]), cols, check=False)
