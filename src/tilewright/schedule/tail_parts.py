"""A short last tile that several programs share, for the primitive `tail`.

In: the lane whose tile it is, where its values end, the lane that is shared and how many of it a program takes. Out:
the programs' parts, what they are made of, and the loop of the grid with as many more programs.

    for o in grid(n): tile o               ->  for o in grid(n + 3): tile min(o, last); part = o - min(o, last)
                                               programs behind all parts are told so first: most may be there
    lane j in 256: body                    ->  lane j in 64: body[j := part * 64 + j]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const, Expr, Var, const, maximum, minimum
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute
from tilewright.schedule.edit import edit, find, illegal, loops, splice, uses
from tilewright.schedule.legal import Body, alone, at_least, fresh, sets, within


@dataclass(frozen=True)
class Parts:
    """`tile` and `part` of a program of `rows`; `found`: whether there may be one; `pays`: whether the last tile would
    begin another wave."""

    s: Loop
    rows: Loop
    wide: Loop
    width: int
    tile: stmt.Let
    part: stmt.Let
    found: Expr
    pays: Expr

    def narrow(self, few: Loop) -> Loop:
        """The short tile, of one part."""

        def rule(x: stmt.Stmt) -> list[stmt.Stmt] | None:
            if not isinstance(x, Loop) or x.var is not self.wide.var:
                return None
            v = Var(x.var.name, x.var.dtype)
            body = substitute(x.body, {x.var: self.part.var * self.width + v})
            return [replace(x, var=v, hi=const(self.width), body=body)]

        return replace(few, body=splice(few.body, rule))

    def either(self, short: Expr, few: Loop, whole: Loop) -> stmt.If:
        """The short tile by parts, or a whole one by the first of the programs that have it."""
        many = _lanes(self.wide) // self.width
        first = stmt.If(self.part.var < 1, (whole,))
        return stmt.If(short & self.pays, (stmt.If(self.part.var < many, (few,)),), (first,))

    def edit(self, p: flat.Program, body: Body) -> flat.Program:
        """The program with a body in the lane's place, and more programs."""
        inner = splice(self.rows.body, lambda x: list(body) if x is self.s else None)
        inner = substitute(inner, {self.rows.var: self.tile.var})
        hi = self.rows.hi + (_lanes(self.wide) // self.width - 1)
        some = stmt.Guard(self.found, (self.tile, self.part, *inner))
        made = replace(self.rows, hi=hi, body=(some,))
        return edit(p, self.rows.var.name, lambda _: [made])


def parts_of(
    p: flat.Program,
    s: Loop,
    ends: Sequence[tuple[Expr, Expr]],
    asked: tuple[str, int, int],
    held: set[str],
    what: str,
) -> Parts:
    """What is shared, or why it cannot be. ends: with where a tile begins; asked: the lane, of it, multiprocessors"""
    (across, width, cores), size = asked, _lanes(s)
    at_least(what, width)
    at_least(what, cores)
    wide = find(p, across)
    if wide not in within(s.body):
        raise illegal(what, f"{across} is not inside of it", "name a lane inside", ir=s)
    if wide.kind != "lane" or not isinstance(wide.hi, Const) or wide.lo != const(0):
        cure = "name a lane from 0 to a number"
        raise illegal(what, f"{across} is a {wide.kind} loop", cure, ir=wide)
    if _lanes(wide) % width or _lanes(wide) <= width:
        why = f"{_lanes(wide)} lanes are no several times {width}"
        raise illegal(what, why, "give a divisor of them", ir=wide)
    grids = [x for x in loops(p) if x.kind == "grid"]
    rows = next((x for x in grids if all(a == x.var * size for _, a in ends)), None)
    if rows is None or not alone(rows.body, s):
        why = "its tiles are not all that a loop of the grid goes through"
        raise illegal(what, why, "split a loop, and make the outer one a grid loop", ir=s)
    own = [v for x in within(rows.body) for v in sets(x)]
    if any(uses(n, v) for n, _ in ends for v in own):
        raise illegal(what, f"its end is not known before {rows.var.name}", ir=s)
    tile, part = (Var(fresh(p, f"{rows.var.name}_{n}", held)) for n in ("at", "part"))
    end = reduce(minimum, [n for n, _ in ends])
    last = maximum((end - 1) // size, 0)
    beside = reduce(lambda a, x: a * x.hi, (x for x in grids if x is not rows), const(1))
    before = tile * beside
    waves = (before + (cores - 1)) // cores * cores
    return Parts(
        *(s, rows, wide, width),
        stmt.Let(tile, minimum(rows.var, last)),
        stmt.Let(part, rows.var - tile),
        (rows.var - (_lanes(wide) // width - 1)) * size < end,
        waves < before + beside,
    )


def _lanes(s: Loop) -> int:
    assert isinstance(s.hi, Const)
    return int(s.hi.value)
