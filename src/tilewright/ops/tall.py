"""Blocks of several rows of blocks in one, so that a tile of x serves them all.

In: a structure of blocks, how many of its rows of blocks one is to hold, blocks as values. Out: the structure of tall
blocks over the rows in another order, those that hold nothing last; the row that each of its rows is; the values there.

    made = tall(A.structure, 4)              # rows 0, 2, 3, 5 of blocks in one, where 1 and 4 are empty
    y[made.rows[i], f] = sum(j, values(made, v)[i, j] * x[j, f])

A program of one row of blocks is bound by the second-level cache, which hands out a tile of x for each block; twice as
many rows ask for half as many tiles, and zeros come with them. `worth` decides by rates that were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tilewright.formats.index import ceil_div, expand, sums
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.kept import copied, lasting
from tilewright.ops.registry import register

HIGHEST, TALL = 128, (2, 4)  # rows of a tall block at most, and rows of blocks in one
# TFLOP/s over stored blocks by their rows, and by their columns up to 32: of many columns of x, and of up to FEW (H200)
RATES = {16: (160, 160), 32: (300, 300), 64: (590, 550), 128: (800, 800)}
FEW_RATES = {16: (170, 170), 32: (260, 360), 64: (360, 510), 128: (450, 590)}
FEW, DEEP = 1024, 32
START, MOVED = 8.0, 5.7e6  # microseconds of a launch, and bytes of x and y in one
COPIED, STARTS = (
    3.5e6,
    6.0,
)  # of values that are not kept: bytes in a microsecond, and microseconds of the launches
CLEARLY = 0.95


@dataclass(frozen=True, eq=False)
class Tall:
    """at: for each of the given blocks, its place in `room` of them; rows: None where they keep their order."""

    structure: Structure
    rows: Tensor | None
    at: Tensor
    room: int


def bsr_tall(rows: Param, a: Param, x: Param, y: Param) -> None:
    i, j, f = axes("i j f")
    y.sized(rows.dim(0), x.dim(1))
    rows.unique()
    y[rows[i], f] = fn.sum(j, a[i, j] * x[j, f])


register(trace(bsr_tall))


def tall(s: Structure, many: int) -> Tall | None:
    """The structure of blocks `many` times as tall, or None where a place has several blocks. Kept with the structure;
    waits for the device once."""
    key = ("tall", many)
    if key not in s.plans:
        s.plans[key] = _made(s, many)
    made: Tall | None = s.plans[key]
    return made


def worth(s: Structure, v: Tensor, x: Tensor) -> int:
    """How many rows of blocks to take as one; 1 where that does not clearly pay."""
    (high, wide), half = s.block, v.dtype == x.dtype and x.element_size() == 2
    if not half or x.dim() != 2 or min(high, wide) < min(RATES) or s.perm is not None:
        return 1
    found, least = 1, CLEARLY * _us(s, s.indices.numel() * high * wide, high, x)  # type: ignore[union-attr]
    for many in (n for n in TALL if n * high <= HIGHEST):
        made = tall(s, many)
        if made is not None:
            us = _us(s, made.room * high * wide, many * high, x)
            if not lasting(v):
                us += STARTS + (v.numel() + 2 * made.room * high * wide) * v.element_size() / COPIED
            found, least = (many, us) if us < least else (found, least)
    return found


def _us(s: Structure, stored: int, high: int, x: Tensor) -> float:
    """Microseconds of a product with so many stored numbers in blocks of so many rows."""
    columns = x.shape[1]
    known = FEW_RATES if columns <= FEW else RATES
    rate = known[max(h for h in known if h <= high)][s.block[1] >= DEEP]
    moved = sum(s.shape) * columns * x.element_size()
    return START + moved / MOVED + 2e-6 * stored * columns / rate


@outside
def _made(s: Structure, many: int) -> Tall | None:
    assert s.indptr is not None and s.indices is not None
    (high, wide), across = s.block, ceil_div(s.shape[1], s.block[1])
    counts = s.indptr.diff()
    order = _order(s, counts)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    row = place[expand(s.indptr, s.indices.shape[0]).long()]
    key = torch.div(row, many, rounding_mode="floor") * across + s.indices
    found, nth = torch.unique(key, return_inverse=True)
    at = nth * many + row % many
    if len(torch.unique(at)) < len(at):
        return None
    of = torch.div(found, across, rounding_mode="floor")
    starts = sums(torch.bincount(of, minlength=ceil_div(len(order), many)))
    columns = (found - of * across).to(s.indices.dtype)
    block = (many * high, wide)
    made = Structure("bsr", s.shape, starts.to(s.indptr.dtype), columns, block=block, check=False)
    moved = not torch.equal(order, torch.arange(len(order), device=order.device))
    rows = (order[:, None] * high + torch.arange(high, device=order.device)).flatten()
    return Tall(made, rows.to(s.indptr.dtype) if moved else None, at, len(found) * many)


def _order(s: Structure, counts: Tensor) -> Tensor:
    """Rows of blocks, those that hold something first. Where the last one is not whole, all stay where they are."""
    if s.shape[0] % s.block[0]:
        return torch.arange(len(counts), device=counts.device)
    return torch.argsort((counts == 0).int(), stable=True)


def values(made: Tall, v: Tensor) -> Tensor:
    """[blocks, rows, columns] of the tall blocks, zeros where none was given; made once where v stays as it is."""
    return copied(v, made, partial(_values, made))


def _values(made: Tall, v: Tensor) -> Tensor:
    (high, wide), many = v.shape[1:], made.structure.block[0] // v.shape[1]
    room = v.new_zeros(made.room, high, wide).index_copy_(0, made.at, v)
    return room.view(-1, many * high, wide)
