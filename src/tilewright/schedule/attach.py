"""Primitive `attach`: what a later nest does with the tiles of a buffer, done where each tile is made.

In: a stage III program with a nest in tiles that writes a buffer, and one that goes over its micro-tiles. Out: one
nest; the tile stays on chip, and the later nest sees it in parts (`LaneSplit`).

    for i_o, n_o in grid: for i_i, n_i in lane(128): h[i, n] = e
    for I, N: any = ..; for i_in in serial(32): any = fold(any, any, h[I * 32 + i_in, N] != 0);  append(.., where=any)
 -> for i_o, n_o in grid:
        for i_i, n_i in lane(128): h_at = e; h[i, n] = h_at
        for I_i in lane(4): for n_i in lane(128): any = ..; for i_in in lane(32): any = fold(any, any,
            split(h_at, i_i, into=(I_i, i_in)) != 0);  append(.., where=any)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, LaneSplit, Load, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import transform, walk
from tilewright.schedule.append import append_of
from tilewright.schedule.edit import illegal, uses
from tilewright.schedule.legal import Body, fresh, in_order, nest_loops, uneven, unset, within
from tilewright.schedule.loop import divides, independent
from tilewright.schedule.together import reader, unify, unstored

SPLIT = "split its loops into tiles, programs outside and lanes inside"


@dataclass(frozen=True)
class _Cut:
    """A coordinate v = outer * (extent of lane) + lane, below end."""

    outer: Loop
    lane: Loop
    end: Expr

    @property
    def size(self) -> int:
        assert isinstance(self.lane.hi, Const)
        return int(self.lane.hi.value)


@dataclass(frozen=True)
class _Tile:
    """The nest that makes a buffer: programs, what stands between them and the block with the store, the store."""

    nest: Loop
    grids: tuple[Loop, ...]
    between: Body
    block: Body
    store: stmt.Store

    @property
    def cuts(self) -> dict[Var, _Cut]:
        """The coordinates of the tile's elements."""
        loops = {s.var: s for s in (*self.grids, *self.between) if isinstance(s, Loop)}
        made: dict[Var, _Cut] = {}
        for s in (*self.between, *self.block):
            match s:
                case stmt.Let(v, Bin("+", Bin("*", Var() as o, Const(n)), Var() as i)):
                    whole = loops[o].hi if o in loops else None
                    match whole:
                        case Bin("//", Bin("+", end, Const(less)), Const(each)):
                            if each == n == less + 1 and i in loops and loops[i].hi == const(n):
                                made[v] = _Cut(loops[o], loops[i], end)
        return made


@dataclass(frozen=True)
class _Side:
    """One dimension: the loop over micro-tiles, the one inside of them (none: one thin), the cut of the tile that it
    follows, and the lane over the micro-tiles of one tile."""

    over: Loop
    inner: Loop | None
    cut: _Cut
    part: Var
    count: int


def listed(p: flat.Program) -> str:
    """The buffer that the first of two nests writes and of which the second makes a list in any order; or nothing."""
    s = append_of(p)
    if s is None or not s.shared or len(p.body) != 2 or not any(n is s for n in walk(p.body[1])):
        return ""
    written = {n.buffer for n in within(p.body[:1]) if isinstance(n, stmt.Store)}
    read = {n.buffer for n in walk(p.body[1]) if isinstance(n, Load)}
    return next((b.name for b in written & read), "")


def attach(p: flat.Program, buffer: str) -> flat.Program:
    """tiles: h[i, n] = e;  for I, N: f(h[I * r + i_in, ..])  ->  tiles: h_at = e; h[i, n] = h_at; parts: f(h_at)

    r divides the tile. The store goes where h is workspace that nobody else reads; an output is still written.
    """
    what = f"attach({buffer})"
    made = _made(p, what, buffer)
    later = reader(p, what, made.nest, made.store.buffer)
    sides, load = _sides(p, what, made, later)
    value = Var(fresh(p, f"{buffer}_at"), made.store.buffer.dtype)
    keep = replace(made.store, value=value)
    body: Body = (_kept(made, keep), _tail(p, later, sides, load, value))
    for g in reversed(made.grids):
        body = (replace(g, body=body),)
    table: dict[int, Body] = {id(made.nest): body, id(later): ()}
    done = replace(p, body=tuple(x for s in p.body for x in table.get(id(s), (s,))))
    if why := (unset(done) and f"{unset(done)} is not known there") or uneven(done):
        raise illegal(what, why, SPLIT, ir=later)
    return unstored(done, keep)


