"""Stage I, interpreted: this is what a program means.

In: a program, arrays by buffer name, sizes and scalars by name. Out: the outputs by buffer name.
An index takes its whole range, except where it addresses a sparse tensor that drives (`ir.drive`): a reduction
over it then runs over the stored entries of that access, whatever the storage order; the indices of a target
run over the stored entries of the target, or of a sparse access that stands outside every reduction.
A tensor in parts is followed part by part. Duplicates are separate entries. Any other sparse access is looked
up: absent means 0, duplicates add up.
Dense dimensions inside the entries (features of an edge) are no part of the structure: `rank` leaves them out.
Entries outside the tensor's shape (padding, blocks that stick out) are not entries.

    run_coord(spmm, {"a_indptr": ..., "a_indices": ..., "a": ..., "x": ...}, {"n_i": 3, ...})["y"]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir import coord
from tilewright.ir.coord import Axis, Index, Nth, Place, Reduce, Stored, Tensor, part_sizes, spatial
from tilewright.ir.drive import held, key_of, lead, rank, rounds, rounds_of, stored, structure
from tilewright.ir.expr import Buffer, Cast, Const, Expr, Load, Var, compute_dtype, dtype_of
from tilewright.ir.interp.common import NUMPY, Env, Fn, Maker, Value, convert, evaluate
from tilewright.ir.interp.memory import Memory
from tilewright.ir.monoid import Monoid, apply
from tilewright.ir.node import transform, walk


def run_coord(
    program: coord.Program,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    zeroed: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs. Elements that no statement writes are 0, unless `zeroed` names those that may be."""
    memory = Memory(buffers_of(program), arrays, sizes, zeroed)
    with np.errstate(all="ignore"):
        _Run(program, memory, dict(scalars or {})).program()
    return memory.outputs()


def buffers_of(p: coord.Program) -> tuple[Buffer, ...]:
    held_by = [part for t in p.tensors for part in t.whole]
    axes = [b for t in held_by for ax in t.axes for b in ax.arrays]
    values = [b for t in held_by for b in (t.perm, t.values)]
    return tuple(dict.fromkeys(b for b in (*axes, *values) if b is not None))


@dataclass(frozen=True)
class Entry:
    """A stored entry: its coordinates and its place among the values."""

    coords: tuple[int, ...]
    place: tuple[int, ...]


