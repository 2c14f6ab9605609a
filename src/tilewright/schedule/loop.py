"""Primitives that reshape loops: split, kind, lane, reorder, rfactor, order, swizzle.

Each is pure (`program -> program`), legal or a ScheduleError with the reason. Loops are named by their
variable.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, Load, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.schedule.edit import edit, find, illegal, loops, splice, uses


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

    def rule(loop: Loop) -> list[stmt.Stmt]:
        extent = loop.hi - loop.lo
        outer, inner = Var(f"{name}_o"), Var(f"{name}_i", "i32")
        body: tuple[stmt.Stmt, ...] = loop.body
        if not divides(p, extent, factor):
            body = (stmt.Guard(loop.var < loop.hi, body),)
        at = stmt.Let(loop.var, loop.lo + outer * factor + inner)
        nest = Loop(inner, const(0), const(factor), loop.kind, (at, *body))
        count = (extent + (factor - 1)) // factor
        return [Loop(outer, const(0), count, loop.kind, _live(loop, outer, factor, nest))]

    if find(p, name).kind == "lane":
        raise illegal(
            f"split({name})",
            "it is a lane already",
            "split before making it a lane",
            ir=find(p, name),
        )
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


def kind(p: flat.Program, name: str, to: str) -> flat.Program:
    """serial v -> grid v (or unroll v, lane v)"""
    loop = find(p, name)
    if to == "lane" and not isinstance(loop.hi, Const):
        raise illegal(
            f"kind({name}, lane)", f"its extent {loop.hi} is not a constant", "split it", ir=loop
        )
    if to == "unroll" and not (isinstance(loop.hi, Const) and isinstance(loop.lo, Const)):
        raise illegal(f"kind({name}, unroll)", "its extent is not a constant", "split it", ir=loop)
    if to != "serial" and loop.lo != const(0):
        raise illegal(
            f"kind({name}, {to})", f"it starts at {loop.lo}, not at 0", "split it", ir=loop
        )
    if to == "grid" and any(
        isinstance(s, stmt.Append) and _orders(s, loop) for s in _all(loop.body)
    ):
        raise illegal(f"kind({name}, grid)", "it appends in order", "keep it serial", ir=loop)
    if to == "grid" and carried(loop):
        raise illegal(f"kind({name}, grid)", f"it carries the reduction {carried(loop)}", ir=loop)
    return edit(p, name, lambda s: [replace(s, kind=to)])


def _orders(s: stmt.Append, loop: Loop) -> bool:
    """Whether a loop decides the order of a list, rather than which list it is."""
    return not s.shared and not uses(s.group, loop.var)


def carried(loop: Loop) -> str:
    """The names of reduction states that flow from one iteration of a loop to the next."""
    inside = {v for s in _all(loop.body) if isinstance(s, stmt.Init) for v in s.state}
    folded = [v for s in _all(loop.body) if isinstance(s, stmt.Fold | stmt.Join) for v in s.state]
    return ", ".join(v.name for v in folded if v not in inside)


def _all(body: tuple[stmt.Stmt, ...]) -> list[stmt.Stmt]:
    from_blocks: list[stmt.Stmt] = []
    for s in body:
        from_blocks.append(s)
        for f in ("body", "then", "orelse"):
            from_blocks.extend(_all(getattr(s, f, ())))
    return from_blocks


def lane(p: flat.Program, name: str, size: int) -> flat.Program:
    """for v in 0:n (n <= size, by contract) -> lane v in 0:size, where v < n"""

    def rule(loop: Loop) -> list[stmt.Stmt]:
        exact = size > 1 and divides(p, loop.hi, size)  # every size is a multiple of 1, 0 too
        body = loop.body if exact else (stmt.Guard(loop.var < loop.hi, loop.body),)
        return [Loop(loop.var, const(0), const(size), "lane", body)]

    loop = find(p, name)
    if loop.lo != const(0):
        raise illegal(f"lane({name})", "it does not start at 0", ir=loop)
    if isinstance(loop.hi, Const) and loop.hi.value > size:
        raise illegal(
            f"lane({name}, {size})", f"it has {loop.hi} iterations", "split it first", ir=loop
        )
    return edit(p, name, rule)


def reorder(p: flat.Program, outer: str, inner: str) -> flat.Program:
    """for a: for b: body -> for b: for a: body"""

    def rule(a: Loop) -> list[stmt.Stmt]:
        if len(a.body) != 1 or not isinstance(a.body[0], Loop) or a.body[0].var.name != inner:
            raise illegal(
                f"reorder({outer}, {inner})", f"{inner} is not alone inside {outer}", ir=a
            )
        b = a.body[0]
        if uses((b.lo, b.hi), a.var):
            raise illegal(
                f"reorder({outer}, {inner})", f"the bounds of {inner} depend on {outer}", ir=a
            )
        return [replace(b, body=(replace(a, body=b.body),))]

    return edit(p, outer, rule)


def rfactor(p: flat.Program, name: str) -> flat.Program:
    """init s; serial o: lane v: fold s  ->  lane v: init t; serial o: fold t;  init s; lane v: join s with t

    The serial part accumulates lane by lane; the lanes are combined once, after the loop.
    """
    inner = find(p, name)
    if inner.kind != "lane":
        raise illegal(f"rfactor({name})", "it is not a lane", "make it a lane first", ir=inner)
    folds = [s for s in _all(inner.body) if isinstance(s, stmt.Fold)]
    if len(folds) != 1:
        raise illegal(f"rfactor({name})", "its body does not hold exactly one fold", ir=inner)
    fold = folds[0]
    if not fold.monoid.joins:
        raise illegal(f"rfactor({name})", f"{fold.monoid.name} has no lane form", ir=inner)
    parts = tuple(Var(f"{v.name}_part", v.dtype) for v in fold.state)

    def inside(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        return [replace(s, state=parts)] if s is fold else None

    outer = next(
        loop
        for loop in loops(p)
        if any(m is inner for m in _all((loop,)))
        and fold.state[0].name in carried(loop).split(", ")
    )

    holds = [n for n in walk(p.body) if outer in getattr(n, "body", ())]
    held = [*p.body, *(s for n in holds for s in n.body)]
    near = any(isinstance(s, stmt.Init) and s.state == fold.state for s in held)

    def place(body: tuple[stmt.Stmt, ...]) -> tuple[stmt.Stmt, ...]:
        """Hoist the lane around the outermost loop of the reduction, in the block that holds it.

        The state begins after the loop, unless it begins outside of that block (the loop is under a guard).
        """

        def swap(s: stmt.Stmt) -> list[stmt.Stmt] | None:
            if near and isinstance(s, stmt.Init) and s.state == fold.state:
                return []
            if s is not outer:
                return None
            stripped = splice((s,), lambda m: list(inner.body) if m is inner else None)
            stripped = splice(stripped, inside)
            around = replace(inner, body=(stmt.Init(parts, fold.monoid), *stripped))
            again = replace(inner, body=(stmt.Join(fold.state, fold.monoid, parts),))
            return [around, stmt.Init(fold.state, fold.monoid), again] if near else [around, again]

        return splice(body, swap)

    return replace(p, body=place(p.body))


def order(p: flat.Program, *names: str) -> flat.Program:
    """The order of the grid's dimensions, slowest first (feature tiles outermost, for instance)."""
    for n in names:
        if find(p, n).kind != "grid":
            raise illegal(f"order({n})", "it is not a grid loop")
    return replace(p, order=names)


def swizzle(p: flat.Program, group: int) -> flat.Program:
    """Walk the last two grid dimensions in groups of rows, for reuse in the second-level cache."""
    return replace(p, swizzle=group)
