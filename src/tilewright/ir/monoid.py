"""Reductions as data: a monoid is (state, identity, lift, combine, finalise), and how it folds a lane.

    state0 = identity;  state = combine(state, lift(args)) for each entry;  result = finalise(state)

`lane` gives, member by member, the lane operation when the members fold independently (sum, max ...);
`fold` is the whole update of a state by a lane of arguments, for monoids whose members depend on each
other (softmax-weighted sum): its LaneReduce nodes run over the placeholder `LANES`.
`join` is the same for a lane of states.

    m = monoids("f32")["sum"];  apply(m.combine, (a, b)) == (a + b,)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from tilewright.ir.expr import (
    Bin,
    Const,
    Expr,
    LaneReduce,
    Var,
    binary,
    cast,
    const,
    eq,
    maximum,
    minimum,
    select,
    unary,
)
from tilewright.ir.node import Node, node, substitute, transform

LANES = Var("lanes", "i32")
LOG2E = 1.4426950408889634


@node
class Func(Node):
    """params -> body"""

    params: tuple[Var, ...]
    body: tuple[Expr, ...]


@node
class Monoid(Node):
    """See the module's docstring."""

    name: str
    state: tuple[str, ...]
    dtypes: tuple[str, ...]
    identity: tuple[Const, ...]
    lift: Func
    combine: Func
    finalise: Func
    lane: tuple[str, ...] | None = None
    fold: Func | None = None
    join: Func | None = None

    @property
    def arity(self) -> int:
        return len(self.lift.params)


def apply(f: Func, args: Sequence[Any]) -> tuple[Expr, ...]:
    """The body with the parameters replaced."""
    table = dict(zip(f.params, (const(a) for a in args), strict=True))
    return tuple(fold_constants(substitute(b, table)) for b in f.body)


def fold_constants(e: Any) -> Any:
    """Rebuild through the folding constructors: x * 1 -> x"""
    return transform(e, lambda m: binary(m.op, m.a, m.b) if isinstance(m, Bin) else None)


def fold_lanes(
    m: Monoid, state: Sequence[Expr], args: Sequence[Expr], lanes: tuple[Var, ...]
) -> tuple[Expr, ...] | None:
    """The state after a lane of arguments, or None where the monoid has no lane form."""
    if not lanes:
        return apply(m.combine, (*state, *apply(m.lift, args)))
    if m.fold is not None:
        made = apply(m.fold, (*state, *args))
        return tuple(transform(e, lambda n: _bind_lanes(n, lanes)) for e in made)
    if m.lane is None:
        return None
    lifted = apply(m.lift, args)
    inner = tuple(
        LaneReduce(op, lanes, cast(d, e)) for op, d, e in zip(m.lane, m.dtypes, lifted, strict=True)
    )
    return apply(m.combine, (*state, *inner))


def join_lanes(
    m: Monoid, state: Sequence[Expr], other: Sequence[Expr], lanes: tuple[Var, ...]
) -> tuple[Expr, ...]:
    """The state after a lane of other states."""
    assert m.join is not None
    made = apply(m.join, (*state, *other))
    return tuple(transform(e, lambda n: _bind_lanes(n, lanes)) for e in made)


def _bind_lanes(n: Any, lanes: tuple[Var, ...]) -> Expr | None:
    return (
        LaneReduce(n.op, lanes, n.a) if isinstance(n, LaneReduce) and n.lanes == (LANES,) else None
    )


def func(params: str, body: Any, dtype: str) -> Func:
    """A Func from a Python function of expressions: traced once."""
    names = tuple(Var(p, dtype) for p in params.split())
    made = body(*names)
    return Func(names, tuple(const(e) for e in (made if isinstance(made, tuple) else (made,))))


def _same(x: Expr) -> Expr:
    return x


def _single(name: str, d: str, identity: Any, op: str, combine: Any) -> Monoid:
    return Monoid(
        name,
        ("acc",),
        (d,),
        (Const(identity, d),),
        func("x", _same, d),
        func("a b", combine, d),
        func("a", _same, d),
        (op,),
    )


def _mean(d: str) -> Monoid:
    return Monoid(
        "mean",
        ("total", "count"),
        (d, d),
        (Const(0.0, d), Const(0.0, d)),
        func("x", lambda x: (x, Const(1.0, d)), d),
        func("a n b m", lambda a, n, b, m: (a + b, n + m), d),
        func("a n", lambda a, n: a / maximum(n, Const(1.0, d)), d),
        ("sum", "sum"),
    )


def _shift(new: Expr, d: str) -> Expr:
    """The running maximum, or 0 where nothing was seen (so that -inf - -inf is never formed)."""
    return select(eq(new, Const(-math.inf, d)), Const(0.0, d), new)


