"""The loops that indices become: which storage axes give an index, and in which order they stand.

In: accesses of stage I and their indices. Out: `Turn`s, one for each loop, for `position` to make.

    own_axes(a[i, j], i), a in blocks of 4   ->   (i_b, 4), (i_in, 1)
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.coord import Assign, Axis, Index, Reduce
from tilewright.ir.drive import held, key_of, lead, stored, structure
from tilewright.ir.expr import Buffer, Cast, Const, Expr, Load, const
from tilewright.lowering.env import Env
from tilewright.support.errors import error


@dataclass(frozen=True)
class Turn:
    """One loop to make: an index, and the storage axis that gives (part of) it."""

    index: Index
    lead: Load | None = None
    axis: Axis | None = None
    scale: int = 1


def own_axes(a: Load, ix: Index) -> list[tuple[Axis, int]]:
    """The axes that give an index; one that an earlier dimension has already is not counted again."""
    if ix not in held(a):
        return []
    at = home(a, ix)
    before = [ax for dim in a.buffer.coords[:at] for ax, _ in dim]
    return [(ax, k) for ax, k in a.buffer.coords[at] if ax not in before]


def home(a: Load, ix: Index) -> int:
    """The dimension that an index stands on; of a diagonal's, the one that is stored outermost."""
    path, dims = structure(a.buffer), a.buffer.coords
    return min(
        (d for d, at in enumerate(held(a)) if at is ix), key=lambda d: path.index(dims[d][0][0])
    )


def leaning(a: Load, ix: Index, env: Env) -> Expr:
    """What axes of other dimensions add to an index: the row, for a diagonal."""
    made: Expr = const(0)
    own = [ax for ax, _ in own_axes(a, ix)]
    for ax, k in a.buffer.coords[home(a, ix)]:
        if ax not in own:
            made = made + env.axis[ax, held(a)] * k
    return made


def added(s: object) -> Load | None:
    """The access that drives what a statement adds: rows that it does not have need no visit."""
    if isinstance(s, Assign) and s.adds and isinstance(s.values[0], Reduce):
        return lead(s.values[0].args, s.values[0].over)
    return None


def lists_rows(a: Load, mine: list[tuple[Axis, int]]) -> bool:
    """Whether axes visit some rows, each once: dense ones, and a list at the root."""
    return all(not stored(ax) or (ax.parent is None and not repeats(a, ax)) for ax, _ in mine)


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
    single = [c for c in a.buffer.axes if c.parent is ax and c.length == Const(1, "i64")]
    return ax.repeats or any(not c.padded for c in single)


def last_stored(a: Load) -> Axis:
    """The axis whose positions are the entries."""
    return next(ax for ax in reversed(structure(a.buffer)) if stored(ax))


def ordered_row(a: Load) -> tuple[Axis, Axis, Buffer]:
    """The axes of rows and of their entries, and the columns of these: of rows one knows where an entry would stand."""
    row, *inner = structure(a.buffer)
    ax = inner[0] if len(inner) == 1 and not stored(row) else row
    if ax.indptr is None or ax.indices is None or ax.padded or repeats(a, ax):
        raise unfit(a, "only in rows one knows where an entry would stand")
    return row, ax, ax.indices


def bare(access: Expr) -> Load:
    """An access that may be widened where it is read."""
    made = access.a if isinstance(access, Cast) else access
    assert isinstance(made, Load)
    return made


def unfit(a: Load, why: str) -> Exception:
    return error(
        "unsupported", name=str(a), got=why, expected="csr, or another format with rows first"
    )