class _Run(Maker):
    def __init__(self, p: coord.Program, memory: Memory, scalars: dict[str, float]) -> None:
        super().__init__()
        self.p, self.memory = p, memory
        self.start: Env = {v: convert(scalars[v.name], v.dtype) for v in p.scalars}
        self.sizes = self.index_sizes()
        self.listed: dict[Index, coord.Listed] = {}
        self.tables: dict[tuple[Any, ...], dict[tuple[int, ...], list[Entry]]] = {}

    def index_sizes(self) -> dict[Index, int]:
        found = [n for n in walk(self.p.body) if isinstance(n, Load)]
        found += [_list_access(s) for s in self.p.body if isinstance(s, coord.Append)]
        pairs = (z for a in found for z in zip(a.indices, a.buffer.shape, strict=False))
        sizes = {ix: n for ix, n in pairs if isinstance(ix, Index)}
        sizes = part_sizes(self.p.body, sizes)
        return {ix: evaluate(n, self.memory.sizes) for ix, n in sizes.items()}

    def program(self) -> None:
        for s in self.p.body:
            self.append(s) if isinstance(s, coord.Append) else self.assign(s)

    # --- statements -------------------------------------------------------------------------------

    def assign(self, s: Any) -> None:
        values = [transform(e, _widen) for e in s.values]
        todo = spatial(s)
        first = lead(s.targets, todo)
        first = lead(values, todo) if first is None else first
        self.listed = {n.index: n for n in s.listed}
        for turn in rounds((s.targets, tuple(values)), first):
            targets, exprs = turn.exprs
            for env in self.over(todo, self.start, turn.first):
                for target, e in zip(targets, exprs, strict=True):
                    self.store(target, self.value(e, env), env, s)

    def append(self, s: coord.Append) -> None:
        where, value = transform(s.where, _widen), transform(s.value, _widen)
        start = Const(0, "i64") if s.start is None else transform(s.start, _widen)
        for outer in self.over(s.group, self.start, None):
            group = self.index(s.group, outer)
            n = int(self.value(start, outer))
            for env in self.over(s.over, outer, None):
                if self.value(where, env):
                    at = (n,) if s.start is not None else (*group, n)
                    self.write(s.list, at, self.value(value, env), s)
                    n += 1
            self.write(s.count, group or (0,), n, s)

    def store(self, a: Load, value: Value, env: Env, where: Any) -> None:
        at = self.index(a.indices, env)
        if a.buffer.sparse:
            at = (*env[key_of(a)].place, *at[rank(a.buffer) :])
        if where.adds:
            value = self.element(a.buffer, at, where) + value
        self.write(a.buffer, at, value, where)

    def write(self, t: Tensor, index: tuple[int, ...], value: Value, where: Any) -> None:
        assert t.values is not None
        at = self.memory.at(t.values, index, where)
        self.memory.data[t.values][at] = convert(value, t.values.dtype)

    # --- iteration --------------------------------------------------------------------------------

    def over(self, todo: tuple[Index, ...], env: Env, first: Load | None) -> Iterator[Env]:
        """An environment for each combination of indices."""
        if not todo:
            yield env
        elif first is not None and todo[0] in (at := held(first)):
            rest = tuple(ix for ix in todo if ix not in at)
            for inner in self.entries(first, env):
                yield from self.over(rest, inner, None)
        else:
            for inner in self.values_of(todo[0], env):
                yield from self.over(todo[1:], inner, first)

    def values_of(self, ix: Index, env: Env) -> Iterator[Env]:
        """An environment for each value of an index; one that a list names has its place there too."""
        if ix in self.listed:
            yield from self.named(self.listed[ix], env)
        else:
            yield from ({**env, ix: np.int64(n)} for n in self.range(ix, env))

    def named(self, of: coord.Listed, env: Env) -> Iterator[Env]:
        """The values of a compacted axis, in the order of its list."""
        ends = [self.sizes[of.place]] if of.place in self.sizes else []
        ends += [] if of.below is None else [int(self.value(of.below, env))]
        for p in range(min(ends)):
            inner = {**env, of.place: np.int64(p)}
            first = int(self.value(of.at, inner)) * of.tile
            for n in range(first, min(first + of.tile, self.sizes[of.index])):
                yield {**inner, of.index: np.int64(n)}

    def range(self, ix: Index, env: Env) -> Iterable[int]:
        if ix.within is None or ix.within[0] not in env:
            return range(self.sizes[ix])
        outer, count = ix.within
        first = int(env[outer]) * count
        return range(first, min(first + count, self.sizes[ix]))

    def entries(self, first: Load, env: Env) -> Iterator[Env]:
        """The entries that agree with the coordinates fixed so far."""
        mine = held(first)
        fixed = tuple(n for n, ix in enumerate(mine) if ix in env)
        at = tuple(int(env[mine[n]]) for n in fixed)
        for entry in self.matching(first.buffer, fixed, at):
            inner = {**env, key_of(first): entry}
            for ix, c in zip(mine, entry.coords, strict=True):
                if int(inner.setdefault(ix, np.int64(c))) != c:
                    break
            else:
                yield inner

    def matching(self, t: Tensor, dims: tuple[int, ...], at: tuple[int, ...]) -> list[Entry]:
        key = (t.coords[: rank(t)], t.shape[: rank(t)], dims)
        if key not in self.tables:
            table = defaultdict(list)
            for entry in self.tree(t, {}, {}):
                table[tuple(entry.coords[d] for d in dims)].append(entry)
            self.tables[key] = table
        return self.tables[key].get(at, [])

    def tree(self, t: Tensor, pos: dict[Axis, int], crd: dict[Axis, int]) -> Iterator[Entry]:
        """All entries in storage order, from the root down."""
        path = structure(t)
        if len(pos) < len(path):
            ax = path[len(pos)]
            for p, c in self.axis(ax, 0 if ax.parent is None else pos[ax.parent]):
                yield from self.tree(t, {**pos, ax: p}, {**crd, ax: c})
            return
        coords = tuple(sum(crd[ax] * scale for ax, scale in dim) for dim in t.coords[: rank(t)])
        limits = (evaluate(n, self.memory.sizes) for n in t.shape)
        if all(0 <= c < n for c, n in zip(coords, limits, strict=False)):
            place = self.place(t, pos, crd)
            if place[0] >= 0:
                yield Entry(coords, place)

    def axis(self, ax: Axis, parent: int) -> Iterator[tuple[int, int]]:
        """(position, coordinate) of what an axis holds under one parent."""
        if ax.extent == "variable":
            assert ax.indptr is not None
            ends = self.memory.data[ax.indptr]
            lo, hi = int(ends[parent]), int(ends[parent + 1])
        else:
            assert ax.length is not None
            n = evaluate(ax.length, self.memory.sizes)
            lo, hi = parent * n, (parent + 1) * n
        for p in range(lo, hi):
            if ax.mask is not None and not self.memory.data[ax.mask][p]:
                continue
            if ax.indices is None:
                yield p, p - lo
                continue
            c = int(self.memory.data[ax.indices][p - lo if ax.shared else p])
            if not ax.padded or c >= 0:
                yield p, c

    def place(self, t: Tensor, pos: dict[Axis, int], crd: dict[Axis, int]) -> tuple[int, ...]:
        """The index of the values: position on the last stored axis, then the axes inside a block."""
        path = structure(t)
        last = max(n for n, ax in enumerate(path) if stored(ax))
        at = (pos[path[last]], *(crd[ax] for ax in path[last + 1 :]))
        if t.perm is None:
            return at
        n = len(t.perm.shape)
        source = self.memory.data[t.perm][self.memory.at(t.perm, at[:n], t)]
        return (int(source), *at[n:])

    # --- expressions ------------------------------------------------------------------------------

    def special(self, e: Expr) -> Fn:
        if isinstance(e, Load):
            return lambda env: self.read(e.buffer, e, env)
        if isinstance(e, Reduce):
            return self.reduction(e)
        if isinstance(e, Nth):
            return lambda env: self.nth(e, env)
        if isinstance(e, Place):
            return lambda env: np.int64(self.standing(_bare(e.access), env))
        if isinstance(e, Stored):
            a = _bare(e.access)
            return lambda env: NUMPY[e.dtype](not a.buffer.sparse or bool(self.found(a, env)))
        return super().special(e)

    def nth(self, e: Nth, env: Env) -> Value:
        made = np.int64(0)
        for ix in e.indices:
            made = made * self.sizes[ix] + env[ix]
        return made

    def standing(self, a: Load, env: Env) -> int:
        """The position of an access, or -1 - (that of the first entry behind it)."""
        (row, col), ax = self.index(held(a), env), structure(a.buffer)[1]
        assert ax.indptr is not None
        entries = [*self.axis(ax, row)]
        at = int(self.memory.data[ax.indptr][row]) + sum(c < col for _, c in entries)
        return at if (at, col) in entries else -1 - at

    def index(self, indices: tuple[Expr, ...], env: Env) -> tuple[int, ...]:
        return tuple(int(self.value(ix, env)) for ix in indices)

    def read(self, t: Tensor, a: Load, env: Env) -> Value:
        if not t.sparse:
            return self.element(t, self.index(a.indices, env), a)
        inside = self.index(a.indices[rank(t) :], env)
        total = NUMPY[t.dtype](0)
        for found in self.found(a, env):
            total = total + self.element(t, (*found.place, *inside), a)
        return total

    def found(self, a: Load, env: Env) -> list[Entry]:
        """The entry that the loops around stand on, or all that have these coordinates."""
        entry, n = env.get(key_of(a)), rank(a.buffer)
        if entry is not None:
            return [entry]
        dims, at = tuple(range(n)), self.index(a.indices[:n], env)
        return [entry for t in a.buffer.whole for entry in self.matching(t, dims, at)]

    def element(self, t: Tensor, index: tuple[int, ...], where: Any) -> Value:
        if t.values is None:
            return NUMPY[t.dtype](1)
        return self.memory.data[t.values][self.memory.at(t.values, index, where)]

    def reduction(self, e: Reduce) -> Fn:
        """identity; state = combine(state, lift(args)) for each entry, in order; finalise"""
        m, turns = e.monoid, rounds_of(e)
        state = tuple(Var(n, d) for n, d in zip(m.state, m.dtypes, strict=True))
        given = tuple(Var(f"arg{n}", dtype_of(a)) for n, a in enumerate(e.args))
        step, last = _combined(m, state, given), apply(m.finalise, state)

        def run(env: Env) -> Value:
            outer = _without(env, e.over)
            now: Env = {
                v: convert(c.value, v.dtype) for v, c in zip(state, m.identity, strict=True)
            }
            for turn in turns:
                for inner in self.over(e.over, outer, turn.first):
                    if any(self.found(a, inner) for a in turn.but):
                        continue
                    args = zip(given, turn.exprs, strict=True)
                    now.update((v, self.value(a, inner)) for v, a in args)
                    new = [self.value(f, now) for f in step]
                    now.update((v, convert(x, v.dtype)) for v, x in zip(state, new, strict=True))
            return self.value(last[e.part], now)

        return run


def _bare(e: Any) -> Load:
    made = e.a if isinstance(e, Cast) else e
    assert isinstance(made, Load)
    return made


def _combined(m: Monoid, state: tuple[Var, ...], given: tuple[Var, ...]) -> tuple[Expr, ...]:
    return apply(m.combine, (*state, *apply(m.lift, given)))


def _without(env: Env, over: tuple[Index, ...]) -> Env:
    """The environment outside a reduction: its indices, and entries found by them, are not bound yet."""
    hidden = set(over)
    return {
        k: v
        for k, v in env.items()
        if not (hidden & set(k[1]) if isinstance(k, tuple) else k in hidden)
    }


def _list_access(s: coord.Append) -> Load:
    return Load(s.count, s.group)


def _widen(n: Any) -> Expr | None:
    """x[...] of 16 bits -> f32(x[...])"""
    if isinstance(n, Load) and isinstance(n.buffer, Tensor) and n.buffer.dtype in ("f16", "bf16"):
        return Cast(compute_dtype(n.buffer.dtype), n)
    return None