def _softmax_sum(name: str, d: str, unit: float) -> Monoid:
    """softmax over the axis, weighting v: a running maximum (in base 2), sum and accumulator.

    Scores times `unit` are in base 2: `softmax2_sum` takes them as they are and saves a product for each.
    """
    c = Const(unit, d)

    def combine(m1: Expr, s1: Expr, a1: Expr, m2: Expr, s2: Expr, a2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, m2)
        e1, e2 = unary("exp2", m1 - _shift(m, d)), unary("exp2", m2 - _shift(m, d))
        return m, s1 * e1 + s2 * e2, a1 * e1 + a2 * e2

    def fold(mx: Expr, sm: Expr, acc: Expr, s: Expr, v: Expr) -> tuple[Expr, ...]:
        m = maximum(mx, LaneReduce("max", (LANES,), s * c))
        keep = unary("exp2", mx - _shift(m, d))
        w = unary("exp2", s * c - _shift(m, d))
        return (
            m,
            sm * keep + LaneReduce("sum", (LANES,), w),
            acc * keep + LaneReduce("sum", (LANES,), w * v),
        )

    def join(m1: Expr, s1: Expr, a1: Expr, m2: Expr, s2: Expr, a2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, LaneReduce("max", (LANES,), m2))
        e1, e2 = unary("exp2", m1 - _shift(m, d)), unary("exp2", m2 - _shift(m, d))
        total = LaneReduce("sum", (LANES,), s2 * e2)
        return m, s1 * e1 + total, a1 * e1 + LaneReduce("sum", (LANES,), a2 * e2)

    zero = Const(0.0, d)
    return Monoid(
        name,
        ("top", "total", "acc"),
        (d, d, d),
        (Const(-math.inf, d), zero, zero),
        func(
            "s v",
            lambda s, v: (s * c, select(eq(s, Const(-math.inf, d)), zero, Const(1.0, d)), v),
            d,
        ),
        func("m1 s1 a1 m2 s2 a2", combine, d),
        func(
            "m s a",
            lambda m, s, a: (
                select(eq(s, zero), zero, a / select(eq(s, zero), Const(1.0, d), s)),
                select(eq(s, zero), Const(-math.inf, d), m / Const(LOG2E, d) + unary("log", s)),
            ),
            d,
        ),
        None,
        func("mx sm acc s v", fold, d),
        func("m1 s1 a1 m2 s2 a2", join, d),
    )


def _logsumexp(d: str) -> Monoid:
    c, zero = Const(LOG2E, d), Const(0.0, d)

    def combine(m1: Expr, s1: Expr, m2: Expr, s2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, m2)
        shift = _shift(m, d)
        return m, s1 * unary("exp2", m1 - shift) + s2 * unary("exp2", m2 - shift)

    def fold(mx: Expr, sm: Expr, s: Expr) -> tuple[Expr, ...]:
        m = maximum(mx, LaneReduce("max", (LANES,), s * c))
        shift = _shift(m, d)
        w = unary("exp2", s * c - shift)
        return m, sm * unary("exp2", mx - shift) + LaneReduce("sum", (LANES,), w)

    def join(m1: Expr, s1: Expr, m2: Expr, s2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, LaneReduce("max", (LANES,), m2))
        shift = _shift(m, d)
        inner = LaneReduce("sum", (LANES,), s2 * unary("exp2", m2 - shift))
        return m, s1 * unary("exp2", m1 - shift) + inner

    return Monoid(
        "logsumexp",
        ("top", "total"),
        (d, d),
        (Const(-math.inf, d), zero),
        func("s", lambda s: (s * c, select(eq(s, Const(-math.inf, d)), zero, Const(1.0, d))), d),
        func("m1 s1 m2 s2", combine, d),
        func(
            "m s", lambda m, s: select(eq(s, zero), Const(-math.inf, d), m / c + unary("log", s)), d
        ),
        None,
        func("mx sm s", fold, d),
        func("m1 s1 m2 s2", join, d),
    )


def _arg(name: str, d: str, worst: float, better: str) -> Monoid:
    """(value, key) pairs; the first key wins ties."""

    def combine(a: Expr, i: Expr, b: Expr, j: Expr) -> tuple[Expr, ...]:
        take = binary(better, b, a)
        return select(take, b, a), select(take, j, i)

    def finalise(a: Expr, i: Expr) -> Expr:
        return i

    return Monoid(
        name,
        ("best", "key"),
        (d, "i64"),
        (Const(worst, d), Const(-1, "i64")),
        func("x k", lambda x, k: (x, k), d),
        func("a i b j", combine, d),
        func("a i", finalise, d),
    )


@cache
def monoids(d: str) -> dict[str, Monoid]:
    """The built-in monoids over accumulator dtype d."""
    lo, hi = (-math.inf, math.inf) if d in ("f32", "f64") else (-(2**31), 2**31 - 1)
    one = 1.0 if d in ("f32", "f64") else 1
    zero = one * 0
    table = [
        _single("sum", d, zero, "sum", lambda a, b: a + b),
        _single("prod", d, one, "prod", lambda a, b: a * b),
        _single("max", d, lo, "max", maximum),
        _single("min", d, hi, "min", minimum),
        _single("any", "b1", False, "max", lambda a, b: a | b),
        _single("all", "b1", True, "min", lambda a, b: a & b),
        _mean(d),
        _softmax_sum("softmax_sum", d, LOG2E),
        _softmax_sum("softmax2_sum", d, 1.0),
        _logsumexp(d),
        _arg("argmax", d, lo, ">"),
        _arg("argmin", d, hi, "<"),
    ]
    return {m.name: m for m in table}
