"""Stage II -> stage III: every buffer becomes flat, every loop gets a kind (serial, to begin with).

x[j, f]  ->  x[j * n_f + f]          for i in 0:n  ->  serial i in 0:n
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir import flat, loops, stmt
from tilewright.ir.expr import Buffer, Const, Expr, Load, Var
from tilewright.ir.node import substitute, transform, walk


def lower_to_flat(p: loops.Program, divisors: Mapping[str, int] | None = None) -> flat.Program:
    """Stage II -> stage III."""
    body = tuple(transform(s, _flatten) for s in p.body)
    body = substitute(body, apart(p, body))
    known = tuple((v, d) for v in p.sizes if (d := (divisors or {}).get(v.name, 1)) > 1)
    return flat.Program(p.name, p.buffers, p.sizes, p.scalars, body, known)


def told_apart(p: flat.Program) -> flat.Program:
    """A scheduled program whose loops are not called like a parameter: n in tiles of n_i, beside a size n_i"""
    table = apart(p, p.body)
    names = {v.name: made.name for v, made in table.items()}
    order = tuple(names.get(n, n) for n in p.order)
    return replace(p, body=substitute(p.body, table), order=order)


def apart(p: loops.Program | flat.Program, body: tuple[stmt.Stmt, ...]) -> dict[Var, Var]:
    """New names for variables that are called like a parameter: a state `total` beside a tensor `total`."""
    taken = {b.name for b in p.buffers} | {v.name for v in (*p.sizes, *p.scalars)}
    made: dict[Var, Var] = {}
    for n in walk(body):
        own = n.state if isinstance(n, stmt.Init) else ()
        own = (n.var,) if isinstance(n, stmt.Let | flat.Loop) else own
        for v in own:
            name = v.name
            while name in taken:
                name += "_"
            if name != v.name:
                made[v] = Var(name, v.dtype)
                taken.add(name)
    return made


def _flatten(n: Any) -> Any:
    match n:
        case Load(Buffer() as b, ix):
            return None if len(ix) == 1 and b.strides is None else Load(b, (linear(b, ix),))
        case stmt.Store(b, ix, v):
            return stmt.Store(b, (linear(b, ix),), v)
        case loops.For(v, lo, hi, body):
            return flat.Loop(v, lo, hi, "serial", body)
    return None


def linear(b: Buffer, ix: Sequence[Expr]) -> Expr:
    """The flat offset of a multi-dimensional index."""
    at: Expr = Const(0, "i64")
    for e, s in zip(ix, strides(b), strict=True):
        at = at + e * s
    return at


def strides(b: Buffer) -> tuple[Expr, ...]:
    if b.strides is not None:
        return b.strides
    made: list[Expr] = []
    step: Expr = Const(1, "i64")
    for n in reversed(b.shape):
        made.insert(0, step)
        step = n * step if not isinstance(step, Const) else step * n
    return tuple(made)
