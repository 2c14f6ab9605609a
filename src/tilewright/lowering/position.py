"""Stage I -> stage II: coordinates become positions; loops, bounds and inits become explicit.

In: a stage I program and facts about sizes ({"n_i": 128}: n_i is a multiple of 128). Out: stage II.

    y[i, f] = sum(j, a[i, j] * x[j, f])      ->   for i, for f: init acc; for p in a_indptr[i]:a_indptr[i + 1]:
                                                    let j = a_indices[p]; fold acc: sum(a[p] * x[j, f])
                                                  store y[i, f] = acc
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.analysis.domain import drivers, index_sizes, size_of, spatial
from tilewright.ir import coord, loops, stmt
from tilewright.ir.coord import Axis, Index, Reduce, Stored, Tensor
from tilewright.ir.expr import (
    Bin,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    binary,
    cast,
    compute_dtype,
    const,
    dtype_of,
)
from tilewright.ir.monoid import apply
from tilewright.ir.node import rebuild, walk
from tilewright.support.errors import error
from tilewright.support.names import Names

Block = list[stmt.Stmt]
Place = tuple[Index, tuple[Axis | None, int]]


def lower_to_position(p: coord.Program, divisors: Mapping[str, int] | None = None) -> loops.Program:
    """Stage I -> stage II."""
    lower = _Lower(p, dict(divisors or {}), index_sizes(p), Names())
    body = tuple(s for st in p.body for s in lower.statement(st))
    return loops.Program(p.name, buffers_of(p), sizes_of(p), p.scalars, body)


def buffers_of(p: coord.Program) -> tuple[Buffer, ...]:
    """The flat list of arrays a program reads and writes, in the order of its parameters."""
    seen: dict[Buffer, None] = {}
    for t in p.tensors:
        for ax in t.axes:
            for b in (ax.indptr, ax.indices):
                if b is not None:
                    seen.setdefault(b)
        for b in (t.perm, t.values):
            if b is not None:
                seen.setdefault(b)
    return tuple(seen)


def sizes_of(p: coord.Program) -> tuple[Var, ...]:
    """Every run-time size, in the order of the parameters."""
    seen: dict[Var, None] = {}
    for t in p.tensors:
        exprs = [*t.shape, *(ax.length for ax in t.axes if ax.length is not None)]
        for b in [t.values]:
            if b is not None:
                exprs += [*b.shape, *(b.strides or ())]
        for e in exprs:
            for n in walk(e):
                if isinstance(n, Var):
                    seen.setdefault(n)
    return tuple(seen)


def same_structure(a: Load, b: Load) -> bool:
    """Whether two sparse accesses walk the same stored entries."""
    return a.indices[:2] == b.indices[:2] and a.buffer.coords[:2] == b.buffer.coords[:2]


@dataclass
class _Env:
    """Where each index and axis stands inside the loops around."""

    coords: dict[Index, Expr] = field(default_factory=dict)
    pos: dict[Axis, Expr] = field(default_factory=dict)
    made: dict[tuple[int, ...], tuple[Expr, ...]] = field(default_factory=dict)

    def inner(self) -> _Env:
        return _Env(dict(self.coords), dict(self.pos), dict(self.made))


@dataclass
class _Lower:
    program: coord.Program
    divisors: dict[str, int]
    sizes: dict[Index, Expr]
    names: Names

    def statement(self, s: coord.Stmt) -> Block:
        if isinstance(s, coord.Append):
            return self.append(s)
        assert isinstance(s, coord.Assign)
        lead = drivers(s)
        for other in lead[1:]:
            if not same_structure(other, lead[0]):
                raise error(
                    "unsupported",
                    name=f"{other} beside {lead[0]}",
                    got="two sparse structures in one statement",
                    expected="one sparse structure for each statement",
                )
        if lead:
            self.check_order(lead[0], spatial(s))
        walker = _Walk(self, lead[0] if lead else None)
        return walker.over(spatial(s), _Env(), lambda env: walker.store(s, env))

    def check_order(self, lead: Load, held: tuple[Index, ...]) -> None:
        """Refuse storage orders that this lowering cannot walk."""
        t: Tensor = lead.buffer
        if any(ax.kind == "sparse" or ax.extent == "variable" for c in t.coords[2:] for ax, _ in c):
            raise error(
                "unsupported",
                name=str(lead),
                got="more than two dimensions are stored",
                expected="two stored dimensions, dense ones after them",
            )
        roots = [c[0][0] for c in t.coords[:2]]
        first = lead.indices[0 if t.axes.index(roots[0]) < t.axes.index(roots[1]) else 1]
        rest = [ix for ix in lead.indices[:2] if ix is not first]
        if t.axes[0].kind == "sparse" and first in held and any(ix not in held for ix in rest):
            raise error(
                "unsupported",
                name=str(lead),
                got="a reduction over single entries: several of them belong to one row",
                expected="rows first (csr)",
            )

    def append(self, s: coord.Append) -> Block:
        walker = _Walk(self, None)

        def leaf(env: _Env) -> Block:
            block: Block = []
            where, value = walker.value(s.where, env, block), walker.value(s.value, env, block)
            group: Expr = Const(0, "i64")
            for g in s.group:
                group = group * size_of(g, self.sizes) + env.coords[g]
            slot = group * s.list.shape[-1] if s.group else Const(0, "i64")
            assert s.list.values is not None and s.count.values is not None
            block.append(stmt.Append(s.list.values, s.count.values, group, slot, where, value))
            return block

        return walker.over((*s.group, *s.over), _Env(), leaf)


@dataclass
class _Walk:
    """Loops of one statement, driven by one sparse access (or none)."""

    lower: _Lower
    lead: Load | None

    def over(self, todo: tuple[Index, ...], env: _Env, leaf: Callable[[_Env], Block]) -> Block:
        """Loops over indices, outermost first, around leaf; an index bound outside is bound anew."""
        env = env.inner()
        for ix in todo:
            env.coords.pop(ix, None)
        return self.along(self.order([(ix, ax) for ix in todo for ax in self.axes(ix)]), env, leaf)

    def axes(self, ix: Index) -> list[tuple[Axis | None, int]]:
        if self.lead is not None:
            for at, parts in zip(self.lead.indices[:2], self.lead.buffer.coords[:2], strict=True):
                if at is ix:
                    return list(parts)
        return [(None, 1)]

    def order(self, todo: list[Place]) -> list[Place]:
        """Storage axes keep the order of the tree; others stay where they were written."""
        path = self.lead.buffer.axes if self.lead is not None else ()
        slots = [n for n, (_, (ax, _)) in enumerate(todo) if ax is not None]
        inside = sorted(
            (todo[n] for n in slots), key=lambda t: [ax is t[1][0] for ax in path].index(True)
        )
        made = list(todo)
        for n, item in zip(slots, inside, strict=True):
            made[n] = item
        return made

    def along(self, todo: list[Place], env: _Env, leaf: Callable[[_Env], Block]) -> Block:
        if not todo:
            return leaf(env)
        (ix, (ax, scale)), rest = todo[0], todo[1:]
        inner = env.inner()
        head, wrap, crd = self.axis_loop(ix, ax, inner)
        last = not any(other is ix for other, _ in rest)
        step = crd if scale == 1 else crd * scale
        inner.coords[ix] = inner.coords[ix] + step if ix in env.coords else step
        body = self.along(rest, inner, leaf)
        if last and ix in env.coords and self.ragged_end(ix):
            inside = inner.coords[ix] < size_of(ix, self.lower.sizes)
            body = [stmt.Guard(inside, tuple(body))]
        return wrap(head + body)

    def ragged_end(self, ix: Index) -> bool:
        """Whether the last block of a blocked axis may stick out."""
        size = size_of(ix, self.lower.sizes)
        outer = max(scale for _, scale in self.axes(ix))
        if isinstance(size, Const):
            return bool(size.value % outer)
        return not (isinstance(size, Var) and self.lower.divisors.get(size.name, 1) % outer == 0)

    def axis_loop(
        self, ix: Index, ax: Axis | None, env: _Env
    ) -> tuple[Block, Callable[[Block], Block], Expr]:
        """(statements at the top of the body, the loop around it, the coordinate)."""
        fresh = self.lower.names.fresh
        if ax is None:
            v = Var(fresh(ix.name))
            return [], _loop(v, const(0), size_of(ix, self.lower.sizes)), v
        parent = env.pos.get(ax.parent) if ax.parent is not None else const(0)
        if parent is None:
            assert ax.parent is not None
            raise error(
                "unsupported",
                name=f"{self.lead}",
                got=f"axis {ax.name} is stored under {ax.parent.name}, which comes later here",
                expected=f"{ax.parent.name} outside {ax.name}",
            )
        if ax.extent == "variable":
            assert ax.indptr is not None
            lo, hi = Load(ax.indptr, (parent,)), Load(ax.indptr, (parent + 1,))
            return self.stored(ix, ax, env, lo, hi, None)
        assert ax.length is not None
        if ax.kind == "dense":
            v = Var(fresh(ax.name))
            env.pos[ax] = v
            return [], _loop(v, const(0), ax.length), v
        if ax.length == Const(1, "i64") and ax.parent is not None:
            return self.stored(ix, ax, env, parent, parent + 1, parent)
        return self.stored(ix, ax, env, parent * ax.length, (parent + 1) * ax.length, None)

    def stored(
        self, ix: Index, ax: Axis, env: _Env, lo: Expr, hi: Expr, at: Expr | None
    ) -> tuple[Block, Callable[[Block], Block], Expr]:
        """A loop over storage positions; its coordinate is loaded, or counted from the start."""
        fresh = self.lower.names.fresh
        p: Expr = Var(fresh(f"p_{ax.name}")) if at is None else at
        env.pos[ax] = p
        wrap = _loop(p, lo, hi) if isinstance(p, Var) and at is None else _no_loop
        if ax.indices is None:
            return [], wrap, p - lo
        v = Var(fresh(ax.name), ax.indices.dtype)
        return [stmt.Let(v, Load(ax.indices, (p,)))], wrap, v

    def store(self, s: coord.Assign, env: _Env) -> Block:
        block: Block = []
        for target, value in zip(s.targets, s.values, strict=True):
            made = self.value(value, env, block)
            buffer, at = self.place(target, env, block)
            block.append(stmt.Store(buffer, at, cast(buffer.dtype, made)))
        return block

    def place(self, a: Load, env: _Env, block: Block) -> tuple[Buffer, tuple[Expr, ...]]:
        t: Tensor = a.buffer
        assert t.values is not None
        if not t.sparse:
            return t.values, tuple(self.value(ix, env, block) for ix in a.indices)
        trail = tuple(self.value(ix, env, block) for ix in a.indices[2:])
        return t.values, (*self.position(t, env), *trail)

    def position(self, t: Tensor, env: _Env) -> tuple[Expr, ...]:
        """The index into a sparse tensor's values: last stored axis, then the inside of a block."""
        path = [ax for ax in t.axes if any(ax is part for c in t.coords[:2] for part, _ in c)]
        held = [n for n, ax in enumerate(path) if ax.kind == "sparse" or ax.extent == "variable"]
        first = env.pos[path[held[-1]]]
        if t.perm is not None:
            first = Load(t.perm, (first,))
        return (first, *(env.pos[ax] for ax in path[held[-1] + 1 :]))

    def value(self, e: Expr, env: _Env, block: Block) -> Expr:
        """An expression with coordinates resolved; reductions are emitted into block."""
        match e:
            case Index():
                if e not in env.coords:
                    raise error("unknown-axis", name=e.name)
                return env.coords[e]
            case Load(buffer, _) if isinstance(buffer, Tensor):
                return self.load(e, env, block)
            case Reduce():
                return self.reduce(e, env, block)
            case Stored():
                return Const(1.0, e.dtype)
        made = rebuild(e, lambda c: self.value(c, env, block))
        return binary(made.op, made.a, made.b) if isinstance(made, Bin) else made

    def load(self, a: Load, env: _Env, block: Block) -> Expr:
        t: Tensor = a.buffer
        if t.values is None:
            return Const(1.0, compute_dtype(t.dtype))
        buffer, at = self.place(a, env, block)
        return cast(compute_dtype(buffer.dtype), Load(buffer, at))

    def reduce(self, e: Reduce, env: _Env, block: Block) -> Expr:
        """The result of a reduction; several parts share one accumulation, and only parts asked for are made."""
        key = (id(e.monoid), *map(id, e.over), *map(id, e.args))
        if key not in env.made:
            env.made[key] = self.accumulate(e, env, block)
        if (*key, e.part) not in env.made:
            env.made[*key, e.part] = (self.finalise(e, env.made[key], block),)
        return env.made[*key, e.part][0]

    def accumulate(self, e: Reduce, env: _Env, block: Block) -> tuple[Expr, ...]:
        fresh, m = self.lower.names.fresh, e.monoid
        state = tuple(Var(fresh(n), d) for n, d in zip(m.state, m.dtypes, strict=True))

        def leaf(inner: _Env) -> Block:
            inside: Block = []
            args = tuple(self.value(a, inner, inside) for a in e.args)
            return [*inside, stmt.Fold(state, m, args)]

        block.append(stmt.Init(state, m))
        block.extend(self.over(e.over, env, leaf))
        return state

    def finalise(self, e: Reduce, state: tuple[Expr, ...], block: Block) -> Expr:
        made = apply(e.monoid.finalise, state)[e.part]
        if isinstance(made, Var):
            return made
        v = Var(self.lower.names.fresh("res"), dtype_of(made))
        block.append(stmt.Let(v, made))
        return v


def _loop(v: Expr, lo: Expr, hi: Expr) -> Callable[[Block], Block]:
    assert isinstance(v, Var)
    return lambda body: [loops.For(v, lo, hi, tuple(body))]


def _no_loop(body: Block) -> Block:
    return body
