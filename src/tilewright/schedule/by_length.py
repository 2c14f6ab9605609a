"""The primitive `by_length`: short runs of a loop stay as they are, long ones get a loop of their own.

In: a stage III program, the name of a serial loop, the least length of a long run. Out: the same turns, by one of two
loops, which later steps may treat apart: what pays for rows of many entries costs rows of few.

    by_length(p, "p_j", 8)      if hi - lo < 8: for p_j in lo:hi: body  else: for p_j_long in lo:hi: body
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Expr, Var
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute
from tilewright.schedule.edit import edit, find, illegal
from tilewright.schedule.legal import at_least, fresh, sets, taken, uneven, unused, within


def by_length(p: flat.Program, name: str, least: int) -> flat.Program:
    """serial v in lo:hi: body  ->  if hi - lo < least: serial v in lo:hi: body  else: serial v_long in lo:hi: body"""
    what = f"by_length({name}, {least})"
    at_least(what, least)
    unused(p, what, f"{name}_long")
    held = taken(p) | {f"{name}_long"}

    def rule(s: Loop) -> list[stmt.Stmt]:
        if s.kind != "serial":
            raise illegal(what, f"it is a {s.kind} loop", "name a serial one", ir=s)
        inside = list(within(s.body))
        if any(isinstance(n, stmt.Publish) for n in inside):
            raise illegal(what, "pieces of rows are published in it", ir=s)
        grids = [n.var.name for n in inside if isinstance(n, Loop) and n.kind == "grid"]
        if grids:
            reason = f"{grids[0]} is a grid loop, and would stand in two places"
            raise illegal(what, reason, f"take this step before {grids[0]} becomes one", ir=s)
        own = dict.fromkeys(v for n in inside for v in sets(n))
        table: dict[Expr, Expr] = {
            v: Var(fresh(p, f"{v.name}_long", held), v.dtype) for v in own if v is not s.var
        }
        table[s.var] = Var(f"{name}_long", s.var.dtype)
        long = substitute(s, table)
        return [stmt.If(s.hi - s.lo < least, (s,), (replace(long, lo=s.lo, hi=s.hi),))]

    made = edit(p, name, rule)
    if why := uneven(made):
        raise illegal(what, why, "take this step before the lanes", ir=find(p, name))
    return made
