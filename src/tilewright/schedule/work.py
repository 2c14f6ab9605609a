"""Primitives that spread rows of unequal length over lanes: `pad`, `work_list` and `segments`.

A program's rows are `for i in 0:n` with one loop `for p in ptr[i]:ptr[i + 1]` inside: a reduction, or (`segments`)
something done for each entry.

`pad(p, i, p_j, R)`: R neighbouring rows in one lane, as many steps as the longest has.
`work_list(p, i, p_j, R)`: units made at run time. A unit is four integers: trip count, piece, pieces (0: whole
rows, one in each lane; else one piece of a long row, spread over the lanes), slot; its segments are R rows
(-1: none), R starts and R ends, at a place known from the unit's number, so that they load beside it.
Parts of a bucketed format merge by these parameters into one launch; rows cut in pieces are combined in order
(`Publish`), so that the result does not depend on timing and nothing has to be zeroed. Whole rows and pieces have a
loop each, whose step is a constant; whole rows end in a round of as many copies as they have left, or nearly so: with a
few entries each, most of a whole round would find nothing.
`work_list(p, i, p_j, R, 1, 1)`: rows side by side may be in pieces as well, as those of ranges of columns are. Their
number is then negative; what a unit has is left as it is, lane by lane, and joined after all pieces were combined.

`segments(p, i, p_j, R, E)`: units of the same form; each lane has a row, or a part of one, and takes E of its
entries at once: what belongs to the row is loaded once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, TypeGuard

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Const, Expr, LaneReduce, Load, Var, const, eq, select
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.node import substitute, walk
from tilewright.schedule.edit import edit, every_block, find, illegal, splice, uses
from tilewright.schedule.legal import (
    at_least,
    carried,
    folds,
    fresh,
    in_order,
    republished,
    taken,
    uneven,
    unset,
    unused,
    within,
)

# The last, incomplete round of unrolled copies has a quarter of them, two or three, or all.
ENDS = 4
UNIT = ("trip", "nth", "pieces", "slot")
SEGMENT = ("row", "start", "stop")


@dataclass(frozen=True)
class _Rows:
    """What the two loops look like, and the variables of the new form."""

    rows: Loop
    entries: Loop
    r: Var
    start: Var
    stop: Var
    guards: tuple[
        Expr, ...
    ] = ()  # what must hold for a row to have bounds, as far as rows alone decide it


def _match(
    p: flat.Program,
    what: str,
    rows: str,
    entries: str,
    counts: tuple[int, ...],
    guarded: bool = False,
) -> _Rows:
    outer, inner = find(p, rows), find(p, entries)
    for n in counts:
        at_least(what, n)
    lo, hi = inner.lo, inner.hi
    if not (isinstance(lo, Load) and uses(lo, outer.var) and isinstance(hi, Load)):
        why = f"the bounds of {entries} are not read from a pointer array by {rows}"
        raise illegal(what, why, ir=inner)
    if outer.lo != const(0) or outer.kind not in ("serial", "grid"):
        raise illegal(what, f"{rows} is not a serial loop from 0", ir=outer)
    if inner.kind != "serial" or sum(s is inner for s in within(outer.body)) != 1:
        raise illegal(what, f"{entries} is not a serial loop inside {rows}", ir=outer)
    if carried(outer) or in_order(outer):
        why = in_order(outer) or f"it carries the reduction {carried(outer)}"
        raise illegal(what, f"rows do not stand alone: {why}", ir=outer)
    if _reads_alone(outer, inner, guarded):
        why = f"{_reads_alone(outer, inner, guarded)} is read by {rows} outside of {entries}"
        raise illegal(what, why, f"read it inside {entries}, or where it is stored", ir=outer)
    dtype = lo.buffer.dtype
    names = (fresh(p, n) for n in ("r", f"{rows}_start", f"{rows}_stop"))
    moving = [x.var for x in within(outer.body) if isinstance(x, Loop)]
    guards = [c for c in _guards(outer.body, inner) if not any(uses(c, v) for v in moving)]
    r, start, stop = map(Var, names, ("i32", dtype, dtype))
    return _Rows(outer, inner, r, start, stop, tuple(guards))


def _guards(body: tuple[stmt.Stmt, ...], entries: Loop) -> tuple[Expr, ...]:
    """The conditions around a loop, in terms of what stands outside of the block."""
    lets: dict[Expr, Expr] = {}
    for s in body:
        if isinstance(s, stmt.Let):
            lets[s.var] = substitute(s.value, lets)
        elif isinstance(s, stmt.Guard | Loop) and any(x is entries for x in within(s.body)):
            own = (s.cond,) if isinstance(s, stmt.Guard) else ()
            return tuple(substitute(c, lets) for c in (*own, *_guards(s.body, entries)))
    return ()


def _reads_alone(rows: Loop, entries: Loop, guarded: bool) -> str:
    """A buffer that is read at an empty lane, where neither the entries' guard nor the stores' is in force.

    guarded: what stands directly under the rows, and loops beside that over the entries, have guards of their own.
    """
    apart = {id(s) for s in within(entries.body)}
    if guarded:
        apart |= {id(s) for s in rows.body}
        apart |= {id(s) for x in within(rows.body) if _beside(x, entries) for s in within(x.body)}
    for s in within(rows.body):
        if isinstance(s, stmt.Let) and id(s) not in apart and _read_by(rows, s.value):
            return _read_by(rows, s.value)[0]
    return ""


def _read_by(rows: Loop, e: Any) -> list[str]:
    """The buffers that are read at a place which depends on the row."""
    found = (n for n in walk(e) if isinstance(n, Load | Lookup))
    return [n.buffer.name for n in found if rows.var in flat.made_of(rows.body, n)]


def _beside(s: stmt.Stmt, entries: Loop) -> TypeGuard[Loop]:
    """Whether a statement is a loop over something else than the entries, as the diagonals of a row."""
    return isinstance(s, Loop) and all(x is not entries for x in (s, *within(s.body)))


def pad(p: flat.Program, rows: str, entries: str, lanes: int, unroll: int = 1) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1]  ->  grid i_o: lane r in lanes: serial t in 0:longest: where p < stop"""
    what = f"pad({rows}, {entries}, {lanes}, {unroll})"
    m = _match(p, what, rows, entries, (lanes, unroll), guarded=True)
    unused(p, what, f"{rows}_o")
    i, i_o = m.rows.var, Var(f"{rows}_o")
    longest = Var(fresh(p, "longest"), m.start.dtype)
    zero = Const(0, m.start.dtype)
    live = i < m.rows.hi
    bounds: tuple[stmt.Stmt, ...] = (
        stmt.Let(m.start, m.entries.lo),
        stmt.Let(m.stop, m.entries.hi),
    )
    bounded = live
    if m.guards:
        held = Var(fresh(p, "held"), "b1")
        bounds = (stmt.Let(held, reduce(and_, m.guards)), stmt.Guard(held, bounds))
        bounded = live & held
    over = _instead(m, lambda: _turns(p, m, longest, 1, unroll))

    def guard(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        if _beside(s, m.entries) and _read_by(m.rows, s.body):
            return [replace(s, body=(stmt.Guard(live, s.body),))]
        return over(s)

    body = splice(m.rows.body, guard)
    body = tuple(stmt.Guard(live, (s,)) if _reads(s) else s for s in body)

    def rule(loop: Loop) -> list[stmt.Stmt]:
        inside: tuple[stmt.Stmt, ...] = (
            stmt.Let(i, i_o * lanes + m.r),
            stmt.Guard(live, bounds),
            stmt.Let(longest, LaneReduce("max", (m.r,), select(bounded, m.stop - m.start, zero))),
            *_guard_stores(body, live),
        )
        lane = Loop(m.r, const(0), const(lanes), "lane", inside)
        return [Loop(i_o, const(0), (loop.hi + (lanes - 1)) // lanes, "grid", (lane,))]

    return _even(what, edit(p, rows, rule))


def _even(what: str, made: flat.Program) -> flat.Program:
    name = unset(made)
    why = f"{name} is not known there" if name else uneven(made) or republished(made)
    if why:
        raise illegal(what, why, "choose other rows, or another kind for the other loops", ir=made)
    return made


def _reads(s: stmt.Stmt) -> bool:
    """Whether a statement reads something of its row, as the row's number in a list of rows."""
    read = s.value if isinstance(s, stmt.Let) else s.cond if isinstance(s, stmt.Guard) else ()
    return any(isinstance(n, Load) for n in walk(read))


def _guard_stores(body: tuple[stmt.Stmt, ...], live: Expr) -> tuple[stmt.Stmt, ...]:
    return splice(
        body,
        lambda s: [stmt.Guard(live, (s,))] if isinstance(s, stmt.Store | stmt.Atomic) else None,
    )


def _instead(
    m: _Rows, made: Callable[[], list[stmt.Stmt]]
) -> Callable[[stmt.Stmt], list[stmt.Stmt] | None]:
    """The loop over entries replaced."""
    return lambda s: made() if s is m.entries else None


def _turns(
    p: flat.Program,
    m: _Rows,
    trip: Expr,
    step: int,
    unroll: int,
    across: int = 0,
    held: set[str] | None = None,
) -> list[stmt.Stmt]:
    """The loop over entries as `serial t in 0:trip: p = start + t * step, where p < stop`.

    Unrolled copies may run past the trip count: their own guard covers that. across: as many entries side by side.
    """
    t, t_o, q, e = (Var(fresh(p, n, held), "i32") for n in ("t", "t_o", "q", "e"))
    turn = _turn(m, t, step, (e, across) if across else None)
    if unroll == 1:
        return [Loop(t, const(0), trip, "serial", turn)]
    copies = _copies(t_o * unroll, unroll, q, t, turn)
    return [Loop(t_o, const(0), (trip + (unroll - 1)) // unroll, "serial", (copies,))]


def fewest(unroll: int) -> int:
    """The copies in the shortest round of an unrolled loop over rows of a few entries."""
    return max(unroll // ENDS, 1)


def _exact_turns(
    p: flat.Program, m: _Rows, trip: Expr, unroll: int, held: set[str]
) -> list[stmt.Stmt]:
    """The same for rows of a few entries: what is left after the whole rounds has a round of fewer copies.

    t_o in 0:rounds: unroll q in 8 ...;  if 4 < left: unroll q in 6 ... else: if 2 < left: unroll q in 4 ...
    """
    least = fewest(unroll)
    if least == unroll:
        return _turns(p, m, trip, 1, unroll, 0, held)

    def copies(first: Expr, many: int) -> Loop:
        q, t = (Var(fresh(p, n, held), "i32") for n in ("q", "t"))
        return _copies(first, many, q, t, _turn(m, t, 1))

    t_o, rounds, begun = (Var(fresh(p, n, held), "i32") for n in ("t_o", "rounds", "begun"))
    whole = Loop(t_o, const(0), rounds, "serial", (copies(t_o * unroll, unroll),))
    rest: tuple[stmt.Stmt, ...] = ()
    for many in range(least, unroll, least):
        rest = (stmt.If(begun + (many - least) < trip, (copies(begun, many),), rest),)
    head = stmt.Let(rounds, (trip + (least - 1)) // unroll)
    return [head, whole, stmt.Let(begun, rounds * unroll), *rest]


def _copies(first: Expr, many: int, q: Var, t: Var, turn: tuple[stmt.Stmt, ...]) -> Loop:
    """As many turns, from the first on."""
    return Loop(q, const(0), const(many), "unroll", (stmt.Let(t, first + q), *turn))


def _turn(
    m: _Rows, t: Var, step: int, across: tuple[Var, int] | None = None
) -> tuple[stmt.Stmt, ...]:
    """One entry of every lane; across: a lane of as many side by side."""
    at = m.start + t * step
    let = stmt.Let(m.entries.var, at if across is None else at + across[0])
    body = (let, stmt.Guard(m.entries.var < m.stop, m.entries.body))
    return body if across is None else (Loop(across[0], const(0), const(across[1]), "lane", body),)


def work_list(
    p: flat.Program, rows: str, entries: str, lanes: int, unroll: int = 1, shared: int = 0
) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1]  ->  grid u in units: lane r in lanes: serial t in 0:unit.trip"""
    what = f"work_list({rows}, {entries}, {lanes}, {unroll}{', 1' if shared else ''})"
    m = _match(p, what, rows, entries, (lanes, unroll))
    for s in within(m.rows.body):
        if isinstance(s, stmt.Fold) and not s.monoid.joins:
            raise illegal(what, f"{s.monoid.name} has no lane form", "pad the rows", ir=s)
    if _beyond(m):
        why = f"{_beyond(m)} is made in {rows} beside the reduction over {entries}"
        raise illegal(
            what, why, "pad the rows: those in pieces are known when all are there", ir=m.rows
        )
    return _listed(p, what, m, lanes, lambda u, s: _unit_loop(p, m, u, s, lanes, unroll, shared))


def segments(
    p: flat.Program, rows: str, entries: str, lanes: int, across: int, unroll: int = 1
) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1] -> grid u in units: lane r in lanes: serial t in 0:unit.trip: lane e in across"""
    what = f"segments({rows}, {entries}, {lanes}, {across}, {unroll})"
    m = _match(p, what, rows, entries, (lanes, across, unroll))
    if carried(m.entries):
        reason = f"{entries} carries the reduction {carried(m.entries)}"
        raise illegal(what, reason, "use work_list", ir=m.entries)
    return _listed(p, what, m, lanes, lambda u, s: _parts(p, m, u, s, lanes, across, unroll))


def _listed(
    p: flat.Program, what: str, m: _Rows, lanes: int, loop: Callable[[Buffer, Buffer], Loop]
) -> flat.Program:
    """The rows replaced by a loop over the units of a list."""
    unused(p, what, "units", "segs", "n_units")
    n_units, dtype = Var("n_units", "i32"), m.start.dtype
    units = Buffer("units", dtype, (n_units, const(len(UNIT))), "plan")
    segs = Buffer("segs", dtype, (n_units, const(len(SEGMENT)), const(lanes)), "plan")
    made = edit(p, m.rows.var.name, lambda _: [loop(units, segs)])
    made = replace(made, buffers=(*p.buffers, units, segs), sizes=(*p.sizes, n_units))
    return _even(what, made)


def _segment(m: _Rows, segs: Buffer, u: Var, lanes: int) -> list[stmt.Stmt]:
    """Row, start and end of a lane."""
    first = u * (len(SEGMENT) * lanes)
    return [
        stmt.Let(v, Load(segs, (first + m.r + n * lanes,)))
        for n, v in enumerate((m.rows.var, m.start, m.stop))
    ]


def _parts(
    p: flat.Program, m: _Rows, units: Buffer, segs: Buffer, lanes: int, across: int, unroll: int
) -> Loop:
    u, trip = Var(fresh(p, "u")), Var("unit_trip", units.dtype)
    body = splice(m.rows.body, _instead(m, lambda: _turns(p, m, trip, across, unroll, across)))
    live = stmt.Guard(Const(0, segs.dtype) <= m.rows.var, body)
    lane = Loop(m.r, const(0), const(lanes), "lane", (*_segment(m, segs, u, lanes), live))
    head = stmt.Let(trip, Load(units, (u * len(UNIT),)))
    return Loop(u, const(0), units.shape[0], "grid", (head, lane))


def _unit_loop(
    p: flat.Program, m: _Rows, units: Buffer, segs: Buffer, lanes: int, unroll: int, shared: int
) -> Loop:
    u = Var(fresh(p, "u"))
    field = {
        n: stmt.Let(Var(f"unit_{n}", units.dtype), Load(units, (u * len(UNIT) + k,)))
        for k, n in enumerate(UNIT)
    }
    trip, pieces = field["trip"].var, field["pieces"].var
    wide, live = Var("wide", "b1"), Var("live", "b1")
    first, held = u * (len(SEGMENT) * lanes), taken(p)
    zero, i = Const(0, segs.dtype), m.rows.var
    head = (field["trip"], field["pieces"], stmt.Let(wide, zero < pieces))
    inside = [*_segment(m, segs, u, lanes), stmt.Let(live, zero <= i)]

    def turns() -> list[stmt.Stmt]:
        spread = _turns(p, m, trip, lanes, unroll, 0, held)
        return [stmt.If(wide, tuple(spread), tuple(_exact_turns(p, m, trip, unroll, held)))]

    body = splice(m.rows.body, _instead(m, turns))
    body = _finish(m, body, field, wide, live, Load(segs, (first,)), lanes, shared)
    lane = Loop(m.r, const(0), const(lanes), "lane", (*inside, *body))
    return Loop(u, const(0), units.shape[0], "grid", (*head, lane))


def _beyond(m: _Rows) -> str:
    """What a row makes that waits for no piece of it: states that its entries do not fold, and stores elsewhere."""
    apart = {id(s) for s in within(m.entries.body)}
    states = {s.state for s in folds(m.entries.body)}
    ended = [b for b in every_block(m.rows.body) if _begins(b, states)]
    apart |= {id(s) for b in ended for s in within(b) if isinstance(s, stmt.Store | stmt.Atomic)}
    for s in within(m.rows.body):
        if id(s) not in apart and isinstance(s, stmt.Init) and s.state not in states:
            return s.state[0].name
        if id(s) not in apart and isinstance(s, stmt.Store | stmt.Atomic):
            return s.buffer.name
    return ""


def _begins(body: tuple[stmt.Stmt, ...], states: set[tuple[Var, ...]]) -> bool:
    return any(isinstance(s, stmt.Init) and s.state in states for s in body)


def _finish(
    m: _Rows,
    body: tuple[stmt.Stmt, ...],
    field: dict[str, stmt.Let],
    wide: Var,
    live: Var,
    row_of: Load,
    lanes: int,
    shared: int,
) -> tuple[stmt.Stmt, ...]:
    """After the reduction: rows are stored by their lane; pieces are joined, published, stored once."""
    at = next((n for n, s in enumerate(body) if isinstance(s, stmt.Init)), None)
    if at is None:
        return tuple(
            _descend(s, lambda b: _finish(m, b, field, wide, live, row_of, lanes, shared))
            for s in body
        )
    init = body[at]
    assert isinstance(init, stmt.Init)
    loop = next((n for n, s in enumerate(body) if n > at and _folds(s, init)), None)
    if loop is None or any(isinstance(s, stmt.Init) for s in body[at + 1 :]):
        raise illegal("work_list", "there is more than one reduction over the entries of a row")
    after = body[loop + 1 :]
    whole = tuple(Var(f"{v.name}_row", v.dtype) for v in init.state)
    row = Var(f"{m.rows.var.name}_row", row_of.buffer.dtype)
    table: dict[Expr, Expr] = dict(zip(init.state, whole, strict=True))
    table[m.rows.var] = row
    for s in after:
        if isinstance(s, stmt.Let):
            table[s.var] = Var(f"{s.var.name}_row", s.var.dtype)
    once = substitute(after, table)
    slot, nth, pieces = (field[n].var for n in ("slot", "nth", "pieces"))
    place = (field["slot"], field["nth"])  # asked for by pieces alone
    joined: tuple[stmt.Stmt, ...] = (
        stmt.Init(whole, init.monoid),
        Loop(m.r, const(0), const(lanes), "lane", (stmt.Join(whole, init.monoid, init.state),)),
        stmt.Let(row, row_of),
    )
    each = (stmt.Guard(live, after),)
    if shared:
        done = (stmt.If(wide, (*joined, *once), each),)
        many = Var("unit_many", pieces.dtype)
        count = stmt.Let(many, select(wide, pieces, Const(0, pieces.dtype) - pieces))
        publish = stmt.Publish(init.state, init.monoid, slot, nth, many, done)
        ending = stmt.If(many < Const(2, pieces.dtype), done, (*place, publish))
        return (*body[: loop + 1], count, ending)
    publish = stmt.Publish(whole, init.monoid, slot, nth, pieces, once)
    joined = (*joined, stmt.If(eq(pieces, 1), once, (*place, publish)))
    return (*body[: loop + 1], stmt.If(wide, joined, each))


def _folds(s: stmt.Stmt, into: stmt.Init) -> bool:
    """Whether a statement is where a reduction is done."""
    return any(isinstance(x, stmt.Fold) and x.state == into.state for x in within((s,)))


def _descend(
    s: stmt.Stmt, fn: Callable[[tuple[stmt.Stmt, ...]], tuple[stmt.Stmt, ...]]
) -> stmt.Stmt:
    return replace(s, body=fn(s.body)) if isinstance(s, Loop | stmt.Guard) else s
