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
from tilewright.schedule.edit import edit, illegal, uses
from tilewright.schedule.legal import Body, at_least, fresh, sets, taken, unused, within
from tilewright.schedule.loop import independent


def jam(p: flat.Program, name: str, factor: int) -> flat.Program:
    """serial v in lo:hi: body -> serial v_o: body[v_0], .., body[v_n], side by side;  serial v in rest:hi: body"""
    what = f"jam({name}, {factor})"
    at_least(what, factor, 2)
    unused(p, what, f"{name}_o")
    held = taken(p) | {f"{name}_o"}

    def rule(s: Loop) -> list[stmt.Stmt]:
        if s.kind != "serial":
            raise illegal(what, f"it is a {s.kind} loop", "name a serial one", ir=s)
        independent(what, s)
        if any(isinstance(n, stmt.Append | stmt.Publish) for n in within(s.body)):
            raise illegal(what, "its turns share a list or pieces of rows", ir=s)
        grids = [n.var.name for n in within(s.body) if isinstance(n, Loop) and n.kind == "grid"]
        if grids:
            reason = f"{grids[0]} is a grid loop, and would stand in two places"
            raise illegal(what, reason, f"take this step before {grids[0]} becomes one", ir=s)
        outer = Var(f"{name}_o")
        first, whole = (Var(fresh(p, f"{name}_{n}", held), s.var.dtype) for n in ("first", "whole"))
        copies = []
        for k in range(factor):
            table: dict[Expr, Expr] = {
                v: Var(fresh(p, f"{v.name}_{k}", held), v.dtype) for v in _own(s)
            }
            place = stmt.Let(s.var, first + outer * factor + k)
            copies.append(substitute((place, *s.body), table))
        return [
            stmt.Let(first, s.lo),
            stmt.Let(whole, (s.hi - first) // factor),
            Loop(outer, const(0), whole, "serial", _beside(copies)),
            replace(s, lo=first + whole * factor),
        ]

    return edit(p, name, rule)


def _own(loop: Loop) -> list[Var]:
    """What each turn has for itself: all that it sets, but loops and numbers that are the same for all turns."""
    written = [s.buffer for s in within(loop.body) if isinstance(s, stmt.Store | stmt.Atomic)]
    own: list[Var] = [loop.var]

    def block(body: Body) -> None:
        for s in body:
            match s:
                case Loop(_, lo, hi, _, inside) if not any(uses((lo, hi), v) for v in own):
                    block(inside)
                case stmt.Let(_, e) if not any(uses(e, v) for v in (*own, *written)):
                    pass
                case _:
                    own.extend(v for n in within((s,)) for v in sets(n) if v not in own)

    block(loop.body)
    return own


def _beside(bodies: list[Body]) -> Body:
    """Bodies of one form, statement by statement; what is the same for all stands there once."""
    out: list[stmt.Stmt] = []
    for group in zip(*bodies, strict=True):
        first = group[0]
        if isinstance(first, Loop) and all(s.var is first.var for s in group):
            out.append(replace(first, body=_beside([s.body for s in group])))
        elif isinstance(first, stmt.Let | stmt.Prefetch) and all(s == first for s in group):
            out.append(first)
        else:
            out += group
    return tuple(out)
