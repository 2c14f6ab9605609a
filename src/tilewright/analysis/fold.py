"""What is left of an expression when an operand has one value everywhere: algebra, not arithmetic.

In: an expression of stage I. Out: the same, smaller; a number where it no longer depends on anything. An operand that
is skipped is not read, so 0 * x is 0 whatever x holds, and -inf + x is -inf.

    relu(x[i, k]) * w[n, k], x is 0                 ->   0
    sum(k, x[i, k] * w[n, k]) + b[n], x is 0        ->   b[n]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.coord import Reduce
from tilewright.ir.expr import (
    FLOATS,
    Bin,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Un,
    Var,
    cast,
    const,
    dtype_of,
)
from tilewright.ir.interp.common import Env, Maker, Value, convert
from tilewright.ir.monoid import Monoid, apply
from tilewright.ir.node import rebuild, transform

SAMPLES = (-2.5, 0.0, 3.25, 1000.0)  # what an argument that is not known may be
TIMES = (0, 1, 2, 7)


def left(e: Expr, gone: Callable[[Load], bool], value: float) -> Expr:
    """The expression where some accesses are `value` everywhere."""

    def go(n: Any) -> Any:
        if isinstance(n, Monoid):
            return n
        if isinstance(n, Load):
            return _const(value, n) if gone(n) else n
        inner = rebuild(n, go)
        made = fold(inner)
        return inner if made is None else made

    result: Expr = go(e)
    return result


def _const(value: float, like: Expr) -> Const:
    d = dtype_of(like)
    return Const(value, d) if d in FLOATS or not math.isfinite(value) else Const(int(value), d)


def fold(e: Any) -> Expr | None:
    """One node, its parts folded already; None for no change."""
    match e:
        case Bin(_, Const(), Const()):
            return _evaluated(e)
        case Bin("*", a, b):
            return _const(0.0, e) if is_(a, 0) or is_(b, 0) else _one(e, 1)
        case Bin("+", a, b):
            return next((x for x in (_infinite(a), _infinite(b)) if x is not None), _one(e, 0))
        case Bin("-", a, b):
            return a if is_(b, 0) else _infinite(a)
        case Bin("/", a, b):
            return a if is_(b, 1) or is_(a, 0) else None
        case Bin("max" | "min" as op, a, b):
            return _one(e, -math.inf if op == "max" else math.inf)
        case Bin("&", a, b):
            return Const(False, "b1") if is_(a, 0) or is_(b, 0) else _one(e, True)
        case Bin("|", a, b):
            return Const(True, "b1") if is_(a, True) or is_(b, True) else _one(e, 0)
        case Select(Const(c), a, b):
            return a if c else b
        case Select(_, a, b) if a == b:
            return a
        case Un(_, Const()):
            return _evaluated(e)
        case Cast(d, Const() as a):
            return cast(d, a) if math.isfinite(a.value) or d in FLOATS else None
        case Reduce():
            return _reduced(e)
    return None


def is_(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value


def _one(e: Bin, neutral: float) -> Expr | None:
    """The side that is left when the other is neutral."""
    return e.a if is_(e.b, neutral) else e.b if is_(e.a, neutral) else None


def _infinite(e: Expr) -> Expr | None:
    return (
        e if isinstance(e, Const) and isinstance(e.value, float) and math.isinf(e.value) else None
    )


def _evaluated(e: Expr) -> Expr | None:
    d = dtype_of(e)
    with np.errstate(all="ignore"):
        made = Maker().value(e, {}).item()
    if isinstance(made, float) and math.isnan(made):
        return None
    return Const(bool(made) if d == "b1" else made, d)


# --- reductions -------------------------------------------------------------------------------------


def _reduced(e: Reduce) -> Expr | None:
    """A reduction to which every entry adds nothing; or whose result is the same for any number of entries."""
    if neutral(e.monoid, e.args):
        made = transform(apply(e.monoid.finalise, e.monoid.identity)[e.part], fold)
        return made if isinstance(made, Const) else None
    if not any(isinstance(a, Const) for a in e.args):
        return None
    results = {_result(e, n) for n in TIMES}
    value = results.pop()
    return const(value, dtype_of(e)) if not results and not math.isnan(value) else None


def neutral(m: Monoid, args: Sequence[Expr]) -> bool:
    """Whether an entry with these arguments changes no state: tried on states that entries make, and on the first."""
    given, state, step = _step(m, args)
    for held in _states(m):
        before = dict(zip(state, held, strict=True))
        for value in SAMPLES:
            after = _next(step, state, given, before, value)
            if any(after[v] != before[v] for v in state):
                return False
            if not given:
                break
    return True


def _step(
    m: Monoid, args: Sequence[Expr]
) -> tuple[tuple[Var, ...], tuple[Var, ...], tuple[Expr, ...]]:
    """(stand-ins for what is not known, the state, the state after an entry)"""
    all_ = [a if isinstance(a, Const) else Var(f"arg{n}", "f64") for n, a in enumerate(args)]
    state = tuple(Var(n, d) for n, d in zip(m.state, m.dtypes, strict=True))
    step = apply(m.combine, (*state, *apply(m.lift, all_)))
    return tuple(a for a in all_ if isinstance(a, Var)), state, step


def _next(
    step: tuple[Expr, ...], state: tuple[Var, ...], given: tuple[Var, ...], now: Env, value: float
) -> Env:
    env: Env = {**now, **{v: np.float64(value + n) for n, v in enumerate(given)}}
    with np.errstate(all="ignore"):
        return {
            v: convert(Maker().value(x, env), v.dtype) for v, x in zip(state, step, strict=True)
        }


def _states(m: Monoid) -> list[tuple[Value, ...]]:
    """States that a reduction may be in: the first one, and those after a few entries."""
    given, state, step = _step(m, [Var("any", "f64")] * m.arity)
    now = _first(m, state)
    made = [tuple(now.values())]
    for value in SAMPLES:
        now = _next(step, state, given, now, value)
        made.append(tuple(now.values()))
    return made


def _first(m: Monoid, state: tuple[Var, ...]) -> Env:
    return {v: convert(c.value, v.dtype) for v, c in zip(state, m.identity, strict=True)}


def _result(e: Reduce, times: int) -> float:
    """The result of a number of entries, the arguments that are not known taken from the samples."""
    given, state, step = _step(e.monoid, e.args)
    now = _first(e.monoid, state)
    for n in range(times):
        now = _next(step, state, given, now, SAMPLES[n % len(SAMPLES)])
    with np.errstate(all="ignore"):
        return float(Maker().value(apply(e.monoid.finalise, state)[e.part], now))
