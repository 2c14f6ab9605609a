"""Which axes may be permuted, what may be skipped along them, and what must travel with them.

In: a stage I program. Out: `Rules`: data, with the reason of every answer; `print` shows them as a table.

An axis is permutation invariant if its values may come in any order: where it addresses operands and outputs plainly,
and no reduction over it depends on the order. Then scattered parts of it can be put side by side (a compacted axis).
Skipping needs more: an operand's value must make a contribution that changes nothing (its annihilator), and what is
skipped of an output must have a known value.

    y[i, n] = sum(k, x[i, k] * w[n, k]) + b[n]
        i   invariant; x and y travel; where x is 0, y is not known: b[n] is left
        k   invariant; x and w travel; where x (or w) is 0, nothing is added
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.analysis.fold import left, neutral
from tilewright.ir.coord import (
    Append,
    Assign,
    Index,
    Nth,
    Place,
    Program,
    Reduce,
    Stmt,
    Stored,
    Tensor,
    spatial,
)
from tilewright.ir.drive import rank
from tilewright.ir.expr import Bin, Const, Expr, Load, Var
from tilewright.ir.monoid import Monoid, apply
from tilewright.ir.node import Node, is_named, parts, transform, walk

CANDIDATES = (0.0, -math.inf, math.inf, 1.0)
Gone = Callable[[Load], bool]
COMMUTE = ("+", "*", "min", "max", "&", "|", "==", "!=")


@dataclass(frozen=True)
class Travel:
    """A tensor that is addressed by an axis: compacting the axis gathers (or scatters) this dimension of it."""

    tensor: str
    dim: int
    written: bool = False

    def __str__(self) -> str:
        return f"{self.tensor}.{self.dim}" + ("!" if self.written else "")


@dataclass(frozen=True)
class Skip:
    """What a whole slice of zeros means. Reduction axes: `value` of `operand` adds nothing. Spatial axes: `leaves` is
    what the output is then; None: it is not known, `why` says what is left."""

    operand: str
    value: float
    leaves: float | None
    why: str

    @property
    def known(self) -> bool:
        return self.leaves is not None


@dataclass(frozen=True)
class AxisRule:
    """One axis of one statement. kind: spatial, reduction, listed (what an append runs over) or group."""

    statement: int
    axis: str
    kind: str
    invariant: bool
    why: str
    travels: tuple[Travel, ...]
    skips: tuple[Skip, ...] = ()

    def skip(self, operand: str) -> Skip | None:
        """What may be skipped where an operand is zero, if anything."""
        return next((s for s in self.skips if s.operand == operand and s.known), None)


@dataclass(frozen=True)
class Annihilator:
    """The value of an operand that makes a contribution to a reduction change nothing; None: there is none."""

    statement: int
    reduction: str
    operand: str
    value: float | None
    why: str


@dataclass(frozen=True)
class Rules:
    """All that is known about the axes of a program."""

    program: str
    axes: tuple[AxisRule, ...]
    annihilators: tuple[Annihilator, ...]

    def axis(self, name: str, statement: int = 0) -> AxisRule:
        return next(a for a in self.axes if a.axis == name and a.statement == statement)

    def annihilator(self, operand: str, over: str, statement: int = 0) -> Annihilator:
        """Of the reduction over an axis."""
        found = (a for a in self.annihilators if a.operand == operand and a.statement == statement)
        return next(a for a in found if over in a.reduction.split(" over ")[1].split(", "))

    def __str__(self) -> str:
        head = ("axis", "kind", "any order", "travels", "skipping", "why")
        rows: list[tuple[str, ...]] = [head]
        rows += [_row(a, len({b.statement for b in self.axes}) > 1) for a in self.axes]
        widths = [max(len(r[n]) for r in rows) for n in range(5)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[5]]).rstrip()
            for r in rows
        ]
        return "\n".join([f"axes of {self.program}", *("  " + line for line in lines)])


def _row(a: AxisRule, several: bool) -> tuple[str, ...]:
    said = [f"{s.operand} = {s.value:g}: {_leaves(a, s)}" for s in a.skips]
    name = f"{a.axis} ({a.statement})" if several else a.axis
    travels = " ".join(str(t) for t in a.travels)
    return name, a.kind, "yes" if a.invariant else "no", travels, "; ".join(said) or "-", a.why


def _leaves(a: AxisRule, s: Skip) -> str:
    if s.leaves is None:
        return s.why
    return "adds nothing" if a.kind == "reduction" else f"gives {s.leaves:g}"


def rules_of(p: Program) -> Rules:
    """The rules of every axis of every statement."""
    axes: list[AxisRule] = []
    found: list[Annihilator] = []
    for n, s in enumerate(p.body):
        found += _annihilators(n, s)
        axes += [_rule(n, s, ix) for ix in dict.fromkeys(_indices(s))]
    return Rules(p.name, tuple(axes), tuple(found))


def _indices(s: Stmt) -> list[Index]:
    return [m for m in walk(s) if isinstance(m, Index)]


# --- where an axis occurs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """plain: addresses a dimension. Anything else is a reason against another order."""

    index: Index
    why: str = ""
    travel: Travel | None = None


def _uses(s: Stmt) -> Iterator[_Use]:
    if isinstance(s, Append):
        for part in (s.where, s.value, s.start):
            yield from _in(part, part, False)
        for d, g in enumerate(s.group):
            if s.start is not None:
                yield _Use(g, "lists stand one behind the other in its order")
            else:
                yield _Use(g, travel=Travel(s.list.name, d, True))
            yield _Use(g, travel=Travel(s.count.name, d, True))
        for ix in s.over:
            yield _Use(ix, f"{s.list.name} lists what is found along it")
        return
    assert isinstance(s, Assign)
    for n in s.listed:
        yield _Use(n.index, f"{n.at.buffer.name} names its values")
        yield _Use(n.place, f"it counts places of {n.at.buffer.name}")
        for a in (n.at, n.below):
            yield from () if a is None else _access(a, False)
    for t in s.targets:
        yield from _in(t, t, True)
    for v in s.values:
        yield from _in(v, v, False)


def _in(e: Any, around: Any, written: bool) -> Iterator[_Use]:
    match e:
        case Index():
            yield _Use(e, f"{around} uses its number")
        case Nth(indices):
            for ix in indices:
                yield _Use(ix, f"{e} uses its number")
        case Load():
            yield from _access(e, written)
        case Stored(access) | Place(access):
            yield from _in(access, access, written)
        case Node() if not is_named(e) and not isinstance(e, Monoid):
            inner = e if isinstance(e, Bin | Reduce) else around
            for c in e.args if isinstance(e, Reduce) else parts(e):
                yield from _in(c, inner, written)


def _access(a: Load, written: bool) -> Iterator[_Use]:
    t: Tensor = a.buffer
    held = rank(t) if t.sparse else 0
    for d, ix in enumerate(a.indices):
        if not isinstance(ix, Index):
            yield from _computed(ix, a)
        elif d < held:
            yield _Use(
                ix, f"{t.name} stores its entries along it: another order is another structure"
            )
        else:
            yield _Use(ix, travel=Travel(t.name, d, written))
        if isinstance(ix, Index):
            yield from _tied(ix)


def _tied(ix: Index) -> Iterator[_Use]:
    """Parts, and what counts them; parts may be of parts."""
    if ix.within is not None:
        outer, count = ix.within
        yield _Use(ix, f"it runs over parts of {count}, one for each {outer.name}")
        yield _Use(outer, f"it counts parts of {ix.name}, {count} in each")
        yield from _tied(outer)


def _computed(e: Any, a: Load) -> Iterator[_Use]:
    """Inside an index: an access of its own, or arithmetic that ties neighbours together."""
    if isinstance(e, Load):
        yield from _access(e, False)
    elif isinstance(e, Index):
        yield _Use(e, f"{a} computes with it")
        yield from _tied(e)
    else:
        for c in parts(e):
            yield from _computed(c, a)


# --- one axis ---------------------------------------------------------------------------------------


def _rule(n: int, s: Stmt, ix: Index) -> AxisRule:
    uses = [u for u in _uses(s) if u.index is ix]
    reductions = [r for r in walk(s) if isinstance(r, Reduce) and ix in r.over]
    kind = _kind(s, ix)
    against = [u.why for u in uses if u.why] + [w for r in reductions if (w := _disorder(r.monoid))]
    if reductions and kind != "reduction":
        against.append("it is bound again inside a reduction")
    travels = tuple(dict.fromkeys(u.travel for u in uses if u.travel is not None))
    why = "; ".join(dict.fromkeys(against)) or _because(kind, reductions)
    skips = () if against else _skips(s, ix, reductions)
    return AxisRule(n, ix.name, kind, not against, why, travels, skips)


def _kind(s: Stmt, ix: Index) -> str:
    if isinstance(s, Append):
        return "group" if ix in s.group else "listed" if ix in s.over else "reduction"
    assert isinstance(s, Assign)
    return "spatial" if ix in spatial(s) else "reduction"


def _because(kind: str, reductions: list[Reduce]) -> str:
    if kind == "reduction":
        names = dict.fromkeys(r.monoid.name for r in reductions)
        return f"{', '.join(names)} of any order is the same"
    return "each value has results of its own"


def _disorder(m: Monoid) -> str | None:
    """Why the order matters to a monoid; None where combine(a, b) is combine(b, a), written otherwise."""
    n = len(m.state)
    a, b = (tuple(Var(f"{s}_{v}", d) for v, d in zip(m.state, m.dtypes, strict=True)) for s in "ab")
    one, other = apply(m.combine, (*a, *b)), apply(m.combine, (*b, *a))
    same = all(_sorted(one[k]) == _sorted(other[k]) for k in range(n))
    return None if same else f"{m.name} is not told to be the same in any order"


def _sorted(e: Expr) -> Expr:
    """The operands of commutative operations in one order."""

    def rule(x: Any) -> Expr | None:
        if isinstance(x, Bin) and x.op in COMMUTE:
            first, second = sorted((x.a, x.b), key=str)
            return Bin(x.op, first, second)
        return None

    made: Expr = transform(e, rule)
    return made


# --- skipping ---------------------------------------------------------------------------------------


def _operands(e: Any) -> list[Tensor]:
    found = (a.buffer for a in walk(e) if isinstance(a, Load) and isinstance(a.buffer, Tensor))
    return list(dict.fromkeys(found))


def _annihilators(n: int, s: Stmt) -> Iterator[Annihilator]:
    """For every reduction and every operand of it."""
    for r in dict.fromkeys(m for m in walk(s) if isinstance(m, Reduce)):
        if r.part:
            continue
        name = f"{r.monoid.name} over {', '.join(ix.name for ix in r.over)}"
        for t in _operands(tuple(_outside_indices(r.args))):
            value = _neutral(r, _of(t))
            why = "changes nothing" if value is not None else _remains(r, t)
            yield Annihilator(n, name, t.name, value, why)


def _neutral(r: Reduce, gone: Gone) -> float | None:
    """The value of some accesses at which an entry changes nothing."""
    for v in CANDIDATES:
        if neutral(r.monoid, [left(a, gone, v) for a in r.args]):
            return v
    return None


def _outside_indices(args: Any) -> Iterator[Any]:
    """Accesses that are values: not those inside the indices of others."""
    for e in args:
        if isinstance(e, Load):
            yield e
        elif isinstance(e, Node) and not is_named(e) and not isinstance(e, Monoid):
            yield from _outside_indices(parts(e))


def _remains(r: Reduce, t: Tensor) -> str:
    made = [left(a, _of(t), 0.0) for a in r.args]
    told = ", ".join(str(e) for e in made)
    return f"where {t.name} is 0, {r.monoid.name} still gets {told}"


def _of(t: Tensor) -> Gone:
    return lambda a: a.buffer is t


def _along(t: Tensor, ix: Index) -> Gone:
    """The accesses of an operand that an axis addresses: the others are not in the slice."""
    return lambda a: a.buffer is t and any(n is ix for n in walk(a.indices))


def _skips(s: Stmt, ix: Index, reductions: list[Reduce]) -> tuple[Skip, ...]:
    """For every operand along the axis, what its zeros (or other values that add nothing) mean."""
    made = []
    for t in _operands(tuple(_outside_indices(_values(s)))):
        gone = _along(t, ix)
        if not any(isinstance(a, Load) and gone(a) for a in walk(_values(s))):
            continue
        if reductions:
            found = [_neutral(r, gone) for r in reductions]
            if found[0] is not None and all(v == found[0] for v in found):
                made.append(Skip(t.name, found[0], 0.0, "adds nothing"))
        elif isinstance(s, Assign):
            tried = [_left_of(s, t.name, gone, v) for v in (0.0, -math.inf)]
            made.append(tried[1] if _tells_more(s, gone, *tried) else tried[0])
    return tuple(made)


def _tells_more(s: Assign, gone: Gone, zero: Skip, lowest: Skip) -> bool:
    """Whether -inf is what is worth skipping: 0 leaves something, and -inf vanishes or is reduced away."""
    if zero.leaves is not None or lowest.leaves is None:
        return False
    reduced = [a for r in walk(s.values) if isinstance(r, Reduce) for a in walk(r.args)]
    return math.isfinite(lowest.leaves) or any(isinstance(a, Load) and gone(a) for a in reduced)


def _values(s: Stmt) -> tuple[Expr, ...]:
    return s.values if isinstance(s, Assign) else (s.where,) if isinstance(s, Append) else ()


def _left_of(s: Assign, operand: str, gone: Gone, value: float) -> Skip:
    """What the outputs are where an operand has one value along a slice."""
    rest = [left(v, gone, value) for v in s.values]
    told = [r for r in rest if not isinstance(r, Const)]
    if told:
        return Skip(operand, value, None, f"{told[0]} is left")
    first = rest[0]
    assert isinstance(first, Const)
    return Skip(operand, value, float(first.value), "known")
