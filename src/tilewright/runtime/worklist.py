"""Work lists: rows of unequal length as units of equal work. A run-time primitive, in torch operations.

In: row pointers. Out: `units` [n, 4] and `segs` [n, 3, rows] as `schedule.work` reads them, and the number of slots.

    rows up to `long` entries     sorted by length, `rows` of them in a unit
    longer ones                   cut in pieces of `chunk` entries, a unit each, spread over the lanes

`make_segments`: for what is done entry by entry, all rows are cut in parts of at most `chunk` entries.

Where ranks are given (`runtime/likeness.py`), rows are sorted by the power of two of their length, and by rank within:
lanes of a unit end at different times, but read the same columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tilewright.formats.index import expand, sums
from tilewright.formats.transforms import outside
from tilewright.schedule.options import Setting


@dataclass
class WorkList:
    """Units and segments of one structure for one setting; counters and room are kept for each stream."""

    units: Tensor
    segs: Tensor
    slots: int
    setting: Setting
    counters: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    spaces: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @outside
    def done(self, tiles: int, stream: int) -> Tensor:
        """Zeroed counters; kernels leave them zero."""
        key = (tiles, stream)
        if key not in self.counters:
            self.counters[key] = torch.zeros(
                self.slots * tiles, dtype=torch.int32, device=self.units.device
            )
        return self.counters[key]

    @outside
    def space(self, width: int, stream: int) -> Tensor:
        """Room for one fp32 partial row for each slot."""
        key = (width, stream)
        if key not in self.spaces:
            self.spaces[key] = torch.empty(
                self.slots * width, dtype=torch.float32, device=self.units.device
            )
        return self.spaces[key]


def make_work_list(indptr: Tensor, setting: Setting, rank: Tensor | None = None) -> WorkList:
    """Units of a csr structure. Waits for the device (list lengths), so it belongs in preparation."""
    lanes, longest, chunk = setting["rows"], setting["long"], setting["chunk"]
    start = indptr[:-1].long()
    degree = indptr[1:].long() - start
    order = _longest_first(degree, None)
    n_long = int((degree > longest).sum())
    cut, short = order[:n_long], order[n_long:]
    if rank is not None:
        short = short[_longest_first(degree[short], rank[short])]
    cut_units, cut_segs = _pieces(cut, start, degree, chunk, lanes)
    units, segs = _groups(short, start, degree, lanes)
    return WorkList(
        torch.cat([cut_units, units]).to(indptr.dtype),
        torch.cat([cut_segs, segs]).to(indptr.dtype),
        max(len(cut_units), 1),
        dict(setting),
    )


def make_segments(
    indptr: Tensor, setting: Setting, rank: Tensor | None = None, of: Tensor | None = None
) -> WorkList:
    """Parts of rows, longest first, `rows` of them in a unit; steps take `edges` entries. Waits for the device.

    of: the range of columns that each entry is in; parts are of one range, and ranges follow one another.
    """
    lanes, chunk, across = setting["rows"], setting["chunk"], setting["edges"]
    many, dtype = setting.get("columns", 1) if of is not None else 1, indptr.dtype
    if of is not None:
        indptr = _cut_by_range(indptr, of, many)
    start = indptr[:-1].long()
    degree = indptr[1:].long() - start
    row, lo, hi = _cut(torch.arange(len(degree), device=indptr.device), start, degree, chunk)[:3]
    order = _longest_first(hi - lo, None if rank is None else rank[row // many])
    order = order[torch.argsort(row[order] % many, stable=True)]
    units, segs = _lanes(row[order] // many, lo[order], hi[order], lanes)
    units[:, 0] = (units[:, 0] + across - 1) // across
    return WorkList(units.to(dtype), segs.to(dtype), 0, dict(setting))


def _cut_by_range(indptr: Tensor, of: Tensor, many: int) -> Tensor:
    """Pointers of rows cut in `many` parts each: where the entries of each range begin."""
    at = expand(indptr, of.shape[0]).long() * many + of
    return sums(torch.bincount(at, minlength=(indptr.shape[0] - 1) * many))


def _longest_first(length: Tensor, rank: Tensor | None) -> Tensor:
    """The order of rows by length; with ranks: by its power of two, then by rank."""
    if rank is None:
        return torch.argsort(length, descending=True, stable=True)
    by_rank = torch.argsort(rank, stable=True)
    power = torch.frexp((length[by_rank].double() - 0.5).clamp(min=0))[1]
    return by_rank[torch.argsort(power, descending=True, stable=True)]


def _cut(
    rows: Tensor, start: Tensor, degree: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(row, start, end, number of pieces, first piece of the row) of every piece; empty rows have none."""
    many = (degree[rows] + chunk - 1) // chunk
    first = torch.cumsum(many, 0) - many
    row = torch.repeat_interleave(rows, many)
    slot = torch.repeat_interleave(first, many)
    lo = start[row] + (torch.arange(row.shape[0], device=row.device) - slot) * chunk
    hi = torch.minimum(lo + chunk, start[row] + degree[row])
    return row, lo, hi, torch.repeat_interleave(many, many), slot


def _pieces(
    rows: Tensor, start: Tensor, degree: Tensor, chunk: int, lanes: int
) -> tuple[Tensor, Tensor]:
    """One unit for each piece of a long row; its lanes begin one entry apart."""
    row, lo, hi, many, slot = _cut(rows, start, degree, chunk)
    nth = torch.arange(row.shape[0], device=row.device) - slot
    trip = (hi - lo + lanes - 1) // lanes
    units = torch.stack([trip, nth, many, slot], 1)
    lane = torch.arange(lanes, device=row.device)
    each = [t[:, None].expand(-1, lanes) for t in (row, lo, hi)]
    return units, torch.stack([each[0], each[1] + lane, each[2]], 1)


def _groups(rows: Tensor, start: Tensor, degree: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """One unit for each group of short rows."""
    return _lanes(rows, start[rows], start[rows] + degree[rows], lanes)


def _lanes(row: Tensor, lo: Tensor, hi: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """Rows or parts of rows, one in each lane; lanes left over have row -1."""
    missing = -row.shape[0] % lanes
    empty = torch.tensor([-1, 0, 0], device=row.device).expand(missing, 3)
    segs = torch.cat([torch.stack([row, lo, hi], 1), empty]).view(-1, lanes, 3)
    trip = (segs[:, :, 2] - segs[:, :, 1]).amax(1)
    zero = torch.zeros_like(trip)
    return torch.stack([trip, zero, zero, zero], 1), segs.transpose(1, 2).contiguous()
