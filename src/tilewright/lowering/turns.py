"""The loops that the indices of an iteration need, and their order.

In: indices and the access that drives. Out: turns, one for each loop, in the order of the storage tree.

    y[i] = sum(j, a[i, j]), a by columns   ->   j (its dense axis), then i (stored under it)
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.coord import Axis, Index
from tilewright.ir.drive import held, key_of, structure
from tilewright.ir.expr import Const, Load


@dataclass(frozen=True)
class Turn:
    """One loop to make: an index, and the storage axis that gives (part of) it."""

    index: Index
    lead: Load | None = None
    axis: Axis | None = None
    scale: int = 1


def own_axes(a: Load, ix: Index) -> list[tuple[Axis, int]]:
    """The axes that give an index; one that an earlier dimension has already is not counted again."""
    before: list[Axis] = []
    for at, dim in zip(held(a), a.buffer.coords, strict=False):
        if at is ix:
            return [(ax, k) for ax, k in dim if ax not in before]
        before += [ax for ax, _ in dim]
    return []


def in_order(turns: list[Turn]) -> list[Turn]:
    """Axes of one tree keep its order; others stay where they were written."""
    made = list(turns)
    leads = {key_of(t.lead): t.lead for t in turns if t.lead is not None}
    for key, a in leads.items():
        path = structure(a.buffer)
        slots = [n for n, t in enumerate(turns) if t.lead is not None and key_of(t.lead) == key]
        inside = sorted((turns[n] for n in slots), key=lambda t: path.index(t.axis))
        for n, t in zip(slots, inside, strict=True):
            made[n] = t
    return made


def repeats(a: Load, ax: Axis) -> bool:
    """Whether an axis may hold a coordinate several times, for instance once for each entry under it."""
    return ax.repeats or any(c.parent is ax and c.length == Const(1, "i64") for c in a.buffer.axes)
