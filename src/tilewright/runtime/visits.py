"""Rows in an order in which neighbours share columns, and how often that saves a gather. Run-time primitives.

In: a csr pattern, and a rank for each row (`runtime/likeness.py`). Out: `Visits`, as `schedule.visit` reads them.

    v = make_visits(indptr, indices, ranks(indptr, indices, n))
    missing(v.columns, 800)     # the share of gathers that miss a cache of 800 rows
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SAMPLE = 1 << 19  # entries that stand for all
FINE = 8  # steps in which an interval doubles


class Visits(NamedTuple):
    """Rows in the order of their turns; where their entries lie, less where they come; where their entries come; the
    columns of the entries as they come."""

    rows: Tensor
    shift: Tensor
    begin: Tensor
    columns: Tensor


def make_visits(indptr: Tensor, indices: Tensor, rank: Tensor) -> Visits:
    """The rows of a csr pattern by rank."""
    rows = torch.argsort(rank)
    many, dtype = indptr.diff()[rows], indptr.dtype
    begin = torch.cat([many.new_zeros(1), many.cumsum(0)])
    shift = indptr[:-1][rows] - begin[:-1]
    at = torch.repeat_interleave(shift, many, output_size=len(indices))
    at = at + torch.arange(len(indices), device=at.device)
    return Visits(rows.to(dtype), shift.to(dtype), begin.to(dtype), indices[at])


def missing(columns: Tensor, room: int) -> float:
    """The share of gathers, in this order, of what a cache with room for so many rows no longer has.

    From the times between two gathers of one row: the rows that are touched in a time grow by the share of gathers
    whose row was not touched in it, so that the time in which the cache is filled follows (Xiang et al., ASPLOS 2013).
    """
    columns = columns[max(0, (len(columns) - SAMPLE) // 2) :][:SAMPLE]
    if not len(columns):
        return 0.0
    order = torch.argsort(columns, stable=True)
    again = columns[order].diff() == 0
    times = order.diff()[again].double()
    step = (times.log2() * FINE).floor().long()
    counts = torch.bincount(step, minlength=1).tolist()
    held, left, began = 0.0, len(columns), 0.0
    for n, many in enumerate(counts):
        ends = 2.0 ** ((n + 1) / FINE)
        held += (ends - began) * left / len(columns)
        if held >= room:
            break
        left, began = left - many, ends
    return left / len(columns)
