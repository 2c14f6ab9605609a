"""Compacted lists: how an append runs, and the default schedules of programs that append.

    ordered     one program owns a group: a running number, a scan inside the tile, one store of the count
    shared      tiles are independent: a scan inside the tile, one atomic addition for each tile

In: an unscheduled stage III program with an append. Out: a scheduled one. `carry` is the primitive of the ordered kind;
what is left as `append(..., shared=True)` becomes the atomic one in tile form and in C.

    for k in serial(n): append(found[0], count[0], k, where=c)
 -> n = init(sum); for k_o in serial: for k_i in lane(1024): found[n + scan(c) - 1] = k where c; n = fold(sum, n, c)
    count[0] = n
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, LaneScan, Var, cast, const, select
from tilewright.ir.flat import Loop
from tilewright.ir.monoid import monoids
from tilewright.ir.node import walk
from tilewright.lowering.lanes import lanes_of, value_lanes
from tilewright.schedule import loop as step
from tilewright.schedule.edit import blocks, illegal, loops, splice, uses
from tilewright.schedule.options import Setting
from tilewright.schedule.shape import Nest, Reduction, bounds_another, is_steady, nest_of

CELLS = 2048  # elements that a tile of a detector holds
SPAN = 256  # of them, along a reduction over a whole dimension
THREAD_TILE = 64  # candidates that a CPU thread counts before it takes places in a shared list


def append_of(p: flat.Program) -> stmt.Append | None:
    """The append of a program, if it has one."""
    return next((n for n in walk(p.body) if isinstance(n, stmt.Append)), None)


# --- the primitive ----------------------------------------------------------------------------------


def carry(p: flat.Program) -> flat.Program:
    """count[g] = s; loops: append(list[at], count[g], v, where=c)
    ->  n = init(sum); loops: list[at + s + n + scan(c) - 1] = v where c, n = fold(sum, n, c); count[g] = s + n"""
    s = append_of(p)
    if s is None or s.shared:
        raise illegal("carry()", "nothing is appended in order", "leave it out", ir=p)
    found = [b for b in _every_block(p.body) if any(_begins(x, s) for x in b)]
    if len(found) != 1:
        raise illegal("carry()", f"{s.count.name} does not begin in one place", ir=p)
    block = found[0]
    at = next(n for n, x in enumerate(block) if _begins(x, s))
    made = (*block[:at], *_carried(block[at], block[at + 1 :], s))

    def rule(x: stmt.Stmt) -> list[stmt.Stmt] | None:
        return list(made) if x is block[0] else [] if any(x is y for y in block) else None

    return replace(p, body=splice(p.body, rule))


def _begins(x: stmt.Stmt, s: stmt.Append) -> bool:
    return isinstance(x, stmt.Store) and x.buffer is s.count


def _every_block(body: tuple[stmt.Stmt, ...]) -> list[tuple[stmt.Stmt, ...]]:
    return [body, *(b for s in body for inner in blocks(s) for b in _every_block(inner))]


def _carried(begin: stmt.Stmt, rest: tuple[stmt.Stmt, ...], s: stmt.Append) -> list[stmt.Stmt]:
    assert isinstance(begin, stmt.Store)
    n, total = Var("n_kept", "i32"), monoids("i32")["sum"]
    start = cast("i32", begin.value)
    first = start if isinstance(start, Const) else Var("first", "i32")
    after = tuple(x for old in rest for x in _within(old, s, n, first, (), ()))
    last = stmt.Store(begin.buffer, begin.indices, cast(begin.buffer.dtype, first + n))
    lets = [stmt.Let(first, start)] if isinstance(first, Var) else []
    return [*lets, stmt.Init((n,), total), *after, last]


def _within(
    x: stmt.Stmt,
    s: stmt.Append,
    n: Var,
    first: Expr,
    guards: tuple[Expr, ...],
    lanes: tuple[Var, ...],
) -> list[stmt.Stmt]:
    """The same statement, with the append written out."""
    if x is s:
        return _written(s, n, first, guards, lanes)
    if isinstance(x, Loop) and s in walk(x.body):
        inner = (*lanes, x.var) if x.kind == "lane" else lanes
        if x.kind == "grid":
            raise illegal("carry()", f"{x.var.name} is a grid loop", "keep it serial", ir=x)
        if lanes and x.kind != "lane":
            raise illegal("carry()", f"{x.var.name} runs inside lane {lanes[0].name}", ir=x)
        body = tuple(y for old in x.body for y in _within(old, s, n, first, guards, inner))
        return [replace(x, body=body)]
    if isinstance(x, stmt.Guard) and s in walk(x.body):
        more = (*guards, x.cond)
        body = tuple(y for old in x.body for y in _within(old, s, n, first, more, lanes))
        return [replace(x, body=body)]
    return [x]


def _written(
    s: stmt.Append, n: Var, first: Expr, guards: tuple[Expr, ...], lanes: tuple[Var, ...]
) -> list[stmt.Stmt]:
    if len(lanes) > 1:
        names = ", ".join(v.name for v in lanes)
        raise illegal("carry()", f"it runs over several lanes: {names}", "keep one of them")
    where: Expr = s.where
    for g in reversed(guards):
        where = Bin("&", g, where)
    keep, at = Var("keep", "b1"), s.at or Var("at")
    kept = cast("i32", keep)
    upto = LaneScan("sum", lanes[0], kept) if lanes else kept
    place = s.slot + ((first + n) + upto - 1)
    return [
        stmt.Let(keep, where),
        stmt.Let(at, cast("i64", place if s.at is None else select(keep, place, const(-1)))),
        stmt.Guard(keep, (stmt.Store(s.list, (at,), cast(s.list.dtype, s.value)),)),
        stmt.Fold((n,), monoids("i32")["sum"], (kept,)),
    ]


# --- default schedules ------------------------------------------------------------------------------


def append_triton(p: flat.Program, s: stmt.Append, setting: Setting) -> flat.Program:
    """Groups in the grid; candidates in lanes, tile after tile (ordered) or tiles in the grid (shared)."""
    nest, around = nest_of(p), _around(p, s)
    most = room = setting.get("cells", CELLS)
    for r in nest.reductions:
        if r.loop in around:
            continue
        inside = bool(around) and any(n is r.loop for n in walk(around[-1].body))
        p, used = _reduction(p, nest, r, room if inside else most)
        room //= used if inside else 1
    over = [x for x in around if not uses(s.group, x.var)]
    if over:
        p = _candidates(p, over[-1], nest, max(room, 1), s.shared)
    for x in around:
        alone = x not in over or s.shared
        if alone and is_steady(x) and any(y.var is x.var and y.kind == "serial" for y in loops(p)):
            p = step.kind(p, x.var.name, "grid")
    return p if s.shared else carry(p)


def _around(p: flat.Program, s: stmt.Append) -> list[Loop]:
    """The loops around an append, outermost first."""
    return [x for x in loops(p) if any(n is s for n in walk(x.body))]


def _candidates(p: flat.Program, last: Loop, nest: Nest, room: int, shared: bool) -> flat.Program:
    """The innermost loop over candidates, in lanes."""
    if not nest.fits_lanes(last) or last.lo != const(0):
        return p
    name, size = last.var.name, 1 << (room.bit_length() - 1)
    if isinstance(last.hi, Const) and last.hi.value <= size:
        return _told_apart(step.kind(p, name, "lane"), p)
    made = step.kind(step.split(p, name, size), f"{name}_i", "lane")
    return _told_apart(step.kind(made, f"{name}_o", "grid") if shared else made, p)


def _told_apart(p: flat.Program, before: flat.Program) -> flat.Program:
    """Lanes are for candidates that differ; the same one, appended several times, stays in a loop."""
    s = append_of(p)
    assert s is not None
    return p if lanes_of((s.where, s.value), value_lanes(p)) else before


def _reduction(p: flat.Program, nest: Nest, r: Reduction, room: int) -> tuple[flat.Program, int]:
    """Lanes, as far as there is room; the lanes that were taken."""
    if r.variable or bounds_another(nest, r) or not all(f.monoid.laned for f in r.folds):
        return p, 1
    if isinstance(r.loop.hi, Const) and r.loop.hi.value <= room:
        size = 1 << (int(r.loop.hi.value) - 1).bit_length()
        return step.kind(p, r.name, "lane"), size
    size = min(room, SPAN)
    if size < 2 or r.loop.lo != const(0):
        return p, 1
    return step.kind(step.split(p, r.name, size), f"{r.name}_i", "lane"), size


def append_c(p: flat.Program, s: stmt.Append) -> flat.Program:
    """Threads over groups, each list in order; or threads over candidates that share a list."""
    last = [x for x in _around(p, s) if is_steady(x) and not uses(s.group, x.var)][-1:]
    if s.shared and last and nest_of(p).fits_lanes(last[0]):
        name = last[0].var.name
        p = step.kind(step.split(p, name, THREAD_TILE), f"{name}_i", "lane")
    if not s.shared:
        p = carry(p)
    top = p.body[0] if len(p.body) == 1 else None
    while isinstance(top, Loop) and is_steady(top) and not step.carried(top):
        p = step.kind(p, top.var.name, "grid")
        inner = next(x for x in loops(p) if x.var is top.var).body
        top = inner[0] if len(inner) == 1 else None
        if isinstance(top, Loop) and top.kind == "lane":
            break
    return p
