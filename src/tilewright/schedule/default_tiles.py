"""Tiles in C: rows by entries, where what is folded over entries is made by sums of products itself.

In: an unscheduled stage III program: attention over blocks, its gradients, or any other fold over entries of something
that is a sum over features. Out: the same with lanes for rows, entries, and features, so that both sums are tiles of
registers (codegen/c_sums.py), and functions of an entry are computed for many rows at once; None for other programs.

    i_b, i_in, d:      fold over p, j_in of softmax(sum over e of q[i, e] * k[j, e], v[j, d])
 -> i_b, lanes i_in, d:  q waits as lanes i_in, e;  for p: lanes j_in, i_in: scores, their maxima, weights, sums
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tilewright.analysis.cost import BYTES
from tilewright.ir.expr import FLOATS, Const, Load
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.schedule.edit import uses
from tilewright.schedule.legal import within
from tilewright.schedule.record import Scheduled
from tilewright.schedule.shape import Nest, Reduction, is_steady, is_unit
from tilewright.support.errors import ScheduleError

LINE = 64
ROWS, ENTRIES, FEATURES = 64, 64, 256  # at most
TILES = (64, 32, 16)  # rows, where they come out even
FEW = 8  # rows that are worth a tile
HELD = 1 << 16  # bytes of what rows hold, at most


def in_tiles(nest: Nest) -> Callable[[Scheduled], Scheduled] | None:
    """What makes tiles of a program, if it has that form; rows and features are its innermost spatial loops."""
    chain = [r for r in nest.reductions if r.depth == 0]
    inner = [r for r in nest.reductions if r.depth > 0]
    features, rows = _spatial(nest, inner)
    if rows is None or not chain or not inner or not _nested(chain):
        return None
    entries, dtype = chain[-1].loop, _dtype(chain[-1], inner)
    if not dtype or not is_steady(entries) or not nest.fits_lanes(rows):
        return None
    if any(nest.steers(entries.var, r.loop) for r in inner):
        return None
    sides = [r.loop for r in inner] + ([features] if features is not None else [])
    count = _rows(rows, sides, BYTES[dtype])
    if not count or (features is not None and not nest.fits_lanes(features)):
        return None

    def tile(s: Scheduled) -> Scheduled:
        if features is not None:
            s, _ = _cut(s, features, _whole(_extent(features), BYTES[dtype]))
        s, _ = _cut(s, rows, count)
        s, name = _cut(s, entries, min(_extent(entries) or ENTRIES, ENTRIES))
        for r in inner:
            s = s.then("kind", r.name, "lane")
        for buffer in _read_again(rows, chain, inner):
            s = _held(s, buffer, chain)
        fold = next(f for f in chain[-1].folds if f not in [g for r in inner for g in r.folds])
        return s.then("at_once", name) if fold.monoid.fold is not None else s

    return tile


def _spatial(nest: Nest, inner: list[Reduction]) -> tuple[Loop | None, Loop | None]:
    """The features, which the sums inside know nothing of, and the rows."""
    if not nest.spatial:
        return None, None
    last = nest.spatial[-1]
    known = [n for r in inner for f in r.folds for n in walk(f.args)]
    if any(nest.enters(last.var, n) for n in known if isinstance(n, Load)):
        return None, last
    return last, nest.spatial[-2] if len(nest.spatial) > 1 else None


def _nested(chain: list[Reduction]) -> bool:
    return all(any(s is b.loop for s in within(a.loop.body)) for a, b in pairwise(chain))


def _dtype(entries: Reduction, inner: list[Reduction]) -> str:
    """The dtype of a fold that tiles know how to make, of sums inside of it; nothing if there is another one."""
    below = [f for r in inner for f in r.folds]
    own = [f for f in entries.folds if not any(f is g for g in below)]
    if len(own) != 1 or any(f.monoid.name != "sum" for f in below):
        return ""
    (d, *others) = own[0].monoid.dtypes
    plain = own[0].monoid.name == "sum" or own[0].monoid.fold is not None
    return d if plain and d in FLOATS and all(x == d for x in others) else ""


def _rows(rows: Loop, sides: list[Loop], size: int) -> int:
    """So many rows at once that they are whole lines, and what they hold stays near; 0 if that does not pay."""
    ends, extent = [_extent(x) for x in sides], _extent(rows) or ROWS
    if not is_steady(rows) or extent < FEW or any(not 0 < n <= FEATURES for n in ends):
        return 0
    if extent <= ROWS and extent not in TILES:
        return _whole(extent, size)
    fit = [n for n in TILES if extent % n == 0] or [ROWS]
    return next((n for n in fit if n * sum(ends) * size <= HELD), fit[-1])


def _extent(loop: Loop) -> int:
    """How many turns a loop has; 0 where that is not known."""
    return int(loop.hi.value) if isinstance(loop.hi, Const) else 0


def _whole(extent: int, size: int) -> int:
    """So many lanes, and as many more as make whole lines."""
    return -(-extent * size // LINE) * LINE // size


def _cut(s: Scheduled, loop: Loop, size: int) -> tuple[Scheduled, str]:
    """Lanes of a loop, so many of them at once, and their name."""
    name, extent = loop.var.name, _extent(loop)
    if extent == size:
        return s.then("kind", name, "lane"), name
    if 0 < extent < size:
        return s.then("lane", name, size), name
    return s.then("split", name, size).then("kind", f"{name}_i", "lane"), f"{name}_i"


def _read_again(rows: Loop, chain: list[Reduction], inner: list[Reduction]) -> list[str]:
    """What rows read, side by side, for every entry again."""
    found = [(r, n) for r in inner for f in r.folds for n in walk(f.args) if isinstance(n, Load)]
    moving = chain[-1].loop.var
    return list(
        dict.fromkeys(
            n.buffer.name
            for r, n in found
            if is_unit(r.loop.var, n.indices[0]) and not uses(n.indices, moving)
        )
    )


def _held(s: Scheduled, buffer: str, chain: list[Reduction]) -> Scheduled:
    """Read once, before the first loop that does not change it."""
    for r in chain:
        try:
            return s.then("cache", buffer, r.name)
        except ScheduleError:
            continue
    return s
