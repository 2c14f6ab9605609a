"""`share`: programs that would find nothing to do take parts of the sums of others.

A product of 17 x 16 tiles on 132 multiprocessors is two whole waves and a third of 8 tiles; one of 4 x 8 tiles leaves
most of them idle from the start. Tiles of the last, incomplete wave are summed up in pieces, as many as there is room
for, and joined in order (`Publish`). How many tiles there are may be known on the device alone (rows that a list
names): it is asked there, and no program is launched for it.

With one piece nothing is cut: `programs` of them take tile after tile, as many as there are.

    share(p, "i_o", "n_o", "k_o", 132, 8, 8)
    grid i_o: where i_o * 64 < count[0]: grid n_o: init s; serial k_o: fold s; store s
 -> grid u in 0:(tiles // 132 + 1) * 132: which tile and piece of it, in groups of 8 rows of tiles;
    init s; serial turn in 0:its part: k_o = its first + turn: fold s; store s, or publish s
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import (
    Bin,
    Const,
    Expr,
    Load,
    Var,
    cast,
    const,
    eq,
    maximum,
    minimum,
    select,
)
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.schedule.edit import edit, find, illegal, loops, splice, uses
from tilewright.schedule.legal import (
    Body,
    at_least,
    carried,
    fresh,
    republished,
    taken,
    uneven,
    within,
)
from tilewright.schedule.reduce import blockwise, piece, steady

# Of a program: its number, row tiles and tiles that there are, those of whole waves, its place in the last wave; the
# pieces of its tile, the tile, its piece; first row tile of its group, its place there; its part of a sum, a turn.
NAMES = "u live tiles whole late many t nth first at lo hi turn".split()


def share(
    p: flat.Program, rows: str, columns: str, sums: str, programs: int, pieces: int, group: int
) -> flat.Program:
    """grid i: grid n: init s; serial k: fold s; store s  ->  grid u: tile and piece; serial k in the piece: fold s"""
    what = f"share({rows}, {columns}, {sums}, {programs}, {pieces}, {group})"
    for number in (programs, pieces, group):
        at_least(what, number)
    outer, inner, k = _match(p, what, rows, columns, sums)
    held = taken(p)
    v = {n: Var(fresh(p, n, held), "i32") for n in NAMES}
    if pieces == 1:
        whole = _one_after_the_other(outer, inner, v, programs, group)
        return replace(edit(p, rows, lambda _: [whole]), order=(), swizzle=0)
    head, body = _tiles(outer, inner, v, programs, pieces)
    body = splice(body, lambda s: list(s.body) if s is inner else None)
    summed = find(replace(p, body=body), sums)

    def part(_: flat.Program, __: str, init: stmt.Init, loop: Loop, after: Body) -> Body:
        return _part(init, loop, after, v, programs)

    body = blockwise(body, lambda b: piece(p, what, b, summed, part))
    most = (outer.hi * inner.hi // programs + 1) * programs
    live = stmt.Guard(v["t"] < v["tiles"], (*_place(outer, inner, v, group), *_span(k, v), *body))
    whole = Loop(v["u"], const(0), most, "grid", (*head, live))
    made = replace(edit(p, rows, lambda _: [whole]), order=(), swizzle=0)
    if why := uneven(made) or republished(made):
        raise illegal(what, why, "make other loops the lanes, and share before unrolling", ir=outer)
    return made


def _match(
    p: flat.Program, what: str, rows: str, columns: str, sums: str
) -> tuple[Loop, Loop, Loop]:
    outer, inner, k = find(p, rows), find(p, columns), find(p, sums)
    grids = [x for x in loops(p) if x.kind == "grid"]
    if outer not in grids or inner not in grids or len(grids) != 2:
        why = f"{rows} and {columns} are not the loops of the grid"
        raise illegal(what, why, "make them so, and no other", ir=outer)
    around = [x.var.name for x in within(outer.body) if isinstance(x, Loop) and x.kind == "serial"]
    if inner not in within(outer.body) or k not in within(inner.body) or around != [sums]:
        raise illegal(what, f"{sums} is not the one loop inside of both", ir=outer)
    if any(x.lo != const(0) for x in (outer, inner, k)) or uses(inner.hi, outer.var):
        raise illegal(
            what, "a loop does not start at 0, or has another length in each row", ir=outer
        )
    if not carried(k) or not steady(p, k):
        why = f"{sums} carries no reduction, or its extent is not known before the launch"
        raise illegal(what, why, "split it, and share the outer part", ir=k)
    if len(p.body) != 1:
        raise illegal(what, "there are other statements in the launch", ir=outer)
    return outer, inner, k


def _one_after_the_other(
    outer: Loop, inner: Loop, v: dict[str, Var], programs: int, group: int
) -> Loop:
    """grid u in programs: serial turn: the tile u + turn * programs, as long as there is one"""
    live, body = _live(outer)
    body = splice(body, lambda s: list(s.body) if s is inner else None)
    turns = (v["tiles"] - v["u"] + (programs - 1)) // programs
    at = stmt.Let(v["t"], v["u"] + v["turn"] * programs)
    loop = Loop(v["turn"], const(0), turns, "serial", (at, *_place(outer, inner, v, group), *body))
    head = (
        stmt.Let(v["live"], cast("i32", live)),
        stmt.Let(v["tiles"], v["live"] * cast("i32", inner.hi)),
    )
    most = minimum(outer.hi * inner.hi, programs)
    return Loop(v["u"], const(0), most, "grid", (*head, loop))


def _tiles(
    outer: Loop, inner: Loop, v: dict[str, Var], programs: int, pieces: int
) -> tuple[Body, Body]:
    """Which tile and which piece of it a program has; what is done for the tile."""
    live, body = _live(outer)
    across = cast("i32", inner.hi)
    rest = v["tiles"] - v["whole"]
    room = minimum(maximum(const(programs, "i32") // maximum(rest, 1), 1), pieces)
    early = v["late"] < 0
    none, one = Const(0, "i32"), Const(1, "i32")
    head = (
        stmt.Let(v["live"], cast("i32", live)),
        stmt.Let(v["tiles"], v["live"] * across),
        stmt.Let(v["whole"], v["tiles"] // programs * programs),
        stmt.Let(v["late"], v["u"] - v["whole"]),
        stmt.Let(v["many"], select(early, one, room)),
        stmt.Let(v["nth"], select(early, none, v["late"] % v["many"])),
        stmt.Let(v["t"], select(early, v["u"], v["whole"] + v["late"] // v["many"])),
    )
    return head, body


def _live(outer: Loop) -> tuple[Expr, Body]:
    """How many rows of tiles there are, and what is done for one: a bound that is read says so."""
    match outer.body:
        case (stmt.Guard(Bin("<", Bin("*", i, Const(n)), bound), body),) if i is outer.var:
            if any(isinstance(x, Load) for x in walk(bound)) and not uses(bound, outer.var):
                return minimum((bound + (int(n) - 1)) // int(n), outer.hi), body
    return outer.hi, outer.body


def _place(outer: Loop, inner: Loop, v: dict[str, Var], group: int) -> Body:
    """The tile's row and column, in groups of rows that share what columns read."""
    many = cast("i32", inner.hi) * group
    high = minimum(v["live"] - v["first"], group)
    return (
        stmt.Let(v["first"], v["t"] // many * group),
        stmt.Let(v["at"], v["t"] % many),
        stmt.Let(outer.var, v["first"] + v["at"] % high),
        stmt.Let(inner.var, v["at"] // high),
    )


def _span(k: Loop, v: dict[str, Var]) -> Body:
    """The part of the sum that a piece has."""
    end = cast("i32", k.hi)
    each = (end + v["many"] - 1) // v["many"]
    return (
        stmt.Let(v["lo"], minimum(v["nth"] * each, end)),
        stmt.Let(v["hi"], minimum(v["lo"] + each, end)),
    )


def _part(init: stmt.Init, loop: Loop, after: Body, v: dict[str, Var], programs: int) -> Body:
    """init s; fold s in the part; store s where that is all of it, else publish s

    Turns are counted from 0, as those of a whole sum are: one counter for all threads serves all addresses.
    """
    at = stmt.Let(loop.var, cast(loop.var.dtype, v["lo"] + v["turn"]))
    some = replace(loop, var=v["turn"], lo=const(0), hi=v["hi"] - v["lo"], body=(at, *loop.body))
    slot = v["late"] - v["nth"]
    last = stmt.Publish(init.state, init.monoid, slot, v["nth"], v["many"], after, const(programs))
    return (
        init,
        stmt.If(v["lo"] < v["hi"], (some,), ()),
        stmt.If(eq(v["many"], 1), after, (last,)),
    )
