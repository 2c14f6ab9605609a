"""Loops over lanes in C, under the guards that concern them.

In: the lines of a statement, the lanes that it depends on, the guards in force. Out: the lines inside of loops.

    f: lane; where(f_o * 64 + f < n)   ->   for (int f = 0; f < (64 < (n - f_o * 64) ? 64 : (n - f_o * 64)); ++f)
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.c_expr import Expressions
from tilewright.ir.expr import Bin, Expr, Var, binary
from tilewright.lowering.lanes import lanes_of

APART = '__asm__ volatile("");  // gcc 12 joins such branches wrongly into vectors over iterations'
Guards = tuple[Expr, ...]


class Lanes(Expressions):
    """Expressions, and loops over lanes."""

    def over(
        self,
        lanes: Sequence[Var],
        lines: list[str],
        guards: Guards,
        around: Sequence[Var] = (),
    ) -> list[str]:
        """The lines inside loops over lanes, under the guards that concern them: shorter loops, where that says it.

        Lanes around are open already, and guards that concern only them are in force.
        """
        inside = {*lanes, *around}
        ends = {v: str(self.extents[v]) for v in lanes}
        conds = []
        for g in guards:
            mine = lanes_of(g, self.table)
            if mine <= inside and not (around and mine <= {*around}):
                v, end = self.shorter(g)
                if v is None or v not in ends:
                    conds.append(g)
                else:
                    ends[v] = f"({ends[v]} < {end} ? {ends[v]} : {end})"
        if conds:
            test = " && ".join(self.expr(g, 3) for g in conds)
            lines = [f"if ({test}) {{", *inset([APART, *lines]), "}"]
        for v in reversed(lanes):
            head = f"for (int {v.name} = 0; {v.name} < {ends[v]}; ++{v.name})"
            lines = [f"{head} {{", *inset(lines), "}"] if len(lines) > 1 else [head, *inset(lines)]
        return lines

    def shorter(self, g: Expr) -> tuple[Var | None, str]:
        """base + lane < n: the lane's loop ends at n - base"""
        if isinstance(g, Bin) and g.op == "<" and not lanes_of(g.b, self.table):
            found = terms(g.a)
            mine = [t for t in found if isinstance(t, Var) and t in self.extents]
            rest = [t for t in found if t not in mine]
            if len(mine) == 1 and not any(lanes_of(t, self.table) for t in rest):
                left = g.b
                for t in rest:
                    left = binary("-", left, t)
                return mine[0], f"({self.expr(left)})"
        return None, ""


def terms(e: Expr) -> list[Expr]:
    return [*terms(e.a), *terms(e.b)] if isinstance(e, Bin) and e.op == "+" else [e]


def inset(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]
