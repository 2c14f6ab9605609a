"""Which sparse accesses an iteration follows. Shared by the interpreter of stage I and by its lowering.

In: expressions and the indices to run over. Out: the access that drives, or None (whole ranges); rounds.

    sum(j, a[i, j] * x[j, f])              a drives: its stored entries
    sum(j, a[i, j] * b[j, k])              a drives, b is looked up: absent means 0
    a[i, j] + b[i, j]                      neither is a factor of the whole: all of i, j; both are looked up
    max(j, relu(a[i, j]))                  one structure alone drives whatever the expression

A tensor in parts drives as one: `rounds` has one round for each part, in which the accesses on its structure
are accesses to that part.

    sum(j, a[i, j] * x[j, f]), a in two parts   ->   a_0[i, j] * x[j, f] along a_0, a_1[i, j] * x[j, f] along a_1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.coord import Axis, Index, Reduce, Stored, Tensor
from tilewright.ir.expr import Bin, Cast, Load, Un
from tilewright.ir.node import Node, is_named, parts, rebuild

Key = tuple[Any, ...]


def stored(ax: Axis) -> bool:
    return ax.kind == "sparse" or ax.extent == "variable"


def rank(t: Tensor) -> int:
    """How many dimensions belong to the structure: the others are dense, inside the stored entries."""
    t = t.whole[0]
    last = max(n for n, ax in enumerate(t.axes) if stored(ax))
    inner = set(t.axes[last + 1 :])
    return sum(len(dim) > 1 or dim[0][0] not in inner for dim in t.coords)


def structure(t: Tensor) -> tuple[Axis, ...]:
    """The axes of the structure, outermost first; of a tensor that is not in parts."""
    held = {ax for dim in t.coords[: rank(t)] for ax, _ in dim}
    return tuple(ax for ax in t.axes if ax in held)


def held(a: Load) -> tuple[Any, ...]:
    """The indices that address the structure of a sparse access."""
    return a.indices[: rank(a.buffer)]


def key_of(a: Load) -> Key:
    """Two accesses with one key stand on the same entry."""
    n = rank(a.buffer)
    return tuple(t.coords[:n] for t in a.buffer.whole), a.indices[:n]


def root(t: Tensor) -> Axis:
    """The outermost axis: tensors on one structure share it."""
    return t.whole[0].axes[0]


def lead(exprs: Sequence[Any], over: Sequence[Index]) -> Load | None:
    """The access that drives an iteration over these indices, outside inner reductions."""
    found = [a for e in exprs for a in _sparse(e) if _binds(a, over)]
    if len({key_of(a) for a in found}) <= 1:
        return found[0] if found else None
    for e in exprs:
        for a in _factors(e):
            if _binds(a, over):
                return a
    return None


@dataclass(frozen=True)
class Round:
    """One of the iterations that together make a whole: the access it follows, and the expressions there."""

    first: Load | None
    exprs: tuple[Any, ...]


def rounds(exprs: Sequence[Any], first: Load | None) -> tuple[Round, ...]:
    """One round; one for each part where the access that drives is in parts."""
    if first is None or not first.buffer.parts:
        return (Round(first, tuple(exprs)),)
    return tuple(
        Round(Load(part, first.indices), tuple(in_part(e, first, nth) for e in exprs))
        for nth, part in enumerate(first.buffer.parts)
    )


def in_part(e: Any, a: Load, nth: int) -> Any:
    """Accesses on the entry of a -> accesses to its n-th part; not where its indices are bound anew."""
    if isinstance(e, Reduce) and set(e.over) & set(held(a)):
        return e
    if _is_sparse(e) and key_of(e) == key_of(a):
        return Load(e.buffer.parts[nth], e.indices)
    return rebuild(e, lambda c: in_part(c, a, nth))


def by_parts(a: Load) -> tuple[Load, ...]:
    """The accesses that a lookup adds up."""
    return tuple(Load(t, a.indices) for t in a.buffer.whole)


def _binds(a: Load, over: Sequence[Index]) -> bool:
    at = held(a)
    return all(isinstance(ix, Index) for ix in at) and bool(set(over) & set(at))


def _is_sparse(e: Any) -> bool:
    return isinstance(e, Load) and isinstance(e.buffer, Tensor) and e.buffer.sparse


def _sparse(e: Any) -> Iterator[Load]:
    """Sparse accesses outside inner reductions."""
    if _is_sparse(e):
        yield e
    elif isinstance(e, Node) and not is_named(e) and not isinstance(e, Reduce):
        for c in parts(e):
            yield from _sparse(c)


def _factors(e: Any) -> Iterator[Load]:
    """Sparse accesses that multiply the whole expression: where they have no entry, it is 0."""
    match e:
        case Load() if _is_sparse(e):
            yield e
        case Bin("*", a, b):
            yield from _factors(a)
            yield from _factors(b)
        case Bin("/", a, _) | Cast(_, a) | Un("neg" | "abs" | "relu", a):
            yield from _factors(a)
        case Stored(a):
            yield from _factors(a)
