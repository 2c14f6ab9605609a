"""Tiles of products over stored blocks, chosen when nobody chose.

In: a structure of blocks, the columns of x, the dtype. Out: a setting.

    tiles(A.structure, 4096, torch.bfloat16)       # blocks of 64: {"width": 256, "warps": 8, "stages": 7, ...}

Operands are small beside the way to them, so many steps are in flight: as many as shared memory holds.
"""

from __future__ import annotations

import torch

from tilewright.formats.structure import Structure
from tilewright.ops.settings import ceil_pow2
from tilewright.schedule.options import Setting

SHARED = 220 << 10  # bytes of shared memory that operands in flight may have
DEPTH = 64  # of one step
STAGES = 7
AHEAD = 2  # stages between a block's place in the list and its operands
BUSY = 128  # programs that keep a large device busy (measured, as is what follows)
WIDTHS = (256, 128, 64)
HELD = 128  # sums that a thread holds at most
# width, warps, stages: what a measured choice looks at; short rows of blocks want little in flight
SHAPES = (
    *((256, 4, 7), (256, 8, 7), (128, 4, 7), (128, 8, 7), (64, 4, 7)),
    *((128, 4, 5), (128, 4, 4), (256, 4, 4), (64, 4, 4)),
)


def tiles(s: Structure, columns: int, dtype: torch.dtype) -> Setting:
    """The widest tile that leaves enough programs; more warps where a thread would hold too much."""
    most = max(ceil_pow2(columns), 16)
    if min(s.block) < 16:  # no products
        return {"width": min(256, most), "warps": 4, "stages": 3, "outer": 1}
    if dtype.itemsize > 2:  # no wide products, and operands are twice as large
        return _made(s.block, min(64, most), 4, dtype)
    rows = -(-s.shape[0] // s.block[0])
    fits = [w for w in WIDTHS if rows * -(-columns // w) >= BUSY]
    width = min(fits[0] if fits else WIDTHS[-1], most)
    return _made(s.block, width, 8 if s.block[0] * width >= 128 * 256 else 4, dtype)


def settings(s: Structure, columns: int, dtype: torch.dtype) -> list[Setting]:
    """The settings that a measured choice looks at."""
    most = max(ceil_pow2(columns), 16)
    shapes = [t for t in SHAPES if t[0] <= most and 4 <= _held(s.block, *t[:2]) <= HELD]
    return [_made(s.block, w, n, dtype, k) for w, n, k in shapes] or [tiles(s, columns, dtype)]


def _held(block: tuple[int, int], width: int, warps: int) -> int:
    return block[0] * width // (32 * warps)


def _made(
    block: tuple[int, int], width: int, warps: int, dtype: torch.dtype, most: int = STAGES
) -> Setting:
    depth = min(block[1], DEPTH)
    step = (block[0] + width) * depth * dtype.itemsize
    stages = min(most, SHARED // step + AHEAD) if dtype.itemsize == 2 else 2
    return {
        "width": width,
        "warps": warps,
        "stages": stages,
        "outer": 1,
        "blocks": 1,
        "bn": DEPTH,
    }
