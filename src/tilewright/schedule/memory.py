"""Primitives about memory: `prefetch` and `stream`."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Load, Var, select
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute, walk
from tilewright.schedule.edit import edit, find, illegal
from tilewright.schedule.legal import at_least


def prefetch(p: flat.Program, name: str, distance: int) -> flat.Program:
    """serial p: let j = idx[p]; ... x[j * n + f]  ->  the same, with x[idx[p + distance] * n] asked for early"""
    what, loop = f"prefetch({name}, {distance})", find(p, name)
    at_least(what, distance)
    if loop.kind == "lane":
        raise illegal(what, "it is a lane: all of it is read at once", "fetch in a serial loop")
    gathers = _gathers(loop)
    if not gathers:
        raise illegal(what, "nothing in it is read through an index array", ir=loop)

    def rule(s: Loop) -> list[stmt.Stmt]:
        ahead = select(s.var + distance < s.hi, s.var + distance, s.var)
        hints = [
            stmt.Prefetch(x.buffer, substitute(x.indices, {let.var: Load(table, (ahead,))}))
            for let, table, x in gathers
        ]
        at = max(s.body.index(let) for let, _ in _coordinates(s)) + 1
        return [replace(s, body=(*s.body[:at], *hints, *s.body[at:]))]

    return edit(p, name, rule)


def stream(p: flat.Program, *names: str) -> flat.Program:
    """x[..] -> x[..], once: elements of these buffers are not kept in caches for the sake of others"""
    known = {b.name for b in p.buffers}
    for n in names:
        if n not in known:
            held = ", ".join(sorted(known))
            raise illegal(f"stream({n})", f"there is no such buffer; there are {held}", ir=p)
    return replace(p, streams=(*p.streams, *(n for n in names if n not in p.streams)))


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
    made = {s.var for s in walk(loop.body) if isinstance(s, stmt.Let | Loop)}
    return bool(names & (made - {s.var for s, _ in _coordinates(loop)}))


def _coordinates(loop: Loop) -> list[tuple[stmt.Let, Buffer]]:
    """let j = idx[p], for the loop's own p: the statement and the array"""
    return [
        (s, s.value.buffer)
        for s in loop.body
        if isinstance(s, stmt.Let) and isinstance(s.value, Load) and s.value.indices == (loop.var,)
    ]
