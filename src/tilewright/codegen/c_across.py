"""Maxima and sums across a lane that may end early, in C: in parts, as vectors, which meet at the end.

In: a fold of max, min or sum over one lane of a number of whole vectors, of what was computed before. Out: its text, or
nothing where it has no such form. gcc makes no vectors of a maximum that keeps NaN, and of a loop that ends early a
vector and many single turns.

    top = max(top, s[t]), t < end
 -> 16 at once: part[k] = max(part[k], t < end ? s[t] : -inf);  top = max(top, the maximum across part)
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.c_lanes import Guards, inset
from tilewright.codegen.c_math import PARTS
from tilewright.codegen.c_prelude import TYPES
from tilewright.codegen.c_sums import Sums
from tilewright.codegen.c_wide import SIZES
from tilewright.ir.expr import Expr, Var
from tilewright.ir.monoid import Monoid, apply
from tilewright.lowering.lanes import lanes_of


class Across(Sums):
    """Folds of a lane into one number."""

    def across(
        self, v: Var, m: Monoid, e: Expr, folded: Sequence[Var], guards: Guards
    ) -> list[str] | None:
        """The lines of a fold, if it has this form."""
        asked = [g for g in guards if lanes_of(g, self.table)]
        if m.name not in ("max", "min", "sum") or v.dtype not in SIZES or self.table[v]:
            return None
        if len(folded) != 1 or self.extents[folded[0]] % PARTS or self.reads(e):
            return None
        t, end, ends = folded[0], self.extents[folded[0]], [self.shorter(g) for g in asked]
        if any(lane is not t for lane, _ in ends) or (m.name == "sum" and not asked):
            return None
        part, at = Var(self.names.fresh("part"), v.dtype), self.names.fresh("k")
        none, kind = self.expr(m.identity[0]), TYPES[v.dtype]
        early = [(self.names.fresh(f"{t.name}_end"), text) for _, text in ends]
        test = " && ".join(f"{t.name} < {name}" for name, _ in early)
        first = " && ".join(f"{at}_first < {x}" for x in (end, *(name for name, _ in early)))
        value = f"{test} ? {self.expr(e, 9)} : {none}" if test else self.expr(e)
        (made,) = apply(m.combine, (Var(f"{part.name}[{at}]", v.dtype), Var("value", v.dtype)))
        total = f"tw_across_{m.name}_{v.dtype}({part.name})"
        (last,) = apply(m.combine, (v, Var(total, v.dtype)))
        turn = [
            f"const int {t.name} = {at}_first + {at};",
            f"const {kind} value = {value};",
            f"{part.name}[{at}] = {self.expr(made)};",
        ]
        lines = [
            *(f"const int64_t {name} = {text};" for name, text in early),
            f"{kind} {part.name}[{PARTS}];",
            f"for (int {at} = 0; {at} < {PARTS}; ++{at}) {part.name}[{at}] = {none};",
            f"for (int {at}_first = 0; {first}; {at}_first += {PARTS})",
            f"  for (int {at} = 0; {at} < {PARTS}; ++{at}) {{",
            *inset(inset(turn)),
            "  }",
            f"{v.name} = {self.expr(last)};",
        ]
        return ["{", *inset(lines), "}"]
