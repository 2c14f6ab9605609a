"""Work lists: rows of unequal length as units of equal work. A run-time primitive, in torch operations.

In: row pointers. Out: `units` [n, 6] and `segs` [m, 3] as `schedule.work` reads them, and the number of slots.

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
    pieces = _pieces(cut, start, degree, chunk, lanes)
    groups = _groups(short, start, degree, lanes, pieces[0].shape[0])
    segs = torch.cat([pieces[0], groups[0]]).to(indptr.dtype).contiguous()
    units = torch.cat([pieces[1], groups[1]]).to(indptr.dtype).contiguous()
    return WorkList(units, segs, max(pieces[0].shape[0], 1), dict(setting))


def _pieces(
    rows: Tensor, start: Tensor, degree: Tensor, chunk: int, lanes: int
) -> tuple[Tensor, Tensor]:
    """One segment and one unit for each piece of a long row."""
    many = (degree[rows] + chunk - 1) // chunk
    first = torch.cumsum(many, 0) - many
    row = torch.repeat_interleave(rows, many)
    slot = torch.repeat_interleave(first, many)
    at = torch.arange(row.shape[0], device=row.device)
    nth = at - slot
    lo = start[row] + nth * chunk
    hi = torch.minimum(lo + chunk, start[row] + degree[row])
    trip = (hi - lo + lanes - 1) // lanes
    zero = torch.zeros_like(at)
    count = torch.repeat_interleave(many, many)
    units = torch.stack([at, zero, trip, nth, count, slot], 1)
    return torch.stack([row, lo, hi], 1), units


def _groups(
    rows: Tensor, start: Tensor, degree: Tensor, lanes: int, base: int
) -> tuple[Tensor, Tensor]:
    """One segment for each short row, one unit for each group of them."""
    segs = torch.stack([rows, start[rows], start[rows] + degree[rows]], 1)
    at = torch.arange(0, rows.shape[0], lanes, device=rows.device)
    held = torch.clamp(rows.shape[0] - at, max=lanes)
    zero = torch.zeros_like(at)
    units = torch.stack([base + at, held, degree[rows[at]], zero, zero + 1, zero], 1)
    return segs, units
