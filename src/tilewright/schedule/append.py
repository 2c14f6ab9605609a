"""Primitives `carry` and `scan`: a list in order, as a running number and scans inside tiles; how threads scan.

In: a stage III program with an append. Out: the same list, written by stores; what is left as
`append(..., shared=True)` becomes a scan and one atomic addition for each tile, in tile form and in C.

    for k in serial(n): append(found[0], count[0], k, where=c)
 -> n = init(sum); for k_o in serial: for k_i in lane(1024): found[n + scan(c) - 1] = k where c; n = fold(sum, n, c)
    count[0] = n
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, LaneScan, Var, cast, const, ne, select
from tilewright.ir.flat import Loop
from tilewright.ir.monoid import monoids
from tilewright.ir.node import walk
from tilewright.schedule.edit import every_block, illegal, splice
from tilewright.schedule.legal import at_least


def append_of(p: flat.Program) -> stmt.Append | None:
    """The append of a program, if it has one."""
    return next((n for n in walk(p.body) if isinstance(n, stmt.Append)), None)


def carry(p: flat.Program) -> flat.Program:
    """count[g] = s; loops: append(list[at], count[g], v, where=c)
    ->  n = init(sum); loops: list[at + s + n + scan(c) - 1] = v where c, n = fold(sum, n, c); count[g] = s + n"""
    s = append_of(p)
    if s is None or s.shared:
        raise illegal("carry()", "nothing is appended in order", "leave it out", ir=p)
    found = [b for b in every_block(p.body) if any(_begins(x, s) for x in b)]
    if len(found) != 1:
        raise illegal("carry()", f"{s.count.name} does not begin in one place", ir=p)
    block = found[0]
    at = next(n for n, x in enumerate(block) if _begins(x, s))
    made = (*block[:at], *_carried(block[at], block[at + 1 :], s))

    def rule(x: stmt.Stmt) -> list[stmt.Stmt] | None:
        return list(made) if x is block[0] else [] if any(x is y for y in block) else None

    return replace(p, body=splice(p.body, rule))


def scan(p: flat.Program, own: int) -> flat.Program:
    """Running totals: each thread adds up so many numbers by itself, then threads meet; a power of two."""
    what = f"scan({own})"
    at_least(what, own, 2)
    if own & (own - 1):
        raise illegal(what, f"{own} is no power of two", "use 4, 8 or 16")
    return replace(p, scan=own)


def _begins(x: stmt.Stmt, s: stmt.Append) -> bool:
    return isinstance(x, stmt.Store) and x.buffer is s.count


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
    kept, at = Var("kept", "i32"), s.at or Var("at")
    upto = LaneScan("sum", lanes[0], kept) if lanes else kept
    keep, place = ne(kept, const(0)), s.slot + ((first + n) + upto - 1)
    return [
        stmt.Let(kept, cast("i32", where)),
        stmt.Let(at, cast("i64", place if s.at is None else select(keep, place, const(-1)))),
        stmt.Guard(keep, (stmt.Store(s.list, (at,), cast(s.list.dtype, s.value)),)),
        stmt.Fold((n,), monoids("i32")["sum"], (kept,)),
    ]
