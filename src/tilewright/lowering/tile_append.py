"""Append in tile form: a scan inside the tile, and one addition to each shared count for all that the tile keeps.

In: an append of stage III, and the code made so far. Out: more code.

    kept = where(...); base = atomic_add(count, sum(kept)); store(found + base + cumsum(kept) - 1, value, where kept)

With a counter (for a count of its own to which every program comes once) programs claim their places there, and the
last one leaves the count: it need not be set to 0 by a launch before.
"""

from __future__ import annotations

from tilewright.ir import stmt, tile
from tilewright.ir.expr import Bin, Buffer, Expr, cast, const, ne, select
from tilewright.lowering.tile_expr import Tiler
from tilewright.lowering.tile_rules import refuse
from tilewright.lowering.tiled import Lanes, Tiled, names


def append(t: Tiler, s: stmt.Append, counter: Buffer | None = None) -> None:
    """What a tile keeps, behind what others of its group have put there."""
    if not s.shared:
        raise refuse("append", "its order is carried by no program", "carry() it first", s)
    where, value, group = (t.value(e) for e in (s.where, s.value, s.group))
    lanes = t.sort({*where.lanes, *value.lanes, *group.lanes})
    over = [v for v in lanes if v not in group.lanes]
    if len(over) > 1 and (group.lanes or s.at is not None):
        why = "it runs over several lanes, and lists or what goes with them do too"
        raise refuse("append", why, "keep one of them", s)
    keep, mask = t.broadcast(where, lanes), t.mask(lanes)
    keep = keep if mask is None else Bin("&", mask, keep)
    if lanes and not where.lanes and mask is None:
        keep = t.spread_to(where, lanes)
    kept = Tiled(cast("i32", keep), lanes)
    entry = t.broadcast(value, lanes)
    if len(over) > 1:
        kept, entry = _in_one(t, kept, entry)
        over = list(kept.lanes)
    kept = t.emit("kept", "i32", kept.e, kept.lanes)
    total: Expr = tile.Reduce("sum", kept.e, kept.lanes.index(over[0])) if over else kept.e
    base = t.fresh("base", s.count.dtype)
    t.types[base] = names(group.lanes)
    if counter is None:
        t.push(tile.FetchAdd(base, s.count, group.e, total, t.mask(group.lanes)))
    else:
        t.push(tile.Claim(base, counter, s.count, total))
    upto = kept.e
    if over and s.at is None and t.by_threads(kept):
        kept, upto = t.threads(kept)
        entry = tile.Reshape(entry, names(kept.lanes))
    elif over:
        upto = t.scan("sum", kept, over[0])
    first, held = t.value(s.slot), ne(kept.e, const(0))
    begin = Tiled(first.e + cast("i64", base) - 1, t.sort({*first.lanes, *group.lanes}))
    start = t.broadcast(begin, kept.lanes)
    t.push(tile.Store(s.list, (start, upto), cast(s.list.dtype, entry), held))
    if s.at is not None:
        place = select(held, start + upto, const(-1))
        t.env[s.at] = t.emit("at", "i64", place, lanes)


def _in_one(t: Tiler, kept: Tiled, entry: Expr) -> tuple[Tiled, Expr]:
    """All lanes of what is kept as one."""
    size = 1
    for v in kept.lanes:
        size *= t.dims[v]
    lanes: Lanes = (t.lane("_".join(names(kept.lanes)), size),)
    return Tiled(tile.Reshape(kept.e, names(lanes)), lanes), tile.Reshape(entry, names(lanes))
