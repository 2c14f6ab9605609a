"""Monoids of users: Python functions traced once to expressions, and tested when they are defined.

In: the functions. Out: a word of the notation, with as many arguments as `lift` has.

    spread = monoid(                                        # the largest less the smallest
        "spread",
        state="low high",
        identity=(math.inf, -math.inf),
        lift=lambda x: (x, x),
        combine=lambda l, h, m, k: (tw.minimum(l, m), tw.maximum(h, k)),
        finalise=lambda l, h: h - l,
    )
    y[i, f] = spread(j, a[i, j] * x[j, f])

Members of the state have the accumulator's dtype, or their own: state="total count:i64". `lane` names, for
each member, the operation that folds it alone (sum, prod, max, min, any, all), where there is one: without
it entries are folded one after the other, in the order in which they are stored.
`backward(args..., result, grad)` gives the gradients of the args at one entry.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import Const, Expr, cast, const
from tilewright.ir.interp.common import Maker
from tilewright.ir.monoid import LAST, Func, Monoid, define, func, monoids
from tilewright.language.trace import Parts, both, reduce
from tilewright.support.errors import error
from tilewright.support.places import public

LANE = ("sum", "prod", "max", "min", "any", "all")
SAMPLES = 64
CLOSE = 1e-6

_BY_TEXT: dict[tuple[Any, ...], str] = {}


class Own:
    """A reduction of the user's own: `my(j, x[j], ...)`; `my.parts(j, ...)` for `outputs`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, over: Any, *args: Any) -> Expr:
        self.check(args)
        return reduce(self.name, over, *args)

    def parts(self, over: Any, *args: Any) -> Parts:
        """All results of `finalise`, for `outputs`."""
        self.check(args)
        return both(self.name, over, *args)

    def check(self, args: Sequence[Any]) -> None:
        arity = monoids("f32")[self.name].arity
        if len(args) != arity:
            raise _refuse(self.name, f"it is given {len(args)} arguments", f"{arity}, as lift has")

    def __repr__(self) -> str:
        return f"monoid {self.name}"


@public
def monoid(
    name: str,
    *,
    state: str,
    identity: Any,
    lift: Callable[..., Any],
    combine: Callable[..., Any],
    finalise: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    lane: Sequence[str] | None = None,
) -> Own:
    """Define a reduction; see the module's docstring."""
    members = [word.partition(":")[::2] for word in state.split()]
    names = tuple(n for n, _ in members)
    start = identity if isinstance(identity, tuple) else (identity,)
    if name in monoids("f32") and name not in _BY_TEXT.values():
        raise _refuse(name, "this is the name of a built-in monoid", "a name of its own")
    if len(start) != len(names):
        raise _refuse(
            name, f"{len(start)} identities for {len(names)} members", "one for each member"
        )
    if lane is not None and (len(lane) != len(names) or set(lane) - set(LANE)):
        raise _refuse(name, f"lane={tuple(lane)}", f"one of {', '.join(LANE)} for each member")
    words = _parameters(lift)

    def make(d: str, as_name: str = name) -> Monoid:
        dtypes = tuple(own or d for _, own in members)
        doubled = " ".join([*(f"{n}_1" for n in names), *(f"{n}_2" for n in names)])
        lifted = _trace(name, "lift", " ".join(words), lift, d, len(names))
        return Monoid(
            as_name,
            names,
            dtypes,
            tuple(_constant(t, c) for t, c in zip(start, dtypes, strict=True)),
            lifted,
            _trace(name, "combine", doubled, combine, dtypes * 2, len(names)),
            _trace(name, "finalise", " ".join(names), finalise or _first, dtypes),
            None if lane is None else tuple(lane),
            reverse=None
            if backward is None
            else _trace(
                name, "backward", " ".join([*words, "result", "grad"]), backward, d, len(words)
            ),
        )

    _check(name, make("f64"))
    return Own(_defined(name, make))


