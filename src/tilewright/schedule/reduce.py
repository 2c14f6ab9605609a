"""Primitives that reshape reductions: rfactor.

In: a stage III program and the names of loops. Out: a program that folds the same entries in another order.

    rfactor(p, "k_i")      serial k_o: lane k_i: fold  ->  lane k_i: serial k_o: fold; then the lanes once
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Var
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.schedule.edit import find, illegal, loops, splice
from tilewright.schedule.legal import carried, folds, fresh, within


def rfactor(p: flat.Program, name: str) -> flat.Program:
    """init s; serial o: lane v: fold s  ->  lane v: init t; serial o: fold t;  init s; lane v: join s with t

    The serial part accumulates lane by lane; the lanes are combined once, after the loop.
    """
    what, inner = f"rfactor({name})", find(p, name)
    if inner.kind != "lane":
        raise illegal(what, "it is not a lane", "make it a lane first", ir=inner)
    found = [s for s in within(inner.body) if isinstance(s, stmt.Fold)]
    if len(found) != 1 or found != folds(inner.body):
        raise illegal(what, "its body does not hold exactly one fold of a state outside", ir=inner)
    fold = found[0]
    if not fold.monoid.joins:
        raise illegal(what, f"{fold.monoid.name} has no lane form", ir=inner)
    parts = tuple(Var(fresh(p, f"{v.name}_part"), v.dtype) for v in fold.state)

    def inside(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        return [replace(s, state=parts)] if s is fold else None

    outer = _around(p, what, inner, fold)
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


def _around(p: flat.Program, what: str, inner: Loop, fold: stmt.Fold) -> Loop:
    """The outermost loop that carries the state: nothing else may happen in it than this fold."""
    held = [
        x
        for x in loops(p)
        if x is not inner and any(s is inner for s in within(x.body)) and _carries(x, fold)
    ]
    if not held:
        raise illegal(what, f"no loop around it carries {carried(inner)}", ir=inner)
    effects = stmt.Store | stmt.Append | stmt.Publish
    others = [s for s in folds(held[0].body) if s is not fold]
    if others or any(isinstance(s, effects) for s in within(held[0].body)):
        raise illegal(what, f"{held[0].var.name} does more than this fold", ir=held[0])
    return held[0]


def _carries(loop: Loop, fold: stmt.Fold) -> bool:
    return any(s is fold for s in folds(loop.body))
