"""Reductions as data: a monoid is (state, identity, lift, combine, finalise), and how it folds a lane.

    state0 = identity;  state = combine(state, lift(args)) for each entry;  result = finalise(state)

`lane` gives, member by member, the lane operation when the members fold independently (sum, max ...);
`join` is the whole update of a state by a lane of states, for monoids whose members depend on each other
(argmax): its LaneReduce nodes run over the placeholder `LANES`.
`fold` is the same for a lane of arguments (softmax-weighted sum); without it they are lifted and joined.
A monoid with none of the three is folded one entry after the other, in order.
`reverse` takes (args, results, gradient) to the gradients of the args at one entry.

| name             | nothing stored                    | NaN among the entries |
|------------------|-----------------------------------|-----------------------|
| sum, mean        | 0                                 | NaN                   |
| prod             | 1                                 | NaN                   |
| max, min         | -inf, inf (the dtype's last int)  | NaN                   |
| argmax, argmin   | -1                                | the first NaN         |
| any, all         | 0, 1                              | counts as true        |
| union (of bits)  | 0                                 |                       |
| logsumexp        | -inf                              | NaN                   |
| softmax_sum      | 0                                 | NaN                   |

    m = monoids("f32")["sum"];  apply(m.combine, (a, b)) == (a + b,)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ir.expr import (
    FLOATS,
    Bin,
    Cast,
    Const,
    Expr,
    LaneReduce,
    Var,
    binary,
    cast,
    const,
    dtype_of,
    eq,
    maximum,
    minimum,
    ne,
    select,
    unary,
)
from tilewright.ir.node import Node, node, substitute, transform

LANES = Var("lanes", "i32")
LOG2E = 1.4426950408889634
LAST = {"i32": 2**31 - 1, "i64": 2**63 - 1}


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
    reverse: Func | None = None

    @property
    def arity(self) -> int:
        return len(self.lift.params)

    @property
    def laned(self) -> bool:
        """Whether a lane of arguments can be folded at once."""
        return self.fold is not None or self.joins

    @property
    def joins(self) -> bool:
        """Whether a lane of states can be combined at once."""
        return self.lane is not None or self.join is not None


def apply(f: Func, args: Sequence[Any]) -> tuple[Expr, ...]:
    """The body with the parameters replaced."""
    table = dict(zip(f.params, (const(a) for a in args), strict=True))
    return tuple(fold_constants(substitute(b, table)) for b in f.body)


def fold_constants(e: Any) -> Any:
    """Rebuild through the folding constructors: x * 1 -> x"""
    return transform(e, lambda m: binary(m.op, m.a, m.b) if isinstance(m, Bin) else None)


def fitting(e: Expr, identity: Const) -> Expr:
    """A value, in a dtype that has the identity too: the last number of i64 is none of i32."""
    last = LAST.get(dtype_of(e))
    fits = last is None or -last - 1 <= identity.value <= last
    return e if fits else cast(identity.dtype, e)


def fold_lanes(
    m: Monoid, state: Sequence[Expr], args: Sequence[Expr], lanes: tuple[Var, ...]
) -> tuple[Expr, ...] | None:
    """The state after a lane of arguments, or None where the monoid has no lane form."""
    if not lanes:
        return apply(m.combine, (*state, *apply(m.lift, args)))
    if m.fold is not None:
        made = apply(m.fold, (*state, *args))
        return tuple(transform(e, lambda n: _bind_lanes(n, lanes)) for e in made)
    lifted = apply(m.lift, args)
    if m.join is not None:
        return join_lanes(m, state, lifted, lanes)
    if m.lane is None:
        return None
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


def func(params: str, body: Callable[..., Any], dtypes: str | Sequence[str]) -> Func:
    """A Func from a Python function of expressions: traced once."""
    names = params.split()
    each = [dtypes] * len(names) if isinstance(dtypes, str) else dtypes
    given = tuple(Var(n, d) for n, d in zip(names, each, strict=True))
    made = body(*given)
    return Func(given, tuple(const(e) for e in (made if isinstance(made, tuple) else (made,))))


def _same(x: Expr) -> Expr:
    return x


def _single(
    name: str, d: str, identity: Any, op: str, combine: Callable[..., Any], lift: Any = _same
) -> Monoid:
    return Monoid(
        name,
        ("acc",),
        (d,),
        (Const(identity, d),),
        func("x", lift, d),
        func("a b", combine, d),
        func("a", _same, d),
        (op,),
    )


def _mean(d: str) -> Monoid:
    zero = 0.0 if d in FLOATS else 0
    return Monoid(
        "mean",
        ("total", "count"),
        (d, d),
        (Const(zero, d), Const(zero, d)),
        func("x", lambda x: (x, cast(d, 1)), d),
        func("a n b m", lambda a, n, b, m: (a + b, n + m), d),
        func("a n", lambda a, n: cast(_real(d), a) / cast(_real(d), maximum(n, cast(d, 1))), d),
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
        m = maximum(mx, LaneReduce("top", (LANES,), s * c))
        keep = unary("exp2", mx - _shift(m, d))
        w = unary("exp2", s * c - _shift(m, d))
        return (
            m,
            sm * keep + LaneReduce("sum", (LANES,), w),
            acc * keep + LaneReduce("sum", (LANES,), w * v),
        )

    def join(m1: Expr, s1: Expr, a1: Expr, m2: Expr, s2: Expr, a2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, LaneReduce("top", (LANES,), m2))
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


def _finite(new: Expr, d: str) -> Expr:
    """The running maximum, or 0 where it is infinite: entries of inf make the sum infinite, not NaN."""
    return select(eq(unary("abs", new), Const(math.inf, d)), Const(0.0, d), new)


def _logsumexp(d: str) -> Monoid:
    c, zero = Const(LOG2E, d), Const(0.0, d)

    def combine(m1: Expr, s1: Expr, m2: Expr, s2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, m2)
        shift = _finite(m, d)
        return m, s1 * unary("exp2", m1 - shift) + s2 * unary("exp2", m2 - shift)

    def fold(mx: Expr, sm: Expr, s: Expr) -> tuple[Expr, ...]:
        m = maximum(mx, LaneReduce("top", (LANES,), s * c))
        shift = _finite(m, d)
        w = unary("exp2", s * c - shift)
        return m, sm * unary("exp2", mx - shift) + LaneReduce("sum", (LANES,), w)

    def join(m1: Expr, s1: Expr, m2: Expr, s2: Expr) -> tuple[Expr, ...]:
        m = maximum(m1, LaneReduce("top", (LANES,), m2))
        shift = _finite(m, d)
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


def _arg(name: str, d: str, worst: float, op: str) -> Monoid:
    """(value, key) pairs: the smallest key among equal ones; NaN is more extreme than any number."""
    none = Const(LAST["i64"], "i64")
    pair = (d, "i64")

    def combine(a: Expr, i: Expr, b: Expr, j: Expr) -> tuple[Expr, ...]:
        better = b > a if op == "max" else b < a
        better = better | (ne(b, b) & eq(a, a))
        same = eq(b, a) | (ne(b, b) & ne(a, a))
        take = better | (same & (j < i))
        return select(take, b, a), select(take, j, i)

    def join(a: Expr, i: Expr, b: Expr, j: Expr) -> tuple[Expr, ...]:
        best = LaneReduce(op, (LANES,), b)
        hit = eq(b, best) | ne(b, b)
        return combine(a, i, best, LaneReduce("min", (LANES,), select(hit, j, none)))

    return Monoid(
        name,
        ("best", "key"),
        pair,
        (Const(worst, d), none),
        func("x k", lambda x, k: (x, Cast("i64", k)), pair),
        func("a i b j", combine, pair * 2),
        func("a i", lambda a, i: select(eq(i, none), Const(-1, "i64"), i), pair),
        join=func("a i b j", join, pair * 2),
    )


def _real(d: str) -> str:
    """The dtype in which a mean, a logarithm or an exponential is taken."""
    return d if d in FLOATS else "f64"


def _truth(x: Expr) -> Expr:
    return ne(x, Const(0, "i64"))


def _built_in(d: str) -> list[Monoid]:
    lo, hi = (-LAST[d] - 1, LAST[d]) if d in LAST else (-math.inf, math.inf)
    one = 1.0 if d in FLOATS else 1
    return [
        _single("sum", d, one * 0, "sum", lambda a, b: a + b),
        _single("prod", d, one, "prod", lambda a, b: a * b),
        _single("max", d, lo, "max", maximum),
        _single("min", d, hi, "min", minimum),
        _single("any", "b1", False, "any", lambda a, b: a | b, _truth),
        _single("all", "b1", True, "all", lambda a, b: a & b, _truth),
        _single("union", "i32", 0, "union", lambda a, b: a | b),
        _mean(d),
        _softmax_sum("softmax_sum", _real(d), LOG2E),
        _softmax_sum("softmax2_sum", _real(d), 1.0),
        _logsumexp(_real(d)),
        _arg("argmax", d, lo, "max"),
        _arg("argmin", d, hi, "min"),
    ]


_TABLES: dict[str, dict[str, Monoid]] = {}
_OWN: dict[str, Callable[[str], Monoid]] = {}


def monoids(d: str) -> dict[str, Monoid]:
    """The monoids over accumulator dtype d: built-in ones and those that users defined."""
    if d not in _TABLES:
        made = [*_built_in(d), *(make(d) for make in _OWN.values())]
        _TABLES[d] = {m.name: m for m in made}
    return _TABLES[d]


def define(name: str, make: Callable[[str], Monoid]) -> None:
    """Add a monoid, given for each accumulator dtype."""
    _OWN[name] = make
    for d, table in _TABLES.items():
        table[name] = make(d)
