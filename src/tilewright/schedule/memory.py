"""Primitives about memory: `prefetch`."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Const, Load, Var, select
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute, walk
from tilewright.schedule.edit import edit, find, illegal


def prefetch(p: flat.Program, name: str, distance: int) -> flat.Program:
    """serial p: let j = idx[p]; ... x[j * n + f]  ->  the same, with x[idx[p + distance] * n] asked for early

    Loops inside of it begin where they begin: the first element of a row is asked for.
    """
    loop = find(p, name)
    gathers = _gathers(loop)
    if not gathers:
        raise illegal(f"prefetch({name})", "nothing in it is read through an index array")

    def rule(s: Loop) -> list[stmt.Stmt]:
        ahead = select(s.var + distance < s.hi, s.var + distance, s.var)
        first = {n.var: n.lo for n in walk(s.body) if isinstance(n, Loop)}
        hints = [
            stmt.Prefetch(
                x.buffer, substitute(x.indices, {**first, let.var: Load(table, (ahead,))})
            )
            for let, table, x in gathers
        ]
        at = max(s.body.index(let) for let, _ in _coordinates(s)) + 1
        return [replace(s, body=(*s.body[:at], *hints, *s.body[at:]))]

    return edit(p, name, rule)


def _gathers(loop: Loop) -> list[tuple[stmt.Let, Buffer, Load]]:
    """Loads addressed through `let j = idx[p]`, one for each buffer."""
    lets = _coordinates(loop)
    found: dict[str, tuple[stmt.Let, Buffer, Load]] = {}
    for n in walk(loop.body):
        if isinstance(n, Load):
            inner = {m for m in walk(n.indices) if isinstance(m, Var)}
            for let, table in lets:
                if let.var in inner and not _needs(loop, inner):
                    found.setdefault(n.buffer.name, (let, table, n))
    return list(found.values())


def _needs(loop: Loop, names: set[Var]) -> bool:
    """Whether an address needs values that are not known at the top of the body."""
    made = {s.var for s in walk(loop.body) if isinstance(s, stmt.Let)}
    moving = {s.var for s in walk(loop.body) if isinstance(s, Loop) and not isinstance(s.lo, Const)}
    return bool(names & ((made | moving) - {s.var for s, _ in _coordinates(loop)}))


def _coordinates(loop: Loop) -> list[tuple[stmt.Let, Buffer]]:
    """let j = idx[p], for the loop's own p: the statement and the array"""
    return [
        (s, s.value.buffer)
        for s in loop.body
        if isinstance(s, stmt.Let) and isinstance(s.value, Load) and s.value.indices == (loop.var,)
    ]
