"""Types of parameters from text: role, dtype, shape and what follows it; `ir/text/program.py` tells the forms.

In: the annotation of a parameter. Out: a buffer, or the parts of one.

    typed(tree of "out[f32[n, m].strides(s, 1)]")  ->  "out", "f32", (n, m), {"strides": ...}
"""

from __future__ import annotations

import ast
from typing import Any

from tilewright.ir.expr import Buffer, Expr
from tilewright.ir.parse.expr import Reader
from tilewright.ir.text.expr import DTYPES

ROLES = ("in", "out", "index", "plan", "work", "counter")
Typed = tuple[str, str, tuple[Expr, ...], dict[str, ast.Call]]


class TypeReader(Reader):
    """Annotations. Names in shapes that nothing declares are sizes."""

    def size(self, n: ast.expr) -> Expr:
        before, self.shapes = self.shapes, True
        made = self.expr(n)
        self.shapes = before
        return made

    def typed(self, n: Any) -> Typed:
        """role[dtype[shape].method(...)]"""
        role, whole = "in", n
        match n:
            case ast.Subscript(ast.Name(name), inner) if name not in DTYPES:
                if name not in ROLES:
                    known = ", ".join((*ROLES[1:], "size", "scalar", *DTYPES))
                    self.fail(n, f"{name} is neither a role nor a dtype", f"one of {known}")
                role, n = name, inner
        calls: dict[str, ast.Call] = {}
        while isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            if n.keywords:
                self.fail(n, f"{n.keywords[0].arg}= is not known here", "plain arguments")
            calls[n.func.attr] = n
            n = n.func.value
        if not isinstance(n, ast.Subscript):
            self.fail(whole, f"`{ast.unparse(whole)}` is not a type", "dtype[shape], as f32[n, m]")
        shape = tuple(self.size(e) for e in self.several(n.slice))
        return role, self.dtype(n.value), shape, calls

    def typed_buffer(self, name: str, n: ast.expr) -> Buffer:
        role, dtype, shape, calls = self.typed(n)
        for method, call in calls.items():
            if method != "strides":
                self.fail(call, f".{method}(...) is not known here", ".strides(...)")
        steps = tuple(map(self.size, calls["strides"].args)) if calls else None
        return Buffer(name, dtype, shape, role, steps)
