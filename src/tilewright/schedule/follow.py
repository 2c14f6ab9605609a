"""Primitive `follow`: searches in a serial loop go on from the place before, so that two sorted sides are merged.

    serial p: j = a_indices[p]; at = find(j, b_indices[lo:hi])
 -> near = init(max); serial p: ...; at = find(j, b_indices[lo:hi], start=near); near = fold(max, near, place of at)

`near` belongs to the loop that carries it, and so to one thread. It is only where a search begins: a key that is
smaller than the one before it is found as well.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.analysis.follow import growing
from tilewright.ir import flat, stmt
from tilewright.ir.expr import Expr, Var, const, maximum
from tilewright.ir.loops import Lookup
from tilewright.ir.monoid import monoids
from tilewright.ir.node import walk
from tilewright.lowering.lanes import lanes_of, value_lanes
from tilewright.schedule.edit import edit, find, illegal, splice

_FURTHEST = monoids("i64")["max"]


def follow(p: flat.Program, name: str) -> flat.Program:
    """serial p: at = find(j, b[lo:hi])  ->  the same, each search begun where the last one ended"""
    found = followed(p, find(p, name))
    if not found:
        raise illegal(f"follow({name})", "no search in it has growing keys over a range that stays")
    cursors = {s.var: Var(f"near_{s.var.name}") for s in found}

    def rule(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        return _sought(s, cursors[s.var]) if isinstance(s, stmt.Let) and s.var in cursors else None

    def begun(loop: flat.Loop) -> list[stmt.Stmt]:
        inits = [stmt.Init((v,), _FURTHEST) for v in cursors.values()]
        return [*inits, replace(loop, body=splice(loop.body, rule))]

    return edit(p, name, begun)


def followed(p: flat.Program, loop: flat.Loop) -> list[stmt.Let]:
    """The searches of a serial loop that are the same in all lanes."""
    found = growing(loop) if loop.kind == "serial" else []
    if not found:
        return []
    table = value_lanes(p)
    if any(lanes_of(s.cond, table) for s in walk(loop.body) if isinstance(s, stmt.Guard)):
        return []
    return [s for s in found if not lanes_of(s.value, table) and _begins(s.value)]


def _begins(e: Expr) -> bool:
    """Whether a search begins where its range does."""
    return isinstance(e, Lookup) and e.start in (None, e.lo)


def _sought(s: stmt.Let, near: Var) -> list[stmt.Stmt]:
    assert isinstance(s.value, Lookup)
    place = maximum(s.var, const(-1) - s.var)
    return [
        stmt.Let(s.var, replace(s.value, start=near)),
        stmt.Fold((near,), _FURTHEST, (place,)),
    ]
