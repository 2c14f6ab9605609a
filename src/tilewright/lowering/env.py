"""What is known inside the loops around a place of stage I: where indices, axes and accesses stand.

In: nothing. Out: `Env`, which `position` hands from a loop to what is inside of it.

    env.inner()              # a copy for the inside of one more loop
    env.without((i, j))      # i and j are bound anew
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.ir import stmt
from tilewright.ir.coord import Index
from tilewright.ir.drive import Key
from tilewright.ir.expr import Expr

Block = list[stmt.Stmt]
Leaf = Callable[["Env"], list[stmt.Stmt]]


@dataclass
class Env:
    """Where indices, axes and accesses stand inside the loops around. An axis stands for the indices of an access."""

    coords: dict[Index, Expr] = field(default_factory=dict)
    pos: dict[Key, Expr] = field(default_factory=dict)
    axis: dict[Key, Expr] = field(default_factory=dict)
    made: dict[Key, tuple[Expr, ...]] = field(default_factory=dict)
    found: dict[Key, Expr] = field(default_factory=dict)
    entry: dict[Key, Expr] = field(default_factory=dict)

    def inner(self) -> Env:
        tables = (self.coords, self.pos, self.axis, self.made, self.found, self.entry)
        return Env(*map(dict, tables))  # type: ignore[arg-type]

    def without(self, todo: tuple[Index, ...]) -> Env:
        """These indices are bound anew: forget them, and what was found by them."""
        gone = set(todo) & set(self.coords)
        keep = lambda table: {k: v for k, v in table.items() if not gone & set(k[1])}
        coords = {ix: e for ix, e in self.coords.items() if ix not in gone}
        pos, axis, found, entry = map(keep, (self.pos, self.axis, self.found, self.entry))
        return Env(coords, pos, axis, dict(self.made), found, entry)
