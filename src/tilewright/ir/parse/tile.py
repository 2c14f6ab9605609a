"""Tile form from text; `ir/text/expr.py` and `ir/text/stmt.py` tell its forms.

In: Python's syntax tree. Out: expressions and statements, and the dims of every variable.

    TileReader(...).expr(tree of "r[:, None]")  ->  Expand(r, ("r",), ("r", "1"))
"""

from __future__ import annotations

import ast
from typing import Any

from tilewright.ir import tile
from tilewright.ir.expr import Const, Expr, Var, dtype_of
from tilewright.ir.parse.nest import ZERO, NestReader
from tilewright.ir.text.expr import dims_of, nothing

FORMS = "name = value, for ... in range or unroll, if, store, atomic, barrier()"


class TileReader(NestReader):
    """`dims`: sizes of the named dimensions; `known`: the dims of variables."""

    dims: dict[str, int]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.dims = {}
        self.known: dict[Any, tuple[str, ...]] = {}

    def dim(self, n: Any) -> str:
        name = self.word(n, "a dimension")
        if name not in self.dims:
            self.fail(n, f"{name} is not a dimension", f"one of {', '.join(self.dims)}")
        return name

    # --- expressions ------------------------------------------------------------------------------

    def subscript(self, n: ast.Subscript) -> Expr:
        """a[:, None]"""
        a, at = self.expr(n.value), self.several(n.slice)
        have = dims_of(a, self.known)
        kept = [isinstance(x, ast.Slice) for x in at]
        if sum(kept) != len(have):
            self.fail(n, f"`{ast.unparse(n.value)}` has {len(have)} dims", "as many `:`")
        held = iter(have)
        return tile.Expand(a, have, tuple(next(held) if k else "1" for k in kept))

    def special(self, n: ast.Call) -> Expr | None:
        keys = {k.arg: k.value for k in n.keywords}
        match n:
            case ast.Call(ast.Name("program_id"), [*d]):
                return tile.ProgramId(*map(self.dtype, d))
            case ast.Call(ast.Name("arange"), [dim, *d]):
                return tile.Arange(self.dim(dim), *map(self.dtype, d))
            case ast.Call(ast.Name("full"), [dims, value, d]):
                made = tuple(self.dim(x) for x in self.several(dims))
                return tile.Full(self.const(value, self.dtype(d)), self.dtype(d), made)
            case ast.Call(ast.Name("load"), [at]):
                return self.load(n, at, keys)
            case ast.Call(ast.Name("dot"), args) if not keys:
                return self.dot(n, args)
            case ast.Call(ast.Name("trans"), [a]):
                return tile.Trans(self.expr(a))
            case ast.Call(ast.Name("reshape"), [a, dims]):
                made = tuple(self.dim(x) for x in self.several(dims))
                return tile.Reshape(self.expr(a), made)
            case ast.Call(ast.Name("scan"), [op, a]) if set(keys) == {"axis"}:
                return tile.Scan(self.reducer(op), self.expr(a), self.whole(keys["axis"]))
            case ast.Call(op, [a]) if set(keys) == {"axis"}:
                return tile.Reduce(self.reducer(op), self.expr(a), self.whole(keys["axis"]))
        return None

    def const(self, n: ast.expr, home: str) -> Const:
        """A number whose place tells its dtype."""
        value = self.number(n)
        made = self.expr(n) if value is None else Const(value, home)
        if not isinstance(made, Const):
            self.fail(n, f"`{ast.unparse(n)}` is not a number", "a number")
        return made

    def load(self, n: ast.Call, at: ast.expr, keys: dict[str | None, Any]) -> tile.Load:
        b, offsets = self.pointer(at)
        self.only(n, keys, "mask", "fill", "fresh", "once")
        mask = self.expr(keys["mask"]) if "mask" in keys else None
        fill = self.const(keys["fill"], b.dtype) if "fill" in keys else nothing(b.dtype)
        return tile.Load(b, offsets, mask, fill, "fresh" in keys, "once" in keys)

    def only(self, n: ast.Call, keys: dict[str | None, Any], *known: str) -> None:
        for k in keys:
            if k not in known:
                self.fail(n, f"{k}= is not known here", f"{', '.join(known)}")

    def pointer(self, n: Any) -> tuple[Any, tuple[Expr, ...]]:
        """buffer + offset + offset: each sum in parentheses is one offset"""
        found: list[Expr] = []
        while isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add):
            found.insert(0, self.expr(n.right))
            n = n.left
        return self.buffer(n), tuple(found)

    def dot(self, n: ast.Call, args: list[ast.expr]) -> tile.Dot:
        d = self.dtype(args[-1]) if len(args) > 2 and self.is_dtype(args[-1]) else None
        given = self.many(args if d is None else args[:-1])
        if len(given) not in (2, 3):
            self.fail(n, f"`{ast.unparse(n)}` has other arguments", "dot(a, b[, acc][, dtype])")
        acc = given[2] if len(given) == 3 else None
        home = "f32" if acc is None else dtype_of(acc)
        return tile.Dot(given[0], given[1], acc, d or home)

    # --- statements -------------------------------------------------------------------------------

    def set_tile(self, n: Any, dtype: str, dims: tuple[str, ...], told: Any = None) -> Var:
        """The variable that is set; `told` is its dtype, or its dtype and dims."""
        new = self.word(n, "the name of a variable") not in self.vars
        if isinstance(told, ast.Subscript):
            dims = tuple(
                "1" if isinstance(d, ast.Constant) else self.dim(d)
                for d in self.several(told.slice)
            )
            told = told.value
        v = self.set(n, dtype, told)
        if new:
            self.known[v] = dims
        return v

    def stmt(self, s: ast.stmt) -> Any:
        match s:
            case ast.For(target, ast.Call() as span, body, []):
                return self.loop(target, span, body)
            case ast.If(c, then, orelse):
                return tile.If(self.expr(c), self.body(then), self.body(orelse))
            case ast.AnnAssign(ast.Name() as target, told, None):
                self.set_tile(target, "i64", (), told)
                return None
            case ast.AnnAssign(ast.Name() as target, told, value):
                return self.assign(target, value, told)
            case ast.Assign([ast.Name() as target], value):
                return self.assign(target, value)
            case ast.Expr(ast.Call(ast.Name("store"), [at, value]) as call):
                return self.store(call, at, value)
            case ast.Expr(ast.Call(ast.Name("atomic"), [op, at, value]) as call):
                made = self.store(call, at, value)
                return tile.Atomic(
                    self.reducer(op), made.buffer, made.offsets, made.value, made.mask
                )
            case ast.Expr(ast.Call(ast.Name("barrier"), [])):
                return tile.Barrier()
        self.fail(s, "this is not a statement of tile form", FORMS)

    def assign(self, target: ast.expr, value: Any, told: ast.expr | None = None) -> Any:
        match value:
            case ast.Call(ast.Name("arrive"), [at]):
                b, where = self.one(at)
                return tile.Arrive(
                    self.set_tile(target, b.dtype, dims_of(where, self.known), told), b, where
                )
            case ast.Call(ast.Name("fetch_add"), [at, by], keywords):
                keys = {k.arg: k.value for k in keywords}
                self.only(value, keys, "mask")
                (b, where), add = self.one(at), self.expr(by)
                mask = self.expr(keys["mask"]) if "mask" in keys else None
                v = self.set_tile(target, b.dtype, dims_of(where, self.known), told)
                return tile.FetchAdd(v, b, where, add, mask)
            case ast.Call(ast.Name("claim"), [counter, count, by]):
                held, whole, add = self.buffer(counter), self.buffer(count), self.expr(by)
                return tile.Claim(self.set_tile(target, whole.dtype, (), told), held, whole, add)
        e = self.expr(value)
        return tile.Set(self.set_tile(target, dtype_of(e), dims_of(e, self.known), told), e)

    def one(self, n: ast.expr) -> tuple[Any, Expr]:
        b, offsets = self.pointer(n)
        if len(offsets) != 1:
            self.fail(n, f"`{ast.unparse(n)}` has {len(offsets)} offsets", "buffer + offset")
        return b, offsets[0]

    def store(self, n: ast.Call, at: ast.expr, value: ast.expr) -> tile.Store:
        keys = {k.arg: k.value for k in n.keywords}
        self.only(n, keys, "mask", "fresh", "once")
        b, offsets = self.pointer(at)
        mask = self.expr(keys["mask"]) if "mask" in keys else None
        return tile.Store(b, offsets, self.expr(value), mask, "fresh" in keys, "once" in keys)

    def loop(self, target: ast.expr, span: ast.Call, body: list[ast.stmt]) -> Any:
        kind = self.word(span.func, "range or unroll")
        args, told = self.span(span)
        most = {"range": 3, "unroll": 1}.get(kind, 0)
        if not 1 <= len(args) <= most:
            expected = "range([start,] stop[, step]) or unroll(count)"
            self.fail(span, f"`{ast.unparse(span)}` is not a loop of tile form", expected)
        if kind == "unroll":
            count = self.whole(args[0])
            return tile.Unroll(self.set_tile(target, "i64", (), told), count, self.body(body))
        step = self.whole(args.pop()) if len(args) == 3 else 1
        lo, hi = (ZERO, *self.many(args)) if len(args) == 1 else self.many(args)
        return tile.For(self.set_tile(target, "i64", (), told), lo, hi, self.body(body), step)
