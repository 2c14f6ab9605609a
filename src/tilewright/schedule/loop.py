"""Primitives that reshape loops: split, fuse, unroll, kind, lane, reorder, order, swizzle, persistent.

In: a stage III program, the names of loops (their variables), small integers. Out: a program that means the
same. Each is pure, and legal or a ScheduleError with the reason.

    split(p, "f", 32)      for f in 0:n  ->  for f_o in 0:ceil(n / 32), for f_i in 0:32
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, Load, Var, const, minimum
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.schedule.edit import edit, find, illegal, loops, uses
from tilewright.schedule.legal import (
    adds_up,
    at_least,
    bound_lane,
    carried,
    in_order,
    orders,
    republished,
    rereads,
    set_elsewhere,
    uneven,
    unused,
    within,
)

KINDS = ("grid", "lane", "serial", "unroll")


def divides(p: flat.Program, extent: Expr, factor: int) -> bool:
    """Whether an extent is known to be a multiple of factor."""
    match extent:
        case Const(value):
            return value > 0 and value % factor == 0
        case Var():
            return dict(p.divisors).get(extent, 1) % factor == 0
        case Bin("*", a, b):
            return divides(p, a, factor) or divides(p, b, factor)
    return False


def split(p: flat.Program, name: str, factor: int) -> flat.Program:
    """for v in lo:hi -> for v_o in 0:ceil((hi - lo) / factor), for v_i in 0:factor, v = lo + v_o * factor + v_i"""
    what = f"split({name}, {factor})"
    at_least(what, factor)
    if find(p, name).kind == "lane":
        cure = "split before making it a lane"
        raise illegal(what, "it is a lane already", cure, ir=find(p, name))
    unused(p, what, f"{name}_o", f"{name}_i")
    outer, inner = Var(f"{name}_o"), Var(f"{name}_i", "i32")

    def rule(loop: Loop) -> list[stmt.Stmt]:
        extent = loop.hi - loop.lo
        body: tuple[stmt.Stmt, ...] = loop.body
        if not divides(p, extent, factor):
            body = (stmt.Guard(loop.var < loop.hi, body),)
        at = stmt.Let(loop.var, loop.lo + outer * factor + inner)
        nest = Loop(inner, const(0), const(factor), loop.kind, (at, *body))
        count = (extent + (factor - 1)) // factor
        return [Loop(outer, const(0), count, loop.kind, _live(loop, outer, factor, nest))]

    return edit(p, name, rule)


def _live(loop: Loop, outer: Var, factor: int, nest: Loop) -> tuple[stmt.Stmt, ...]:
    """A loop whose body asks v < n for a number that is read: parts that are wholly beyond it do nothing."""
    match loop.body[-1]:
        case stmt.Guard(Bin("<", a, n)) if a is loop.var and any(
            isinstance(x, Load) for x in walk(n)
        ):
            if len(loop.body) == 1 and not uses(n, loop.var):
                return (stmt.Guard(loop.lo + outer * factor < n, (nest,)),)
    return (nest,)


def fuse(p: flat.Program, outer: str, inner: str) -> flat.Program:
    """for a in 0:n: lets, for b in 0:m: body -> for a_b in 0:n * m, a = a_b // m, b = a_b % m: lets, body

    A serial a may start elsewhere.
    """
    what = f"fuse({outer}, {inner})"
    unused(p, what, f"{outer}_{inner}")
    first, b = find(p, outer), find(p, inner)
    made = Var(f"{outer}_{inner}", "i32" if first.kind == "lane" else "i64")

    def rule(a: Loop) -> list[stmt.Stmt]:
        body = _between(what, a, a.body, b)
        if uses(b.hi, a.var):
            raise illegal(what, f"the bounds of {inner} depend on {outer}", ir=a)
        if b.lo != const(0) or (a.lo != const(0) and a.kind != "serial"):
            raise illegal(what, "a loop does not start at 0", "split it first", ir=a)
        if a.kind != b.kind:
            raise illegal(what, f"they are {a.kind} and {b.kind}", "fuse loops of one kind", ir=a)
        if why := a.kind == "lane" and (bound_lane(p, a.var) or bound_lane(p, b.var)):
            raise illegal(what, why, "fuse before", ir=a)
        if any(isinstance(s, stmt.Publish) for s in within(a.body)):
            raise illegal(what, "pieces of rows are published in it", "fuse before", ir=a)
        at = made // b.hi if a.lo == const(0) else a.lo + made // b.hi
        parts = (stmt.Let(a.var, at), stmt.Let(b.var, made % b.hi))
        extent = a.hi if a.lo == const(0) else a.hi - a.lo
        return [Loop(made, const(0), extent * b.hi, a.kind, (*parts, *body))]

    kept = tuple(n for n in p.order if n not in (outer, inner))
    return replace(edit(p, outer, rule), order=kept)


def _between(what: str, a: Loop, body: tuple[stmt.Stmt, ...], b: Loop) -> tuple[stmt.Stmt, ...]:
    """A block with the loop b replaced by its body; only lets and guards may stand around it."""
    *before, last = body
    if all(isinstance(s, stmt.Let) for s in before):
        if last is b:
            return (*before, *b.body)
        if isinstance(last, stmt.Guard):
            return (*before, replace(last, body=_between(what, a, last.body, b)))
    raise illegal(what, f"{b.var.name} is not alone inside {a.var.name}", ir=a)


def unroll(p: flat.Program, name: str, factor: int) -> flat.Program:
    """for v in lo:hi -> for v_o in 0:ceil((hi - lo) / factor), unroll v_i in 0:factor"""
    loop = find(p, name)
    if loop.kind not in ("serial", "unroll"):
        raise illegal(f"unroll({name}, {factor})", f"it is a {loop.kind} loop", ir=loop)
    if loop.lo == const(0) and isinstance(loop.hi, Const) and loop.hi.value == factor:
        return kind(p, name, "unroll")
    return kind(split(p, name, factor), f"{name}_i", "unroll")


def kind(p: flat.Program, name: str, to: str) -> flat.Program:
    """serial v -> grid v (or unroll v, lane v)"""
    what, loop = f"kind({name}, {to})", find(p, name)
    if to not in KINDS:
        cure = f"use {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise illegal(what, "there is no such kind", cure)
    if to in ("lane", "unroll") and not isinstance(loop.hi, Const):
        raise illegal(what, f"its extent {loop.hi} is not a constant", "split it", ir=loop)
    if to != "serial" and loop.lo != const(0):
        raise illegal(what, f"it starts at {loop.lo}, not at 0", "split it", ir=loop)
    if to == "grid":
        independent(what, loop)
    made = edit(p, name, lambda s: [replace(s, kind=to)])
    if to == "grid" and (outer := _longer(made)):
        raise illegal(what, f"how many programs there are would depend on {outer}", ir=loop)
    if to in ("serial", "unroll") and republished(made):
        raise illegal(what, republished(made), "keep it in the grid", ir=loop)
    return _from_to_lane(p, made, what, loop, to)


def _longer(p: flat.Program) -> str:
    """A loop of the grid that another one inside of it has its extent from."""
    grids = [x for x in loops(p) if x.kind == "grid"]
    for outer in grids:
        inner = [x for x in within(outer.body) if isinstance(x, Loop) and x.kind == "grid"]
        if any(uses(x.hi, outer.var) for x in inner):
            return outer.var.name
    return ""


def independent(what: str, loop: Loop) -> None:
    """Refuse a loop whose iterations need each other."""
    if any(isinstance(s, stmt.Append) and orders(s, loop) for s in within(loop.body)):
        raise illegal(what, "it appends in order", "keep it serial", ir=loop)
    if carried(loop):
        raise illegal(what, f"it carries the reduction {carried(loop)}", ir=loop)
    if rereads(loop):
        raise illegal(what, rereads(loop), "keep it serial", ir=loop)


def _from_to_lane(
    p: flat.Program, made: flat.Program, what: str, loop: Loop, to: str
) -> flat.Program:
    """What a loop gives up when it becomes a lane, and a lane when it becomes a loop."""
    if loop.kind == "lane" and to != "lane" and bound_lane(p, loop.var):
        raise illegal(what, bound_lane(p, loop.var), ir=loop)
    if to == "lane" and set_elsewhere(p, loop.var.name):
        why = set_elsewhere(p, loop.var.name)
        raise illegal(what, why, "make it a lane before loops are copied", ir=loop)
    if to == "lane" and adds_up(p, loop):
        raise illegal(what, f"all of it adds to one element of {adds_up(p, loop)}", ir=loop)
    if to == "lane" and in_order(loop):
        raise illegal(what, in_order(loop), "keep it serial", ir=loop)
    if to == "lane" and uneven(made):
        raise illegal(what, uneven(made), "make another loop the lane, or pad the rows", ir=loop)
    return made


def lane(p: flat.Program, name: str, size: int) -> flat.Program:
    """for v in 0:n (n <= size, by contract) -> lane v in 0:size, where v < n"""
    what, loop = f"lane({name}, {size})", find(p, name)
    at_least(what, size)

    def rule(loop: Loop) -> list[stmt.Stmt]:
        exact = size > 1 and divides(p, loop.hi, size)  # every size is a multiple of 1, 0 too
        body = loop.body if exact else (stmt.Guard(loop.var < loop.hi, loop.body),)
        return [Loop(loop.var, const(0), const(size), "lane", body)]

    if loop.kind == "lane":
        raise illegal(what, "it is a lane already", ir=loop)
    if loop.lo != const(0):
        raise illegal(what, "it does not start at 0", "split it first", ir=loop)
    if isinstance(loop.hi, Const) and loop.hi.value > size:
        raise illegal(what, f"it has {loop.hi} iterations", "split it first", ir=loop)
    return _from_to_lane(p, edit(p, name, rule), what, loop, "lane")


def reorder(p: flat.Program, outer: str, inner: str) -> flat.Program:
    """for a: for b: body -> for b: for a: body"""
    what = f"reorder({outer}, {inner})"

    def rule(a: Loop) -> list[stmt.Stmt]:
        b = _alone(what, a, inner)
        if uses((b.lo, b.hi), a.var):
            raise illegal(what, f"the bounds of {inner} depend on {outer}", ir=a)
        if in_order(a):
            raise illegal(what, in_order(a), ir=a)
        return [replace(b, body=(replace(a, body=b.body),))]

    return edit(p, outer, rule)


def _alone(what: str, a: Loop, inner: str) -> Loop:
    """The loop that stands alone inside another."""
    b = a.body[0]
    if len(a.body) != 1 or not isinstance(b, Loop) or b.var.name != inner:
        raise illegal(what, f"{inner} is not alone inside {a.var.name}", ir=a)
    return b


def order(p: flat.Program, *names: str) -> flat.Program:
    """The order of the grid's dimensions, slowest first (feature tiles outermost, for instance)."""
    for n in names:
        if find(p, n).kind != "grid":
            raise illegal(f"order({n})", "it is not a grid loop")
    return replace(p, order=tuple(dict.fromkeys(names)))


