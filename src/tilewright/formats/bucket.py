"""Buckets: a three-dimensional tensor as parts, each of fibers of about one length.

Owns: `buckets`. In: a tensor (relation, row, column) of any format. Out: one tensor of format
bucket.w for each width that occurs. Every entry is in exactly one part, so that the tensor is the
sum of its parts. Parts share the values: `perm` leads each to its own, and new values flow into all
of them with `with_values`.

    [part.format for part in buckets(A, widths=(1, 4))]      # ["bucket.1", "bucket.4"]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewright.formats import fibers, index
from tilewright.formats.entries import entries_of
from tilewright.formats.tensor import SparseTensor
from tilewright.support.errors import error

WIDTHS = (1, 2, 4, 8, 16, 32)


def buckets(a: SparseTensor, widths: Sequence[int] = WIDTHS) -> list[SparseTensor]:
    """Fibers by the narrowest width that holds them; the longest ones in pieces of the last."""
    where = "buckets(tensor, widths)"
    if len(a.shape) != 3:
        raise error("shape", where=where, name="tensor", got=a.shape, expected="three dimensions")
    if not widths or list(widths) != sorted(set(widths)) or widths[0] < 1:
        expected = "widths that grow, from 1 or more"
        raise error("argument", where=where, name="widths", got=widths, expected=expected)
    entries, values = entries_of(a.structure, a.values)
    entries = fibers.grouped(entries)
    first = fibers.first_of_fibers(entries)
    lengths = index.closed(first, entries.count, torch.int64).diff()
    bounds = torch.tensor(widths[:-1], device=entries.device)
    kind = torch.bucketize(lengths, bounds, out_int32=True)
    of_entry = torch.repeat_interleave(kind, lengths, output_size=entries.count)
    made = []
    for k, width in enumerate(widths):
        part = entries.select((of_entry == k).nonzero().squeeze(1))
        if part.count:
            tree = fibers.bucket(part, width, sources=entries.count)
            made.append(SparseTensor(tree, values))
    return made
