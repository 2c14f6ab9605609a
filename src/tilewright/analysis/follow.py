"""Where a search may go on from the place before: a loop whose keys grow over a range that stays.

In: a serial loop of stage III. Out: the lookups directly in it (under guards, not in inner loops) that a cursor serves.

    serial p: let j = a_indices[p]; let at = find(j, b_indices[lo:hi])      at: j grows with p, [lo, hi) stays

That coordinates grow along a loop is what a sorted structure promises; nothing breaks where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Const, Expr, Load, Var
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk


def growing(loop: flat.Loop) -> list[stmt.Let]:
    """The statements `let at = find(key, ...)` of a loop whose key grows and whose range stays."""
    made = {s.var: s.value for s in walk(loop.body) if isinstance(s, stmt.Let)}
    changed = {loop.var, *made}
    changed |= {s.var for s in walk(loop.body) if isinstance(s, flat.Loop)}
    changed |= {v for s in walk(loop.body) if isinstance(s, stmt.Init) for v in s.state}

    def stays(e: Expr) -> bool:
        return not any(n in changed for n in walk(e) if isinstance(n, Var))

    def grows(e: Expr) -> bool:
        match e:
            case Var():
                return e is loop.var or (e in made and grows(made[e]))
            case Load(b, (at,)):
                return b.role == "index" and grows(at)
            case Cast(_, a):
                return grows(a)
            case Bin("+", a, b):
                return (grows(a) and stays(b)) or (stays(a) and grows(b))
            case Bin("*" | "//", a, Const(value)):
                return value > 0 and grows(a)
        return False

    return [
        s
        for s in _lets(loop.body)
        if isinstance(s.value, Lookup)
        and stays(s.value.lo)
        and stays(s.value.hi)
        and grows(s.value.key)
    ]


def _lets(body: tuple[stmt.Stmt, ...]) -> Iterator[stmt.Let]:
    for s in body:
        if isinstance(s, stmt.Let):
            yield s
        elif isinstance(s, stmt.Guard):
            yield from _lets(s.body)
