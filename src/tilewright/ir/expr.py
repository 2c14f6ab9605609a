"""Scalar and index expressions shared by all stages.

    expr := Const | Var | Load(buffer, indices) | Bin(op, a, b) | Un(op, a) | Select(c, a, b) | Cast(dtype, a)
          | LaneReduce(op, lanes, a) | LaneScan(op, lane, a)               stage III and tile form
          | LaneSplit(a, lane, outer, inner)                               stage III
    dtype := f64 f32 f16 bf16 i64 i32 b1
    Bin   := + - * / // % min max pow & | and comparisons
    Un    := neg not abs relu sign floor ceil and those of REAL

Minimum and maximum of floats are NaN where either side is; comparisons with NaN are false, `!=` is true;
sign(NaN) is 0. Literals have no dtype of their own: they are read in that of the other side.

Python operators on expressions build expressions and fold constants: `Var("i") * 1 + 0` is `i`.
Equality (`==`) compares nodes by structure; the comparison expression is `eq(a, b)`.
"""

from __future__ import annotations

import math
from numbers import Integral, Number
from typing import Any

from tilewright.ir.node import Node, named, node
from tilewright.support.errors import error

FLOATS = ("f64", "f32", "f16", "bf16")
INTS = ("i64", "i32", "u8")
_RANK = {"b1": 0, "u8": 0, "i32": 1, "i64": 2, "bf16": 3, "f16": 4, "f32": 5, "f64": 6}

COMPARE = ("==", "!=", "<", "<=", ">", ">=")
# Functions whose result is a float, whatever goes in.
REAL = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos"),
    *("tanh", "sigmoid", "softplus", "erf"),
)


class Expr(Node):
    """A value."""

    __slots__ = ()

    def __add__(self, o: Any) -> Expr:
        return binary("+", self, o)

    def __radd__(self, o: Any) -> Expr:
        return binary("+", o, self)

    def __sub__(self, o: Any) -> Expr:
        return binary("-", self, o)

    def __rsub__(self, o: Any) -> Expr:
        return binary("-", o, self)

    def __mul__(self, o: Any) -> Expr:
        return binary("*", self, o)

    def __rmul__(self, o: Any) -> Expr:
        return binary("*", o, self)

    def __truediv__(self, o: Any) -> Expr:
        return binary("/", self, o)

    def __rtruediv__(self, o: Any) -> Expr:
        return binary("/", o, self)

    def __floordiv__(self, o: Any) -> Expr:
        return binary("//", self, o)

    def __mod__(self, o: Any) -> Expr:
        return binary("%", self, o)

    def __lt__(self, o: Any) -> Expr:
        return binary("<", self, o)

    def __le__(self, o: Any) -> Expr:
        return binary("<=", self, o)

    def __gt__(self, o: Any) -> Expr:
        return binary(">", self, o)

    def __ge__(self, o: Any) -> Expr:
        return binary(">=", self, o)

    def __and__(self, o: Any) -> Expr:
        return binary("&", self, o)

    def __or__(self, o: Any) -> Expr:
        return binary("|", self, o)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __pow__(self, o: Any) -> Expr:
        return power(self, o)

    def __rpow__(self, o: Any) -> Expr:
        return power(o, self)

    def __invert__(self) -> Expr:
        return unary("not", self)

    def __bool__(self) -> bool:
        raise TypeError(f"{self} has no truth value while a program is traced; use tw.where")

    def __float__(self) -> float:
        raise TypeError(f"{self} is no number while a program is traced; use tw.exp, tw.sqrt ...")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "function")
        raise TypeError(
            f"torch's {name} takes no part of a program; use tw.exp, tw.relu, tw.sum ..."
        )


@node
class Const(Expr):
    """A number."""

    value: float | int | bool
    dtype: str


@named
class Var(Expr):
    """A variable: loop, lane, on-chip value or size. Compared by identity."""

    name: str
    dtype: str = "i64"


