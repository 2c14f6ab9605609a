"""Names, numbers and expressions of every stage as text.

In: expressions. Out: Python expressions. What all stages share:

    8   0.5   True   -inf          i64, f32, b1, f32;  of another dtype: i32(8), f16(0.5)
    a + b   a < b   a & b   ~a     and min(a, b), exp(a), where(c, a, b); f16(a) is a cast
    x[i, j]                        a load
    sum(a, over=n)                 over a lane (or over=(n, d));  scan(sum, a, along=n)
    split(a, n, into=(p, q))       lane n of a seen as two lanes

Stage I says `sum(j, a[i, j])` for a reduction over stored entries, `[1]` after it for its second result,
and `maximum(a, b)` for the larger of two. Stages II and III have `find(key, a_indices[lo:hi])`, with
`start=` where the search begins. Tile form has its own words (`load(x + i * n + f, mask=m, fill=0.0)`,
`full`, `arange`, `dot`, `reshape` ...), and `a[:, None]` to line up.
A monoid accumulates in f32; another dtype is written behind it: `sum[f64]`.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable
from typing import Any

from tilewright.ir import coord, expr, loops, tile
from tilewright.ir.expr import (
    Bin,
    Cast,
    Const,
    LaneReduce,
    LaneScan,
    LaneSplit,
    Load,
    Select,
    Un,
    Var,
)
from tilewright.ir.monoid import Monoid
from tilewright.support.names import clean

DTYPES = (*expr.FLOATS, *expr.INTS, "b1")
WORDS = frozenset((*DTYPES, "inf", "nan"))
_PREC = {"|": 2, "&": 3, "+": 4, "-": 4, "*": 5, "/": 5, "//": 5, "%": 5}
_PREC.update(dict.fromkeys(expr.COMPARE, 1))
_UNARY, _ATOM = 6, 7


def natural(value: float | int | bool) -> str:
    """The dtype of a bare number."""
    return "b1" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"


def digits(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return repr(value)


def tupled(names: Iterable[str]) -> str:
    """(), (a,), (a, b)"""
    made = list(names)
    return f"({made[0]},)" if len(made) == 1 else f"({', '.join(made)})"


def monoid_text(m: Monoid) -> str:
    d = m.dtypes[0]
    return m.name if d in ("f32", "b1") else f"{m.name}[{d}]"


class Exprs:
    """Expressions. `plain`: for people and for `eval`; numbers without dtypes, names as they are."""

    def __init__(self, plain: bool = False, surface: bool = False) -> None:
        self.plain, self.surface = plain, surface
        self.names: dict[Any, str] = {}
        self.used: set[str] = set(WORDS)
        self.loose: list[Any] = []

    # --- names ------------------------------------------------------------------------------------

    def claim(self, v: Any) -> str:
        """A name that no other variable has."""
        stem = v.name if v.name.isidentifier() and not keyword.iskeyword(v.name) else clean(v.name)
        made, n = stem, 0
        while made in self.used:
            n += 1
            made = f"{stem}_{n}"
        self.used.add(made)
        self.names[v] = made
        return made

    def name(self, v: Any) -> str:
        """The name of a variable that is used; one that nothing has set yet is declared above."""
        if self.plain:
            return str(v.name)
        if v not in self.names:
            self.claim(v)
            if not isinstance(v, coord.Index):
                self.loose.append(v)
        return self.names[v]

    def listed(self, vs: Iterable[Any]) -> str:
        """One name, or several in parentheses."""
        made = [self.name(v) for v in vs]
        return made[0] if len(made) == 1 else f"({', '.join(made)})"

    # --- expressions ------------------------------------------------------------------------------

    def number(self, c: Const, home: str | None = None) -> str:
        """A number; `home` is the dtype that its place gives it."""
        made = digits(c.value)
        bare = self.plain or c.dtype == (home or natural(c.value))
        return made if bare else f"{c.dtype}({made})"

    def many(self, es: Iterable[Any]) -> str:
        return ", ".join(self.expr(e) for e in es)

    def index(self, ix: tuple[Any, ...]) -> str:
        return self.many(ix) if ix else "()"

    def expr(self, e: Any, outer: int = 0) -> str:
        match e:
            case Const():
                made = self.number(e)
                return f"({made})" if made[0] == "-" and outer == _ATOM else made
            case Var() | coord.Index():
                return self.name(e)
            case Load(b, ix):
                return f"{b.name}[{self.index(ix)}]"
            case Bin(op, a, b) if op in _PREC:
                p = _PREC[op]
                left = p + 1 if op in expr.COMPARE else p
                made = f"{self.expr(a, left)} {op} {self.expr(b, p + 1)}"
                return f"({made})" if p < outer else made
            case Bin(op, a, b):
                word = {"min": "minimum", "max": "maximum"}.get(op, op) if self.surface else op
                return f"{word}({self.many((a, b))})"
            case Un("neg" | "not" as op, a) if op == "not" or not isinstance(a, Const):
                made = f"{'-' if op == 'neg' else '~'}{self.expr(a, _UNARY)}"
                return f"({made})" if outer > _UNARY else made
            case Un(op, a):
                return f"{op}({self.expr(a)})"
            case Select(c, a, b):
                return f"where({self.many((c, a, b))})"
            case Cast(d, a):
                inner = self.expr(a)
                return f"cast({d}, {inner})" if isinstance(a, Const) else f"{d}({inner})"
            case LaneReduce(op, lanes, a):
                return f"{op}({self.expr(a)}, over={self.listed(lanes)})"
            case LaneScan(op, lane, a):
                return f"scan({op}, {self.expr(a)}, along={self.name(lane)})"
            case LaneSplit(a, lane, p, q):
                into = f"into={self.listed((p, q))}"
                return f"split({self.expr(a)}, {self.name(lane)}, {into})"
        return self.stage_expr(e)

    def stage_expr(self, e: Any) -> str:
        match e:
            case coord.Reduce(m, over, args, part):
                made = f"{monoid_text(m)}({', '.join([self.listed(over), *map(self.expr, args)])})"
                return f"{made}[{part}]" if part else made
            case coord.Stored(access, d):
                kind = "" if d == "f32" else f", {d}"
                return f"stored({self.expr(access)}{kind})"
            case coord.Place(access):
                return f"place({self.expr(access)})"
            case loops.Lookup(b, lo, hi, key, start):
                near = "" if start is None else f", start={self.expr(start)}"
                return f"find({self.expr(key)}, {b.name}[{self.expr(lo)}:{self.expr(hi)}]{near})"
            case coord.Nth(indices):
                return f"nth({self.many(indices)})"
        return self.tile_expr(e)

    def tile_expr(self, e: Any) -> str:
        match e:
            case tile.ProgramId(d):
                return "program_id()" if d == "i32" else f"program_id({d})"
            case tile.Arange(dim, d):
                return f"arange({dim})" if d == "i32" else f"arange({dim}, {d})"
            case tile.Full(v, d, dims):
                return f"full([{', '.join(dims)}], {self.number(v, d)}, {d})"
            case tile.Expand(a, have, want):
                at = ", ".join(":" if d in have else "None" for d in want)
                return f"{self.expr(a, _ATOM)}[{at or '()'}]"
            case tile.Load(b, at, mask, fill, fresh, once):
                return f"load({self.pointer(b, at)}{self.masked(b, mask, fill, fresh, once)})"
            case tile.Dot(a, b, acc, d):
                home = "f32" if acc is None else expr.dtype_of(acc)
                made = self.many((a, b) if acc is None else (a, b, acc))
                return f"dot({made})" if d == home else f"dot({made}, {d})"
            case tile.Trans(a):
                return f"trans({self.expr(a)})"
            case tile.Reshape(a, dims):
                return f"reshape({self.expr(a)}, [{', '.join(dims)}])"
            case tile.Reduce(op, a, axis):
                return f"{op}({self.expr(a)}, axis={axis})"
            case tile.Scan(op, a, axis):
                return f"scan({op}, {self.expr(a)}, axis={axis})"
        raise TypeError(f"no text for {type(e).__name__}")

    def pointer(self, b: Any, offsets: tuple[Any, ...]) -> str:
        return " + ".join([b.name, *(self.expr(o, _PREC["+"] + 1) for o in offsets)])

    def masked(self, b: Any, mask: Any, fill: Const | None, fresh: bool, once: bool = False) -> str:
        made = "" if mask is None else f", mask={self.expr(mask)}"
        if fill is not None and (mask is not None or fill != nothing(b.dtype)):
            made += f", fill={self.number(fill, b.dtype)}"
        return made + (", fresh=True" if fresh else "") + (", once=True" if once else "")


def nothing(dtype: str) -> Const:
    """The fill of a load that has no mask."""
    return Const(0.0 if dtype in expr.FLOATS else 0, dtype)


def dims_of(e: Any, known: dict[Any, tuple[str, ...]]) -> tuple[str, ...]:
    """The dims of a tile expression; "1" for those that only line up."""
    match e:
        case Var():
            return known.get(e, ())
        case tile.Arange(dim):
            return (dim,)
        case tile.Full(_, _, dims) | tile.Reshape(_, dims):
            return dims
        case tile.Expand(_, have, want):
            return tuple(d if d in have else "1" for d in want)
        case tile.Dot(a, b):
            return (*dims_of(a, known)[:1], *dims_of(b, known)[1:])
        case tile.Trans(a):
            return dims_of(a, known)[::-1]
        case tile.Reduce(_, a, axis):
            held = dims_of(a, known)
            return (*held[:axis], *held[axis + 1 :])
        case tile.Load(_, offsets):
            return _meet(*(dims_of(o, known) for o in offsets))
        case tile.Scan(_, a) | Un(_, a) | Cast(_, a):
            return dims_of(a, known)
        case Bin(_, a, b):
            return _meet(dims_of(a, known), dims_of(b, known))
        case Select(c, a, b):
            return _meet(*(dims_of(x, known) for x in (c, a, b)))
    return ()


def _meet(*shapes: tuple[str, ...]) -> tuple[str, ...]:
    rank = max((len(s) for s in shapes), default=0)
    full = [s for s in shapes if len(s) == rank]
    return tuple(next((d for d in at if d != "1"), "1") for at in zip(*full, strict=True))
