"""What the interpreters share: arithmetic in the IR's dtypes, rounding, and expressions as functions.

In: expressions. Out: NumPy values. 16-bit floats are computed in f32 and rounded once for each operation;
bf16 arrays are float32 arrays that hold bf16 values (`to_bf16`).

    evaluate(Var("n") * 2 + 1, {"n": 3}) == 7
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.ir.expr import (
    COMPARE,
    REAL,
    Bin,
    Cast,
    Const,
    Expr,
    Select,
    Un,
    Var,
    compute_dtype,
    dtype_of,
)

Value = Any  # a NumPy scalar or array
Env = dict[Any, Value]
Fn = Callable[[Env], Value]

NUMPY: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.float32,
    "i64": np.int64,
    "i32": np.int32,
    "u8": np.uint8,
    "b1": np.bool_,
}

BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.power,
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
}

UNARY: dict[str, Callable[[Value], Value]] = {
    "neg": np.negative,
    "not": np.logical_not,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "sigmoid": lambda x: np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "floor": np.floor,
    "ceil": np.ceil,
    "sign": lambda x: np.greater(x, 0) * 1 - np.less(x, 0) * 1,
    "bits": lambda x: np.not_equal(x, 0) * 1,
}

REDUCE: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "top": np.fmax,
    "any": np.logical_or,
    "all": np.logical_and,
    "union": np.bitwise_or,
}


def to_bf16(x: Value) -> Value:
    """Rounded to the nearest bf16, ties to even; the result is float32."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, bits.astype(np.uint32).view(np.float32))


def convert(x: Value, dtype: str) -> Value:
    """x as dtype."""
    if dtype == "bf16":
        return to_bf16(x)
    want = NUMPY[dtype]
    return x if getattr(x, "dtype", None) == want else np.asarray(x).astype(want)[()]


def poison(dtype: str) -> Value:
    """What memory holds that nobody has written."""
    if dtype == "b1":
        return True
    want = NUMPY[dtype]
    return want(np.nan) if np.issubdtype(want, np.floating) else np.iinfo(want).max // 2 + 1


def evaluate(e: Expr | int, sizes: Mapping[str, int]) -> int:
    """A size expression as a number: its variables are looked up by name."""
    match e:
        case int():
            return e
        case Const(value):
            return int(value)
        case Var(name):
            return int(sizes[name])
        case Bin(op, a, b):
            return int(BINARY[op](evaluate(a, sizes), evaluate(b, sizes)))
        case Select(c, a, b):
            return evaluate(a if evaluate(c, sizes) else b, sizes)
        case Cast(_, a):
            return evaluate(a, sizes)
    raise TypeError(f"{e} is not an expression over sizes")


class Maker:
    """Expressions as Python functions of an environment, made once for each node."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Expr, Fn]] = {}

    def value(self, e: Expr, env: Env) -> Value:
        known = self.made.get(id(e))
        if known is None:
            known = self.made[id(e)] = (e, self.make(e))
        return known[1](env)

    def make(self, e: Expr) -> Fn:
        match e:
            case Const(value, d):
                number = convert(value, d)
                return lambda env: number
            case Bin():
                return self.binary(e)
            case Un():
                return self.unary(e)
            case Select():
                return self.select(e)
            case Cast(d, a):
                inner = self.make(a)
                return lambda env: convert(inner(env), d)
        return self.special(e)

    def special(self, e: Expr) -> Fn:
        """Nodes of one stage; variables come from the environment."""
        return lambda env: _look(env, e)

    def operand(self, e: Expr, dtype: str) -> Fn:
        d = compute_dtype(dtype)
        inner = self.make(Const(e.value, d) if isinstance(e, Const) else e)
        same = isinstance(e, Const) or NUMPY[dtype_of(e)] == NUMPY[d]
        return inner if same else lambda env: convert(inner(env), d)

    def binary(self, e: Bin) -> Fn:
        d = dtype_of(e)
        common = dtype_of(Bin("+", e.a, e.b)) if e.op in COMPARE else d
        a, b, op = self.operand(e.a, common), self.operand(e.b, common), BINARY[e.op]
        whole = d in ("i32", "i64") and e.op in ("//", "%")

        def run(env: Env) -> Value:
            x, y = self.meet(a(env), b(env))
            if whole and np.any(np.equal(y, 0)):
                raise ZeroDivisionError(str(e))
            return convert(op(x, y), d)

        return run

    def unary(self, e: Un) -> Fn:
        d = dtype_of(e)
        a, op = self.operand(e.a, d if e.op in REAL else dtype_of(e.a)), UNARY[e.op]
        return lambda env: convert(op(a(env)), d)

    def select(self, e: Select) -> Fn:
        d = dtype_of(e)
        c, a, b = self.make(e.cond), self.operand(e.a, d), self.operand(e.b, d)

        def run(env: Env) -> Value:
            cond, x, y = self.meet(c(env), a(env), b(env))
            return convert(np.asarray(np.where(cond, x, y))[()], d)

        return run

    def meet(self, *values: Value) -> tuple[Value, ...]:
        """A hook: checks or reshapes operands that meet in one operation."""
        return values


def _look(env: Env, e: Any) -> Value:
    if e not in env:
        raise KeyError(f"{e.name} is used before it is set")
    return env[e]