def _made(p: flat.Program, what: str, name: str) -> _Tile:
    """The nest of a buffer, in tiles."""
    stores = [s for s in within(p.body) if isinstance(s, stmt.Store) and s.buffer.name == name]
    nest = next((n for n in p.body if isinstance(n, Loop) and stores and uses(n, stores[0])), None)
    if len(stores) != 1 or nest is None:
        raise illegal(what, f"{name} is not written by one statement in loops", "name an output")
    grids: list[Loop] = []
    between: list[stmt.Stmt] = []
    at: stmt.Stmt = nest
    while True:
        kind = at.kind if isinstance(at, Loop) else ""
        if not isinstance(at, Loop | stmt.Guard) or kind in ("serial", "unroll"):
            raise illegal(what, f"{name} is not written in tiles alone", SPLIT, ir=nest)
        if isinstance(at, Loop) and kind == "grid":
            grids.append(at)
        else:
            between.append(at)
        if any(s is stores[0] for s in at.body):
            return _Tile(nest, tuple(grids), tuple(between), at.body, stores[0])
        *lets, last = at.body
        between += lets
        at = last if all(isinstance(s, stmt.Let) for s in lets) else lets[0]


def _sides(p: flat.Program, what: str, made: _Tile, later: Loop) -> tuple[tuple[_Side, ...], Load]:
    """How the loops of the later nest cut the tile, and the one element of the buffer that it reads."""
    around, cuts = nest_loops(later), made.cuts
    for x in around:
        independent(what, x)
    loads = {n for n in walk(later) if isinstance(n, Load) and n.buffer is made.store.buffer}
    index = next(iter(loads)).indices[0] if len(loads) == 1 else None
    table = None if index is None else unify(made.store.indices[0], index, set(cuts))
    if table is None or len(table) != len(around) or _limited(made, cuts):
        why = f"the later nest does not go over the tiles of {made.store.buffer.name}"
        raise illegal(what, why, SPLIT, ir=later)
    inside = {s.var: s for s in within(later.body) if isinstance(s, Loop)}
    lets = {s.var: s.value for s in within(later.body) if isinstance(s, stmt.Let)}
    read = [(cuts[v], lets.get(e, e)) for v, e in table.items()]
    return tuple(_side(p, what, x, read, inside) for x in around), next(iter(loads))


def _limited(made: _Tile, cuts: dict[Var, _Cut]) -> bool:
    """Whether some element of a tile is not written, though the loops reach it."""
    guards = [s.cond for s in made.between if isinstance(s, stmt.Guard)]
    return any(c not in [v < cut.end for v, cut in cuts.items()] for c in guards)


def _side(p: flat.Program, what: str, x: Loop, read: list[Any], inside: dict[Var, Loop]) -> _Side:
    """v = x (one thin), or v = x * count + (the loop inside)."""
    for cut, e in read if x.kind == "serial" else []:
        match e:
            case Var() if e is x.var and x.hi == cut.end:
                return _Side(x, None, cut, cut.lane.var, cut.size)
            case Bin("+", Bin("*", Var() as v, Const(n)), Var() as i) if v is x.var and i in inside:
                if inside[i].hi != const(n) or x.hi != (cut.end + (n - 1)) // n:
                    break
                if in_order(inside[i]):
                    raise illegal(what, in_order(inside[i]), ir=x)
                if cut.size % n:
                    why = f"tiles of {cut.size} do not hold micro-tiles of {n}"
                    raise illegal(what, why, "take larger tiles, or other micro-tiles", ir=x)
                part = Var(fresh(p, f"{x.var.name}_i"), "i32")
                return _Side(x, inside[i], cut, part, cut.size // int(n))
    raise illegal(what, f"{x.var.name} does not count parts of a tile", SPLIT, ir=x)


def _kept(made: _Tile, keep: stmt.Store) -> stmt.Stmt:
    """What makes the tile, inside its lanes: the value has a name and is stored."""
    assert isinstance(keep.value, Var)
    at = next(n for n, s in enumerate(made.block) if s is made.store)
    named = stmt.Let(keep.value, made.store.value)
    body: Body = (*made.block[:at], named, keep, *made.block[at + 1 :])
    for s in reversed(made.between):
        if isinstance(s, Loop | stmt.Guard):
            body = (replace(s, body=body),)
        else:
            body = (s, *body)
    (top,) = body
    return top


def _tail(
    p: flat.Program, later: Loop, sides: tuple[_Side, ...], load: Load, value: Var
) -> stmt.Stmt:
    """The later nest over the parts of one tile."""
    seen: Expr = value
    for s in sides:
        if s.inner is not None:
            seen = LaneSplit(seen, s.cut.lane.var, s.part, s.inner.var)
    inner = {s.inner.var for s in sides if s.inner is not None}

    def rule(n: Any) -> Any:
        if isinstance(n, Loop) and n.var in inner:
            return replace(n, kind="lane")
        return seen if n == load else None

    body: Body = transform(nest_loops(later)[-1].body, rule)
    for s in reversed(sides):
        if not divides(p, s.over.hi, s.count):
            body = (stmt.Guard(s.over.var < s.over.hi, body),)
        at = stmt.Let(s.over.var, s.cut.outer.var * s.count + s.part)
        body = (Loop(s.part, const(0), const(s.count), "lane", (at, *body)),)
    (top,) = body
    return top
