"""Expressions of stage III as C text: what stands on the right of a line.

In: an expression, and the lanes that each value has. Out: its text, with brackets where C needs them.

    a[p] * x[j * n_f + f]   ->   a[p_j] * x[j * 128 + f];   acc of lanes (f)   ->   acc[f]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tilewright.codegen.c_prelude import TYPES, power, unary
from tilewright.ir import flat
from tilewright.ir.expr import (
    COMPARE,
    FLOATS,
    INTS,
    REAL,
    Bin,
    Cast,
    Const,
    Expr,
    LaneReduce,
    LaneSplit,
    Load,
    Select,
    Un,
    Var,
    dtype_of,
)
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk
from tilewright.lowering.lanes import lane_order, value_lanes
from tilewright.support.errors import error

_PREC = {"|": 1, "&": 2, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
_PREC.update(dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 3))
_TOKEN = {"//": "/"}
_LAZY = {"&": "&&", "|": "||"}


class Expressions:
    """Expressions of one program."""

    def __init__(self, p: flat.Program) -> None:
        self.p = p
        self.table = value_lanes(p)
        self.extents = lane_order(p, self.table)
        self.layout: dict[Var, tuple[Var, ...]] = {}

    def sorted(self, lanes: Iterable[Var]) -> tuple[Var, ...]:
        held = set(lanes)
        return tuple(v for v in self.extents if v in held)

    def name(self, v: Var) -> str:
        if v in self.extents or v not in self.table:
            return v.name
        return v.name + "".join(f"[{ln.name}]" for ln in self.order(v))

    def order(self, v: Var) -> tuple[Var, ...]:
        """The lanes of an array as they lie in it, the last one side by side."""
        return self.layout.get(v) or self.sorted(self.table[v])

    def array(self, v: Var, begun: bool = False) -> str:
        """The declaration of an array over lanes; begun: of zeros, since not all of it is set."""
        shape = "".join(f"[{self.extents[x]}]" for x in self.order(v))
        kind = "int64_t" if v.dtype in INTS else TYPES[v.dtype]
        apart = " __attribute__((aligned(64)))" if len(self.order(v)) > 1 else ""
        return f"{kind} {v.name}{shape}{apart}{' = {0}' if begun else ''};"

    def reads(self, *es: Expr) -> bool:
        return any(isinstance(n, Load | Lookup) for e in es for n in walk(e))

    def expr(self, e: Any, outer: int = 0) -> str:
        match e:
            case Const():
                return number(e)
            case Var():
                return self.name(e)
            case Load(b, (at,)):
                wide = "(int64_t)" if b.dtype in INTS and outer else ""
                return f"{wide}{b.name}[{self.expr(at)}]"
            case Bin("min" | "max" | "pow" as op, a, b):
                d = dtype_of(e)
                x, y = self.operand(a, d), self.operand(b, d)
                return power(x, y, d) if op == "pow" else f"tw_{op}_{d}({x}, {y})"
            case Bin(op, a, b):
                p, d = _PREC[op], dtype_of(Bin("+", a, b) if op in COMPARE else e)
                token = _LAZY[op] if op in _LAZY and self.reads(e) else _TOKEN.get(op, op)
                made = f"{self.operand(a, d, p)} {token} {self.operand(b, d, p + 1)}"
                return f"({made})" if p < outer else made
            case Un("bits", a):
                half = dtype_of(a) in ("bf16", "f16")
                return f"({self.expr(a, 9)}{'' if half else ' != 0'})"
            case Un(op, a):
                d = dtype_of(e) if op in REAL else dtype_of(a)
                return unary(op, self.operand(a, d, 9), d)
            case Select(c, a, b):
                d = dtype_of(e)
                parts = (self.expr(c), self.operand(a, d), self.operand(b, d))
                if self.reads(a, b):
                    return f"TW_WHERE({TYPES[d]}, {', '.join(parts)})"
                return f"({parts[0]} ? {parts[1]} : {parts[2]})"
            case Cast(d, a):
                return self.cast(d, a)
            case Lookup(b, lo, hi, key, start):
                how, ends = (
                    ("find", (lo, hi, key)) if start is None else ("seek", (lo, hi, key, start))
                )
                return f"tw_{how}_{b.dtype}({b.name}, {', '.join(map(self.expr, ends))})"
            case LaneReduce() | LaneSplit():
                what = "a lane reduction" if isinstance(e, LaneReduce) else "a lane seen as two"
                raise error("unsupported", name=what, got=str(e), expected="a CPU schedule")
        raise TypeError(f"no C text for {type(e).__name__}")

    def operand(self, e: Expr, d: str, outer: int = 0) -> str:
        """One side of an operation that is computed in dtype d: literals take it, integers become floats."""
        if isinstance(e, Const):
            return number(Const(e.value, d))
        if d in FLOATS and dtype_of(e) not in FLOATS:
            return self.cast(d, e)
        return self.expr(e, outer)

    def cast(self, d: str, a: Expr) -> str:
        source = dtype_of(a)
        if source in ("bf16", "f16"):
            inner = f"tw_{source}_to_f32({self.expr(a)})"
            return inner if d == "f32" else f"({TYPES[d]}){inner}"
        if d in ("bf16", "f16"):
            return f"tw_f32_to_{d}((float){self.expr(a, 9)})"
        return f"({TYPES[d]}){self.expr(a, 9)}"


def number(c: Const) -> str:
    if c.dtype == "b1":
        return "1" if c.value else "0"
    if isinstance(c.value, float) or c.dtype in ("f32", "f64"):
        value = float(c.value)
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        if math.isnan(value):
            return "NAN"
        return repr(value) + ("" if c.dtype == "f64" else "f")
    return "INT64_MIN" if c.value == -(2**63) else str(c.value)
