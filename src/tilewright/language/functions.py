"""The words of the notation: reductions over axes, and scalar functions.

y[i, f] = max(j, a[i, j] * relu(x[j, f]))

Every reduction says what it gives where nothing is stored; `ir/monoid.py` has the table, NaN included.
Operators stand for themselves: + - * / **, comparisons < <= > >=, and & | ~ between conditions.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.ir.expr import Expr, const, maximum, minimum, power, select, unary
from tilewright.ir.expr import eq as equal
from tilewright.ir.expr import ne as not_equal
from tilewright.language.custom import monoid
from tilewright.language.trace import Parts, append, both, listed, nth, outputs, part, reduce, term
from tilewright.support.errors import error


def sum(over: Any, e: Any) -> Expr:
    """The sum over axes."""
    return reduce("sum", over, e)


def prod(over: Any, e: Any) -> Expr:
    """The product over axes; 1 where nothing is stored. Its gradient is right for any number of zeros."""
    return reduce("prod", over, e)


def max(over: Any, e: Any) -> Expr:
    """The maximum over axes, NaN if one is; -inf where nothing is stored. Equal ones share the gradient."""
    return reduce("max", over, e)


def min(over: Any, e: Any) -> Expr:
    """The minimum over axes, NaN if one is; inf where nothing is stored. Equal ones share the gradient."""
    return reduce("min", over, e)


def mean(over: Any, e: Any) -> Expr:
    """The mean over stored entries; 0 where nothing is stored. Of integers: cut towards 0."""
    return reduce("mean", over, e)


def any(over: Any, e: Any) -> Expr:
    """1 where some entry is not 0 (NaN is not), else 0; 0 where nothing is stored."""
    return reduce("any", over, e)


def all(over: Any, e: Any) -> Expr:
    """1 where no entry is 0, else 0; 1 where nothing is stored."""
    return reduce("all", over, e)


def argmax(over: Any, e: Any) -> Expr:
    """The smallest index of a maximum (of a NaN, if there is one), int64; -1 where nothing is stored."""
    return _arg("argmax", over, e)


def argmin(over: Any, e: Any) -> Expr:
    """The smallest index of a minimum (of a NaN, if there is one), int64; -1 where nothing is stored."""
    return _arg("argmin", over, e)


def _arg(name: str, over: Any, e: Any) -> Expr:
    axes = tuple(over) if isinstance(over, tuple | list) else (over,)
    if len(axes) != 1:
        raise error(
            "unsupported",
            name=name,
            got=f"it runs over {len(axes)} axes",
            expected="one axis, whose index is the result",
        )
    return reduce(name, axes, e, axes[0])


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
    """a where cond holds, else b; the other one is not looked at."""
    return select(term(cond, "where(cond, a, b)", "cond"), a, b)


def pow(a: Any, b: Any) -> Expr:
    """a ** b; whole powers up to 4 are products."""
    return power(a, b)


def relu(e: Any) -> Expr:
    return unary("relu", e)


def exp(e: Any) -> Expr:
    return unary("exp", e)


def exp2(e: Any) -> Expr:
    return unary("exp2", e)


def expm1(e: Any) -> Expr:
    """exp(e) - 1, exact near 0."""
    return unary("expm1", e)


def log(e: Any) -> Expr:
    return unary("log", e)


def log2(e: Any) -> Expr:
    return unary("log2", e)


def log1p(e: Any) -> Expr:
    """log(1 + e), exact near 0."""
    return unary("log1p", e)


def sqrt(e: Any) -> Expr:
    return unary("sqrt", e)


def rsqrt(e: Any) -> Expr:
    """1 / sqrt(e)"""
    return unary("rsqrt", e)


def sin(e: Any) -> Expr:
    return unary("sin", e)


def cos(e: Any) -> Expr:
    return unary("cos", e)


def abs(e: Any) -> Expr:
    return unary("abs", e)


def sign(e: Any) -> Expr:
    """-1, 0 or 1; 0 for NaN."""
    return unary("sign", e)


def floor(e: Any) -> Expr:
    return unary("floor", e)


def ceil(e: Any) -> Expr:
    return unary("ceil", e)


def sigmoid(e: Any) -> Expr:
    return unary("sigmoid", e)


def tanh(e: Any) -> Expr:
    return unary("tanh", e)


def erf(e: Any) -> Expr:
    return unary("erf", e)


def softplus(e: Any) -> Expr:
    """log(1 + exp(e)), for large e too."""
    return unary("softplus", e)


def gelu(e: Any, approximate: str = "none") -> Expr:
    """e * Phi(e), by erf or (approximate="tanh") by tanh."""
    e = const(e)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (e + 0.044715 * (e * e * e))
        return 0.5 * e * (1.0 + unary("tanh", inner))
    return e * 0.5 * (1.0 + unary("erf", e * math.sqrt(0.5)))


def silu(e: Any) -> Expr:
    e = const(e)
    return e * unary("sigmoid", e)


def leaky_relu(e: Any, slope: float = 0.01) -> Expr:
    e = const(e)
    return select(e > 0.0, e, e * slope)


__all__ = [
    "append",
    "listed",
    "nth",
    "part",
    "outputs",
    "monoid",
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "any",
    "all",
    "argmax",
    "argmin",
    "logsumexp",
    "softmax_sum",
    "softmax2_sum",
    "softmax_sum_lse",
    "where",
    "equal",
    "not_equal",
    "maximum",
    "minimum",
    "pow",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "abs",
    "sign",
    "floor",
    "ceil",
    "erf",
    "tanh",
    "sigmoid",
    "softplus",
    "relu",
    "leaky_relu",
    "gelu",
    "silu",
]
