"""Sums of products over a lane in C: tiles of registers, rows by vectors.

In: a fold of a sum over one lane, whose state has a lane that is a whole number of lines, and one of rows or none. Out:
its text, or nothing where it has no such form. What is read apart, or is more than a number that is read, is put side
by side first, once for all tiles.

    acc[i][d] += w[j][i] * v[j * 64 + d]     i, d: lanes; j: folded
 -> for i by 8: for d by 2 vectors: at0 = acc[i], ..; for j: at0 += w[j][i + 0] * TW_F32(v_at + d), ..; acc[i] = at0, ..
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.analysis.cost import BYTES
from tilewright.codegen.c_held import Held
from tilewright.codegen.c_lanes import Guards
from tilewright.codegen.c_memory import LINE
from tilewright.codegen.c_prelude import TYPES
from tilewright.codegen.c_wide import SIZES
from tilewright.ir.expr import Bin, Expr, Load, Var, dtype_of
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import substitute, walk
from tilewright.lowering.lanes import lanes_of
from tilewright.schedule.shape import is_unit

ROWS, VECTORS = 8, 2  # of a tile of registers


@dataclass(frozen=True)
class Product:
    """state[rows, across] += the sum over `along` of row * line; row: what no lane of `across` enters."""

    state: Var
    across: Var
    along: Var
    rows: Var | None
    row: Expr | None
    line: Expr


class Sums(Held):
    """Folds that are tiles of registers."""

    def product_of(
        self, state: tuple[Var, ...], m: Monoid, args: Sequence[Expr], folded: Sequence[Var]
    ) -> Product | None:
        """A fold as a product, if it is one."""
        mine = self.sorted(self.table[state[0]])
        along = [v for v in folded if v in lanes_of(args[0], self.table)]
        if m.name != "sum" or state[0].dtype not in SIZES or len(folded) != 1 or not along:
            return None
        if not 1 <= len(mine) <= 2 or self.extents[mine[-1]] * BYTES[state[0].dtype] % LINE:
            return None
        rows, across = (mine[0], mine[1]) if len(mine) == 2 else (None, mine[0])
        factors = _factors(args[0])
        line = [e for e in factors if across in lanes_of(e, self.table)]
        row = [e for e in factors if e not in line]
        entered = lanes_of(tuple(line), self.table)
        if not line or dtype_of(args[0]) != state[0].dtype:
            return None
        if rows is not None and rows not in lanes_of(tuple(row), self.table) | entered:
            return None
        return Product(state[0], across, along[0], rows, _times(row), _times(line))

    def tiles(self, s: Product, guards: Guards, late: Guards) -> list[str] | None:
        """The text of a product; late: the guards that came after its state began."""
        ends = self._ends(s, guards, late)
        if ends is None:
            return None
        made: list[str] = []
        beyond = [g for g in guards if s.across in lanes_of(g, self.table)]
        line, row = s.line, s.row
        if not self._beside(line, s) or (beyond and isinstance(line, Load)):
            if s.rows is None or s.rows in self._lanes(line):
                return None
            line, lines = self._packed(line, (s.along, s.across), s.state.dtype, guards)
            made += lines
        if s.rows is not None and row is not None and not self._read(row, s):
            row, lines = self._packed(row, self.sorted((s.rows, s.along)), s.state.dtype, guards)
            made += lines
        rows = min(ROWS, self.extents[s.rows]) if s.rows is not None else 1
        tile = lambda n: self._tile(s, line, row, n, ends[s.along])
        if s.rows is None:
            made += tile(1)
        else:
            i, end = s.rows.name, ends[s.rows]
            made.append(f"int {i} = 0;")
            even = end == str(self.extents[s.rows]) and self.extents[s.rows] % rows == 0
            for n in (rows,) if even else dict.fromkeys((rows, 1)):
                test = f"{i} + {n} <= {end}" if n > 1 else f"{i} < {end}"
                made += [f"for (; {test}; {i} += {n}) {{", *("  " + x for x in tile(n)), "}"]
        return ["{", *("  " + x for x in made), "}"]

    def _ends(self, s: Product, guards: Guards, late: Guards) -> dict[Var, str] | None:
        """Where lanes end, or None where a guard says more than that."""
        ends = {v: str(self.extents[v]) for v in (s.rows, s.across, s.along) if v is not None}
        for g in guards:
            mine = lanes_of(g, self.table) & {*ends}
            if not mine or (mine == {s.across} and g not in late):
                continue
            v, end = self.shorter(g)
            if v is None or mine != {v} or (g in late and v is not s.along):
                return None
            ends[v] = f"({ends[v]} < {end} ? {ends[v]} : {end})"
        return ends

    def _beside(self, e: Expr, s: Product) -> bool:
        """Whether the numbers of a line stand side by side."""
        match e:
            case Var():
                return e.dtype == s.state.dtype and self.order(e)[-1] is s.across
            case Load(b, (at,)) if b.dtype == s.state.dtype and is_unit(s.across, at):
                return not (self._through(at, s.across) or self._through(at, s.rows))
        return False

    def _read(self, e: Expr, s: Product) -> bool:
        """Whether the numbers of a row are read as they are."""
        match e:
            case Var():
                return e.dtype == s.state.dtype
            case Load(b, (at,)):
                return b.dtype == s.state.dtype and not self._through(at, s.rows)
        return False

    def _through(self, at: Expr, lane: Var | None) -> bool:
        """Whether an address is made of arrays over a lane."""
        held = [n for n in walk(at) if isinstance(n, Var) and n not in self.extents]
        return lane is not None and any(lane in self._lanes(n) for n in held)

    def _packed(
        self, e: Expr, lanes: Sequence[Var], dtype: str, guards: Guards
    ) -> tuple[Expr, list[str]]:
        """A local array that holds an expression, and the lines that fill it."""
        held = [v for v in lanes if v in lanes_of(e, self.table)]
        v = Var(self.names.fresh("packed"), dtype)
        self.table[v] = frozenset(held)
        self.layout[v] = tuple(held)
        fill = self.over(held, [f"{self.name(v)} = {self.expr(e)};"], guards)
        begun = any({*held} & self._lanes(g) for g in guards)
        return v, [self.array(v, begun), *fill]

    def _tile(self, s: Product, line: Expr, row: Expr | None, rows: int, end: str) -> list[str]:
        """Rows by vectors: sums in registers from the first term to the last."""
        d, k, f = s.state.dtype, s.along.name, s.across.name
        most, wide, read = self.extents[s.across], LINE // BYTES[d], f"TW_{d.upper()}"
        count = most // wide
        if s.rows is not None:
            count = max(n for n in range(1, VECTORS + 1) if count % n == 0)
        first = Var(self.names.fresh(f"{f}_first"), "i32")
        at = [self.names.fresh("sum") for _ in range(rows)]
        place = [self._at(s.state, {s.across: first} | _later(s.rows, r)) for r in range(rows)]
        each = lambda text: [
            "#pragma GCC unroll 32",
            f"for (int {f} = 0; {f} < {count * wide}; {f} += {read}S) {text}",
        ]
        body = [f"tw_{d}s {', '.join(f'{x}[{count * wide} / {read}S]' for x in at)};"]
        index = f"[{f} / {read}S]"
        for x, to in zip(at, place, strict=True):
            body += each(f"{x}{index} = {read}(&{to} + {f});")
        held, inner = "", list[str]()
        for r, x in enumerate(at):
            if not held or s.rows in self._lanes(line):
                held = self.names.fresh("line")
                to = self._at(line, {s.across: first} | _later(s.rows, r))
                inner.append(f"const {TYPES[d]} *const {held} = &{to};")
            term = f"{read}({held} + {f})"
            if row is not None:
                inner.append(f"const {TYPES[d]} {x}_row = {self._at(row, _later(s.rows, r))};")
                term = f"{x}_row * {term}"
            inner += each(f"{x}{index} += {term};")
        body += [f"for (int {k} = 0; {k} < {end}; ++{k}) {{", *("  " + x for x in inner), "}"]
        for x, to in zip(at, place, strict=True):
            body += each(f"{read}(&{to} + {f}) = {x}{index};")
        step = count * wide
        head = f"for (int {first.name} = 0; {first.name} < {most}; {first.name} += {step})"
        return [f"{head} {{", *("  " + x for x in body), "}"]

    def _at(self, e: Expr, places: dict[Var, Expr]) -> str:
        """An element of an array, or of a buffer, with lanes at other places than their own."""
        if isinstance(e, Var):
            ls = self.order(e)
            return e.name + "".join(f"[{self.expr(places.get(v, v))}]" for v in ls)
        return self.expr(substitute(e, places))


def _later(rows: Var | None, r: int) -> dict[Var, Expr]:
    return {rows: rows + r} if rows is not None and r else {}


def _factors(e: Expr) -> list[Expr]:
    return [*_factors(e.a), *_factors(e.b)] if isinstance(e, Bin) and e.op == "*" else [e]


def _times(es: list[Expr]) -> Any:
    made: Expr | None = None
    for e in es:
        made = e if made is None else Bin("*", made, e)
    return made
