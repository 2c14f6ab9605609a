"""The primitive `jam`: several turns of a loop side by side, and what is left one by one.

In: a stage III program, the name of a serial loop whose turns need nothing of each other. Out: the same turns; those
that go together share the loops inside of them, so that each step of these has as many loads in flight.

    jam(p, "p_j", 4)      serial p_j: serial f: fold s  ->  serial p_j_o: serial f: fold s_0 .. s_3;  the rest of p_j
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute
from tilewright.schedule.edit import edit, find, illegal, uses
from tilewright.schedule.legal import Body, at_least, fresh, sets, taken, unused, within
from tilewright.schedule.loop import independent


def jam(p: flat.Program, name: str, factor: int) -> flat.Program:
    """serial v in lo:hi: body -> serial v_o: body[v_0], .., body[v_n], side by side;  serial v in rest:hi: body"""
    what, loop = f"jam({name}, {factor})", find(p, name)
    at_least(what, factor, 2)
    unused(p, what, f"{name}_o")
    if loop.kind != "serial":
        raise illegal(what, f"it is a {loop.kind} loop", "name a serial one", ir=loop)
    independent(what, loop)
    shared = (stmt.Append, stmt.Publish)
    if any(isinstance(s, shared) for s in within(loop.body)):
        raise illegal(what, "its turns share a list or pieces of rows", ir=loop)
    outer, first = Var(f"{name}_o"), Var(fresh(p, f"{name}_first"), loop.var.dtype)
    whole = Var(fresh(p, f"{name}_whole"), loop.var.dtype)
    own = _own(loop)
    held, copies = taken(p) | {outer.name, first.name, whole.name}, []
    for k in range(factor):
        table: dict[Expr, Expr] = {}
        for v in own:
            made = f"{v.name}_{k}"
            while made in held:
                made += "_"
            held.add(made)
            table[v] = Var(made, v.dtype)
        place = stmt.Let(loop.var, first + outer * factor + k)
        copies.append(substitute((place, *loop.body), table))

    def rule(s: Loop) -> list[stmt.Stmt]:
        return [
            stmt.Let(first, s.lo),
            stmt.Let(whole, (s.hi - first) // factor),
            Loop(outer, const(0), whole, "serial", _beside(copies)),
            replace(s, lo=first + whole * factor),
        ]

    return edit(p, name, rule)


def _own(loop: Loop) -> list[Var]:
    """What each turn has for itself: all that it sets, but loops that are the same for all turns."""
    own = [loop.var]
    for s in within(loop.body):
        alike = isinstance(s, Loop) and not any(uses((s.lo, s.hi), v) for v in own)
        own += [v for v in sets(s) if not alike and v not in own]
    return own


def _beside(bodies: list[Body]) -> Body:
    """Bodies of one form, statement by statement; loops that are the same for all become one."""
    out: list[stmt.Stmt] = []
    for group in zip(*bodies, strict=True):
        first = group[0]
        if isinstance(first, Loop) and all(s.var is first.var for s in group):
            out.append(replace(first, body=_beside([s.body for s in group])))
        else:
            out += group
    return tuple(out)
