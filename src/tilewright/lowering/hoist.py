"""Tile form: what a loop does not change moves in front of it (loads too).

for p in s:e: q = load(Q + m); acc = dot(q, ...)   ->   q = load(Q + m); for p in s:e: acc = dot(q, ...)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tilewright.ir import tile
from tilewright.ir.expr import Buffer, Var
from tilewright.ir.node import walk

Body = tuple[tile.Stmt, ...]


def hoist(body: Body) -> Body:
    """Loop-invariant code motion."""
    times = Counter(s.var for s in walk(body) if isinstance(s, tile.Set))
    return _block(body, {v for v, n in times.items() if n == 1})


def _block(body: Body, once: set[Var]) -> Body:
    out: list[tile.Stmt] = []
    for s in body:
        out.extend(_statement(s, once))
    return tuple(out)


def _statement(s: Any, once: set[Var]) -> list[tile.Stmt]:
    match s:
        case tile.For(v, lo, hi, body, step):
            moved, kept = _split(v, _block(body, once), once)
            return [*moved, tile.For(v, lo, hi, kept, step)]
        case tile.Unroll(v, count, body):
            moved, kept = _split(v, _block(body, once), once)
            return [*moved, tile.Unroll(v, count, kept)]
        case tile.If(c, then, orelse):
            return [tile.If(c, _block(then, once), _block(orelse, once))]
    return [s]


def _split(loop: Var, body: Body, once: set[Var]) -> tuple[list[tile.Stmt], Body]:
    sets = tile.Set | tile.Arrive | tile.FetchAdd | tile.Claim
    changed = {loop} | {s.var for s in walk(body) if isinstance(s, sets)}
    changed |= {s.var for s in walk(body) if isinstance(s, tile.For | tile.Unroll)}
    written = {s.buffer for s in walk(body) if isinstance(s, tile.Store | tile.Atomic)}
    moved: list[tile.Stmt] = []
    kept: list[tile.Stmt] = []
    for s in body:
        if isinstance(s, tile.Set) and s.var in once and _fixed(s, changed, written):
            moved.append(s)
            changed.discard(s.var)
        else:
            kept.append(s)
    return moved, tuple(kept)


def _fixed(s: tile.Set, changed: set[Var], written: set[Buffer]) -> bool:
    for n in walk(s.value):
        if n in changed if isinstance(n, Var) else isinstance(n, Buffer) and n in written:
            return False
    return True
