"""Which part of a buffer a turn of a loop touches: its own, or any.

In: indices into a buffer, each with a loop around it. Out: whether turn t of each loop stays in the same part of the
buffer, and no two turns share one: t is a coordinate, and the same one, in all of them. Turns that only meet in parts
of their own may do several things after each other, each in one program.

    own([(I * n_k + place, I), (J * n_k + p, J)])  ->  True, for a list [n_I, n_k]
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Expr, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk


def own(touched: Sequence[tuple[Expr, Loop]]) -> bool:
    """Whether all indices are turn * (one number) + (what does not depend on the turn)."""
    steps = {_step(index, loop) for index, loop in touched}
    return len(steps) == 1 and None not in steps


def _step(index: Expr, loop: Loop) -> Expr | None:
    """The number that a turn is multiplied with, where it enters an index once."""
    lets = {s.var: s.value for s in walk(loop.body) if isinstance(s, stmt.Let)}
    mine = [e for e in _terms(index, lets) if loop.var in flat.made_of(loop.body, e)]
    match mine:
        case [Var() as v] if v is loop.var:
            return const(1)
        case [Bin("*", Var() as v, step)] if v is loop.var:
            return None if loop.var in flat.made_of(loop.body, step) else step
    return None


def _terms(e: Expr, lets: dict[Var, Expr]) -> list[Expr]:
    """What is added up."""
    match e:
        case Bin("+", a, b):
            return [*_terms(a, lets), *_terms(b, lets)]
        case Bin("-", a, b):
            return [*_terms(a, lets), const(0) - b]
        case Cast(_, a):
            return _terms(a, lets)
        case Var() if e in lets:
            return _terms(lets[e], lets)
    return [e]
