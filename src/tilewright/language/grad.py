"""Reverse mode on stage I: the gradient of a statement is a list of statements.

In: a traced program, one of its statements and one of its targets. Out: `Gradient`: intermediates to compute first,
and for each access the programs whose sum is its gradient. Programs again, so that they lower, schedule and compile
alike. What goes through several statements goes through one after the other, the last one first (`ops.backward`).

    y[i, f] = sum(j, a[i, j] * x[j, f])
 -> d_a[i, j] = stored(a[i, j]) * sum(f, d_y[i, f] * x[j, f])
    d_x[j, f] = sum(i, a[i, j] * d_y[i, f])
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.coord import Append, Assign, Index, Reduce, Stmt, Stored
from tilewright.ir.expr import Expr, Load
from tilewright.ir.monoid import monoids
from tilewright.ir.node import walk
from tilewright.language.grad_rules import ZERO, Found, Rules, outside, product
from tilewright.language.trace import Ref, Traced
from tilewright.support.errors import error


@dataclass(frozen=True)
class Gradient:
    """`first`: intermediates, in order. `of`: for each input, programs whose results are added.

    saved: outputs of the forward program that these programs read.
    """

    first: tuple[Traced, ...]
    of: dict[str, tuple[Traced, ...]]
    saved: tuple[str, ...] = ()


def d_of(t: Traced, name: str) -> str:
    """The name of a tensor's gradient, d_x; the program's own names are taken."""
    return _free(t, f"d_{name}")


def _free(t: Traced, name: str) -> str:
    taken = {*t.params, *(r.name for r in t.refs)}
    while name in taken:
        name += "_"
    return name


def gradient(t: Traced, nth: int = 0, part: int = 0) -> Gradient:
    """The reverse of a target of a statement; NoGradient names the statement that has none."""
    s = t.body[nth]
    assert isinstance(s, Assign)
    if s.listed:
        raise error("no-gradient", name=t.name, got="it has a compacted axis")
    label = "".join(f"_{n}" for n, all_ in ((nth, t.body), (part, s.targets)) if len(all_) > 1)
    back = _Back(t, s, label=f"{t.name}{label}")
    target, value = s.targets[part], s.values[part]
    seed = Load(back.ref(d_of(t, target.buffer.name)), target.indices)
    axes = tuple(dict.fromkeys(n for n in walk(target.indices) if isinstance(n, Index)))
    back.order, back.outside = axes, tuple(outside(value))
    back.visit(value, seed, axes, ())
    return Gradient(tuple(back.first), back.programs())


def remaining(t: Traced, nth: int, part: int) -> Traced:
    """What a target's gradient is to the statements that wrote it before: 0 where this one wrote.

    y[i, n] = b[n]; y[t, n] = x[t, n], t listed  ->  rest[i, n] = d_y[i, n]; rest[t, n] = 0, t listed
    """
    s = t.body[nth]
    assert isinstance(s, Assign)
    target, own = s.targets[part], d_of(t, s.targets[part].buffer.name)
    rest, given = Ref(_free(t, f"rest_{own}")), Ref(own)
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


@dataclass
class _Back(Rules):
    label: str = ""
    first: list[Traced] = field(default_factory=list)
    refs: dict[str, Ref] = field(default_factory=dict)

    def ref(self, name: str) -> Ref:
        known = {r.name: r for r in self.t.refs}
        return known.get(name) or self.refs.setdefault(name, Ref(name))

    def keep(self, e: Reduce) -> Load:
        """The reduction as a program of its own."""
        axes = tuple(sorted(self.free(e), key=self.rank))
        name = _free(self.t, f"kept{len(self.first)}")
        target = Load(self.ref(name), axes)
        self.first.append(self.program(f"{self.label}_{name}", name, Assign((target,), (e,))))
        return target

    def programs(self) -> dict[str, tuple[Traced, ...]]:
        made: dict[str, list[Traced]] = {}
        for load, g, axes, held in self.merged():
            name = load.buffer.name
            if not all(isinstance(ix, Index) for ix in load.indices) and not self.unique(load):
                raise error(
                    "no-gradient", name=self.t.name, got=f"{load} is read through an index array"
                )
            inside = {n for n in walk(load.indices) if isinstance(n, Index)}
            over = tuple(ix for ix in axes if ix not in inside)
            present = {n for n in walk(g) if isinstance(n, Load)}
            missing = [s for s in dict.fromkeys(held) if s.access not in present | {load}]
            body = g * product(missing)
            if over:
                body = Reduce(monoids("f32")["sum"], over, (body,))
            if len(load.indices) > 1:
                body = Stored(load) * body
            own = d_of(self.t, name)
            target = Load(self.ref(own), load.indices)
            nth = len(made.get(name, ()))
            label = f"{self.label}_d_{name}{nth or ''}"
            made.setdefault(name, []).append(
                self.program(label, own, Assign((target,), (body,)), name)
            )
        return {n: tuple(ps) for n, ps in made.items()}

    def merged(self) -> list[Found]:
        """Contributions to the same access under the same axes, added up."""
        total: dict[tuple[Load, tuple[Index, ...]], tuple[Expr, tuple[Stored, ...]]] = {}
        for load, g, axes, held in self.found:
            before = total.get((load, axes))
            total[load, axes] = (
                (g, held) if before is None else (before[0] + g, (*before[1], *held))
            )
        return [(load, g, axes, held) for (load, axes), (g, held) in total.items()]

    def unique(self, load: Load) -> bool:
        """Whether an indirect access names every element at most once (declared by the program)."""
        lists = [n.buffer.name for ix in load.indices for n in walk(ix) if isinstance(n, Load)]
        return all(n in self.t.unique for n in lists)

    def program(self, label: str, out: str, s: Assign, like: str | None = None) -> Traced:
        refs = {n.buffer.name: n.buffer for n in walk(s) if isinstance(n, Load)}
        inputs = tuple(n for n in refs if n != out)
        scalars = tuple(v for v in self.t.scalars if any(n is v for n in walk(s)))
        sized: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
        found = {ix for n in walk(s.values) if isinstance(n, Load) for ix in n.indices}
        if like is not None and not all(
            isinstance(ix, Index) and ix in found for ix in s.targets[0].indices
        ):
            rank = len(s.targets[0].indices)
            sized = ((out, tuple((like, d) for d in range(rank))),)
            if like not in inputs:
                inputs = (*inputs, like)
                refs[like] = self.ref(like)
        params = (*inputs, *(v.name for v in scalars), out)
        return Traced(
            label,
            params,
            inputs,
            (out,),
            scalars,
            tuple(refs.values()),
            (s,),
            sized,
            self.t.unique,
            wide=like is None,
        )
