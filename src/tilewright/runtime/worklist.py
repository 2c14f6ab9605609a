"""Work lists: rows of unequal length as units of equal work. A run-time primitive, in torch operations.

In: row pointers. Out: `units` [n, 4] and `segs` [n, 3, rows] as `schedule.work` reads them, and the number of slots.

    rows up to `long` entries     sorted by length, `rows` of them in a unit
    longer ones                   cut in pieces of `chunk` entries, a unit each, spread over the lanes
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

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

    def done(self, tiles: int, stream: int) -> Tensor:
        """Zeroed counters; kernels leave them zero."""
        key = (tiles, stream)
        if key not in self.counters:
            self.counters[key] = torch.zeros(
                self.slots * tiles, dtype=torch.int32, device=self.units.device
            )
        return self.counters[key]

    def space(self, width: int, stream: int) -> Tensor:
        """Room for one fp32 partial row for each slot."""
        key = (width, stream)
        if key not in self.spaces:
            self.spaces[key] = torch.empty(
                self.slots * width, dtype=torch.float32, device=self.units.device
            )
        return self.spaces[key]


def make_work_list(indptr: Tensor, setting: Setting) -> WorkList:
    """Units of a csr structure. Waits for the device (list lengths), so it belongs in preparation."""
    lanes, longest, chunk = setting["rows"], setting["long"], setting["chunk"]
    start = indptr[:-1].long()
    degree = indptr[1:].long() - start
    order = torch.argsort(degree, descending=True, stable=True)
    n_long = int((degree > longest).sum())
    cut, short = order[:n_long], order[n_long:]
    cut_units, cut_segs = _pieces(cut, start, degree, chunk, lanes)
    units, segs = _groups(short, start, degree, lanes)
    return WorkList(
        torch.cat([cut_units, units]).to(indptr.dtype),
        torch.cat([cut_segs, segs]).to(indptr.dtype),
        max(len(cut_units), 1),
        dict(setting),
    )


def _pieces(
    rows: Tensor, start: Tensor, degree: Tensor, chunk: int, lanes: int
) -> tuple[Tensor, Tensor]:
    """One unit for each piece of a long row; its lanes begin one entry apart."""
    many = (degree[rows] + chunk - 1) // chunk
    first = torch.cumsum(many, 0) - many
    row = torch.repeat_interleave(rows, many)
    slot = torch.repeat_interleave(first, many)
    nth = torch.arange(row.shape[0], device=row.device) - slot
    lo = start[row] + nth * chunk
    hi = torch.minimum(lo + chunk, start[row] + degree[row])
    trip = (hi - lo + lanes - 1) // lanes
    units = torch.stack([trip, nth, torch.repeat_interleave(many, many), slot], 1)
    lane = torch.arange(lanes, device=row.device)
    each = [t[:, None].expand(-1, lanes) for t in (row, lo, hi)]
    return units, torch.stack([each[0], each[1] + lane, each[2]], 1)


def _groups(rows: Tensor, start: Tensor, degree: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """One unit for each group of short rows, which come longest first; lanes left over have row -1."""
    segs = torch.stack([rows, start[rows], start[rows] + degree[rows]], 1)
    missing = -rows.shape[0] % lanes
    empty = torch.tensor([-1, 0, 0], device=rows.device).expand(missing, 3)
    trip = degree[rows[::lanes]]
    zero = torch.zeros_like(trip)
    units = torch.stack([trip, zero, zero, zero], 1)
    return units, torch.cat([segs, empty]).view(-1, lanes, 3).transpose(1, 2)