def swizzle(p: flat.Program, group: int) -> flat.Program:
    """Walk the last two grid dimensions in groups of rows, for reuse in the second-level cache."""
    at_least(f"swizzle({group})", group)
    if sum(x.kind == "grid" for x in loops(p)) < 2:
        raise illegal(
            f"swizzle({group})", "the grid has no two dimensions", "make another grid loop"
        )
    return replace(p, swizzle=group)


def persistent(p: flat.Program, name: str, programs: int) -> flat.Program:
    """grid v in 0:n -> grid v_p in 0:programs: serial v_t in 0:ceil((n - v_p) / programs), v = v_p + v_t * programs"""
    what, loop = f"persistent({name}, {programs})", find(p, name)
    at_least(what, programs)
    unused(p, what, f"{name}_p", f"{name}_t")
    if loop.kind != "grid":
        raise illegal(what, "it is not a grid loop", f"kind({name}, grid) first", ir=loop)
    first, turn = Var(f"{name}_p"), Var(f"{name}_t")

    def rule(loop: Loop) -> list[stmt.Stmt]:
        count = (loop.hi - first + (programs - 1)) // programs
        at = stmt.Let(loop.var, first + turn * programs)
        turns = Loop(turn, const(0), count, "serial", (at, *loop.body))
        return [Loop(first, const(0), minimum(loop.hi, programs), "grid", (turns,))]

    named = tuple(f"{name}_p" if n == name else n for n in p.order)
    made = replace(edit(p, name, rule), order=named)
    if republished(made):
        raise illegal(what, republished(made), "take the loop over units", ir=loop)
    return made