def _defined(name: str, make: Callable[..., Monoid]) -> str:
    """The name under which a monoid is known: a changed definition gets a new one, the same keeps its own."""
    m = make("f32")
    funcs = [f for f in (m.lift, m.combine, m.finalise, m.reverse) if f is not None]
    text = (name, m.state, m.dtypes, m.identity, m.lane, tuple(map(_text, funcs)))
    if text not in _BY_TEXT:
        taken = set(_BY_TEXT.values())
        options = (name if n == 1 else f"{name}_{n}" for n in range(1, len(taken) + 2))
        own = _BY_TEXT[text] = next(o for o in options if o not in taken)
        define(own, lambda d: make(d, own))
    return _BY_TEXT[text]


def _text(f: Func) -> tuple[str, ...]:
    return (*(p.name for p in f.params), *(str(b) for b in f.body))


def _refuse(name: str, got: str, expected: str) -> Exception:
    return error("monoid", name=name, got=got, expected=expected)


def _first(*state: Expr) -> Expr:
    return state[0]


def _constant(value: Any, d: str) -> Const:
    """An identity; integers have their last ones for infinities."""
    if d in LAST and isinstance(value, float) and math.isinf(value):
        return Const(LAST[d] if value > 0 else -LAST[d] - 1, d)
    made = cast(d, const(value))
    assert isinstance(made, Const)
    return made


def _parameters(fn: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(fn).parameters)


def _trace(
    name: str,
    what: str,
    params: str,
    fn: Callable[..., Any],
    dtypes: str | Sequence[str],
    results: int | None = None,
) -> Func:
    try:
        made = func(params, fn, dtypes)
    except TypeError as why:
        raise _refuse(
            name, f"{what} cannot be traced: {why}", f"a function of {params.split()}"
        ) from why
    if results is not None and len(made.body) != results:
        raise _refuse(name, f"{what} gives {len(made.body)} results", f"{results} of them")
    return made


# --- the test at definition ---------------------------------------------------------------------------


def _check(name: str, m: Monoid) -> None:
    """Identity and associativity, on random numbers: of mixed sign, and positive."""
    random = np.random.default_rng(0)
    draws = (
        lambda: random.normal(size=SAMPLES),
        lambda: random.uniform(0.25, 2.0, SAMPLES),
    )
    for draw in draws:
        entry = lambda draw=draw: _run(m.lift, [draw() for _ in range(m.arity)])
        nothing = [np.full(SAMPLES, c.value) for c in m.identity]
        a = _combine(m, entry(), entry())
        b, c = entry(), _combine(m, entry(), entry())
        law = "combine(identity, a) == a == combine(a, identity)"
        _same(name, m, _combine(m, nothing, a), a, "identity is not neutral on the left", law)
        _same(name, m, _combine(m, a, nothing), a, "identity is not neutral on the right", law)
        left = _combine(m, _combine(m, a, b), c)
        right = _combine(m, a, _combine(m, b, c))
        law = "combine(combine(a, b), c) == combine(a, combine(b, c))"
        _same(name, m, left, right, "combine is not associative", law)


def _combine(m: Monoid, a: list[Any], b: list[Any]) -> list[Any]:
    return _run(m.combine, [*a, *b])


def _run(f: Func, args: Sequence[Any]) -> list[Any]:
    maker, env = Maker(), dict(zip(f.params, args, strict=True))
    with np.errstate(all="ignore"):
        return [np.broadcast_to(maker.value(e, env), SAMPLES) for e in f.body]


def _same(name: str, m: Monoid, a: list[Any], b: list[Any], what: str, law: str) -> None:
    for x, y in zip(_run(m.finalise, a), _run(m.finalise, b), strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        off = ~np.isclose(x, y, rtol=CLOSE, atol=CLOSE, equal_nan=True)
        if off.any():
            n = int(off.argmax())
            raise _refuse(name, f"{what}: {x[n]:.6g} against {y[n]:.6g}", law)
