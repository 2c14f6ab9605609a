"""Reverse mode on stage I: the gradient of a statement is a list of statements.

In: a traced program, one of its statements and one of its targets. Out: `Gradient`: intermediates to compute first,
and for each access the programs whose sum is its gradient. Programs again, so that they lower, schedule and compile
alike. What goes through several statements goes through one after the other, the last one first (`ops.backward`).

    y[i, f] = sum(j, a[i, j] * x[j, f])
 -> d_a[i, j] = stored(a[i, j]) * sum(f, d_y[i, f] * x[j, f])
    d_x[j, f] = sum(i, a[i, j] * d_y[i, f])
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.ir.coord import Append, Assign, Index, Reduce, Stmt, Stored
from tilewright.ir.expr import Load
from tilewright.ir.monoid import monoids
from tilewright.ir.node import walk
from tilewright.language.grad_programs import Added, Back, d_of, free_name, result_of
from tilewright.language.grad_rules import ZERO, accesses
from tilewright.language.trace import Ref, Traced


@dataclass(frozen=True)
class Gradient:
    """`first`: intermediates, in order. `of`: for each input, programs whose results are added.

    saved: outputs of the forward program that these programs read. refused: why some inputs have no gradient.
    """

    first: tuple[Traced, ...]
    of: Mapping[str, tuple[Traced | Added, ...]]
    saved: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def programs(self, names: Collection[str]) -> list[Traced]:
        """What is run for the gradients of some inputs: the intermediates that are read, then all others."""
        made = [p for n, ps in self.of.items() if n in names for of in ps for p in programs_of(of)]
        return [*self.needed(made), *made]

    def needed(self, programs: Iterable[Traced]) -> list[Traced]:
        """The intermediates that some programs read, in order."""
        read = {n for p in programs for n in p.inputs}
        kept: list[Traced] = []
        for t in reversed(self.first):
            if t.outputs[0] in read:
                kept.insert(0, t)
                read |= set(t.inputs)
        return kept


def programs_of(p: Traced | Added) -> tuple[Traced, ...]:
    return p.programs if isinstance(p, Added) else (p,)


def gradient(t: Traced, nth: int = 0, part: int = 0) -> Gradient:
    """The reverse of a target of a statement; NoGradient names the statement that has none."""
    s = t.body[nth]
    assert isinstance(s, Assign)
    back = Back(t, s, part)
    whole = Reduce(monoids("f32")["sum"], back.order, s.values)  # driven as the targets' loops are
    held = tuple(Stored(a, within=whole) for a in accesses(s.values))
    back.visit(s.values[part], back.seed, back.order, held)
    of = back.programs()
    return Gradient(tuple(back.first), of, tuple(back.saved), back.refused)


def results(t: Traced) -> set[str]:
    """The outputs that gradients of statements read."""
    each = ((s, part) for s in t.body if isinstance(s, Assign) for part in range(len(s.targets)))
    found = (result_of(t, s, part) for s, part in each)
    return {made.buffer.name for made in found if made is not None}


def remaining(t: Traced, nth: int, part: int) -> Traced:
    """What a target's gradient is to the statements that wrote it before: 0 where this one wrote.

    y[i, n] = b[n]; y[t, n] = x[t, n], t listed  ->  rest[i, n] = d_y[i, n]; rest[t, n] = 0, t listed
    """
    s = t.body[nth]
    assert isinstance(s, Assign)
    target, own = s.targets[part], d_of(t, s.targets[part].buffer.name)
    rest, given = Ref(free_name(t, f"rest_{own}")), Ref(own)
    every = tuple(Index(f"r{d}") for d in range(len(target.indices)))
    body = (
        Assign((Load(rest, every),), (Load(given, every),)),
        Assign((Load(rest, target.indices),), (ZERO,), s.where, listed=s.listed),
    )
    refs = {n.buffer.name: n.buffer for n in walk(body) if isinstance(n, Load)}
    inputs = tuple(n for n in refs if n != rest.name)
    return Traced(
        f"{t.name}_{nth}_{part}_rest",
        (*inputs, rest.name),
        inputs,
        (rest.name,),
        (),
        tuple(refs.values()),
        body,
        ((rest.name, tuple((own, d) for d in range(len(every)))),),
        t.unique,
    )


def reads(s: Stmt) -> set[str]:
    """The names that a statement reads, those of lists and index arrays included."""
    held: tuple[object, ...] = ()
    if isinstance(s, Assign):
        held = (s.values, tuple(t.indices for t in s.targets), s.listed)
    elif isinstance(s, Append):
        held = (s.where, s.value, s.start)
    return {n.buffer.name for n in walk(held) if isinstance(n, Load)}


def writes(s: Stmt) -> set[str]:
    """The names that a statement assigns."""
    if isinstance(s, Append):
        return {s.list.name, s.count.name}
    return {t.buffer.name for t in s.targets} if isinstance(s, Assign) else set()


def whole(s: Assign, target: Load) -> bool:
    """Whether nothing is left of what was there before."""
    plain = all(isinstance(ix, Index) for ix in target.indices)
    return plain and not s.listed and len({*target.indices}) == len(target.indices)
