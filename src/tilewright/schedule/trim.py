"""The primitive `trim`: a loop that ends where its guard would say no.

In: a stage III program, the name of a serial loop whose turns are guarded by an end that its variable grows towards.
Out: the same turns, but those that did nothing. What the guard kept from the loop itself (loops around, several turns
side by side) meets what is inside there.

    trim(p, "i_in")      for i_in in 0:64: where o * 64 + i_in < n: body  ->  for i_in in 0:min(64, n - o * 64): body
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Expr, cast, minimum
from tilewright.ir.flat import Loop
from tilewright.schedule.edit import edit, find, illegal, uses
from tilewright.schedule.legal import Body, uneven


def trim(p: flat.Program, name: str) -> flat.Program:
    """serial v in lo:hi: where a + v < n: body  ->  serial v in lo:min(hi, n - a): body"""

    def rule(s: Loop) -> list[stmt.Stmt]:
        if s.kind != "serial":
            raise illegal(f"trim({name})", f"it is a {s.kind} loop", "name a serial one", ir=s)
        found = ending(s)
        if found is None:
            why = f"its turns are not guarded by an end that {name} grows towards"
            raise illegal(f"trim({name})", why, ir=s)
        most, body = found
        return [replace(s, hi=minimum(s.hi, cast(s.var.dtype, most)), body=body)]

    made = edit(p, name, rule)
    if why := uneven(made):
        raise illegal(f"trim({name})", why, "leave the guard to the lanes", ir=find(p, name))
    return made


def ending(s: Loop) -> tuple[Expr, Body] | None:
    """Where the guard around all turns of a loop ends it, and its body without the guard; None if there is none."""
    match s.body:
        case (stmt.Guard(Bin("<", Bin("+", a, v), n), body),) if v is s.var:
            return None if uses((a, n), v) else (n - a, body)
        case (stmt.Let(i, Bin("+", a, v)) as place, stmt.Guard(Bin("<", at, n), body)) if (
            v is s.var and at is i
        ):
            return None if uses((a, n), v) or uses(n, i) else (n - a, (place, *body))
    return None
