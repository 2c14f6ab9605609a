"""Values over lanes that wait in arrays, in C, and what is asked for ahead while they are made.

In: a let over lanes, or an expression that several lanes share; a prefetch. Out: the array, and the loops that fill it.

    w = exp2(s - top), for lanes j, i     ->   float w[64][64]; for (j) { #pragma omp simd  for (i) w[j][i] = ..; }
    prefetch(x[a_indices[p + 32] * 64])   ->   one line more in the loop over entries that comes next
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tilewright.analysis.cost import BYTES
from tilewright.codegen.c_lanes import APART, Guards
from tilewright.codegen.c_math import PARTS
from tilewright.codegen.c_memory import LINE, MOST
from tilewright.codegen.c_prelude import TYPES
from tilewright.codegen.c_vector import Vectors
from tilewright.ir.expr import INTS, Buffer, Const, Expr, Load, Select, Un, Var, dtype_of
from tilewright.ir.node import rebuild, substitute, walk
from tilewright.lowering.lanes import lanes_of
from tilewright.schedule.memory import stride
from tilewright.schedule.shape import is_unit


class Held(Vectors):
    """Expressions, and arrays that hold them."""

    @cached_property
    def ahead(self) -> list[tuple[tuple[Var, ...], str, Guards]]:
        """What lanes ask for ahead, each for itself: lanes, line, guards."""
        return []

    def once(
        self, made: Sequence[Expr], widest: frozenset[Var], guards: Guards
    ) -> tuple[list[str], list[Expr]]:
        """Function calls that depend on no lane, or on fewer than others here, computed in front of the lanes."""
        table: dict[Expr, Var] = {}

        def rule(e: Any) -> Any:
            if not isinstance(e, Expr) or isinstance(e, Var | Const):
                return e
            ls = lanes_of(e, self.table)
            calls = any(isinstance(n, Un | Select) for n in walk(e))
            if not calls or (ls and not (isinstance(e, Un) and ls < widest)):
                return rebuild(e, rule)
            if e not in table:
                table[e] = Var(self.names.fresh("once"), dtype_of(e))
                self.table[table[e]] = ls
            return table[e]

        out = [rule(e) for e in made]
        return [x for e, v in table.items() for x in self.held(v, e, guards)], out

    def held(self, v: Var, e: Expr, guards: Guards) -> list[str]:
        """A number, or an array of them; what needs no reads is computed for the last lane as a whole."""
        ls = self.order(v)
        if not ls:
            c_type = "int64_t" if v.dtype in INTS else TYPES[v.dtype]
            return [f"const {c_type} {v.name} = {self.expr(e)};"]
        if not self.reads(e):
            if len(ls) == 1 and self.extents[ls[0]] > PARTS:
                return [self.array(v), *self._by_parts(v, e, guards)]
            guards = tuple(g for g in guards if ls[-1] not in lanes_of(g, self.table))
        alone = [APART] if guards and self.gathers(e, ls[-1]) else []
        lines = [f"{self.name(v)} = {self.expr(e)};", *alone]
        whole = not any(ls[-1] in lanes_of(g, self.table) for g in guards)
        simd = ["#pragma omp simd"] if whole else []  # else gcc writes short loops out, one by one
        if len(ls) > 1:
            lines = [*simd, *self.over(ls[-1:], lines, guards, ls[:-1])]
            lines = self.over(ls[1:-1], lines, guards, ls[:1])
        if self.reads(e) and all(lanes == ls[:1] and g == guards for lanes, _, g in self.ahead):
            lines = [*(line for _, line, _ in self.ahead), *lines]
            self.ahead.clear()
        lines = self.over(ls[:1], lines, guards)
        begun = len(ls) > 1 and not whole  # numbers of chance could be slow ones
        return [self.array(v, begun), *(simd if len(ls) == 1 else []), *lines]

    def early(self, b: Buffer, at: Expr, span: int, guards: Guards) -> list[str]:
        """Ask for all lines of what lanes, or the loops inside, will read: of each lane that reads elsewhere."""
        side = max([span, *(n for v, n in self.extents.items() if is_unit(v, at))])
        for v, n in self.extents.items():
            side *= n if stride(v, at) == side else 1
        lines = min(-(-side * BYTES[b.dtype] // LINE), MOST)
        apart = self.sorted(v for n in walk(at) if isinstance(n, Load) for v in self._lanes(n))
        at = substitute(at, {v: Const(0, "i64") for v in self.extents if v not in apart})
        place = f"{b.name} + {self.expr(at, 6)}"
        line = f"tw_early({place}, {lines});" if lines > 1 else f"__builtin_prefetch({place});"
        if not apart:
            return [line]
        self.ahead.append((apart, line, guards))
        return []

    def asked(self) -> list[str]:
        """What lanes ask for ahead each for itself, where no loop over them came that could do it."""
        made = [x for lanes, line, guards in self.ahead for x in self.over(lanes, [line], guards)]
        self.ahead.clear()
        return made

    def _by_parts(self, v: Var, e: Expr, guards: Guards) -> list[str]:
        """Whole vectors of a lane, as many as it needs before it ends."""
        (t,) = self.order(v)
        line, end = f"{self.name(v)} = {self.expr(e)};", self.extents[t]
        ends = [end for lane, end in map(self.shorter, guards) if lane is t]
        if not ends or end % PARTS:
            return ["#pragma omp simd", *self.over((t,), [line], ())]
        first = self.names.fresh(f"{t.name}_first")
        test = " && ".join(f"{first} < {x}" for x in (end, *ends))
        return [
            f"for (int {first} = 0; {test}; {first} += {PARTS}) {{",
            "  #pragma omp simd",
            f"  for (int {t.name} = {first}; {t.name} < {first} + {PARTS}; ++{t.name})",
            f"    {line}",
            "}",
        ]
