"""Sums over lanes as vectors of C: what a compiler keeps in registers from the first term to the store.

In: a scheduled stage III program. Out: the states that can be vectors, and the text of what is done with them. A state
over one lane that is a whole number of lines qualifies, if it is a sum of floats whose terms read their lane side by
side, and all that asks for it is a store. As an array it would go through memory at the beginning and end of every row.

    acc[f] += a[p] * x[j * 128 + f]   ->   x_at = x + j * 128;  acc[f / TW_F32S] += a[p] * TW_F32(x_at + f)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from typing import Any

from tilewright.analysis.cost import BYTES
from tilewright.codegen.c_lanes import Lanes
from tilewright.codegen.c_memory import LINE
from tilewright.codegen.c_prelude import TYPES
from tilewright.codegen.c_wide import SIZES
from tilewright.ir import stmt
from tilewright.ir.expr import Bin, Buffer, Const, Expr, Load, Select, Un, Var, dtype_of
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.node import substitute, walk
from tilewright.lowering.lanes import lanes_of
from tilewright.schedule.edit import blocks
from tilewright.schedule.legal import APART
from tilewright.schedule.shape import is_unit
from tilewright.support.names import Names

Open = tuple[Var, ...]
PLAIN = ("+", "-", "*", "/")
OWN = (*APART, "var", "state")


class Vectors(Lanes):
    """Expressions, and those over a lane as vectors."""

    names: Names

    @cached_property
    def wide(self) -> dict[Var, Var]:
        """The states that are vectors, each with its lane."""
        found = list(self._within(self.p.body, ()))
        if any(isinstance(s, stmt.Guard) and self._lanes(s.cond) for s, _ in found):
            return {}
        begun = [(s.state[0], around) for s, around in found if isinstance(s, stmt.Init)]
        return {
            v: lane
            for v, around in begun
            for lane in self._whole(v)
            if all(self._fits(v, lane, *use, around) for use in found)
        }

    def _whole(self, v: Var) -> Open:
        """The lane of a state that has one, a whole number of lines."""
        lanes = self.sorted(self.table[v])
        if v.dtype not in SIZES or len(lanes) != 1:
            return ()
        return () if self.extents[lanes[0]] * BYTES[v.dtype] % LINE else lanes

    def _within(self, body: Any, lanes: Open) -> Iterator[tuple[Any, Open]]:
        """All statements, with the lanes that are open around them."""
        for s in body:
            yield s, lanes
            inner = (*lanes, s.var) if isinstance(s, Loop) and s.kind == "lane" else lanes
            for block in blocks(s):
                yield from self._within(block, inner)

    @cached_property
    def written_out(self) -> dict[Any, Expr]:
        """What is written out where it is used: index arithmetic of lanes, and what is not computed again by that."""
        made: dict[Any, Expr] = {}
        for s in walk(self.p.body):
            if isinstance(s, stmt.Let) and self.table[s.var]:
                e = substitute(s.value, made)
                if not self._reads_lanes(e) and not self._again(s.var, e):
                    made[s.var] = e
        return made

    def _again(self, v: Var, e: Expr) -> bool:
        """Whether a function or a choice would be computed several times, or for more lanes than it has."""
        if not any(isinstance(n, Select) or (isinstance(n, Un) and n.op != "neg") for n in walk(e)):
            return False
        lanes = [self._lanes(said) for said in self._said if self._uses(v, said)]
        return len(lanes) > 1 or any(ls > self.table[v] for ls in lanes)

    @cached_property
    def _said(self) -> list[Any]:
        """What each statement says itself, without those inside of it."""
        held = [s for s, _ in self._within(self.p.body, ())]
        return [tuple(getattr(s, f.name) for f in fields(s) if f.name not in OWN) for s in held]

    def _reads_lanes(self, e: Expr) -> bool:
        """Whether lanes read something each for itself, or something that may be written here."""
        found = [n for n in walk(e) if isinstance(n, Load | Lookup)]
        return not all(isinstance(n, Load) and self._index(n) for n in found)

    def _index(self, n: Load) -> bool:
        """Whether an index array is read, by all lanes at one place or side by side."""
        lanes = [v for v in self._lanes(n) if not is_unit(v, n.indices[0])]
        return n.buffer.role == "index" and not lanes

    def gathers(self, e: Expr, lane: Var) -> bool:
        """Whether a lane reads where an array says: one by one, each is as fast as it gets."""
        at = [n for load in walk(e) if isinstance(load, Load) for n in walk(load.indices)]
        return any(lane in self._lanes(n) for n in at if isinstance(n, Load))

    def _full(self, e: Any) -> Any:
        while any(n in self.written_out for n in walk(e) if isinstance(n, Var)):
            e = substitute(e, self.written_out)
        return e

    def _lanes(self, e: Any) -> set[Var]:
        return set(lanes_of(e, self.table))

    def _fits(self, v: Var, lane: Var, s: Any, around: Open, begun: Open) -> bool:
        """Whether a statement does nothing with a state that a vector cannot do."""
        match s:
            case stmt.Init((one,), m) if one is v:
                return m.name == "sum" and around == begun
            case stmt.Fold((one,), m, (e,)) if one is v:
                return around == begun and self._term(self._full(e), v, lane)
            case stmt.Store(b, (at,), e) if self._uses(v, e):
                whole = b.dtype == v.dtype and self._side(self._full(at), lane)
                return whole and around == begun and self._term(self._full(e), v, lane)
        own = tuple(getattr(s, f.name) for f in fields(s) if f.name not in APART)
        return not self._uses(v, own)

    def _uses(self, v: Var, e: Any) -> bool:
        return any(n is v for n in walk(e))

    def _side(self, at: Expr, lane: Var) -> bool:
        """Whether lanes stand side by side at an address, and no others are there."""
        return is_unit(lane, at) and self._lanes(at) == {lane} and _times(lane, at) == 1

    def _term(self, e: Expr, v: Var, lane: Var) -> bool:
        match e:
            case Var() if e is v:
                return True
            case Load(b, (at,)) if self._lanes(at):
                return b.dtype == v.dtype and self._side(at, lane)
            case Bin(op, a, b) if self._lanes(e):
                alike = op in PLAIN and dtype_of(e) == v.dtype
                return alike and self._term(a, v, lane) and self._term(b, v, lane)
        return not self._lanes(e)

    # --- text -------------------------------------------------------------------------------------

    def over_vectors(self, lane: Var, dtype: str, line: str) -> list[str]:
        """A line for each vector of a lane."""
        f, end = lane.name, self.extents[lane]
        head = f"for (int {f} = 0; {f} < {end}; {f} += TW_{dtype.upper()}S)"
        return ["#pragma GCC unroll 32", head, f"  {line}"]

    def vector(self, v: Var) -> str:
        """The vector of a state that a turn of its loop is at."""
        return f"{v.name}[{self.wide[v].name} / TW_{v.dtype.upper()}S]"

    def line_at(self, b: Buffer, at: Expr, lane: Var) -> tuple[str, str]:
        """A pointer to where the lanes of an address begin, and the line that sets it."""
        name = self.names.fresh(f"{b.name}_at")
        kind = TYPES[b.dtype] if b.role in ("out", "work") else f"const {TYPES[b.dtype]}"
        first = self.expr(substitute(at, {lane: Const(0, "i64")}), 6)
        return name, f"{kind} *const {name} = {b.name} + {first};"

    def vector_expr(self, e: Expr, d: str, above: list[str]) -> str:
        """An expression of vectors, and of numbers that are the same for all of one; lines that stand above it."""
        if not self._lanes(e):
            return self.operand(e, d, 9)
        match e:
            case Var():
                return self.vector(e)
            case Load(b, (at,)):
                (lane,) = self._lanes(at)
                name, line = self.line_at(b, at, lane)
                above.append(line)
                return f"TW_{d.upper()}({name} + {lane.name})"
            case Bin(op, a, b):
                return f"({self.vector_expr(a, d, above)} {op} {self.vector_expr(b, d, above)})"
        raise TypeError(f"{e} is no vector")


def _times(v: Var, e: Expr) -> int:
    return sum(n is v for n in walk(e))
