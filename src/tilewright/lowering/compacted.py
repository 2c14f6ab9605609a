"""Compacted lists in stage II: appends, and the loops of axes that run over a list or a part of a range.

In: statements and indices of stage I. Out: loops and statements of stage II, as a part of `position`.

    i = listed(rows[p], place=p, below=count[0])   ->   for p in range(room): where(p < count[0]): i = rows[p]
    append(found, count, j, over=(j,), where=c)    ->   count[0] = 0; for j in range(n_j): append(found[0], ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.analysis.domain import size_of
from tilewright.ir import coord, loops, stmt
from tilewright.ir.coord import Index
from tilewright.ir.expr import (
    FLOATS,
    Bin,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Un,
    Var,
    cast,
    const,
    dtype_of,
    minimum,
)
from tilewright.lowering.env import Block, Env, Leaf
from tilewright.support.errors import error
from tilewright.support.names import Names


def _whole(e: Expr) -> bool:
    """Whether a value is a whole number, whatever its dtype is."""
    match e:
        case Const(value):
            return bool(value % 1 == 0)
        case Bin("+" | "-" | "*" | "min" | "max", a, b) | Select(_, a, b):
            return _whole(a) and _whole(b)
        case Un("neg" | "abs", a) | Cast(_, a):
            return dtype_of(e) not in FLOATS or _whole(a)
        case Un("floor" | "ceil" | "sign"):
            return True
        case coord.Reduce(m, _, args) if m.name in ("sum", "prod", "max", "min"):
            return all(map(_whole, args))
    return dtype_of(e) not in FLOATS


class Compacted:
    """What `position` does about lists; loops and values are its own."""

    divisors: dict[str, int]
    sizes: dict[Index, Expr]
    names: Names
    listed: dict[Index, coord.Listed]
    reducing: int

    if TYPE_CHECKING:

        def over(
            self,
            todo: tuple[Index, ...],
            env: Env,
            first: Load | None,
            leaf: Leaf,
            hints: object,
        ) -> Block: ...

        def value(self, e: Expr, env: Env, block: Block) -> Expr: ...

    def append(self, s: coord.Append) -> Block:
        """for group: count[group] = start; for over: append. A shared count begins at 0 before the launch."""
        if s.start is not None and not s.ordered:
            why = "a count that programs share begins at 0"
            raise error("unsupported", name="start", got=why, expected="ordered=True, or no start")
        if not _whole(s.value):
            got, expected = str(s.value), "whole numbers, as the places of what is to be read"
            raise error("unsupported", name="a list of floats", got=got, expected=expected)
        assert s.list.values is not None and s.count.values is not None
        listed, count = s.list.values, s.count.values

        def outer(env: Env) -> Block:
            block: Block = []
            group = self.nth(s.group, env)
            if s.ordered:
                start = const(0) if s.start is None else self.value(s.start, env, block)
                at = tuple(env.coords[g] for g in s.group) or (const(0),)
                block.append(stmt.Store(count, at, cast(count.dtype, start)))
            slot = group * s.list.shape[-1] if s.group and s.start is None else const(0)

            def inner(env: Env) -> Block:
                made: Block = []
                where, value = self.value(s.where, env, made), self.value(s.value, env, made)
                made.append(
                    stmt.Append(listed, count, group, slot, where, value, shared=not s.ordered)
                )
                return made

            return [*block, *self.over(s.over, env, None, inner, s)]

        return self.over(s.group, Env(), None, outer, s)

    def nth(self, indices: tuple[Index, ...], env: Env) -> Expr:
        made: Expr = Const(0, "i64")
        for ix in indices:
            made = made * size_of(ix, self.sizes) + env.coords[ix]
        return made

    def named(self, ix: Index, env: Env, body: Leaf) -> Block:
        """The loop of a compacted axis: over its list, up to a number that is read.

        Programs over it are as many as the list has room for, and those beyond the number do nothing; a reduction
        ends at the number, which alone says how long a part of a longer list is.
        """
        of, inner = self.listed[ix], env.inner()
        p = Var(self.names.fresh(of.place.name))
        block: Block = []
        inner.coords[of.place] = p
        v = Var(
            self.names.fresh(ix.name if of.tile == 1 else f"{ix.name}_tile"), of.at.buffer.dtype
        )
        block.append(stmt.Let(v, self.value(of.at, inner, block)))
        inner.coords[ix] = v
        block += body(inner) if of.tile == 1 else self.cut(ix, v, of.tile, inner, body)
        before: Block = []
        below = None if of.below is None else cast("i64", self.value(of.below, env, before))
        if self.reducing and below is not None and of.place not in self.sizes:
            return [*before, loops.For(p, const(0), below, tuple(block))]
        room = size_of(of.place, self.sizes)
        if below is None:
            return [loops.For(p, const(0), room, tuple(block))]
        if self.reducing:
            return [*before, loops.For(p, const(0), minimum(below, room), tuple(block))]
        return [loops.For(p, const(0), room, (*before, stmt.Guard(p < below, tuple(block))))]

    def part(self, ix: Index, env: Env, body: Leaf) -> Block:
        """The loop of an index over its part of the range."""
        assert ix.within is not None
        outer, count = ix.within
        if count == 1:
            inner = env.inner()
            inner.coords[ix] = env.coords[outer]
            return body(inner)
        return self.cut(ix, env.coords[outer], count, env, body)

    def cut(self, ix: Index, outer: Expr, count: int, env: Env, body: Leaf) -> Block:
        """count * outer, count * outer + 1, ...: as far as the index goes."""
        inner, size = env.inner(), size_of(ix, self.sizes)
        nth = Var(self.names.fresh(f"{ix.name}_in"), "i32")
        inner.coords[ix] = v = Var(self.names.fresh(ix.name))
        inside = tuple(body(inner))
        if not self.divides(size, count):
            inside = (stmt.Guard(v < size, inside),)
        at = stmt.Let(v, cast("i64", outer) * count + nth)
        return [loops.For(nth, const(0), const(count), (at, *inside))]

    def divides(self, size: Expr, count: int) -> bool:
        """Whether a size is known to be a multiple of a count."""
        if isinstance(size, Const):
            return size.value % count == 0
        return isinstance(size, Var) and self.divisors.get(size.name, 1) % count == 0
