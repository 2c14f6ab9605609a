"""Which part of a buffer a turn of a loop touches: its own, or any.

In: indices into a buffer, each with a loop around. Out: whether turn t of each loop stays in [t * n, t * n + n), with
one n for all, so that no two turns meet. Such turns may do several things after each other, each in one program. What
is added to t * n must be known to stay below n:

    j                 a loop over n, be it cut in tiles, or a guard j < n
    m + scan(c) - 1   the place that an ordered list gives (schedule/append.py), which has room for all candidates

    own([(I * n_k + place, I), (J * n_k + p, J)])  ->  True, where p runs below n_k
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Const, Expr, LaneScan, Load, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.ir.text import text


def own(touched: Sequence[tuple[Expr, Loop]]) -> bool:
    """Whether each turn stays in a part of its own."""
    parts = {_Turn(loop).part(index) for index, loop in touched}
    return len(parts) == 1 and "" not in parts


class _Turn:
    """One loop, and what is known inside of it."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        inside = list(walk(loop.body))
        self.lets = {s.var: s.value for s in inside if isinstance(s, stmt.Let)}
        self.ends = {s.var: text(s.hi) for s in inside if isinstance(s, Loop)}
        self.guards = {text(s.cond) for s in inside if isinstance(s, stmt.Guard)}
        self.counted = {
            (s.state[0], s.args[0])
            for s in inside
            if isinstance(s, stmt.Fold) and s.monoid.name == "sum" and s.state[0].dtype == "i32"
        }

    def part(self, index: Expr) -> str:
        """n, where an index is turn * n + (what stays below n); else nothing."""
        for size in self.sizes(index):
            terms = self.terms(index, size)
            mine = [e for e in terms if self.loop.var in flat.made_of(self.loop.body, e)]
            rest = [e for e in terms if e not in mine]
            if len(mine) == 1 and self.size(mine[0]) == size:
                return size if not rest or self.inside(rest, size) else ""
        return ""

    def sizes(self, index: Expr) -> list[str]:
        """What a turn is multiplied with, anywhere in an index."""
        parts = (
            index,
            *(self.lets[v] for v in flat.made_of(self.loop.body, index) if v in self.lets),
        )
        found = (self.size(e) for e in walk(parts) if isinstance(e, Expr))
        return list(dict.fromkeys(n for n in found if n))

    def size(self, e: Expr) -> str:
        """n of turn * n, where n is made of numbers and sizes."""
        match e:
            case Var() if e is self.loop.var:
                return "1"
            case Bin("*", Var() as v, n) if v is self.loop.var and self.steady(n):
                return text(n)
        return ""

    def steady(self, n: Expr) -> bool:
        """Whether nothing in an expression changes inside of the loop."""
        moving = {self.loop.var, *self.lets, *self.ends, *(n for n, _ in self.counted)}
        return not any(isinstance(m, Load) or m in moving for m in walk(n) if isinstance(m, Expr))

    def terms(self, e: Expr, size: str) -> list[Expr]:
        """What is added up; what is known to stay below a size as it is."""
        match e:
            case Bin("+", a, b):
                return [*self.terms(a, size), *self.terms(b, size)]
            case Bin("-", a, Const() as b):
                return [*self.terms(a, size), const(-b.value)]
            case Cast(_, a):
                return self.terms(a, size)
            case Var() if e in self.lets and not self.below(e, size):
                return self.terms(self.lets[e], size)
        return [e]

    def inside(self, rest: list[Expr], size: str) -> bool:
        """Whether a sum stays below a size."""
        match rest:
            case [Var() as v]:
                return self.below(v, size)
            case [Var() as n, LaneScan("sum", _, a), Const(-1)]:
                return (n, a) in self.counted
        return False

    def below(self, v: Var, size: str) -> bool:
        """Whether a variable stays below a size."""
        if self.ends.get(v) == size or f"{v.name} < {size}" in self.guards:
            return True
        match self.lets.get(v):
            case Bin("+", Bin("*", Var() as o, Const(n)), Var() as i):
                tiles = f"({size} + {int(n) - 1}) // {n}"
                if size.isdigit():
                    tiles = str(-(-int(size) // int(n)))
                return self.ends.get(o) == tiles and self.ends.get(i) == str(n)
        return False
