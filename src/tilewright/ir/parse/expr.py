"""Expressions of every stage from text; `ir/text/expr.py` tells their forms.

In: Python's syntax tree. Out: nodes, exactly as they are written: nothing is folded.

    Reader("a + 1").expr(tree)  ->  Bin("+", a, Const(1, "i64"))
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tilewright.ir.expr import (
    Bin,
    Cast,
    Const,
    Expr,
    LaneReduce,
    LaneScan,
    LaneSplit,
    Load,
    Select,
    Un,
    Var,
)
from tilewright.ir.interp.common import BINARY, REDUCE, UNARY
from tilewright.ir.monoid import Monoid, monoids
from tilewright.ir.text.expr import DTYPES, natural
from tilewright.support.errors import error

OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
PAIRS = {"minimum": "min", "maximum": "max"} | {n: n for n in BINARY if n.isidentifier()}


class Reader:
    """Names of one text, and its expressions. `table`: monoids beside the built-in ones."""

    def __init__(self, source: str, table: Mapping[str, Monoid], place: str = "") -> None:
        self.lines, self.table, self.place = source.splitlines(), table, place
        self.vars: dict[str, Var] = {}
        self.buffers: dict[str, Any] = {}
        self.shapes = False  # while shapes are read: a new name is a size

    # --- mistakes ---------------------------------------------------------------------------------

    def fail(self, at: Any, got: str, expected: str) -> NoReturn:
        raise self.mistake(getattr(at, "lineno", 1), got, expected)

    def mistake(self, line: int, got: str, expected: str) -> Exception:
        said = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        where = f"{self.place + ', ' if self.place else ''}line {line}: {said}"
        return error("parse", where=where, got=got, expected=expected)

    # --- names ------------------------------------------------------------------------------------

    def word(self, n: Any, expected: str) -> str:
        if not isinstance(n, ast.Name):
            self.fail(n, f"`{ast.unparse(n)}` is not a name", expected)
        return n.id

    def dtype(self, n: Any) -> str:
        made = self.word(n, "a dtype")
        if made not in DTYPES:
            self.fail(n, f"{made} is not a dtype", f"one of {', '.join(DTYPES)}")
        return made

    def is_dtype(self, n: Any) -> bool:
        return isinstance(n, ast.Name) and n.id in DTYPES and n.id not in self.vars

    def whole(self, n: Any) -> int:
        made = literal(n)
        if not isinstance(made, int):
            self.fail(n, f"`{ast.unparse(n)}` is not an integer", "an integer")
        return made

    def buffer(self, n: Any) -> Any:
        name = self.word(n, "the name of a buffer")
        if name not in self.buffers:
            self.fail(n, f"there is no buffer {name}", f"one of {', '.join(self.buffers)}")
        return self.buffers[name]

    def variable(self, n: ast.Name) -> Expr:
        if n.id in self.vars:
            return self.vars[n.id]
        value = literal(n)
        if value is not None:
            return Const(value, natural(value))
        if self.shapes:
            return self.vars.setdefault(n.id, Var(n.id))
        return self.unknown(n)

    def unknown(self, n: ast.Name) -> Expr:
        self.fail(
            n, f"nothing sets {n.id} before it is used", "a size, or a name that a line above sets"
        )

    def var(self, n: Any) -> Var:
        made = self.variable(n) if isinstance(n, ast.Name) else None
        if not isinstance(made, Var):
            self.fail(n, f"`{ast.unparse(n)}` is not a variable", "the name of a variable")
        return made

    def several(self, n: ast.expr) -> Sequence[ast.expr]:
        """The members of a tuple, or one."""
        return n.elts if isinstance(n, ast.Tuple | ast.List) else [n]

    def monoid(self, n: Any) -> Monoid:
        """sum, or sum[f64]"""
        wide = isinstance(n, ast.Subscript)
        name = self.word(n.value if wide else n, "the name of a monoid")
        d = self.dtype(n.slice) if wide else "f32"
        own = self.table.get(f"{name}[{d}]") or self.table.get(name)
        made = own or monoids(d).get(name)
        if made is None:
            known = ", ".join([*self.table, *monoids(d)])
            self.fail(
                n, f"there is no monoid {name}", f"one of {known}, or one passed as `monoids`"
            )
        if own is not None and own.dtypes[0] not in (d, "b1"):
            self.fail(n, f"the monoid {name} has dtype {own.dtypes[0]}, not {d}", "its own dtype")
        return made

    def has_monoid(self, n: Any) -> bool:
        name = n.value if isinstance(n, ast.Subscript) else n
        return isinstance(name, ast.Name) and (name.id in self.table or name.id in monoids("f32"))

    # --- expressions ------------------------------------------------------------------------------

    def many(self, ns: Sequence[ast.expr]) -> tuple[Expr, ...]:
        return tuple(self.expr(n) for n in ns)

    def expr(self, n: Any) -> Expr:
        match n:
            case ast.Constant(bool() | int() | float() as value):
                return Const(value, natural(value))
            case ast.Name():
                return self.variable(n)
            case ast.UnaryOp(ast.USub(), a):
                signed = self.number(n)
                return Un("neg", self.expr(a)) if signed is None else Const(signed, natural(signed))
            case ast.UnaryOp(ast.Invert(), a):
                return Un("not", self.expr(a))
            case ast.BinOp(a, op, b) if type(op) in OPERATORS:
                return Bin(OPERATORS[type(op)], self.expr(a), self.expr(b))
            case ast.Compare(a, [op], [b]) if type(op) in OPERATORS:
                return Bin(OPERATORS[type(op)], self.expr(a), self.expr(b))
            case ast.Subscript():
                return self.subscript(n)
            case ast.Call():
                return self.call(n)
        self.fail(
            n,
            f"`{ast.unparse(n)}` is not an expression of this stage",
            "numbers, names, loads x[i], + - * / // %, one comparison, & | ~, and calls",
        )

    def number(self, n: Any) -> float | int | bool | None:
        """The value of a number, unless its name is a variable's."""
        inner = n.operand if isinstance(n, ast.UnaryOp) else n
        if isinstance(inner, ast.Name) and inner.id in self.vars:
            return None
        return literal(n)

    def subscript(self, n: ast.Subscript) -> Expr:
        return Load(self.buffer(n.value), self.many(self.several(n.slice)))

    def call(self, n: ast.Call) -> Expr:
        made = self.special(n)
        if made is not None:
            return made
        name = self.word(n.func, "the name of a function")
        keys = {k.arg for k in n.keywords}
        if name in DTYPES:
            (a,) = self.args(n, 1)
            value = self.number(a)
            return Cast(name, self.expr(a)) if value is None else Const(value, name)
        if name == "cast":
            d, a = self.args(n, 2)
            return Cast(self.dtype(d), self.expr(a))
        if name == "where":
            return Select(*self.many(self.args(n, 3)))
        if name == "scan" and keys == {"along"}:
            op, a, lane = self.args(n, 2, "along")
            return LaneScan(self.reducer(op), self.var(lane), self.expr(a))
        if name == "split" and keys == {"into"}:
            a, lane, into = self.args(n, 2, "into")
            two = self.several(into)
            if len(two) != 2:
                self.fail(n, f"`{ast.unparse(into)}` is not two lanes", "into=(outer, inner)")
            return LaneSplit(self.expr(a), *map(self.var, (lane, *two)))
        if keys == {"over"}:
            a, lanes = self.args(n, 1, "over")
            over = tuple(self.var(v) for v in self.several(lanes))
            return LaneReduce(self.reducer(n.func), over, self.expr(a))
        if name in PAIRS:
            return Bin(PAIRS[name], *self.many(self.args(n, 2)))
        if name in UNARY:
            return Un(name, *self.many(self.args(n, 1)))
        known = ", ".join(sorted({"where", "scan", "split", *PAIRS, *UNARY}))
        self.fail(n, f"{name}(...) is not known here", f"a dtype, {known}")

    def special(self, n: ast.Call) -> Expr | None:
        """Calls of one stage."""
        return None

    def reducer(self, n: Any) -> str:
        name = self.word(n, "the name of an operation")
        if name not in REDUCE:
            self.fail(n, f"{name} does not reduce", f"one of {', '.join(REDUCE)}")
        return name

    def args(self, n: ast.Call, count: int, *keys: str) -> list[ast.expr]:
        """`count` arguments and then those of the keywords, all of them given."""
        given = {k.arg: k.value for k in n.keywords}
        if len(n.args) != count or set(given) != set(keys):
            told = ", ".join([*(["_"] * count), *(f"{k}=_" for k in keys)])
            name = ast.unparse(n.func)
            self.fail(n, f"`{ast.unparse(n)}` has other arguments", f"{name}({told})")
        return [*n.args, *(given[k] for k in keys)]


def literal(n: Any) -> float | int | bool | None:
    """3, 0.5, True, inf, nan, and with a minus; None for anything else."""
    match n:
        case ast.Constant(bool() | int() | float() as value):
            return value
        case ast.Name("inf" | "nan" as name):
            return math.inf if name == "inf" else math.nan
        case ast.UnaryOp(ast.USub(), ast.Constant() | ast.Name() as a):
            found = literal(a)
            return None if found is None or isinstance(found, bool) else -found
    return None
