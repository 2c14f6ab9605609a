"""Primitives that reshape reductions: rfactor, split_reduction, tensorise.

In: a stage III program and the names of loops. Out: a program that folds the same entries in another order.

    rfactor(p, "k_i")      serial k_o: lane k_i: fold  ->  lane k_i: serial k_o: fold; then the lanes once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Load, Var, const, maximum
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk
from tilewright.lowering.tiles import lower_to_tile
from tilewright.schedule.edit import find, illegal, loops, splice
from tilewright.schedule.legal import (
    Body,
    carried,
    covers,
    folds,
    fresh,
    republished,
    uneven,
    within,
)


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
    effects = stmt.Store | stmt.Atomic | stmt.Append | stmt.Publish
    others = [s for s in folds(held[0].body) if s is not fold]
    if others or any(isinstance(s, effects) for s in within(held[0].body)):
        raise illegal(what, f"{held[0].var.name} does more than this fold", ir=held[0])
    return held[0]


def _carries(loop: Loop, fold: stmt.Fold) -> bool:
    return any(s is fold for s in folds(loop.body))


def split_reduction(p: flat.Program, name: str, how: str) -> flat.Program:
    """init s; serial v: fold s; store s -> grid v: init s; fold s; then, by `how`:

    owned      the loop stays serial: one program folds and stores
    ordered    publish s as piece v: the last program to arrive joins the pieces in order and stores
    atomic     the store becomes an atomic one: sum, max, min of 32 bits, into a buffer that starts at the identity
    """
    what, loop = f"split_reduction({name}, {how})", find(p, name)
    if how not in ("owned", "ordered", "atomic"):
        raise illegal(what, "there is no such way", "use owned, ordered or atomic")
    if loop.kind != "serial" or not carried(loop):
        raise illegal(what, "it is not a serial loop that carries a reduction", ir=loop)
    if how == "owned":
        return p
    if loop.lo != const(0) or not steady(p, loop):
        why = "its extent is not known before the launch"
        raise illegal(what, why, "split it, and spread the outer part", ir=loop)
    rule = _published if how == "ordered" else _added
    made = replace(p, body=blockwise(p.body, lambda b: piece(p, what, b, loop, rule)))
    why = uneven(made) or republished(made)
    if why:
        raise illegal(what, why, "give the other loops a place in the grid first", ir=loop)
    return made


Rule = Callable[[flat.Program, str, stmt.Init, Loop, Body], Body]


def steady(p: flat.Program, loop: Loop) -> bool:
    held = list(walk(loop.hi))
    return all(v in p.sizes for v in held if isinstance(v, Var)) and not any(
        isinstance(n, Load | Lookup) for n in held
    )


def blockwise(body: Body, fn: Callable[[Body], Body | None]) -> Body:
    """The first block that fn changes, outermost first."""
    made = fn(body)
    if made is not None:
        return made
    return splice(body, lambda s: _into(s, fn))


def _into(s: stmt.Stmt, fn: Callable[[Body], Body | None]) -> list[stmt.Stmt] | None:
    made = fn(s.body) if isinstance(s, Loop | stmt.Guard) else None
    return None if made is None else [replace(s, body=made)]  # type: ignore[type-var]


def piece(p: flat.Program, what: str, body: Body, loop: Loop, rule: Rule) -> Body | None:
    """The block that holds the loop, with the reduction spread over programs."""
    if not any(s is loop for s in body):
        return None
    at = next(n for n, s in enumerate(body) if s is loop)
    states = {s.state for s in folds(loop.body)}
    init = body[at - 1] if at else None
    if not isinstance(init, stmt.Init) or states != {init.state}:
        raise illegal(what, "its state does not begin right before it, alone", ir=loop)
    effects = [s for s in within(body) if isinstance(s, stmt.Append | stmt.Publish)]
    if effects or any(isinstance(s, Loop) for s in within(body[at + 1 :])):
        raise illegal(what, "more than stores follows the loop", ir=loop)
    return (*body[: at - 1], *rule(p, what, init, loop, body[at + 1 :]))


def _published(p: flat.Program, what: str, init: stmt.Init, loop: Loop, after: Body) -> Body:
    """One piece at least, so that nothing to fold is stored too."""
    if not init.monoid.joins:
        raise illegal(what, f"{init.monoid.name} has no lane form", ir=loop)
    pieces = maximum(loop.hi, 1)
    share = stmt.Guard(loop.var < loop.hi, loop.body)
    last = stmt.Publish(init.state, init.monoid, const(0), loop.var, pieces, after, pieces)
    return (Loop(loop.var, const(0), pieces, "grid", (init, share, last)),)


def _added(p: flat.Program, what: str, init: stmt.Init, loop: Loop, after: Body) -> Body:
    s = after[0] if len(after) == 1 else None
    if not isinstance(s, stmt.Store) or s.value not in init.state or len(init.state) != 1:
        raise illegal(what, "its state is not stored as it is", "split it ordered", ir=loop)
    op, dtype = init.monoid.name, s.buffer.dtype
    if (
        op not in ("sum", "max", "min")
        or dtype not in ("f32", "i32")
        or dtype != init.state[0].dtype
    ):
        raise illegal(what, f"a {op} of {dtype} has no atomic form", "split it ordered", ir=loop)
    around = [x for x in loops(p) if any(y is loop for y in within(x.body))]
    spare = [x.var.name for x in around if x.var not in flat.made_of(p.body, s.indices[0])]
    if spare:
        raise illegal(what, f"it is stored again for every {spare[0]}", "split it ordered", ir=loop)
    if op != "sum" and not covers(s, around):
        why = f"elements of {s.buffer.name} that nobody stores would hold the start of {op}"
        raise illegal(what, why, "split the reduction before the other loops", ir=loop)
    made = stmt.Atomic(op, s.buffer, s.indices, s.value)
    return (Loop(loop.var, loop.lo, loop.hi, "grid", (init, *loop.body, made)),)


def tensorise(p: flat.Program, name: str) -> flat.Program:
    """lane m, n: lane k: fold acc: sum(a[m, k] * b[k, n])  ->  the same, as dot(a, b) and in no other way

    Without it a fold becomes a matrix product where it can. With it a schedule that cannot have one is refused: by
    the lowering to tile form, which decides shapes and dtypes, so that all lanes have to be made before.
    """
    what, loop = f"tensorise({name})", find(p, name)
    if loop.kind != "lane" or not carried(loop):
        why = "it is not a lane that a reduction folds"
        raise illegal(what, why, "make the lanes first", ir=loop)
    made = replace(p, tensor=(*(n for n in p.tensor if n != name), name))
    lower_to_tile(made)
    return made
