"""`//` and `%` as Python means them, of whole numbers that may be negative or 0.

Machines cut quotients towards 0, which is the same where nothing is negative: for places, sizes and what is computed
from them. All else is said here by quotients of numbers that are not.

    (i - j) % 4  ->  (i - j) % 4 if i - j >= 0 else (4 - (j - i) % 4) % 4
"""

from __future__ import annotations

from tilewright.ir.coord import Index, Nth
from tilewright.ir.expr import (
    FLOATS,
    Bin,
    Const,
    Expr,
    Select,
    Un,
    Var,
    dtype_of,
    eq,
    select,
)
from tilewright.support.errors import error


def python_division(n: object) -> Expr | None:
    """What stands for a quotient or a remainder, None where it may stay."""
    if not isinstance(n, Bin) or n.op not in ("//", "%"):
        return None
    if any(dtype_of(e) in FLOATS for e in (n.a, n.b)):
        got = f"{n}, of numbers that are not whole"
        raise error("unsupported", name=n.op, got=got, expected="whole numbers; or tw.floor(a / b)")
    if isinstance(n.b, Const) and n.b.value == 0:
        raise error("unsupported", name=n.op, got=str(n), expected="a divisor that is not 0")
    if not_negative(n.a) and isinstance(n.b, Const) and n.b.value > 0:
        return None
    if not_negative(n.a) and isinstance(n.b, Var):  # a size; nothing is visited where it is 0
        return None
    zero = eq(n.b, 0)
    made = _of_any_sign(n.op, n.a, select(zero, 1, n.b))
    return select(zero, 0, made)


def _of_any_sign(op: str, a: Expr, b: Expr) -> Expr:
    """b is not 0."""
    m, n = _size(a), _size(b)
    same, rest = eq(a < 0, b < 0), Bin("%", m, n)
    if op == "//":
        down = Bin("//", m, n)
        return select(same, down, -(down + select(eq(rest, 0), 0, 1)))
    made = select(same | eq(rest, 0), rest, n - rest)
    return select(b < 0, -made, made)


def _size(e: Expr) -> Expr:
    return e if not_negative(e) else Un("abs", e)


def not_negative(e: Expr) -> bool:
    """Whether a whole number is known to be 0 or more."""
    match e:
        case Const(value):
            return bool(value >= 0)
        case Bin("+" | "*" | "//" | "%" | "min", a, b):
            return not_negative(a) and not_negative(b)
        case Select(_, a, b):
            return not_negative(a) and not_negative(b)
        case Un("abs"):
            return True
    return isinstance(e, Index | Nth | Var)
