"""The primitive `tail`: the last tile of a loop, where it is a short one, takes fewer lanes.

In: a stage III program, the name of a lane whose values are guarded by an end that they grow towards. Out: the same
values; a tile of which no more than `size` are left does them in as many lanes. 2,068 rows are 16 tiles of 128 and one
of 20, which is a whole tile's work without it.

    tail(p, "i_i", 32)
    lane i_i in 128: where o * 128 + i_i < n: body
 -> if n - o * 128 <= 32: lane i_i_few in 32: where ..: body;  else: lane i_i in 128: where ..: body

Loops of the grid that stand inside come outside first: a program chooses, not a lane.

    tail(p, "i_i", 32, "n_i", 64, 132)

Where the short tile asks for another wave over so many multiprocessors, its lanes of n_i are shared, 64 by 64, by the
programs of the tiles behind it: there are as many more of them, which find nothing to do elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, Var, const, minimum
from tilewright.ir.flat import Loop
from tilewright.ir.node import substitute, walk
from tilewright.schedule.edit import edit, find, illegal, splice, uses
from tilewright.schedule.legal import (
    Body,
    alone,
    at_least,
    bound_lane,
    fresh,
    sets,
    taken,
    uneven,
    within,
)
from tilewright.schedule.tail_parts import parts_of


def tail(
    p: flat.Program, name: str, size: int, across: str = "", width: int = 0, cores: int = 0
) -> flat.Program:
    """lane v: where a + v < n: body  ->  if n - a <= size: lane v_few in size, across in width: ..; else: .."""
    what = f"tail({name}, {size}{f', {across}, {width}, {cores}' if across else ''})"
    s = find(p, name)
    at_least(what, size)
    if s.kind != "lane" or not isinstance(s.hi, Const) or s.lo != const(0):
        raise illegal(what, f"it is a {s.kind} loop", "name a lane from 0 to a number", ir=s)
    if int(s.hi.value) <= size:
        raise illegal(what, f"it has {s.hi.value} lanes, and no more are asked for", ir=s)
    if any(isinstance(x, stmt.Append | stmt.Publish) for x in within(s.body)):
        raise illegal(what, "its tiles share a list or pieces of sums", ir=s)
    if why := bound_lane(p, s.var):
        raise illegal(what, why, ir=s)
    whole, grids = _inside_grids(s, what)
    ends = _ends(whole)
    if not ends:
        raise illegal(what, f"its values are not guarded by an end that {name} grows towards", ir=s)
    held = taken(p)
    few = replace(whole, hi=replace(s.hi, value=size))
    parts = parts_of(p, s, ends, (across, width, cores), held, what) if across else None
    few = parts.narrow(few) if parts else few
    own = dict.fromkeys(v for x in within((few,)) for v in sets(x))
    names = {v: f"{v.name}_few" if v is s.var else v.name for v in own}
    table: dict[Expr, Expr] = {v: Var(fresh(p, names[v], held), v.dtype) for v in own}
    (few,) = substitute((few,), table)
    short = reduce(minimum, [n - a for n, a in ends]) <= size
    body: Body = (parts.either(short, few, whole) if parts else stmt.If(short, (few,), (whole,)),)
    for grid in reversed(grids):
        body = (replace(grid, body=body),)
    made = parts.edit(p, body) if parts else edit(p, name, lambda _: list(body))
    made = replace(made, tensor=(*p.tensor, *_copies(p.tensor, table)))
    if why := uneven(made):
        raise illegal(what, why, "take the loop of the grid that it is cut from", ir=s)
    return made


def _copies(tensor: tuple[str, ...], table: dict[Expr, Expr]) -> list[str]:
    """Lanes that were to be of a product of matrices, by their new names."""
    pairs = ((old, new) for old, new in table.items() if isinstance(old, Var))
    return [new.name for old, new in pairs if old.name in tensor and isinstance(new, Var)]


def _inside_grids(s: Loop, what: str) -> tuple[Loop, list[Loop]]:
    """The loop without the loops of the grid inside of it, and these, outermost first."""
    grids = [x for x in within(s.body) if isinstance(x, Loop) and x.kind == "grid"]
    own = [v for x in within((s,)) for v in sets(x)]
    for g in grids:
        if any(uses((g.lo, g.hi), v) for v in own):
            raise illegal(what, f"the extent of {g.var.name} depends on it", ir=s)
    for g in grids:
        if not alone(s.body, g):
            why = f"{g.var.name} has other statements beside it"
            raise illegal(what, why, "make it a loop of the grid outside", ir=s)
    made = s
    for _ in grids:
        made = replace(made, body=splice(made.body, _bare))
    return made, grids


def _bare(s: stmt.Stmt) -> list[stmt.Stmt] | None:
    return list(s.body) if isinstance(s, Loop) and s.kind == "grid" else None


def _ends(s: Loop) -> list[tuple[Expr, Expr]]:
    """The end of what a lane does and where it begins, by each guard around all of it."""
    places: dict[Expr, Expr] = {s.var: const(0)}
    found: list[tuple[Expr, Expr]] = []
    body = s.body
    while body:
        *before, last = body
        if not all(isinstance(x, stmt.Let) for x in before):
            break
        for x in before:
            match x:
                case stmt.Let(v, Bin("+", a, lane)) if lane is s.var and not uses(a, s.var):
                    places[v] = a
        match last:
            case stmt.Guard(Bin("<", at, n), inner) if at in places and not _of(n, places):
                found.append((n, places[at]))
                body = inner
            case _:
                break
    return found


def _of(n: Expr, places: dict[Expr, Expr]) -> bool:
    return any(v in places for v in walk(n))
