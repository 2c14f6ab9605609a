"""Reverse mode of one statement: the adjoints of its accesses as programs, and the intermediates that these read.

In: a traced program, one of its statements and one of its targets. Out: `Back`, with programs.

    y[t, f] = x[t, f] * s[f], t listed
 -> d_x[t, f] = d_y[t, f] * s[f], t listed             what is not named has the gradient 0
    d_s[f] = sum(t, d_y[t, f] * x[t, f]), t listed     and no part in that of others

Where lists belong to groups (a list of k's for each 32 rows) and a gradient adds up over these, it runs over all, and
an intermediate says what is named (`unlisted`):

    y[i, n] = sum(k, x[i, k] * w[n, k]), k listed for i
 -> named[i, k] = 1, k listed for i;  d_w[n, k] = sum(i, where(named[i, k] != 0, d_y[i, n] * x[i, k], 0))

What is read through an index array may be read several times: its gradient is added up after the program (`Added`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.coord import Assign, Index, Listed, Reduce, Stored, groups_of
from tilewright.ir.drive import factors
from tilewright.ir.expr import Const, Expr, Load, ne, select
from tilewright.ir.monoid import monoids
from tilewright.ir.node import substitute, transform, walk
from tilewright.language.grad_rules import (
    ONE,
    SOFTMAX,
    ZERO,
    Found,
    Rules,
    accesses,
    outside,
    product,
)
from tilewright.language.trace import Ref, Traced
from tilewright.support.errors import TilewrightError

Sized = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def d_of(t: Traced, name: str) -> str:
    """The name of a tensor's gradient, d_x; the program's own names are taken."""
    return free_name(t, f"d_{name}")


def free_name(t: Traced, name: str) -> str:
    taken = {*t.params, *(r.name for r in t.refs)}
    while name in taken:
        name += "_"
    return name


@dataclass(frozen=True)
class Added:
    """Parts of a gradient of which several may belong to one element: `values`, and the programs that say where.

    arrays: what the access is read through. values have the dimensions of `places` first, then those of the access
    that are no part of `dims`.
    """

    load: Load
    arrays: tuple[str, ...]
    values: Traced
    places: tuple[Traced, ...]
    dims: tuple[int, ...]

    @property
    def programs(self) -> tuple[Traced, ...]:
        return (self.values, *self.places)


def result_of(t: Traced, s: Assign, part: int) -> Load | None:
    """The output that is a softmax-weighted sum and nothing else: its gradient reads it, and sums up once less."""
    target, e = s.targets[part], s.values[part]
    name = target.buffer.name
    if not isinstance(e, Reduce) or e.monoid.name not in SOFTMAX or e.part or s.adds or s.listed:
        return None
    plain = all(isinstance(ix, Index) for ix in target.indices)
    once = plain and len({*target.indices}) == len(target.indices)
    alone = sum(a.buffer.name == name for x in t.body if isinstance(x, Assign) for a in x.targets)
    return target if once and alone == 1 else None


class Back(Rules):
    """Programs of what the walk over a target's value finds."""

    def __init__(self, t: Traced, s: Assign, part: int) -> None:
        super().__init__(t, s, listed={n.index: n for n in s.listed})
        several = ((t.body.index(s), t.body), (part, s.targets))
        self.label = t.name + "".join(f"_{n}" for n, all_ in several if len(all_) > 1)
        self.first: list[Traced] = []
        self.refs: dict[str, Ref] = {}
        self.named: dict[Index, Ref] = {}
        self.refused: dict[str, str] = {}
        target, value = s.targets[part], s.values[part]
        self.seed = Load(self.ref(d_of(t, target.buffer.name)), target.indices)
        self.outside = tuple(outside(value))
        self.order = self.indices(target)
        self.part, self.saved = part, list[str]()
        for n in walk(target.indices):
            if isinstance(n, Load) and n.buffer.name not in t.unique:
                raise self.refuse(
                    f"{n.buffer.name}, by which {target} is written, may name something twice"
                )
        groups = {g for n in s.listed for g in groups_of(n)}
        held = (ix for ix in self.order if ix.within is not None)
        self.inner = {ix.within[0]: ix for ix in held if ix.within and ix.within[0] in groups}
        for g in groups - {*self.order, *self.inner}:
            raise self.refuse(f"{g.name}, which has lists of its own, is no axis of {target}")

    def ref(self, name: str) -> Ref:
        known = {r.name: r for r in self.t.refs}
        return known.get(name) or self.refs.setdefault(name, Ref(name))

    def indices(self, a: Load) -> tuple[Index, ...]:
        """The axes that an access stands on; the place in a list stands for what is named there."""
        places = {n.place: n.index for n in self.listed.values()}
        found = (n for n in walk(a.indices) if isinstance(n, Index))
        return tuple(dict.fromkeys(places.get(n, n) for n in found))

    # --- intermediates ----------------------------------------------------------------------------

    def keep(self, e: Reduce) -> Load:
        """The reduction as a program of its own."""
        axes = sorted(self.free(e), key=self.rank)
        target = Load(self.new("kept"), (*axes,))
        self.first.append(self.program(f"{self.label}_{target.buffer.name}", target, self.where(e)))
        return target

    def result(self, e: Reduce) -> Load | None:
        made = result_of(self.t, self.s, self.part)
        if made is None or e is not self.s.values[self.part]:
            return None
        self.saved.append(made.buffer.name)
        return made

    def new(self, stem: str) -> Ref:
        return self.ref(free_name(self.t, f"{stem}{len(self.first)}"))

    def mask(self, n: Listed) -> Expr:
        """Whether lists of groups name a value of their axis."""
        own = self.origin.get(n.index, n.index)
        if own not in self.named:
            self.named[own] = self.new("named")
            first = self.listed[own]
            target = Load(self.named[own], (*self.groups(first), own))
            self.first.append(self.program(f"{self.label}_{target.buffer.name}", target, ONE))
        return ne(Load(self.named[own], (*self.groups(n), n.index)), ZERO)

    def unlisted(self, e: Any, n: Listed) -> Any:
        """The value over all of a listed axis, 0 where it is not named; the axis is free in it, or summed up."""
        if n.place in walk(e):
            raise self.refuse(f"{n.place.name} is read as a place in lists of groups")
        there = self.mask(n)
        inside = [r for r in walk(e) if isinstance(r, Reduce) and n.index in r.over]
        if not inside:
            return select(there, e, ZERO)
        for r in inside:
            if r.monoid.name != "sum":
                raise self.refuse(f"{r.monoid.name} runs over lists of groups that are summed up")

        def cut(r: Any) -> Any:
            mine = isinstance(r, Reduce) and n.index in r.over
            return Reduce(r.monoid, r.over, (select(there, r.args[0], ZERO),)) if mine else None

        return transform(e, cut)

    # --- programs ---------------------------------------------------------------------------------

    def programs(self) -> dict[str, tuple[Traced | Added, ...]]:
        """For each access the programs whose sum is its gradient; `refused` says of some why they have none."""
        made: dict[str, list[Traced | Added]] = {}
        for load, g, axes, held in self.merged():
            name, read = load.buffer.name, {n for n in walk(g) if isinstance(n, Load)}
            dense = {n for n in read if {*n.indices} & {*self.listed}}  # as all over lists is
            seen = {n for n in {load, *factors(g)} | dense if not self.hidden(n, load, axes)}
            missing = [s for s in dict.fromkeys(held) if s.access not in seen]
            label = f"{self.label}_d_{name}{len(made.get(name, ())) or ''}"
            way = self.stored if self.once(load) else self.added
            try:
                made.setdefault(name, []).append(way(label, load, g * product(missing), axes))
            except TilewrightError as why:
                self.refused.setdefault(name, why.names["got"])
        return {n: tuple(ps) for n, ps in made.items()}

    def hidden(self, a: Load, load: Load, axes: tuple[Index, ...]) -> bool:
        """Whether a sum over what lies inside of entries keeps loops from following an access, as a[i, j, h] where the
        gradient of x[i, j] is summed over h: what is not stored must add nothing."""
        mine = {*self.indices(load)}
        inside = {*a.indices[2:]} & {*axes} - mine
        return a != load and {*a.indices[:2]} <= mine and bool(inside)

    def once(self, load: Load) -> bool:
        """Whether an access names every element at most once, and nothing that is not there."""

        def sure(ix: Expr) -> bool:
            if isinstance(ix, Load) and ix.buffer.name in self.t.unique:
                return all(isinstance(n, Index) for n in ix.indices)
            return isinstance(ix, Index | Const)

        return all(map(sure, load.indices))

    def stored(self, label: str, load: Load, g: Expr, axes: tuple[Index, ...]) -> Traced:
        """d_x[j, f] = sum(i, g)"""
        target = Load(self.ref(d_of(self.t, load.buffer.name)), load.indices)
        body = self.summed(target, g, axes)
        if len(load.indices) > 1:
            body = Stored(load) * body
        return self.program(label, target, body, load.buffer.name)

    def added(self, label: str, load: Load, g: Expr, axes: tuple[Index, ...]) -> Added:
        """x[t[p], f]  ->  more[p, f] = sum(i, g), to be added where at[p] = t[p] says"""
        plain = [ix for ix in load.indices if isinstance(ix, Index)]
        through = tuple(ix for ix in load.indices if not isinstance(ix, Index))
        named = self.indices(Load(load.buffer, through))
        rest = {ix for ix in plain if ix not in named and plain.count(ix) == 1}
        dims = tuple(d for d, ix in enumerate(load.indices) if ix not in rest)
        named = tuple(dict.fromkeys([*named, *(ix for ix in plain if ix not in rest)]))
        last = tuple(ix for ix in plain if ix in rest)
        arrays = tuple(n for n in walk(through) if isinstance(n, Load))
        held = accesses((*arrays, g))
        mine = [a for a in held if all(isinstance(ix, Index) and ix in named for ix in a.indices)]
        target = Load(self.ref(free_name(self.t, f"more_{load.buffer.name}")), (*named, *last))
        body = product(map(Stored, mine)) * self.summed(target, g, axes)
        values = self.program(f"{label}_more", target, body)
        there = product((Stored(a, "i64") for a in mine), Const(1, "i64"))  # floats are not exact
        places = []
        for d in dims:
            at = Load(self.ref(free_name(self.t, f"at{d}")), named)
            made = self.program(f"{label}_at{d}", at, load.indices[d] * there)
            places.append(replace(made, typed=((at.buffer.name, "i64"),)))
        return Added(load, tuple(a.buffer.name for a in arrays), values, tuple(places), dims)

    def summed(self, load: Load, body: Expr, axes: tuple[Index, ...]) -> Expr:
        """The sum over all axes that an access does not have; parts of a range have their number in it."""
        mine = self.indices(load)
        for n in self.lists((load.indices, body)):
            if not {*self.groups(n)} <= {*mine}:
                body = self.unlisted(body, n)
        for ix in mine:
            if ix.within is not None and ix.within[0] in axes and ix.within[0] not in mine:
                body = substitute(body, {ix.within[0]: ix // ix.within[1]})
                axes = tuple(a for a in axes if a is not ix.within[0])
        over = tuple(ix for ix in axes if ix not in mine)
        body = body * product(Stored(a) for ix in over for a in self.sizing(ix, body))
        return Reduce(monoids("f32")["sum"], over, (body,)) if over else body

    def sizing(self, ix: Index, body: Expr) -> list[Load]:
        """A vector that says how far an index goes, where nothing else does: sum(g, b[g] - s[i]) has n_g of s[i]."""
        if any(isinstance(n, Load) and ix in n.indices for n in walk(body)):
            return []
        own = (self.origin.get(ix, ix),)
        vectors = (n for n in walk(self.s.values) if isinstance(n, Load) and n.indices == own)
        return [Load(n.buffer, (ix,)) for n in vectors][:1]

    def measured(self, e: Expr) -> Expr:
        """The same where each reduction says how far it goes: sum(j, s[i]) has n_j of a vector x[j]."""

        def told(r: Any) -> Any:
            over = r.over if isinstance(r, Reduce) else ()
            more = [Stored(a) for ix in over for a in self.sizing(ix, e)]
            if not more:
                return None
            return replace(r, args=(product(more, r.args[0]), *r.args[1:]))

        made: Expr = transform(e, told)
        return made

    def lists(self, e: Any) -> tuple[Listed, ...]:
        """The lists of the axes in an expression, and of the groups of these."""
        found = {n: self.listed[n] for n in walk(e) if isinstance(n, Index) and n in self.listed}
        more = {g for n in found.values() for g in groups_of(n) if g in self.listed} - {*found}
        return tuple(found.values()) + tuple(self.listed[g] for g in more)

    def merged(self) -> list[Found]:
        """Contributions to the same access under the same axes, added up."""
        total: dict[tuple[Load, tuple[Index, ...]], tuple[Expr, tuple[Stored, ...]]] = {}
        for load, g, axes, held in self.found:
            before = total.get((load, axes))
            total[load, axes] = (
                (g, held) if before is None else (before[0] + g, (*before[1], *held))
            )
        return [(load, g, axes, held) for (load, axes), (g, held) in total.items()]

    def program(self, label: str, target: Load, value: Expr, like: str | None = None) -> Traced:
        """One output. like: an input that is as large; intermediates keep the accumulator's dtype."""
        value, mine = self.measured(value), {*self.indices(target)}
        lists = tuple(n for n in self.lists((target.indices, value)) if {*self.groups(n)} <= mine)
        s = Assign((target,), (value,), listed=lists)
        sized, body = self.sizes(s, like), tuple[Assign, ...]([s])
        if {n.place for n in lists} & {*target.indices}:  # what lies behind a list is 0
            every = tuple(Index(f"r{d}") for d in range(len(target.indices)))
            body = (Assign((Load(target.buffer, every),), (ZERO,)), s)
        out = target.buffer.name
        refs = {n.buffer.name: n.buffer for n in walk(body) if isinstance(n, Load)}
        refs |= {n: self.ref(n) for _, dims in sized for n, _ in dims}
        inputs = tuple(n for n in refs if n != out)
        scalars = tuple(v for v in self.t.scalars if any(n is v for n in walk(s)))
        params = (*inputs, *(v.name for v in scalars), out)
        held = tuple(refs.values())
        return Traced(
            label,
            params,
            inputs,
            (out,),
            scalars,
            held,
            body,
            sized,
            self.t.unique,
            wide=like is None,
            likes=() if like is None else ((out, like),),
        )

    def sizes(self, s: Assign, like: str | None) -> Sized:
        """The shape of the output, where what it is made of does not tell."""
        (target,) = s.targets
        found = {ix for n in walk(s.values) if isinstance(n, Load) for ix in n.indices}
        found -= {n.place for n in s.listed}
        if all(isinstance(ix, Index) and ix in found for ix in target.indices):
            return ()
        if like is not None:
            dims = tuple((like, d) for d in range(len(target.indices)))
        else:
            dims = tuple(self.extent(ix) for ix in target.indices)
        return ((target.buffer.name, dims),)

    def extent(self, ix: Any) -> tuple[str, int]:
        """A dimension that is as long as an index."""
        own = self.origin.get(ix, ix)
        for a in walk((self.seed, self.s.values)):
            if isinstance(a, Load) and own in a.indices:
                return a.buffer.name, a.indices.index(own)
        raise self.refuse(f"nothing says how large {own.name} is")
