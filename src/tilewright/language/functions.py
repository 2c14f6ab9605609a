"""The words of the notation: reductions over axes, and scalar functions.

y[i, f] = max(j, a[i, j] * relu(x[j, f]))
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.ir.expr import Const, Expr, const, select, unary
from tilewright.language.trace import Parts, append, both, outputs, reduce


def sum(over: Any, e: Any) -> Expr:
    """The sum over axes."""
    return reduce("sum", over, e)


def max(over: Any, e: Any) -> Expr:
    """The maximum over axes; -inf where nothing is stored."""
    return reduce("max", over, e)


def min(over: Any, e: Any) -> Expr:
    """The minimum over axes; inf where nothing is stored."""
    return reduce("min", over, e)


def mean(over: Any, e: Any) -> Expr:
    """The mean over stored entries; 0 where nothing is stored."""
    return reduce("mean", over, e)


def logsumexp(over: Any, e: Any) -> Expr:
    """log(sum(exp(e))); -inf where nothing is stored."""
    return reduce("logsumexp", over, e)


def softmax_sum(over: Any, score: Any, value: Any) -> Expr:
    """sum(softmax(score) * value) over axes; 0 where nothing is stored."""
    return reduce("softmax_sum", over, score, value)


def softmax2_sum(over: Any, score: Any, value: Any) -> Expr:
    """softmax_sum in base 2: for scores that were multiplied by log2(e) already."""
    return reduce("softmax2_sum", over, score, value)


def softmax_sum_lse(over: Any, score: Any, value: Any) -> Parts:
    """`softmax_sum` with its log-sum-exp as a second result, for `outputs`."""
    return both("softmax_sum", over, score, value)


def where(cond: Any, a: Any, b: Any) -> Expr:
    return select(cond, a, b)


def relu(e: Any) -> Expr:
    return unary("relu", e)


def exp(e: Any) -> Expr:
    return unary("exp", e)


def log(e: Any) -> Expr:
    return unary("log", e)


def sqrt(e: Any) -> Expr:
    return unary("sqrt", e)


def abs(e: Any) -> Expr:
    return unary("abs", e)


def sigmoid(e: Any) -> Expr:
    return unary("sigmoid", e)


def tanh(e: Any) -> Expr:
    return unary("tanh", e)


def gelu(e: Any) -> Expr:
    e = const(e)
    return e * Const(0.5, "f32") * (1.0 + unary("erf", e * Const(math.sqrt(0.5), "f32")))


def silu(e: Any) -> Expr:
    e = const(e)
    return e * unary("sigmoid", e)


def leaky_relu(e: Any, slope: float = 0.01) -> Expr:
    e = const(e)
    return select(e < 0.0, e * slope, e)


__all__ = [
    "append",
    "outputs",
    *(
        "sum",
        "max",
        "min",
        "mean",
        "logsumexp",
        "softmax_sum",
        "softmax2_sum",
        "softmax_sum_lse",
        "where",
        "relu",
    ),
    *("exp", "log", "sqrt", "abs", "sigmoid", "tanh", "gelu", "silu", "leaky_relu"),
    *("maximum", "minimum"),
]
