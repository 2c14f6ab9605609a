"""Tile form: what is read after a loop, and does not wait for it, is read before it.

for f_o in 0:4: acc = acc + x * z; v = load(a + p)   ->   v = load(a + p); for f_o in 0:4: acc = acc + x * z

Memory answers while the loop runs. Only what has one lane, which threads hold little of; not beside products of
tiles, which leave no registers for it.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import tile
from tilewright.ir.expr import Buffer, Var
from tilewright.ir.node import walk

Body = tuple[tile.Stmt, ...]


def early(body: Body, types: dict[Var, tuple[str, ...]]) -> Body:
    """Loads move up over loops. types: the lanes of variables."""
    if any(isinstance(n, tile.Dot) for n in walk(body)):
        return body
    return _block(body, {v for v, lanes in types.items() if len(lanes) <= 1})


def _block(body: Body, thin: set[Var]) -> Body:
    out: list[tile.Stmt] = []
    for s in body:
        made = _inside(s, thin)
        at = _place(out, made) if isinstance(made, tile.Set) and made.var in thin else len(out)
        out.insert(at, made)
    return tuple(out)


def _inside(s: Any, thin: set[Var]) -> tile.Stmt:
    match s:
        case tile.For(v, lo, hi, body, step):
            return tile.For(v, lo, hi, _block(body, thin), step)
        case tile.Unroll(v, count, body):
            return tile.Unroll(v, count, _block(body, thin))
        case tile.If(c, then, orelse):
            return tile.If(c, _block(then, thin), _block(orelse, thin))
    made: tile.Stmt = s
    return made


def _place(before: list[tile.Stmt], s: tile.Set) -> int:
    """Where it is to stand among those before it: in front of the first loop that it may pass."""
    best = len(before)
    if not isinstance(s.value, tile.Load):
        return best
    for at in reversed(range(len(before))):
        if not _passes(s, before[at]):
            break
        if isinstance(before[at], tile.For):
            best = at
    return best


def _passes(load: tile.Set, over: tile.Stmt) -> bool:
    """Whether a load may stand before a statement, which then makes and reads the same as before."""
    if not isinstance(over, tile.Set | tile.For):
        return False
    inside = list(walk(over))
    if any(isinstance(n, tile.Barrier | tile.Arrive | tile.FetchAdd | tile.Claim) for n in inside):
        return False
    changed: set[Any] = {n.var for n in inside if isinstance(n, tile.Set | tile.For | tile.Unroll)}
    written = {n.buffer for n in inside if isinstance(n, tile.Store | tile.Atomic)}
    read = {n for n in walk(load.value) if isinstance(n, Var | Buffer)}
    return not read & (changed | written) and load.var not in inside
