"""Axes that are different things are different indices, with names of their own where they are sized apart.

    y[i, j] = x[i, j] * sum(j, a[i, j])    the j that is summed over is not that of y
    j, = axes("j"); k, = axes("j")         two axes, called j and j_2 from here on

In: the statements of a traced function. Out: the same statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.coord import Assign, Index, Reduce, Stmt, spatial
from tilewright.ir.node import rebuild, substitute, walk


def named_apart(body: Sequence[Stmt]) -> list[Stmt]:
    """Statements in which no two axes have one name."""
    found = dict.fromkeys(n for s in body for n in walk(s) if isinstance(n, Index))
    table: dict[Index, Index] = {}
    taken = {ix.name for ix in found}
    for first, ix in ((next(o for o in found if o.name == ix.name), ix) for ix in found):
        if first is not ix:
            numbers = (f"{ix.name}_{n}" for n in range(2, len(taken) + 3))
            name = next(n for n in numbers if n not in taken)
            taken.add(name)
            table[ix] = replace(ix, name=name)
    for ix in found:
        if ix.within is not None and ix.within[0] in table:
            table[ix] = replace(table.get(ix, ix), within=(table[ix.within[0]], ix.within[1]))
    return [substitute(s, dict(table)) for s in body] if table else list(body)


def bound_apart(s: Stmt) -> Stmt:
    """A statement in which no reduction has an axis of the targets, or of a reduction around it, once more."""
    if not isinstance(s, Assign):
        return s
    lists = {ix for n in s.listed for ix in (n.index, n.place)}

    def go(e: Any, around: frozenset[Index]) -> Any:
        if isinstance(e, Reduce):
            again = (ix for ix in e.over if ix in around and ix.within is None)
            e = substitute(e, {ix: Index(ix.name) for ix in again if ix not in lists})
            around |= {*e.over}
        return rebuild(e, lambda c: go(c, around))

    return replace(s, values=tuple(go(v, frozenset(spatial(s))) for v in s.values))
