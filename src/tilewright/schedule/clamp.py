"""The primitive `clamp`: what asks once more for the last of a part, instead of asking whether there is more.

In: a stage III program, the name of a loop over a part of a range whose end may be missing. Out: the same answers
without a guard: loads need no mask, and do not wait for it. An entry that is folded twice changes nothing.

    clamp(p, "i_in")      i = I * 32 + i_in; where i < n: fold max(x[i])  ->  i = I * 32 + min(i_in, i_in_last): fold
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Const, Expr, Var, cast, const, minimum
from tilewright.ir.flat import Loop
from tilewright.schedule.edit import edit, illegal, loops, uses
from tilewright.schedule.legal import fresh, within

AGAIN = ("any", "all", "max", "min", "union")  # which may fold an entry twice


def clamp(p: flat.Program, name: str) -> flat.Program:
    """v in c: let i = o * c + v; where i < n: fold s  ->  v in c: let i = o * c + min(v, n - o * c - 1): fold s"""
    last = Var(fresh(p, f"{name}_last"), "i32")

    def rule(s: Loop) -> list[stmt.Stmt]:
        why = unclamped(p, s)
        match s.body:
            case (stmt.Let(i, Bin("+", begin, v)), stmt.Guard(Bin("<", _, n), body)) if not why:
                left = cast("i32", minimum(n - begin, s.hi) - 1)
                place = stmt.Let(i, begin + minimum(v, last))
                return [stmt.Let(last, left), replace(s, body=(place, *body))]
        raise illegal(f"clamp({name})", why, ir=s)

    return edit(p, name, rule)


def unclamped(p: flat.Program, loop: Loop) -> str:
    """Why a loop cannot ask for its last entry again; nothing where it can."""
    match loop.body:
        case (stmt.Let(i, at), stmt.Guard(Bin("<", i_, n), body)) if i_ is i:
            held = list(within(body))
        case _:
            return "it is not a part of a range whose end is guarded"
    plain = all(isinstance(s, Loop | stmt.Let | stmt.Guard | stmt.Fold) for s in held)
    if not plain or any(isinstance(s, stmt.Fold) and s.monoid.name not in AGAIN for s in held):
        return "it does more than to fold what may be folded twice"
    if uses(body, loop.var):
        return f"its entries depend on {loop.var.name} beside {i.name}"
    return (
        "" if loop.lo == const(0) and _begins(p, loop, at, n) else "its first entry may be missing"
    )


def _begins(p: flat.Program, loop: Loop, at: Expr, n: Expr) -> bool:
    """Whether the first entry of a part is there: a loop counts the parts of a range."""
    match at:
        case Bin("+", Bin("*", outer, Const(count)), v) if v is loop.var:
            outer = outer.a if isinstance(outer, Cast) else outer
            parts = (n + (int(count) - 1)) // int(count)
            counted = {x.var: x.hi for x in loops(p) if x.lo == const(0)}
            return isinstance(outer, Var) and counted.get(outer) == parts
    return False
