"""The primitive `clamp`: what asks once more for the last of a part, instead of asking whether there is more.

In: a stage III program, the name of a loop over a part of a range whose end may be missing. Out: the same answers
without a guard around what is read: loads need no mask, and do not wait for it. An entry that is folded twice changes
nothing; what is made of an entry alone is stored once.

    clamp(p, "i_in")      i = I * 32 + i_in; where i < n: fold max(x[i])  ->  i = I * 32 + min(i_in, i_in_last): fold
    clamp(p, "p_in")      p = P * 32 + p_in; where p < n: init s; fold s; e[p] = s
                      ->  p = P * 32 + min(p_in, p_in_last): init s; fold s; where P * 32 + p_in < n: e[...] = s
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Const, Expr, Var, cast, const, minimum
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute
from tilewright.schedule.edit import edit, illegal, loops, uses
from tilewright.schedule.legal import fresh, within

AGAIN = ("any", "all", "max", "min", "union")  # which may fold an entry twice


def clamp(p: flat.Program, name: str) -> flat.Program:
    """v in c: let i = o * c + v; where i < n: s  ->  v in c: let i = o * c + min(v, n - o * c - 1): s, stored once"""
    last = Var(fresh(p, f"{name}_last"), "i32")

    def rule(s: Loop) -> list[stmt.Stmt]:
        why = unclamped(p, s)
        match s.body:
            case (stmt.Let(i, Bin("+", begin, v)), stmt.Guard(Bin("<", _, n), body)) if not why:
                left = cast("i32", minimum(n - begin, s.hi) - 1)
                place = stmt.Let(i, begin + minimum(v, last))
                own = Var(fresh(p, f"{i.name}_own"), i.dtype)
                made = tuple(_where_it_was(t, i, own, n) for t in body)
                held = (stmt.Let(own, begin + v), *made) if made != body else body
                return [stmt.Let(last, left), replace(s, body=(place, *held))]
        raise illegal(f"clamp({name})", why, ir=s)

    return edit(p, name, rule)


def _where_it_was(s: stmt.Stmt, i: Var, own: Var, n: Expr) -> stmt.Stmt:
    """b[i] = v  ->  where own < n: b[own] = v"""
    if not isinstance(s, stmt.Store):
        return s
    return stmt.Guard(Bin("<", own, n), (substitute(s, {i: own}),))


def unclamped(p: flat.Program, loop: Loop) -> str:
    """Why a loop cannot ask for its last entry again; nothing where it can."""
    match loop.body:
        case (stmt.Let(i, at), stmt.Guard(Bin("<", i_, n), body)) if i_ is i:
            held = list(within(body))
        case _:
            return "it is not a part of a range whose end is guarded"
    own = {v for s in held if isinstance(s, stmt.Init) for v in s.state}
    if not all(_twice(s, own) or (isinstance(s, stmt.Store) and s in body) for s in held):
        return "it does more than to fold what may be folded twice, and to store what it made of an entry"
    if uses(body, loop.var):
        return f"its entries depend on {loop.var.name} beside {i.name}"
    return (
        "" if loop.lo == const(0) and _begins(p, loop, at, n) else "its first entry may be missing"
    )


def _twice(s: stmt.Stmt, own: set[Var]) -> bool:
    """Whether it may happen once more for an entry: nothing is left of it, or what is left stays the same."""
    match s:
        case stmt.Fold(state, monoid):
            return monoid.name in AGAIN or own.issuperset(state)
        case stmt.Join(state):
            return own.issuperset(state)
    return isinstance(s, Loop | stmt.Let | stmt.Guard | stmt.Init)


def _begins(p: flat.Program, loop: Loop, at: Expr, n: Expr) -> bool:
    """Whether the first entry of a part is there: a loop counts the parts of a range."""
    match at:
        case Bin("+", Bin("*", outer, Const(count)), v) if v is loop.var:
            outer = outer.a if isinstance(outer, Cast) else outer
            parts = (n + (int(count) - 1)) // int(count)
            counted = {x.var: x.hi for x in loops(p) if x.lo == const(0)}
            return isinstance(outer, Var) and counted.get(outer) == parts
    return False