@named
class Buffer(Node):
    """Memory: `shape` in elements; `strides` None = row major. role: in, out, index, plan, work."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    role: str = "in"
    strides: tuple[Expr, ...] | None = None


@node
class Load(Expr):
    """buffer[indices]"""

    buffer: Any
    indices: tuple[Expr, ...]


@node
class Bin(Expr):
    """a op b"""

    op: str
    a: Expr
    b: Expr


@node
class Un(Expr):
    """op(a); bits(a) is an integer whose bits, but that of a sign, are 0 where a is 0, and only there"""

    op: str
    a: Expr


@node
class Select(Expr):
    """a if cond else b"""

    cond: Expr
    a: Expr
    b: Expr


@node
class Cast(Expr):
    """a as dtype"""

    dtype: str
    a: Expr


@node
class LaneReduce(Expr):
    """op over lanes: sum, max, min, prod, any, all; top: a maximum that may pass over NaN"""

    op: str
    lanes: tuple[Var, ...]
    a: Expr


@node
class LaneScan(Expr):
    """inclusive op scan along one lane"""

    op: str
    lane: Var
    a: Expr


@node
class LaneSplit(Expr):
    """a, of which one lane is seen as two: lane = outer * (extent of inner) + inner"""

    a: Expr
    lane: Var
    outer: Var
    inner: Var


def const(value: Any, dtype: str | None = None) -> Expr:
    """A Python number as an expression; expressions pass through, and what has one of its own (`bare`) gives it."""
    if isinstance(value, Expr):
        return value
    if hasattr(value, "bare"):
        made: Expr = value.bare
        return made
    numeric = isinstance(value, Number)
    if not numeric:
        got, expected = repr(value), "a number, or a tensor with its indices: x[i]"
        raise error("argument", where="a program", name="a term", got=got, expected=expected)
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # NumPy's
    if dtype is None:
        dtype = "b1" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"
    return Const(value, dtype)


def promote(a: str, b: str) -> str:
    """The common dtype of two; 16-bit floats of different kinds meet in f32."""
    if a != b and {a, b} == {"f16", "bf16"}:
        return "f32"
    return a if _RANK[a] >= _RANK[b] else b


def dtype_of(e: Any) -> str:
    """The dtype of an expression."""
    match e:
        case Const(_, d) | Cast(d, _):
            return d
        case Load(buffer, _):
            return buffer.dtype
        case Bin(op, a, b):
            return "b1" if op in COMPARE else _arith(op, a, b)
        case Un("not", _):
            return "b1"
        case Un("bits", _):
            return "i32"
        case Un(op, a) if op in REAL:
            d = dtype_of(a)
            return d if d in FLOATS else "f32"
        case Un(_, a) | LaneReduce(_, _, a) | LaneScan(_, _, a) | LaneSplit(a):
            return dtype_of(a)
        case Select(_, a, b):
            return _arith("select", a, b)
    return str(e.dtype)


def _arith(op: str, a: Expr, b: Expr) -> str:
    """Literals take the other side's dtype, as in Python."""
    da, db = dtype_of(a), dtype_of(b)
    if isinstance(a, Const) and not isinstance(b, Const) and _weak(da, db):
        return db
    if isinstance(b, Const) and not isinstance(a, Const) and _weak(db, da):
        return da
    d = promote(da, db)
    return "f32" if op in ("/", "pow") and d in (*INTS, "b1") else d


def _weak(literal: str, other: str) -> bool:
    return other in FLOATS or (literal in INTS and other in INTS)


_FOLD: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "pow": math.pow,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&": lambda a, b: a and b,
    "|": lambda a, b: a or b,
}


def binary(op: str, a: Any, b: Any) -> Expr:
    """a op b, with constants folded and neutral elements dropped."""
    a, b = const(a), const(b)
    if isinstance(a, Const) and isinstance(b, Const) and not (op in "//%" and b.value == 0):
        d = "b1" if op in COMPARE else _arith(op, a, b)
        return Const(_FOLD[op](a.value, b.value), d)
    for rule in (_neutral_right, _neutral_left):
        made = rule(op, a, b)
        if made is not None:
            return made
    return Bin(op, a, b)


def _keeps(e: Expr, literal: Const) -> bool:
    return _weak(literal.dtype, dtype_of(e)) or dtype_of(e) == literal.dtype


def _neutral_right(op: str, a: Expr, b: Expr) -> Expr | None:
    """x + 0, x * 1, x // 1, x & true -> x;  int x * 0 -> 0"""
    if not isinstance(b, Const):
        return None
    if ((op in "+-" and b.value == 0) or (op in ("*", "//", "/") and b.value == 1)) and _keeps(
        a, b
    ):
        integral = op == "/" and dtype_of(a) not in FLOATS
        return None if integral else a
    if op == "*" and b.value == 0 and dtype_of(a) in INTS:
        return Const(0, dtype_of(a))
    if op == "%" and b.value == 1:
        return Const(0, dtype_of(a))
    if op == "&" and b.dtype == "b1":
        return a if b.value else b
    return None


def _neutral_left(op: str, a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const) and op in ("+", "*", "&"):
        return _neutral_right(op, b, a)
    return None


def unary(op: str, a: Any) -> Expr:
    a = const(a)
    if isinstance(a, Const) and op == "neg":
        return Const(-a.value, a.dtype)
    return Un(op, a)


def eq(a: Any, b: Any) -> Expr:
    return binary("==", a, b)


def ne(a: Any, b: Any) -> Expr:
    return binary("!=", a, b)


def minimum(a: Any, b: Any) -> Expr:
    return binary("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    return binary("max", a, b)


def power(a: Any, b: Any) -> Expr:
    """a ** b; small whole powers are products: x ** 3 -> x * x * x"""
    a, b = const(a), const(b)
    if isinstance(a, Const) or not isinstance(b, Const):
        return Bin("pow", a, b)
    n = b.value
    if n == int(n) and 1 <= abs(n) <= 4:
        made = a
        for _ in range(int(abs(n)) - 1):
            made = made * a
        return made if n > 0 else 1.0 / made
    if abs(n) == 0.5:
        return unary("sqrt" if n > 0 else "rsqrt", a)
    return Bin("pow", a, b)


def select(cond: Any, a: Any, b: Any) -> Expr:
    cond = const(cond)
    if isinstance(cond, Const):
        return const(a) if cond.value else const(b)
    return Select(cond, const(a), const(b))


def cast(dtype: str, a: Any) -> Expr:
    a = const(a)
    if isinstance(a, Const):
        value = float(a.value) if dtype in FLOATS else int(a.value) if dtype in INTS else a.value
        return Const(value, dtype)
    return a if dtype_of(a) == dtype else Cast(dtype, a)


def compute_dtype(dtype: str) -> str:
    """16-bit floats are computed in f32; everything else as it is."""
    return "f32" if dtype in ("f16", "bf16") else dtype
