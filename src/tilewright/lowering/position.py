"""Stage I -> stage II: coordinates become positions; loops, bounds and inits become explicit.

In: a stage I program and facts about sizes ({"n_i": 128}: n_i is a multiple of 128). Out: stage II.

    y[i, f] = sum(j, a[i, j] * x[j, f])      ->   for i, for f: init acc; for p in a_indptr[i]:a_indptr[i + 1]:
                                                    let j = a_indices[p]; fold acc: sum(a[p] * x[j, f])
                                                  store y[i, f] = acc

Loops follow the access that drives (`ir.drive`), in the order of its storage tree. Every other sparse access is
found from its coordinates: dense axes by arithmetic, sparse ones by a search; what is not there counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add

from tilewright.analysis.domain import ahead, index_sizes, size_of, spatial_lead
from tilewright.ir import coord, loops, stmt
from tilewright.ir.coord import Axis, Index, Nth, Place, Reduce, Stored, Tensor, spatial
from tilewright.ir.drive import (
    Key,
    Round,
    by_parts,
    held,
    rank,
    rounds,
    rounds_of,
    stored,
    structure,
)
from tilewright.ir.expr import (
    Bin,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    cast,
    compute_dtype,
    const,
    dtype_of,
    eq,
    maximum,
    ne,
    unary,
)
from tilewright.ir.monoid import apply, monoids
from tilewright.ir.node import rebuild, walk
from tilewright.lowering.compacted import Compacted
from tilewright.lowering.env import Block, Env, Leaf
from tilewright.lowering.parameters import buffers_of, sizes_of
from tilewright.lowering.turns import (
    Turn,
    added,
    bare,
    home,
    in_order,
    last_stored,
    leaning,
    lists_rows,
    ordered_row,
    own_axes,
    repeats,
    unfit,
)
from tilewright.support.errors import error
from tilewright.support.names import Names


def lower_to_position(p: coord.Program, divisors: Mapping[str, int] | None = None) -> loops.Program:
    """Stage I -> stage II."""
    names = Names(
        (t.name for t in p.tensors), (n.name for n in walk(p.body) if isinstance(n, Index))
    )
    lower = _Lower(p, dict(divisors or {}), index_sizes(p), names)
    body = tuple(s for st in p.body for s in lower.statement(st))
    return loops.Program(p.name, buffers_of(p), sizes_of(p), p.scalars, body)


@dataclass
class _Lower(Compacted):
    program: coord.Program
    divisors: dict[str, int]
    sizes: dict[Index, Expr]
    names: Names
    listed: dict[Index, coord.Listed] = field(default_factory=dict)
    reducing: int = 0

    def statement(self, s: coord.Stmt) -> Block:
        if isinstance(s, coord.Append):
            return self.append(s)
        assert isinstance(s, coord.Assign)
        self.listed = {n.index: n for n in s.listed}
        block: Block = []
        for turn in rounds((s.targets, s.values), spatial_lead(s)):
            targets, values = turn.exprs
            here = coord.Assign(targets, values, s.where, s.adds, s.listed)
            leaf = partial(self.store, here)
            block += self.over(spatial(s), Env(), turn.first, leaf, here)
        return block

    # --- loops ------------------------------------------------------------------------------------

    def over(
        self, todo: tuple[Index, ...], env: Env, first: Load | None, leaf: Leaf, hints: object
    ) -> Block:
        """Loops over indices, outermost first, around leaf; an index bound outside is bound anew."""
        env = env.without(todo)
        turns = [t for ix in todo for t in self.turns(ix, first, hints)]
        if first is None:
            return self.along(in_order(turns), env, leaf)
        return self.along(in_order(turns), env, lambda inner: self.find(first, inner, leaf))

    def turns(self, ix: Index, first: Load | None, hints: object) -> list[Turn]:
        """The loops of one index: storage axes of the access that drives, or of one whose blocks it crosses."""
        for a in [first] if first is not None else []:
            if ix in held(a):
                return [Turn(ix, a, ax, k) for ax, k in own_axes(a, ix)]
        rows = added(hints)
        if rows is not None and ix in held(rows) and lists_rows(rows, own_axes(rows, ix)):
            return [Turn(ix, rows, ax, k) for ax, k in own_axes(rows, ix)]
        for a in walk(hints):
            if isinstance(a, Load) and isinstance(a.buffer, Tensor) and a.buffer.axes:
                if ix in held(a) and not any(stored(ax) for ax, _ in own_axes(a, ix)):
                    return [Turn(ix, a, ax, k) for ax, k in own_axes(a, ix)]
        return [Turn(ix)]

    def along(self, turns: list[Turn], env: Env, leaf: Leaf) -> Block:
        if not turns:
            return leaf(env)
        turn, rest = turns[0], turns[1:]
        if turn.index in self.listed:  # once, also where several axes are parts of it
            rest = [t for t in rest if t.index is not turn.index]
            return self.named(turn.index, env, lambda inner: self.along(rest, inner, leaf))
        if turn.index.within is not None and turn.index.within[0] in env.coords:
            return self.part(turn.index, env, lambda inner: self.along(rest, inner, leaf))
        if turn.axis is None or turn.lead is None:
            v = Var(self.names.fresh(turn.index.name))
            inner = env.inner()
            inner.coords[turn.index] = v
            return [
                loops.For(
                    v,
                    const(0),
                    size_of(turn.index, self.sizes),
                    tuple(self.along(rest, inner, leaf)),
                )
            ]
        a, ax = turn.lead, turn.axis
        if ax.parent is not None and (ax.parent, held(a)) not in env.pos:
            if not any(t.axis is ax.parent for t in rest):
                return self.find(a, env, lambda found: self.along(turns, found, leaf), ax.parent)
            raise error(
                "unsupported",
                name=f"{a}",
                got=f"axis {ax.name} is stored under {ax.parent.name}, which comes later here",
                expected=f"{ax.parent.name} outside {ax.name}",
            )
        return self.axis_loop(a, ax, env, lambda inner: self.counted(turn, rest, env, inner, leaf))

    def counted(self, turn: Turn, rest: list[Turn], env: Env, inner: Env, leaf: Leaf) -> Block:
        """The rest of the loops, where this axis has added its part to the index."""
        a, ax, ix = turn.lead, turn.axis, turn.index
        assert a is not None and ax is not None
        crd = inner.axis[ax, held(a)]
        step = crd if turn.scale == 1 else crd * turn.scale
        begun = ix in env.coords
        inner.coords[ix] = inner.coords[ix] + step if begun else leaning(a, ix, inner) + step
        body = self.along(rest, inner, leaf)
        if not any(t.index is ix for t in rest):
            limits = self.limits(turn, begun, inner.coords[ix])
            if limits is not None:
                body = [stmt.Guard(limits, tuple(body))]
        return body

    def limits(self, turn: Turn, begun: bool, at: Expr) -> Expr | None:
        """The condition under which an index is inside its range, where it might not be."""
        a, ix = turn.lead, turn.index
        assert a is not None
        size = size_of(ix, self.sizes)
        if len(own_axes(a, ix)) < len(a.buffer.coords[home(a, ix)]):
            return (const(0) <= at) & (at < size)
        return at < size if begun and self.ragged_end(a, ix) else None

    def ragged_end(self, a: Load, ix: Index) -> bool:
        """Whether the last block of a blocked axis may stick out."""
        outer = max(k for _, k in own_axes(a, ix))
        return not self.divides(size_of(ix, self.sizes), outer)

    def axis_loop(self, a: Load, ax: Axis, env: Env, body: Leaf) -> Block:
        """One loop over the positions of a storage axis."""
        mine, inner = held(a), env.inner()
        parent = env.pos[ax.parent, mine] if ax.parent is not None else const(0)
        if ax.kind == "dense" and ax.extent == "fixed":
            assert ax.length is not None
            v = Var(self.names.fresh(ax.name))
            inner.axis[ax, mine] = v
            inner.pos[ax, mine] = parent * ax.length + v if ax.parent is not None else v
            return [loops.For(v, const(0), ax.length, tuple(body(inner)))]
        if ax.extent == "fixed" and ax.parent is not None and ax.length == Const(1, "i64"):
            inner.pos[ax, mine] = parent
            return self.coordinate(ax, mine, const(0), inner, body)
        p = Var(self.names.fresh(f"p_{ax.name}"))
        inner.pos[ax, mine] = p
        if ax.extent == "variable" or ax.parent is None:
            lo, hi = self.span(ax, parent)
            return [loops.For(p, lo, hi, tuple(self.coordinate(ax, mine, p - lo, inner, body)))]
        assert ax.length is not None
        t = Var(self.names.fresh(f"t_{ax.name}"))
        inside = self.coordinate(ax, mine, t, inner, body)
        at = stmt.Let(p, parent * ax.length + t)
        return [loops.For(t, const(0), ax.length, (at, *inside))]

    def span(self, ax: Axis, parent: Expr) -> tuple[Expr, Expr]:
        if ax.extent == "variable":
            assert ax.indptr is not None
            return Load(ax.indptr, (parent,)), Load(ax.indptr, (parent + 1,))
        assert ax.length is not None
        if ax.parent is None:
            return const(0), ax.length
        return parent * ax.length, (parent + 1) * ax.length

    def coordinate(self, ax: Axis, mine: Key, nth: Expr, env: Env, body: Leaf) -> Block:
        """The coordinate at a position, loaded or counted; positions without an entry are left out."""
        p = env.pos[ax, mine]
        if ax.indices is None:
            env.axis[ax, mine] = nth
            inside = body(env)
            if ax.mask is not None:
                there = Load(ax.mask, (p,))
                return [stmt.Guard(ne(there, Const(0, ax.mask.dtype)), tuple(inside))]
            return inside
        v = Var(self.names.fresh(ax.name), ax.indices.dtype)
        env.axis[ax, mine] = v
        load = stmt.Let(v, Load(ax.indices, (nth if ax.shared else p,)))
        inside = body(env)
        if ax.padded:
            return [load, stmt.Guard(const(0) <= v, tuple(inside))]
        return [load, *inside]

    # --- accesses that do not drive ---------------------------------------------------------------

    def find(self, a: Load, env: Env, inside: Leaf, upto: Axis | None = None) -> Block:
        """Positions of an access from its coordinates, axis by axis; `inside` where all are there."""
        t: Tensor = a.buffer
        mine = held(a)
        missing = [ax for ax in structure(t) if (ax, mine) not in env.pos]
        if upto is not None and (upto, mine) in env.pos:
            return inside(env)
        known = self.known(a, env) if upto is None and missing else None
        if known is not None:
            return self.read(a, known, env, inside)
        if not missing:
            return self.filled(a, env, inside)
        ax, inner = missing[0], env.inner()
        block: Block = []
        crd = self.bound(a, ax, env, block)
        parent = env.pos[ax.parent, mine] if ax.parent is not None else const(0)
        inner.axis[ax, mine] = crd
        there: Expr | None = None
        if ax.kind == "dense" and ax.extent == "fixed":
            assert ax.length is not None
            inner.pos[ax, mine] = parent * ax.length + crd if ax.parent is not None else crd
        else:
            there = self.searched(a, ax, parent, crd, inner, block)
        rest = self.find(a, inner, inside, upto)
        return [*block, *rest] if there is None else [*block, stmt.Guard(there, tuple(rest))]

    def known(self, a: Load, env: Env) -> Expr | None:
        """The entry of an access, where the loops stand on an entry of a tensor that it has met."""
        for m in a.buffer.met:
            at = held(a)[::-1] if m.turned else held(a)
            if (m.axis, at) in env.pos:
                other = next(t for t in self.program.tensors if m.axis in t.axes)
                p = env.pos[m.axis, at]
                return Load(m.at, (p if other.perm is None else Load(other.perm, (p,)),))
        return None

    def read(self, a: Load, known: Expr, env: Env, inside: Leaf) -> Block:
        """Where an entry is known to stand, or not to be: nothing is searched."""
        e, inner = Var(self.names.fresh(f"at_{a.buffer.name}")), env.inner()
        inner.entry[last_stored(a), held(a)] = e
        return [stmt.Let(e, known), stmt.Guard(const(0) <= e, tuple(inside(inner)))]

    def filled(self, a: Load, env: Env, inside: Leaf) -> Block:
        """`inside` where a place that may be a hole has an entry."""
        t, mine = a.buffer, held(a)
        if not t.holes or (t.perm, mine) in env.pos:
            return inside(env)
        q, inner = Var(self.names.fresh(f"at_{t.name}"), t.perm.dtype), env.inner()
        inner.pos[t.perm, mine] = q
        at = stmt.Let(q, Load(t.perm, self.stored_at(a, env)))
        return [at, stmt.Guard(const(0) <= q, tuple(inside(inner)))]

    def searched(self, a: Load, ax: Axis, parent: Expr, crd: Expr, env: Env, block: Block) -> Expr:
        """The position of a coordinate on a stored axis; the condition that it is there."""
        mine = held(a)
        lo, hi = self.span(ax, parent)
        if ax.indices is None:
            at = lo + crd
            env.pos[ax, mine] = at
            return at < hi if ax.mask is None else ne(Load(ax.mask, (at,)), Const(0, ax.mask.dtype))
        if ax.padded or ax.shared or repeats(a, ax):
            raise unfit(a, f"entries cannot be found by {ax.name}")
        p = Var(self.names.fresh(f"at_{ax.name}"))
        block.append(stmt.Let(p, loops.Lookup(ax.indices, lo, hi, crd)))
        env.pos[ax, mine] = p
        return const(0) <= p

    def bound(self, a: Load, ax: Axis, env: Env, block: Block) -> Expr:
        """The coordinate of an axis, from that of its index: i -> i // 16, then i % 16"""
        for ix, dim in zip(held(a), a.buffer.coords, strict=False):
            nth = next((n for n, (part, _) in enumerate(dim) if part is ax), None)
            if nth is None:
                continue
            at = self.value(ix, env, block)
            made = at % dim[nth - 1][1] if nth else at
            return made // dim[nth][1] if dim[nth][1] > 1 else made
        raise unfit(a, f"axis {ax.name} has no coordinate")

    # --- values -----------------------------------------------------------------------------------

    def store(self, s: coord.Assign, env: Env) -> Block:
        block: Block = []
        for target, value in zip(s.targets, s.values, strict=True):
            made = self.value(value, env, block)
            buffer, at = self.place(target, env, block)
            if s.adds:
                made = Load(buffer, at) + made
            block.append(stmt.Store(buffer, at, cast(buffer.dtype, made)))
        return block

    def place(self, a: Load, env: Env, block: Block) -> tuple[Buffer, tuple[Expr, ...]]:
        t: Tensor = a.buffer
        assert t.values is not None
        if not t.sparse:
            return t.values, tuple(self.value(ix, env, block) for ix in a.indices)
        trail = tuple(self.value(ix, env, block) for ix in a.indices[rank(t) :])
        return t.values, (*self.position(a, env), *trail)

    def position(self, a: Load, env: Env) -> tuple[Expr, ...]:
        """The index into a sparse tensor's values: last stored axis, then the inside of a block."""
        t: Tensor = a.buffer
        mine, path = held(a), structure(t)
        if (last_stored(a), mine) in env.entry:
            return (env.entry[last_stored(a), mine],)
        last = max(n for n, ax in enumerate(path) if stored(ax))
        if (path[last], mine) not in env.pos:
            raise unfit(a, "it is written, and no loop runs over its entries")
        if t.holes:
            return (env.pos[t.perm, mine],)
        at = self.stored_at(a, env)
        if t.perm is None:
            return at
        n = len(t.perm.shape)
        return (Load(t.perm, at[:n]), *at[n:])

    def stored_at(self, a: Load, env: Env) -> tuple[Expr, ...]:
        """The place in the order of storage: position on the last stored axis, then the inside of a block."""
        mine, path = held(a), structure(a.buffer)
        last = max(n for n, ax in enumerate(path) if stored(ax))
        return (env.pos[path[last], mine], *(env.axis[ax, mine] for ax in path[last + 1 :]))

    def value(self, e: Expr, env: Env, block: Block) -> Expr:
        """An expression with coordinates resolved; reductions are emitted into block."""
        match e:
            case Index():
                if e not in env.coords:
                    raise error("unknown-axis", name=e.name)
                return env.coords[e]
            case Nth(indices):
                return self.nth(indices, env)
            case Load(buffer, _) if isinstance(buffer, Tensor):
                return self.load(e, env, block)
            case Reduce():
                return self.reduce(e, env, block)
            case Select(c, a, b) if ahead((a, b)):
                asked = self.value(c, env, block)
                first = self.chosen(asked, a, env, block)
                return Select(asked, first, self.chosen(unary("not", asked), b, env, block))
            case Place(access):
                return self.standing(bare(access), env, block)
            case Stored(access, d):
                each = [self.stored(a, env, block, d) for a in by_parts(bare(access))]
                return reduce(maximum, each)
        made = rebuild(e, lambda c: self.value(c, env, block))
        return binary(made.op, made.a, made.b) if isinstance(made, Bin) else made

    def chosen(self, c: Expr, e: Expr, env: Env, block: Block) -> Expr:
        """where(i > 0, sum(f, x[i - 1, f]), 0): the sum is made where it is chosen, and reads nothing elsewhere."""
        if not ahead(e):
            return self.value(e, env, block)
        inside: Block = []
        made = self.value(e, env.inner(), inside)
        d = dtype_of(made)
        v, m = Var(self.names.fresh("chosen"), d), monoids(d)["sum"]
        inside.append(stmt.Fold((v,), m, (made,)))
        block += [stmt.Init((v,), m), stmt.Guard(c, tuple(inside))]
        return v

    def stands(self, a: Load, env: Env) -> bool:
        """Whether the loops around stand on the entry of an access."""
        t, mine = a.buffer, held(a)
        if (last_stored(a), mine) in env.entry:
            return True
        there = all((ax, mine) in env.pos for ax in structure(t))
        return there and (not t.holes or (t.perm, mine) in env.pos)

    def stored(self, a: Load, env: Env, block: Block, d: str) -> Expr:
        """1 where an access has an entry, else 0"""
        if not a.buffer.sparse or self.stands(a, env):
            return Const(1.0, d)
        return self.looked_up(a, env, block, d, lambda _: Const(1.0, d), "stored")

    def standing(self, a: Load, env: Env, block: Block) -> Expr:
        """The position of an access among the entries of its row, there or not."""
        row, ax, indices = ordered_row(a)
        lo, hi = self.span(ax, self.bound(a, row, env, block))
        v = Var(self.names.fresh(f"at_{ax.name}"))
        block.append(stmt.Let(v, loops.Lookup(indices, lo, hi, self.bound(a, ax, env, block), lo)))
        return v

    def load(self, a: Load, env: Env, block: Block) -> Expr:
        t: Tensor = a.buffer
        if t.parts:
            return reduce(add, [self.load(part, env, block) for part in by_parts(a)])
        d = compute_dtype(t.dtype)

        def there(inner: Env) -> Expr:
            if t.values is None:
                return Const(1.0, d)
            buffer, at = self.place(a, inner, block)
            return cast(d, Load(buffer, at))

        if not t.sparse or self.stands(a, env):
            return there(env)
        return self.looked_up(a, env, block, d, there, "value")

    def looked_up(
        self, a: Load, env: Env, block: Block, d: str, there: Callable[[Env], Expr], of: str
    ) -> Expr:
        """there() where the access has an entry, else 0: a sum over at most one entry."""
        key = (a, (*held(a), d, of))
        if key not in env.found:
            v, m = Var(self.names.fresh(f"{a.buffer.name}_at"), d), monoids(d)["sum"]
            block.append(stmt.Init((v,), m))
            block.extend(self.find(a, env, lambda inner: [stmt.Fold((v,), m, (there(inner),))]))
            env.found[key] = v
        return env.found[key]

    def reduce(self, e: Reduce, env: Env, block: Block) -> Expr:
        """The result of a reduction; several parts share one accumulation, and only parts asked for are made."""
        key = (id(e.monoid), *map(id, e.over), *map(id, e.args))
        if key not in env.made:
            env.made[key] = self.accumulate(e, env, block)
        if (*key, e.part) not in env.made:
            env.made[*key, e.part] = (self.finalise(e, env.made[key], block),)
        return env.made[*key, e.part][0]

    def accumulate(self, e: Reduce, env: Env, block: Block) -> tuple[Expr, ...]:
        fresh, m = self.names.fresh, e.monoid
        state = tuple(Var(fresh(n), d) for n, d in zip(m.state, m.dtypes, strict=True))

        def leaf(turn: Round, inner: Env) -> Block:
            inside: Block = []
            args = tuple(self.value(a, inner, inside) for a in turn.exprs)
            return self.unless(turn.but, inner, [*inside, stmt.Fold(state, m, args)])

        block.append(stmt.Init(state, m))
        self.reducing += 1
        for turn in rounds_of(e):
            block += self.over(e.over, env, turn.first, partial(leaf, turn), turn.exprs)
        self.reducing -= 1
        return state

    def unless(self, but: tuple[Load, ...], env: Env, inside: Block) -> Block:
        """`inside` where none of these accesses has an entry."""
        for a in but:
            block: Block = []
            found = self.stored(a, env, block, "f32")
            inside = [*block, stmt.Guard(eq(found, Const(0.0, "f32")), tuple(inside))]
        return inside

    def finalise(self, e: Reduce, state: tuple[Expr, ...], block: Block) -> Expr:
        made = apply(e.monoid.finalise, state)[e.part]
        if isinstance(made, Var):
            return made
        v = Var(self.names.fresh("res"), dtype_of(made))
        block.append(stmt.Let(v, made))
        return v
