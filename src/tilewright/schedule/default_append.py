"""The default schedules of programs that append, for both targets.

    ordered     one program owns a group: a running number, a scan inside the tile, one store of the count
    shared      tiles are independent: a scan inside the tile, one atomic addition for each tile
    behind      what an ordered list moves is done by the program that owns the group, after a barrier
    begun       what rows begin as is written by the program that looks at them

In: an unscheduled stage III program with an append. Out: a scheduled one with its steps.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const, Load, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.lowering.lanes import lanes_of, value_lanes
from tilewright.schedule.append import append_of
from tilewright.schedule.default_look import (
    AT_ONCE,
    SPAN,
    across,
    apart_of,
    by_bits,
    in_lanes,
    once,
    stacked,
    whole_rows,
)
from tilewright.schedule.edit import loops, uses
from tilewright.schedule.legal import carried
from tilewright.schedule.options import WARPS, Setting
from tilewright.schedule.record import Scheduled
from tilewright.schedule.shape import (
    Nest,
    Reduction,
    is_steady,
    is_unit,
    nest_of,
)

CELLS = 2048  # elements that a tile of a detector holds
ALONE = 1024  # of them, for each warp
STEPS = 4  # times as many where tiles that are looked at come one after the other: each waits for memory
FLAGS = 4096  # where there is nothing to look at but one number for each candidate
WARP, OWN = 32, 8  # threads of a warp; candidates side by side that a thread counts
ROW_CELLS = 512  # elements of a row that begins with something, for each warp
THREAD_TILE = 64  # candidates that a CPU thread counts before it takes places in a shared list


def append_triton(p: flat.Program, s: stmt.Append, setting: Setting) -> Scheduled:
    """Groups in the grid; candidates in lanes, tile after tile (ordered) or tiles in the grid (shared)."""
    end = next(n for n, x in enumerate(p.body, 1) if any(m is s for m in walk(x)))
    nest, around, made = nest_of(replace(p, body=p.body[:end])), _around(p, s), Scheduled(p)
    inner = [
        r for r in nest.reductions if around and any(n is r.loop for n in walk(around[-1].body))
    ]
    over = [x for x in around if not uses(s.group, x.var)]
    apart = apart_of(nest, inner, over[-1].var if over else None)
    warps = setting.get("warps", WARPS)
    room = _room(s.shared, bool(nest.reductions), bool(inner))
    room = max(room, setting.get("rows", 0) * SPAN)
    room = min(room, ALONE * warps) if s.shared else room
    most = room = across(inner, warps) if apart else room
    for r in nest.reductions:
        if r.loop in around:
            continue
        if r in apart:
            made = stacked(made, r)
            continue
        inside = r in inner
        made, used = in_lanes(made, nest, r, room if inside else most)
        room //= used if inside else 1
    made = by_bits(once(made, inner, apart), inner, apart)
    made = whole_rows(made, inner) if s.shared and len(inner) == 1 else made
    if over:
        made = _candidates(made, over[-1], nest, max(room, 1), s.shared, warps)
        made = _several(made, over, apart) if s.shared and apart == inner else made
    for x in around:
        alone = x not in over or s.shared
        left = any(y.var is x.var and y.kind == "serial" for y in loops(made.program))
        if alone and is_steady(x) and left:
            made = made.then("kind", x.var.name, "grid")
    made = made if s.shared else made.then("carry")
    if not p.body[end:]:
        return made
    return _begun(made, around[0], warps) if s.shared else _behind(made, around[0], setting)


def _begun(s: Scheduled, candidates: Loop, warps: int) -> Scheduled:
    """Rows that begin with something: as many in a program as it looks at, in turns; their columns in lanes."""
    name, known = candidates.var.name, {x.var.name: x for x in loops(s.program)}
    nest = nest_of(replace(s.program, body=s.program.body[-1:]))
    rows, columns = (x.var.name for x in nest.spatial)
    lane = known.get(f"{name}_i", known.get(name))
    high = int(lane.hi.value) if lane and lane.kind == "lane" and isinstance(lane.hi, Const) else 1
    most = ROW_CELLS * warps
    s = s.then("split", columns, max(most // high, WARP)).then("kind", f"{columns}_i", "lane")
    if f"{name}_o" not in known:  # candidates were not cut: all are lanes, or each has a program
        s = s.then("kind", rows, known[name].kind)
        return s if known[name].kind == "lane" else s.then("merge", name, rows)
    s, inner = s.then("split", rows, high), f"{rows}_i"
    if high * WARP > most:
        s, inner = s.then("split", inner, most // WARP), f"{inner}_i"
    s = s.then("kind", inner, "lane").then("kind", f"{rows}_o", "grid")
    return s.then("merge", f"{name}_o", f"{rows}_o")


def _behind(s: Scheduled, groups: Loop, setting: Setting) -> Scheduled:
    """What is done with each list, by the program that made it: constant loops and a part of the list in lanes."""
    nest = nest_of(replace(s.program, body=s.program.body[-1:]))
    room = CELLS * setting.get("warps", WARPS) // WARPS
    first, *inner = nest.spatial
    for x in inner:
        if isinstance(x.hi, Const):
            s = s.then("kind", x.var.name, "lane")
            room //= 1 << (int(x.hi.value) - 1).bit_length()
    for x in inner:
        if not isinstance(x.hi, Const):
            name = x.var.name
            if room > 1:
                s = s.then("split", name, room).then("kind", f"{name}_i", "lane")
    return s.then("kind", first.var.name, "grid").then("merge", groups.var.name, first.var.name)


def _room(shared: bool, reduces: bool, looks: bool) -> int:
    """The elements of a tile."""
    if shared or reduces:
        return CELLS * STEPS if looks and not shared else CELLS
    return FLAGS


def _around(p: flat.Program, s: stmt.Append) -> list[Loop]:
    """The loops around an append, outermost first."""
    return [x for x in loops(p) if any(n is s for n in walk(x.body))]


def _candidates(
    s: Scheduled, last: Loop, nest: Nest, room: int, shared: bool, warps: int
) -> Scheduled:
    """The innermost loop over candidates, in lanes; where warps have to meet each thread counts its own first."""
    if not nest.fits_lanes(last) or last.lo != const(0):
        return s
    name, size = last.var.name, 1 << (room.bit_length() - 1)
    if isinstance(last.hi, Const) and last.hi.value <= size:
        return _told_apart(s.then("kind", name, "lane"), s)
    made = s.then("split", name, size).then("kind", f"{name}_i", "lane")
    made = made.then("scan", OWN) if warps > 1 and size >= warps * WARP * OWN else made
    return _told_apart(made.then("kind", f"{name}_o", "grid") if shared else made, s)


def _several(s: Scheduled, over: list[Loop], apart: list[Reduction]) -> Scheduled:
    """Rows of low micro-tiles together: as many as keep memory as busy as high ones do."""
    high = apart[0].loop.hi if len(apart) == 1 else None
    if len(over) != 2 or not isinstance(high, Const) or high.value * 2 > AT_ONCE:
        return s
    name = over[0].var.name
    made = s.then("split", name, AT_ONCE // int(high.value)).then("kind", f"{name}_i", "lane")
    return made.then("kind", f"{name}_o", "grid")


def _told_apart(made: Scheduled, before: Scheduled) -> Scheduled:
    """Lanes are for candidates that differ; the same one, appended several times, stays in a loop."""
    s = append_of(made.program)
    assert s is not None
    return made if lanes_of((s.where, s.value), value_lanes(made.program)) else before


def _strided(p: flat.Program, candidates: Loop) -> bool:
    """Whether what is reduced for a candidate lies apart in memory, and that of its many neighbours side by side."""
    nest = nest_of(p)
    if isinstance(candidates.hi, Const):
        return False
    loads = [n for r in nest.reductions for n in walk(r.loop.body) if isinstance(n, Load)]
    return any(is_unit(candidates.var, n.indices[0]) for n in loads)


def append_c(p: flat.Program, s: stmt.Append) -> Scheduled:
    """Threads over groups, each list in order; or threads over candidates that share a list."""
    last = [x for x in _around(p, s) if is_steady(x) and not uses(s.group, x.var)][-1:]
    made = Scheduled(p)
    tiled = bool(last) and nest_of(p).fits_lanes(last[0]) and (s.shared or _strided(p, last[0]))
    if tiled:
        name = last[0].var.name
        made = made.then("split", name, THREAD_TILE).then("kind", f"{name}_i", "lane")
    if not s.shared and not tiled:
        made = made.then("carry")
    top = made.program.body[0] if len(made.program.body) == 1 else None
    while isinstance(top, Loop) and is_steady(top) and not carried(top):
        made = made.then("kind", top.var.name, "grid")
        inner = next(x for x in loops(made.program) if x.var is top.var).body
        top = inner[0] if len(inner) == 1 else None
        if isinstance(top, Loop) and top.kind == "lane":
            break
    return made
