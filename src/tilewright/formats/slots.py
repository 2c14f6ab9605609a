"""From entries to the trees whose values are dense inside.

Owns: the writers of dbsr, srbcrs, dia, two_four and bitmap, and the blocks of bsr. In: entries in
any order, duplicates too, and parameters (None: chosen). Out: a `Tree` with `slots`: the place of
each source entry in the flattened values. Keys are marked in a table where they are dense enough,
else sorted once. Each waits for the device once or twice, for sizes.

    dia(entries)            # dia.k, k the diagonals that occur
    srbcrs(entries, 8, 4)
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.entries import Entries, limit, misfit
from tilewright.formats.layout import name_of
from tilewright.formats.lists import moved, rounded
from tilewright.formats.tree import Tree


def srbcrs(e: Entries, t: int, g: int) -> Tree:
    """Entries of t rows and one column share a strip; strips of t rows are padded to g."""
    name, (n, m), (rows, cols) = name_of("srbcrs", t, g), e.shape, e.coords
    outer, inside = index.split(rows, t)
    across = index.ceil_div(n, t)
    strip, column, place = index.distinct_pairs(outer, cols, (across, m))
    compact = index.ends(strip, across)
    starts, total = rounded(compact.diff(), g)
    limit(name, total * t, e.count, "csr, or a smaller t", e.dtype)
    at = moved(compact, starts, strip.shape[0])
    made = cols.new_full((total,), -1).scatter_(0, at, column.to(e.dtype))
    arrays = {"indptr1": starts.to(e.dtype), "indices1": made}
    return _slotted(e, name, arrays, at.index_select(0, place) * t + inside)


def dbsr(e: Entries, b0: int, b1: int) -> Tree:
    """Blocks that hold an entry, in the rows of blocks that hold one."""
    name = name_of("dbsr", b0, b1)
    outer, inner, slots = blocks(e, (b0, b1))
    limit(name, inner.shape[0] * b0 * b1, e.count, "csr, or a smaller block")
    first = index.starts(outer).nonzero().squeeze(1)
    arrays = {
        "indices0": outer.index_select(0, first),
        "indptr1": index.closed(first, inner.shape[0], e.dtype),
        "indices1": inner,
    }
    return _slotted(e, name, arrays, slots)


def blocks(e: Entries, block: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column of each block that holds an entry, sorted; the place of each entry in them."""
    (n, m), (b0, b1) = e.shape, block
    across, down = index.ceil_div(m, b1), index.ceil_div(n, b0)
    (row, r), (col, c) = index.split(e.coords[0], b0), index.split(e.coords[1], b1)
    outer, inner, place = index.distinct_pairs(row, col, (down, across))
    return outer.to(e.dtype), inner.to(e.dtype), (place * b0 + r) * b1 + c


def dia(e: Entries, count: int | None = None) -> Tree:
    """The diagonals that occur, and if more are asked for, some that lie outside."""
    (n, m), (rows, cols) = e.shape, e.coords
    diagonal, place = index.distinct((cols - rows).long() + (n - 1), max(n + m - 1, 0))
    offsets = diagonal - (n - 1)
    found = offsets.shape[0]
    count = found if count is None else count
    name = name_of("dia", count)
    if found > count:
        raise misfit(name, f"{found} diagonals", f"dia.{found} or more")
    limit(name, n * count, e.count, "csr")
    outside = torch.full((count - found,), m, device=e.device)
    arrays = {"indices1": torch.cat((offsets, outside)).to(e.dtype)}
    return _slotted(e, name, arrays, rows.long() * count + place)


def bitmap(e: Entries) -> Tree:
    """One bit (a byte) and one value for each place of the matrix."""
    (n, m), (rows, cols) = e.shape, e.coords
    limit("bitmap", n * m, e.count, "csr")
    slots = rows.long() * m + cols
    mask = torch.zeros(n * m, dtype=torch.uint8, device=e.device)
    mask.scatter_(0, slots, 1)
    return _slotted(e, "bitmap", {"mask1": mask}, slots)


def two_four(e: Entries) -> Tree:
    """Up to two distinct columns of every four, in order."""
    (n, m), (rows, cols) = e.shape, e.coords
    outer, inside = index.split(cols, 4)
    across = index.ceil_div(m, 4)
    limit("two_four", 2 * n * across, e.count, "csr")
    group = rows.long() * across + outer
    seen = torch.zeros(n * across * 4, dtype=torch.uint8, device=e.device)
    seen.scatter_(0, group * 4 + inside, 1)
    upto = seen.reshape(-1, 4).cumsum(1, dtype=torch.uint8)
    most = int(upto.max()) if n * across else 0
    if most > 2:
        raise misfit("two_four", f"{most} entries among four columns", "at most two")
    slots = group * 2 + upto.reshape(-1).index_select(0, group * 4 + inside) - 1
    made = cols.new_full((2 * n * across,), -1).scatter_(0, slots, inside)
    return _slotted(e, "two_four", {"indices2": made}, slots)


def _slotted(e: Entries, name: str, arrays: dict[str, Tensor], slots: Tensor) -> Tree:
    wide = e.dtype == torch.int64
    slots = e.by_source(slots)
    return Tree(name, e.shape, arrays, slots=slots, count=e.count, wide=wide, check=False)
