"""The primitive `at_once`: lanes of arguments fold into a state of their own, which then joins the state outside once.

In: a stage III program, the name of lanes that end in a fold whose members depend on each other (softmax_sum,
logsumexp, argmax ...). Out: the same fold as the monoid's lane form says it: plain sums and maxima over the lanes, what
they share computed once, one join.

    at_once(p, "j")        lane j: fold s: softmax_sum(e, v)
 -> t = init max; lane j: fold t: e
    n, a = init sum; lane j: w = exp(e - t), fold n: w, fold a: w * v;  join s with t, n, a
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, LaneReduce, Select, Un, Var, dtype_of
from tilewright.ir.flat import Loop
from tilewright.ir.monoid import Monoid, fold_lanes, monoids
from tilewright.ir.node import rebuild, substitute, transform, walk
from tilewright.schedule.edit import edit, find, illegal
from tilewright.schedule.legal import Body, folds, fresh, taken

PLAIN = {
    "top": "max"
}  # NaN is no maximum in lanes; where it is one, the sum of its weights is NaN all the same


def at_once(p: flat.Program, name: str) -> flat.Program:
    """lane v: fold s: e  ->  init t; lane v: fold t: parts of e;  join s with t, once"""
    what, loop = f"at_once({name})", find(p, name)
    if loop.kind != "lane":
        raise illegal(what, "it is not a lane", "make it a lane first", ir=loop)
    found = folds(loop.body)
    if len(found) != 1 or not isinstance(found[0], stmt.Fold):
        raise illegal(what, "its body does not hold exactly one fold of a state outside", ir=loop)
    fold = found[0]
    if fold.monoid.fold is None and fold.monoid.join is None:
        why = f"the members of {fold.monoid.name} are folded each by itself, or in order"
        raise illegal(what, why, "leave it as it is", ir=loop)
    guards, rest = _path(what, loop, fold)
    return edit(p, name, lambda s: _taken_apart(p, s, fold, guards, rest))


def _path(what: str, loop: Loop, fold: stmt.Fold) -> tuple[list[Expr], list[Body]]:
    """The guards around a fold, outermost first, and what stands before it on each level."""
    guards: list[Expr] = []
    before: list[Body] = []
    body = loop.body
    while body[-1] is not fold:
        last = body[-1]
        if not isinstance(last, stmt.Guard):
            raise illegal(what, "its fold is not the last that it does, and alone", ir=loop)
        before.append(body[:-1])
        guards.append(last.cond)
        body = last.body
    return guards, [*before, body[:-1]]


def _under(guards: list[Expr], body: Body) -> Body:
    for g in reversed(guards):
        body = (stmt.Guard(g, body),)
    return body


def _taken_apart(
    p: flat.Program, loop: Loop, fold: stmt.Fold, guards: list[Expr], before: list[Body]
) -> list[stmt.Stmt]:
    m, held = fold.monoid, taken(p)
    given = tuple(Var(fresh(p, v.name, held), v.dtype) for v in m.lift.params)
    steps = _Steps(p, held, {*given})
    made = [steps.of(_begun(e)) for e in fold_lanes(m, m.identity, given, (loop.var,)) or ()]
    members = [steps.named(e, v) for e, v in zip(made, fold.state, strict=True)]
    args: dict[Expr, Expr] = {}
    own: list[stmt.Stmt] = []
    for v, e in zip(given, fold.args, strict=True):
        again = isinstance(e, Var | Const) or steps.uses(v) < 2
        args[v] = e if again else v
        own += [] if again else [stmt.Let(v, e)]
    out: list[stmt.Stmt] = []
    last: Body = (*before[-1], *own)
    for g, b in zip(reversed(guards), reversed(before[:-1]), strict=True):
        last = (*b, stmt.Guard(g, last)) if last else b
    if last:
        out.append(replace(loop, body=last))
    for inits, inside, after in steps.sections():
        lanes = replace(loop, body=_under(guards, substitute(inside, args)))
        out += [*inits, lanes, *after]
    return [*out, stmt.Join(fold.state, m, tuple(members))]


def _begun(e: Expr) -> Expr:
    """A member after nothing but these lanes: what is kept of the identity falls away."""

    def rule(n: Any) -> Expr | None:
        match n:
            case Bin("max", Const(c), b) if c == -math.inf:
                return b
            case Bin("*", Const(0.0) as a, _):
                return a
            case Bin("+", Const(0.0), b):
                return b
        return None

    return transform(e, rule)


@dataclass
class _Steps:
    """Lets and plain folds, each with its place: even ones in lanes, odd ones after them."""

    p: flat.Program
    held: set[str]
    laned: set[Var]
    made: dict[Expr, Var] = field(default_factory=dict)
    steps: list[tuple[int, Var, Expr]] = field(default_factory=list)
    ready: dict[Var, int] = field(default_factory=dict)

    def of(self, e: Any) -> Any:
        """An expression with names for what is folded, or computed by a function or a choice."""
        if not isinstance(e, Expr) or isinstance(e, Var | Const):
            return e
        inner = rebuild(e, self.of)
        if not isinstance(inner, LaneReduce | Un | Select):
            return inner
        if inner not in self.made:
            self.made[inner] = self.placed(inner, self._word(inner))
        return self.made[inner]

    def named(self, e: Expr, v: Var) -> Var:
        return e if isinstance(e, Var) else self.placed(e, v.name)

    def placed(self, e: Expr, name: str) -> Var:
        v = Var(fresh(self.p, name, self.held), dtype_of(e.a if isinstance(e, LaneReduce) else e))
        inner = {n for n in walk(e) if isinstance(n, Var)}
        folded = isinstance(e, LaneReduce)
        in_lanes = folded or bool(inner & self.laned)
        place = max((self.ready.get(n, 0) for n in inner), default=0)
        place += place % 2 != (0 if in_lanes else 1)
        self.steps.append((place, v, e))
        self.ready[v] = place + folded
        if in_lanes and not folded:
            self.laned.add(v)
        return v

    def _word(self, e: Expr) -> str:
        match e:
            case LaneReduce(op):
                return f"{PLAIN.get(op, op)}_at"
            case Un(op):
                return f"{op}_at"
        return "chosen"

    def uses(self, v: Var) -> int:
        return sum(n is v for _, _, e in self.steps for n in walk(e))

    def sections(self) -> Iterator[tuple[list[stmt.Stmt], Body, list[stmt.Stmt]]]:
        """What begins before the lanes, what they do, and what follows, as often as lanes are opened."""
        for k in range(0, max(n for n, _, _ in self.steps) + 1, 2):
            inits: list[stmt.Stmt] = []
            inside: list[stmt.Stmt] = []
            for _, v, e in (s for s in self.steps if s[0] == k):
                if isinstance(e, LaneReduce):
                    m = _plain(e)
                    inits.append(stmt.Init((v,), m))
                    inside.append(stmt.Fold((v,), m, (e.a,)))
                else:
                    inside.append(stmt.Let(v, e))
            yield inits, tuple(inside), [stmt.Let(v, e) for n, v, e in self.steps if n == k + 1]


def _plain(e: LaneReduce) -> Monoid:
    return monoids(dtype_of(e.a))[PLAIN.get(e.op, e.op)]
