"""Statements of stages II and III from text; `ir/text/stmt.py` tells their forms.

In: Python's syntax tree. Out: statements. A name is one variable; the line that sets it first tells its dtype.

    NestReader(...).stmt(tree of "j = a_indices[p]")  ->  Let(j, Load(a_indices, (p,)))
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from tilewright.ir import flat, loops, stmt
from tilewright.ir.expr import Const, Expr, Var, dtype_of
from tilewright.ir.parse.expr import Reader
from tilewright.ir.stmt import Append

KINDS = ("grid", "lane", "serial", "unroll")
ZERO = Const(0, "i64")
FORMS = "name = value, y[i] = value, for, if, with where(...), atomic, prefetch, append"


class NestReader(Reader):
    """`kinds`: what a loop may be; ("range",) in stage II."""

    kinds: tuple[str, ...] = KINDS

    def body(self, lines: Sequence[ast.stmt]) -> tuple[Any, ...]:
        """Statements; declarations and `pass` leave nothing."""
        made = [self.stmt(s) for s in lines if not isinstance(s, ast.Pass)]
        return tuple(s for s in made if s is not None)

    def set(self, n: Any, dtype: str, told: ast.expr | None = None) -> Var:
        """The variable of a name that is set here: known, or new with the dtype told or else its value's."""
        name = self.word(n, "the name of a variable")
        want = dtype if told is None else self.dtype(told)
        v = self.vars.setdefault(name, Var(name, want))
        if told is not None and v.dtype != want:
            self.fail(n, f"{name} is {v.dtype} already", f"{v.dtype}, or another name")
        return v

    def stmt(self, s: ast.stmt) -> Any:
        match s:
            case ast.For(target, ast.Call() as span, body, []):
                return self.loop(target, span, body)
            case ast.With([ast.withitem(ast.Call(ast.Name("where")) as c, None)], body):
                return stmt.Guard(self.expr(*self.args(c, 1)), self.body(body))
            case ast.If(ast.Call(ast.Name("publish")) as call, body, []):
                more = [k.arg for k in call.keywords if k.arg == "slots"]
                m, state, *at = self.args(call, 2, "slot", "nth", "pieces", *more)
                held = self.state(state)
                slot, nth, pieces, *slots = self.many(at)
                inside = self.body(body)
                return stmt.Publish(held, self.monoid(m), slot, nth, pieces, inside, *slots)
            case ast.If(c, then, orelse):
                return stmt.If(self.expr(c), self.body(then), self.body(orelse))
            case ast.AnnAssign(ast.Name() as target, told, None):
                self.set(target, "i64", told)
                return None
            case ast.AnnAssign(ast.Name() as target, told, value):
                return self.assign(target, value, told)
            case ast.Assign([target], value):
                return self.assign(target, value)
            case ast.Expr(ast.Call(ast.Name("prefetch")) as call):
                load, *many = self.args(call, 2 if len(call.args) == 2 else 1)
                b, ix = self.element(load)
                return stmt.Prefetch(b, ix, *[self.whole(n) for n in many])
            case ast.Expr(ast.Call(ast.Name("atomic")) as call):
                op, into, value = self.args(call, 3)
                b, ix = self.element(into)
                return stmt.Atomic(self.reducer(op), b, ix, self.expr(value))
            case ast.Expr(ast.Call(ast.Name("append")) as call):
                return self.append(call, None)
        self.fail(s, "this is not a statement of the stage", FORMS)

    def loop(self, target: ast.expr, span: ast.Call, body: list[ast.stmt]) -> Any:
        kind = self.word(span.func, "the kind of a loop")
        if kind not in self.kinds:
            self.fail(span, f"{kind} is not a kind of loop", f"one of {', '.join(self.kinds)}")
        args, told = self.span(span)
        if len(args) not in (1, 2):
            self.fail(span, f"`{ast.unparse(span)}` has other arguments", f"{kind}([start,] stop)")
        lo, hi = (ZERO, *self.many(args)) if len(args) == 1 else self.many(args)
        v = self.set(target, "i64", told)
        made = self.body(body)
        return loops.For(v, lo, hi, made) if kind == "range" else flat.Loop(v, lo, hi, kind, made)

    def span(self, n: ast.Call) -> tuple[list[ast.expr], ast.expr | None]:
        """The arguments of a loop, and the dtype that may stand behind them."""
        if n.keywords:
            self.fail(n, f"{n.keywords[0].arg}= is not known here", "a start and a stop")
        if n.args and self.is_dtype(n.args[-1]):
            return n.args[:-1], n.args[-1]
        return list(n.args), None

    def assign(self, target: ast.expr, value: Any, told: ast.expr | None = None) -> Any:
        match value:
            case ast.Call(ast.Name("init")):
                m = self.monoid(*self.args(value, 1))
                names = self.several(target)
                if len(names) != len(m.dtypes):
                    self.fail(target, f"{m.name} has {len(m.dtypes)} members", ", ".join(m.state))
                return stmt.Init(tuple(map(self.set, names, m.dtypes)), m)
            case ast.Call(ast.Name("fold"), [m, state, *args]) if not value.keywords:
                held = self.same(target, state)
                return stmt.Fold(held, self.monoid(m), self.many(args))
            case ast.Call(ast.Name("join")):
                of, state, other = self.args(value, 3)
                return stmt.Join(self.same(target, state), self.monoid(of), self.state(other))
            case ast.Call(ast.Name("append")):
                return self.append(value, self.set(target, "i64", told))
        if isinstance(target, ast.Subscript):
            b, ix = self.element(target)
            return stmt.Store(b, ix, self.expr(value))
        e = self.expr(value)
        return stmt.Let(self.set(target, dtype_of(e), told), e)

    def state(self, n: ast.expr) -> tuple[Var, ...]:
        return tuple(self.var(v) for v in self.several(n))

    def same(self, target: ast.expr, state: ast.expr) -> tuple[Var, ...]:
        """The state of a fold, which is also what it sets."""
        left, right = self.state(target), self.state(state)
        if left != right:
            names = ", ".join(v.name for v in right)
            self.fail(target, f"the state {names} is folded into another", f"{names} = ...")
        return right

    def element(self, n: Any) -> tuple[Any, tuple[Expr, ...]]:
        if not isinstance(n, ast.Subscript):
            self.fail(n, f"`{ast.unparse(n)}` is not an element", "buffer[index]")
        return self.buffer(n.value), self.many(self.several(n.slice))

    def append(self, n: ast.Call, at: Var | None) -> Append:
        shared = any(k.arg == "shared" for k in n.keywords)
        keys = ("where", "shared") if shared else ("where",)
        into, count, value, where = self.args(n, 3, *keys)[:4]
        (held, (slot,)), (counter, (group,)) = self.element(into), self.element(count)
        return Append(held, counter, group, slot, self.expr(where), self.expr(value), at, shared)

    def special(self, n: ast.Call) -> Expr | None:
        match n:
            case ast.Call(
                ast.Name("find"),
                [key, ast.Subscript(b, ast.Slice(ast.expr() as lo, ast.expr() as hi))],
                near,
            ) if [k.arg for k in near] in ([], ["start"]):
                return loops.Lookup(
                    self.buffer(b), *self.many([lo, hi, key, *(k.value for k in near)])
                )
        return None


class LoopsReader(NestReader):
    """Stage II."""

    kinds = ("range",)
