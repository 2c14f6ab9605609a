"""Primitives that spread rows of unequal length over lanes: `pad` and `work_list`.

A program's rows are `for i in 0:n` with one reduction `for p in ptr[i]:ptr[i + 1]` inside.

`pad(p, i, p_j, R)`: R neighbouring rows in one lane, as many steps as the longest has.
`work_list(p, i, p_j, R)`: units made at run time. A unit is four integers: trip count, piece, pieces (0: whole
rows, one in each lane; else one piece of a long row, spread over the lanes), slot; its segments are R rows
(-1: none), R starts and R ends, at a place known from the unit's number, so that they load beside it.
Parts of a bucketed format merge by these parameters, not by branches; rows cut in pieces are combined in
order (`Publish`), so that the result does not depend on timing and nothing has to be zeroed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Const, Expr, LaneReduce, Load, Var, const, eq, select
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute, walk
from tilewright.schedule.edit import edit, find, illegal, splice, uses

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
    body = tuple(stmt.Guard(live, (s,)) if _reads(s) else s for s in body)

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


def _reads(s: stmt.Stmt) -> bool:
    """Whether a statement reads something of its row, as the row's number in a list of rows."""
    return isinstance(s, stmt.Let) and any(isinstance(n, Load) for n in walk(s.value))


def _guard_stores(body: tuple[stmt.Stmt, ...], live: Expr) -> tuple[stmt.Stmt, ...]:
    return splice(body, lambda s: [stmt.Guard(live, (s,))] if isinstance(s, stmt.Store) else None)


def _entries(
    m: _Rows, trip: Expr, step: Expr, unroll: int
) -> Callable[[stmt.Stmt], list[stmt.Stmt] | None]:
    """The loop over entries as `serial t in 0:trip: p = start + t * step, where p < stop`.

    Unrolled copies may run past the trip count: their own guard covers that.
    """

    def rule(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        if s is not m.entries:
            return None
        t = Var("t", "i32")
        at = stmt.Let(m.entries.var, m.start + t * step)
        guard = stmt.Guard(m.entries.var < m.stop, m.entries.body)
        if unroll == 1:
            return [Loop(t, const(0), trip, "serial", (at, guard))]
        t_o, q = Var("t_o", "i32"), Var("q", "i32")
        copies = Loop(
            q, const(0), const(unroll), "unroll", (stmt.Let(t, t_o * unroll + q), at, guard)
        )
        return [Loop(t_o, const(0), (trip + (unroll - 1)) // unroll, "serial", (copies,))]

    return rule


def work_list(
    p: flat.Program, rows: str, entries: str, lanes: int, unroll: int = 1
) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1]  ->  grid u in units: lane r in lanes: serial t in 0:unit.trip"""
    m = _match(p, rows, entries)
    n_units = Var("n_units", "i32")
    dtype = m.start.dtype
    units = Buffer("units", dtype, (n_units, const(len(UNIT))), "plan")
    segs = Buffer("segs", dtype, (n_units, const(len(SEGMENT)), const(lanes)), "plan")
    made = edit(p, rows, lambda loop: [_unit_loop(m, units, segs, n_units, lanes, unroll)])
    return replace(made, buffers=(*p.buffers, units, segs), sizes=(*p.sizes, n_units))


def _unit_loop(
    m: _Rows, units: Buffer, segs: Buffer, n_units: Var, lanes: int, unroll: int
) -> Loop:
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
    inside: list[stmt.Stmt] = [
        stmt.Let(v, Load(segs, (first + m.r + n * lanes,)))
        for n, v in enumerate((i, m.start, m.stop))
    ]
    inside.append(stmt.Let(live, zero <= i))
    body = splice(m.rows.body, _entries(m, field["trip"], step, unroll))
    body = _finish(m, body, field, wide, live, Load(segs, (first,)), lanes)
    lane = Loop(m.r, const(0), const(lanes), "lane", (*inside, *body))
    return Loop(u, const(0), n_units, "grid", (*head, lane))


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
