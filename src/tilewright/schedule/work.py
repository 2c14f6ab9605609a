"""Primitives that spread rows of unequal length over lanes: `pad`, `work_list` and `segments`.

A program's rows are `for i in 0:n` with one loop `for p in ptr[i]:ptr[i + 1]` inside: a reduction, or (`segments`)
something done for each entry.

`pad(p, i, p_j, R)`: R neighbouring rows in one lane, as many steps as the longest has.
`work_list(p, i, p_j, R)`: units made at run time. A unit is four integers: trip count, piece, pieces (0: whole
rows, one in each lane; else one piece of a long row, spread over the lanes), slot; its segments are R rows
(-1: none), R starts and R ends, at a place known from the unit's number, so that they load beside it.
Parts of a bucketed format merge by these parameters, not by branches; rows cut in pieces are combined in
order (`Publish`), so that the result does not depend on timing and nothing has to be zeroed.

`segments(p, i, p_j, R, E)`: units of the same form; each lane has a row, or a part of one, and takes E of its
entries at once: what belongs to the row is loaded once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Const, Expr, LaneReduce, Load, Var, const, eq, select
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute
from tilewright.schedule.edit import edit, find, illegal, splice, uses
from tilewright.schedule.loop import carried

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


def _match(p: flat.Program, rows: str, entries: str) -> _Rows:
    outer, inner = find(p, rows), find(p, entries)
    what = f"rows({rows}, {entries})"
    lo, hi = inner.lo, inner.hi
    if not (isinstance(lo, Load) and uses(lo, outer.var) and isinstance(hi, Load)):
        raise illegal(
            what, f"the bounds of {entries} are not read from a pointer array by {rows}", ir=inner
        )
    dtype = lo.buffer.dtype
    return _Rows(
        outer, inner, Var("r", "i32"), Var(f"{rows}_start", dtype), Var(f"{rows}_stop", dtype)
    )


def pad(p: flat.Program, rows: str, entries: str, lanes: int, unroll: int = 1) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1]  ->  grid i_o: lane r in lanes: serial t in 0:longest: where p < stop"""
    m = _match(p, rows, entries)
    i, i_o = m.rows.var, Var(f"{rows}_o")
    longest = Var("longest", m.start.dtype)
    zero = Const(0, m.start.dtype)
    live = i < m.rows.hi
    body = splice(m.rows.body, _entries(m, longest, const(1), unroll))

    def rule(loop: Loop) -> list[stmt.Stmt]:
        inside: tuple[stmt.Stmt, ...] = (
            stmt.Let(i, i_o * lanes + m.r),
            stmt.Guard(live, (stmt.Let(m.start, m.entries.lo), stmt.Let(m.stop, m.entries.hi))),
            stmt.Let(longest, LaneReduce("max", (m.r,), select(live, m.stop - m.start, zero))),
            *_guard_stores(body, live),
        )
        lane = Loop(m.r, const(0), const(lanes), "lane", inside)
        return [Loop(i_o, const(0), (loop.hi + (lanes - 1)) // lanes, "grid", (lane,))]

    return edit(p, rows, rule)


def _guard_stores(body: tuple[stmt.Stmt, ...], live: Expr) -> tuple[stmt.Stmt, ...]:
    return splice(body, lambda s: [stmt.Guard(live, (s,))] if isinstance(s, stmt.Store) else None)


def _entries(
    m: _Rows, trip: Expr, step: Expr, unroll: int, across: int = 0
) -> Callable[[stmt.Stmt], list[stmt.Stmt] | None]:
    """The loop over entries as `serial t in 0:trip: p = start + t * step, where p < stop`.

    Unrolled copies may run past the trip count: their own guard covers that. across: as many entries side by side.
    """

    def rule(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        if s is not m.entries:
            return None
        t, e = Var("t", "i32"), Var("e", "i32")
        first = m.start + t * step
        at = stmt.Let(m.entries.var, first + e if across else first)
        body: tuple[stmt.Stmt, ...] = (
            at,
            stmt.Guard(m.entries.var < m.stop, m.entries.body),
        )
        if across:
            body = (Loop(e, const(0), const(across), "lane", body),)
        if unroll == 1:
            return [Loop(t, const(0), trip, "serial", body)]
        t_o, q = Var("t_o", "i32"), Var("q", "i32")
        copies = Loop(q, const(0), const(unroll), "unroll", (stmt.Let(t, t_o * unroll + q), *body))
        return [Loop(t_o, const(0), (trip + (unroll - 1)) // unroll, "serial", (copies,))]

    return rule


def work_list(
    p: flat.Program, rows: str, entries: str, lanes: int, unroll: int = 1
) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1]  ->  grid u in units: lane r in lanes: serial t in 0:unit.trip"""
    m = _match(p, rows, entries)
    return _listed(p, m, lanes, lambda units, segs: _unit_loop(m, units, segs, lanes, unroll))


def segments(
    p: flat.Program, rows: str, entries: str, lanes: int, across: int, unroll: int = 1
) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1] -> grid u in units: lane r in lanes: serial t in 0:unit.trip: lane e in across"""
    m = _match(p, rows, entries)
    if carried(m.entries):
        reason = f"{entries} carries the reduction {carried(m.entries)}"
        raise illegal(f"segments({rows}, {entries})", reason, "use work_list", ir=m.entries)
    return _listed(p, m, lanes, lambda units, segs: _parts(m, units, segs, lanes, across, unroll))


def _listed(
    p: flat.Program, m: _Rows, lanes: int, loop: Callable[[Buffer, Buffer], Loop]
) -> flat.Program:
    """The rows replaced by a loop over the units of a list."""
    n_units, dtype = Var("n_units", "i32"), m.start.dtype
    units = Buffer("units", dtype, (n_units, const(len(UNIT))), "plan")
    segs = Buffer("segs", dtype, (n_units, const(len(SEGMENT)), const(lanes)), "plan")
    made = edit(p, m.rows.var.name, lambda _: [loop(units, segs)])
    return replace(made, buffers=(*p.buffers, units, segs), sizes=(*p.sizes, n_units))


def _segment(m: _Rows, segs: Buffer, u: Var, lanes: int) -> list[stmt.Stmt]:
    """Row, start and end of a lane."""
    first = u * (len(SEGMENT) * lanes)
    return [
        stmt.Let(v, Load(segs, (first + m.r + n * lanes,)))
        for n, v in enumerate((m.rows.var, m.start, m.stop))
    ]


def _parts(m: _Rows, units: Buffer, segs: Buffer, lanes: int, across: int, unroll: int) -> Loop:
    u, trip = Var("u"), Var("unit_trip", units.dtype)
    body = splice(m.rows.body, _entries(m, trip, const(across), unroll, across))
    live = stmt.Guard(Const(0, segs.dtype) <= m.rows.var, body)
    lane = Loop(m.r, const(0), const(lanes), "lane", (*_segment(m, segs, u, lanes), live))
    head = stmt.Let(trip, Load(units, (u * len(UNIT),)))
    return Loop(u, const(0), units.shape[0], "grid", (head, lane))


def _unit_loop(m: _Rows, units: Buffer, segs: Buffer, lanes: int, unroll: int) -> Loop:
    u = Var("u")
    field = {n: Var(f"unit_{n}", units.dtype) for n in UNIT}
    wide, live = Var("wide", "b1"), Var("live", "b1")
    step, first = Var("step", segs.dtype), u * (len(SEGMENT) * lanes)
    one, zero, i = Const(1, segs.dtype), Const(0, segs.dtype), m.rows.var
    head: list[stmt.Stmt] = [
        stmt.Let(v, Load(units, (u * len(UNIT) + n,))) for n, v in enumerate(field.values())
    ]
    head += [
        stmt.Let(wide, zero < field["pieces"]),
        stmt.Let(step, select(wide, Const(lanes, segs.dtype), one)),
    ]
    inside = [*_segment(m, segs, u, lanes), stmt.Let(live, zero <= i)]
    body = splice(m.rows.body, _entries(m, field["trip"], step, unroll))
    body = _finish(m, body, field, wide, live, Load(segs, (first,)), lanes)
    lane = Loop(m.r, const(0), const(lanes), "lane", (*inside, *body))
    return Loop(u, const(0), units.shape[0], "grid", (*head, lane))


def _finish(
    m: _Rows,
    body: tuple[stmt.Stmt, ...],
    field: dict[str, Var],
    wide: Var,
    live: Var,
    row_of: Load,
    lanes: int,
) -> tuple[stmt.Stmt, ...]:
    """After the reduction: rows are stored by their lane; pieces are joined, published, stored once."""
    at = next((n for n, s in enumerate(body) if isinstance(s, stmt.Init)), None)
    if at is None:
        return tuple(
            _descend(s, lambda b: _finish(m, b, field, wide, live, row_of, lanes)) for s in body
        )
    init = body[at]
    assert isinstance(init, stmt.Init)
    loop = next((n for n, s in enumerate(body) if n > at and isinstance(s, Loop)), None)
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
    publish = stmt.Publish(whole, init.monoid, field["slot"], field["nth"], field["pieces"], once)
    joined: tuple[stmt.Stmt, ...] = (
        stmt.Init(whole, init.monoid),
        Loop(m.r, const(0), const(lanes), "lane", (stmt.Join(whole, init.monoid, init.state),)),
        stmt.Let(row, row_of),
        stmt.If(eq(field["pieces"], 1), once, (publish,)),
    )
    return (*body[: loop + 1], stmt.If(wide, joined, (stmt.Guard(live, after),)))


def _descend(
    s: stmt.Stmt, fn: Callable[[tuple[stmt.Stmt, ...]], tuple[stmt.Stmt, ...]]
) -> stmt.Stmt:
    return replace(s, body=fn(s.body)) if isinstance(s, Loop | stmt.Guard) else s
