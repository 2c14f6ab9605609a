"""Words for writing stage III by hand: each makes one statement, bodies come last.

grid(i, n_i, lane(f, 32, init("sum", acc), serial(p, s, e, fold("sum", acc, a * x)), store(y, i * n_f + f, acc)))
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Const, Expr, Load, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.monoid import apply, monoids
from tilewright.ir.node import walk


def ints(names: str, dtype: str = "i64") -> list[Var]:
    return [Var(n, dtype) for n in names.split()]


def floats(names: str) -> list[Var]:
    return ints(names, "f32")


def buffer(name: str, dtype: str, *shape: Any, role: str = "in") -> Buffer:
    return Buffer(name, dtype, tuple(const(n) for n in shape), role)


def load(b: Buffer, at: Any) -> Load:
    return Load(b, (const(at),))


def grid(v: Var, n: Any, *body: stmt.Stmt) -> Loop:
    return Loop(v, Const(0, "i64"), const(n), "grid", body)


def lane(v: Var, n: int, *body: stmt.Stmt) -> Loop:
    return Loop(v, Const(0, "i64"), const(n), "lane", body)


def serial(v: Var, lo: Any, hi: Any, *body: stmt.Stmt) -> Loop:
    return Loop(v, const(lo), const(hi), "serial", body)


def unroll(v: Var, n: int, *body: stmt.Stmt) -> Loop:
    return Loop(v, Const(0, "i64"), const(n), "unroll", body)


def where(cond: Expr, *body: stmt.Stmt) -> stmt.Guard:
    return stmt.Guard(cond, body)


def let(v: Var, e: Any) -> stmt.Let:
    return stmt.Let(v, const(e))


def init(monoid: str, *state: Var) -> stmt.Init:
    return stmt.Init(state, monoids("f32")[monoid])


def fold(monoid: str, state: Any, *args: Expr) -> stmt.Fold:
    return stmt.Fold(state if isinstance(state, tuple) else (state,), monoids("f32")[monoid], args)


def join(monoid: str, state: Var, other: Var) -> stmt.Join:
    return stmt.Join((state,), monoids("f32")[monoid], (other,))


def publish(
    monoid: str, state: Var, slot: Any, nth: Any, pieces: Any, *body: stmt.Stmt
) -> stmt.Publish:
    m = monoids("f32")[monoid]
    return stmt.Publish((state,), m, const(slot), const(nth), const(pieces), body)


def finalised(monoid: str, *state: Var) -> tuple[Expr, ...]:
    return apply(monoids("f32")[monoid].finalise, state)


def store(b: Buffer, at: Any, e: Any) -> stmt.Store:
    return stmt.Store(b, (const(at),), const(e))


def program(name: str, buffers: list[Buffer], *body: stmt.Stmt, **more: Any) -> flat.Program:
    """Sizes are the variables that the buffers' shapes use."""
    sizes = tuple(dict.fromkeys(v for b in buffers for v in walk(b.shape) if isinstance(v, Var)))
    return flat.Program(name, tuple(buffers), sizes, more.pop("scalars", ()), body, **more)
