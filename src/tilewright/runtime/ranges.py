"""Work lists of ranges of columns: one range after the other, so that the rows of x that one reads stay in cache.

In: pointers and columns of rows, in each of which the ranges follow each other. Out: a `WorkList` whose units are of
one range each, as `schedule.work` reads them with `shared`.

    rows up to `long` entries     `rows` of them side by side, one unit for each range that has entries of them
    longer ones                   in pieces of `chunk` entries, ranges apart

The units of one group of rows, or of one long row, are its pieces: they are combined in the order of the ranges. The
number of pieces is negative for groups, and what is in one range alone is stored as it is.

    make_range_list(indptr, indices, 1000, {"rows": 8, "long": 32, "chunk": 512, "columns": 2})
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.formats.index import ceil_div, expand, sums
from tilewright.runtime.worklist import WorkList
from tilewright.schedule.options import Setting


@dataclass(frozen=True)
class _Units:
    """Units with the range that each is of, their segments, and how many slots they share."""

    units: Tensor
    segs: Tensor
    range: Tensor
    slots: int


def range_of(indices: Tensor, columns: int, ranges: int) -> Tensor:
    """The range of each column, as `formats.rules.in_range` cuts them."""
    width = max(ceil_div(columns, ranges), 1)
    return torch.div(indices, width, rounding_mode="floor")


def follow_each_other(indptr: Tensor, indices: Tensor, columns: int, ranges: int) -> bool:
    """Whether the entries of each row lie range after range: waits for the device."""
    at, rows = range_of(indices, columns, ranges), expand(indptr, indices.shape[0])
    return bool(((at[1:] >= at[:-1]) | (rows[1:] != rows[:-1])).all())


def make_range_list(indptr: Tensor, indices: Tensor, columns: int, setting: Setting) -> WorkList:
    """Units of a csr structure. Waits for the device (list lengths), so it belongs in preparation."""
    n, many = indptr.shape[0] - 1, setting["columns"]
    at = expand(indptr, indices.shape[0]).long() * many + range_of(indices, columns, many)
    lengths = torch.bincount(at, minlength=n * many).view(n, many)
    start = sums(lengths.view(-1))[:-1].view(n, many)
    degree = lengths.sum(1)
    order = torch.argsort(degree, descending=True, stable=True)
    n_long = int((degree > setting["long"]).sum())
    cut = _pieces(order[:n_long], start, lengths, setting["chunk"], setting["rows"])
    short = _groups(order[n_long:], start, lengths, setting["rows"], cut.slots)
    units = torch.cat([cut.units, short.units])
    work = torch.argsort(units[:, 0], descending=True, stable=True)
    of = torch.cat([cut.range, short.range])[work]
    work = work[torch.argsort(of, stable=True)]
    return WorkList(
        units[work].to(indptr.dtype),
        torch.cat([cut.segs, short.segs])[work].to(indptr.dtype),
        max(cut.slots + short.slots, 1),
        dict(setting),
    )


def _pieces(rows: Tensor, start: Tensor, lengths: Tensor, chunk: int, lanes: int) -> _Units:
    """One unit for each piece of a long row; its lanes begin one entry apart."""
    ranges = lengths.shape[1]
    cuts = (lengths[rows] + chunk - 1) // chunk
    many = cuts.sum(1)
    home = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), many)
    slot = (torch.cumsum(many, 0) - many)[home]
    nth = torch.arange(len(home), device=rows.device) - slot
    flat = cuts.view(-1)
    place = torch.repeat_interleave(torch.arange(len(flat), device=rows.device), flat)
    of = place % ranges
    inside = torch.arange(len(place), device=rows.device) - (torch.cumsum(flat, 0) - flat)[place]
    row = rows[home]
    lo = start[row, of] + inside * chunk
    hi = torch.minimum(lo + chunk, start[row, of] + lengths[row, of])
    units = torch.stack([(hi - lo + lanes - 1) // lanes, nth, many[home], slot], 1)
    lane = torch.arange(lanes, device=rows.device)
    each = [t[:, None].expand(-1, lanes) for t in (row, lo, hi)]
    return _Units(units, torch.stack([each[0], each[1] + lane, each[2]], 1), of, len(home))


def _groups(rows: Tensor, start: Tensor, lengths: Tensor, lanes: int, taken: int) -> _Units:
    """One unit for each range that a group of short rows has entries in; of rows that have none, the first."""
    missing = -len(rows) % lanes
    row = torch.cat([rows, rows.new_full((missing,), -1)]).view(-1, lanes)
    inside = (row >= 0)[..., None]
    held = torch.where(inside, lengths[row], 0)
    longest = held.amax(1)
    there = longest > 0
    there[:, 0] |= ~there.any(1)
    many = there.sum(1)
    nth = torch.cumsum(there, 1) - 1
    slots = torch.where(many > 1, many, 0)
    slot = taken + torch.cumsum(slots, 0) - slots
    group, of = there.nonzero(as_tuple=True)
    pieces = torch.where(many > 1, -many, 0)
    units = torch.stack([longest[group, of], nth[group, of], pieces[group], slot[group]], 1)
    first = torch.where(inside, start[row], 0)
    lo, size = first[group, :, of], held[group, :, of]
    return _Units(units, torch.stack([row[group], lo, lo + size], 1), of, int(slots.sum()))
