"""Which sparse accesses an iteration follows. Shared by the interpreter of stage I and by its lowering.

In: expressions and the indices to run over. Out: the access that drives, or None (whole ranges); rounds.

    sum(j, a[i, j] * x[j, f])              a drives: its stored entries
    sum(j, a[i, j] * b[j, k])              a drives, b is looked up: absent means 0
    a[i, j] + b[i, j]                      neither is a factor of the whole: all of i, j; both are looked up
    max(j, relu(a[i, j]))                  one structure alone drives whatever the expression
    max(j, sum(f, a[i, j] + w[f]))         from inside, too: the sum does not run over it

A tensor in parts drives as one: `rounds` has one round for each part, in which the accesses on its structure
are accesses to that part.

    sum(j, a[i, j] * x[j, f]), a in two parts   ->   a_0[i, j] * x[j, f] along a_0, a_1[i, j] * x[j, f] along a_1

So does a union, where a sum adds 0 outside of it and the structures are in order:

    sum(j, (a[i, j] + b[i, j]) * x[j, f])       ->   itself along a; (0 + b[i, j]) * x[j, f] along b, but not where a is
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.coord import Axis, Index, Place, Reduce, Stored, Tensor
from tilewright.ir.expr import Bin, Cast, Const, Load, Select, Un, compute_dtype
from tilewright.ir.node import Node, is_named, parts, rebuild

Key = tuple[Any, ...]
# functions that are 0 at 0
THROUGH_ZERO = frozenset("neg abs relu sqrt sin tanh expm1 log1p erf sign floor ceil".split())


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
    """The access that drives an iteration over these indices."""
    found = [a for e in exprs for a in _sparse(e) if _binds(a, over)]
    if len({key_of(a) for a in found}) <= 1:
        return found[0] if found else None
    for e in exprs:
        for a in factors(e):
            if _is_sparse(a) and _binds(a, over):
                return a
    return None


@dataclass(frozen=True)
class Round:
    """One of the iterations that together make a whole: the access it follows, and the expressions there.

    but: places where one of these has an entry are left out: an earlier round has visited them.
    """

    first: Load | None
    exprs: tuple[Any, ...]
    but: tuple[Load, ...] = ()


def rounds(exprs: Sequence[Any], first: Load | None) -> tuple[Round, ...]:
    """One round; one for each part where the access that drives is in parts."""
    if first is None or not first.buffer.parts:
        return (Round(first, tuple(exprs)),)
    return tuple(
        Round(Load(part, first.indices), tuple(in_part(e, first, nth) for e in exprs))
        for nth, part in enumerate(first.buffer.parts)
    )


def rounds_of(e: Reduce) -> tuple[Round, ...]:
    """The rounds of a reduction: along the access that drives, along a union, or over the whole range."""
    sides = followed(e)
    if not sides:
        return rounds(e.args, lead(e.args, e.over))
    return tuple(
        Round(a, tuple(without(x, sides[:nth]) for x in e.args), sides[:nth])
        for nth, a in enumerate(sides)
    )


def followed(e: Reduce) -> tuple[Load, ...]:
    """The accesses whose union a reduction follows: nothing else drives, and all are in order."""
    sides = united(e) if lead(e.args, e.over) is None else ()
    ordered = all(ax.ordered for a in sides for ax in a.buffer.axes if stored(ax))
    return sides if ordered else ()


def united(e: Reduce) -> tuple[Load, ...]:
    """The accesses whose union a sum may follow: where none of them has an entry, it adds 0.

    All stand on one place, a[i, j] and b[i, j], and can be searched if their coordinates are in order.
    """
    found = {key_of(a): a for x in e.args for a in _sparse(x) if _binds(a, e.over)}
    sides = tuple(found.values())
    if e.monoid.name != "sum" or len(sides) < 2 or any(held(a) != held(sides[0]) for a in sides):
        return ()
    if not all(_plain(a.buffer) for a in sides) or not all(vanishes(x, sides) for x in e.args):
        return ()
    return sides


def _plain(t: Tensor) -> bool:
    """One axis for each dimension, the first one dense, none with anything but entries."""
    if t.parts or any(len(dim) != 1 for dim in t.coords):
        return False
    odd = any(ax.padded or ax.shared or ax.repeats or ax.mask is not None for ax in t.axes)
    return (
        not odd
        and not stored(t.axes[0])
        and all(ax.extent == "variable" for ax in structure(t)[1:])
    )


def vanishes(e: Any, sides: Sequence[Load]) -> bool:
    """Whether an expression is 0 where none of these accesses has an entry."""
    match e:
        case Const(value):
            return value == 0
        case Load() if _is_sparse(e):
            return any(key_of(e) == key_of(a) for a in sides)
        case Bin("*", a, b):
            return vanishes(a, sides) or vanishes(b, sides)
        case Bin("+" | "-" | "max" | "min", a, b) | Select(_, a, b):
            return vanishes(a, sides) and vanishes(b, sides)
        case Bin("/", a, _) | Cast(_, a) | Stored(a):
            return vanishes(a, sides)
        case Un(op, a):
            return op in THROUGH_ZERO and vanishes(a, sides)
    return False


def without(e: Any, gone: Sequence[Load]) -> Any:
    """Accesses that are known to have no entry -> 0"""
    if isinstance(e, Stored):
        return Const(0.0, e.dtype) if _is_gone(e.access, gone) else e
    if _is_sparse(e):
        return Const(0.0, compute_dtype(e.buffer.dtype)) if _is_gone(e, gone) else e
    if isinstance(e, Reduce | Place):
        return e
    return rebuild(e, lambda c: without(c, gone))


def _is_gone(e: Any, gone: Sequence[Load]) -> bool:
    access: Any = e.a if isinstance(e, Cast) else e
    return any(key_of(access) == key_of(a) for a in gone)


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
    """Sparse accesses; of those inside inner reductions the ones that these do not run over."""
    if _is_sparse(e):
        yield e
    elif isinstance(e, Reduce):
        inner = (a for arg in e.args for a in _sparse(arg))
        yield from (a for a in inner if not {*e.over} & {*held(a)})
    elif isinstance(e, Node) and not is_named(e) and not isinstance(e, Place):
        for c in parts(e):
            yield from _sparse(c)


def factors(e: Any) -> Iterator[Load]:
    """Accesses that multiply the whole expression: where a sparse one has no entry, it is 0."""
    match e:
        case Load():
            yield e
        case Bin("*", a, b):
            yield from factors(a)
            yield from factors(b)
        case Bin("/", a, _) | Cast(_, a) | Un("neg" | "abs" | "relu", a):
            yield from factors(a)
        case Stored(a):
            yield from factors(a)
        case Reduce(m, over, (a,)) if m.name in ("sum", "mean"):
            at = lambda n: held(n) if _is_sparse(n) else n.indices
            yield from (n for n in factors(a) if not {*over} & {*at(n)})
