"""Which lanes each value of a stage III program depends on: the shape of everything on chip.

In: stage III. Out: {variable: lanes}. A fixed point, since states depend on their own folds.

    lane r, lane f: fold acc: sum(a[p] * x[c * n_f + f])   ->   acc: {r, f}, p: {r}
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const, LaneReduce, LaneSplit, Var
from tilewright.ir.monoid import Func, Monoid
from tilewright.ir.node import Node, parts, walk

Lanes = frozenset[Var]
Table = dict[Var, Lanes]
NONE: Lanes = frozenset()


def lane_extents(p: flat.Program) -> dict[Var, int]:
    """Every lane with its extent, in the order of opening."""
    out: dict[Var, int] = {}
    for s in walk(p.body):
        if isinstance(s, flat.Loop) and s.kind == "lane":
            assert isinstance(s.hi, Const)
            out.setdefault(s.var, int(s.hi.value))
    return out


def value_lanes(p: flat.Program) -> Table:
    """The lanes of every variable."""
    table: Table = {v: frozenset({v}) for v in lane_extents(p)}
    while True:
        before = dict(table)
        _Walk(table).block(p.body, (), ())
        if table == before:
            return table


def lane_order(p: flat.Program, table: Table) -> dict[Var, int]:
    """Every lane with its extent: those that something is folded over first, so that the others lie side by side."""
    found, extents = _Walk(table), lane_extents(p)
    found.block(p.body, (), ())
    return dict(sorted(extents.items(), key=lambda x: x[0] not in found.folded))


def lanes_of(e: Any, table: Table) -> Lanes:
    """The lanes of an expression, or of all in a tuple."""
    if isinstance(e, tuple):  # what a statement says holds flags and names as well
        return NONE.union(*(lanes_of(c, table) for c in e if isinstance(c, Node | tuple)))
    if isinstance(e, Var):
        return table.get(e, NONE)
    if isinstance(e, LaneReduce):
        return lanes_of(e.a, table) - frozenset(e.lanes)
    if isinstance(e, LaneSplit):
        return lanes_of(e.a, table) - {e.lane} | {e.outer, e.inner}
    out = NONE
    for c in parts(e):
        out |= lanes_of(c, table)
    return out


class _Walk:
    def __init__(self, table: Table) -> None:
        self.table = table
        self.begun: dict[Var, tuple[int, int]] = {}
        self.folded: Lanes = NONE

    def block(self, body: Any, lanes: tuple[Var, ...], guards: tuple[Any, ...]) -> None:
        for s in body:
            self.statement(s, lanes, guards)

    def statement(self, s: Any, lanes: tuple[Var, ...], guards: tuple[Any, ...]) -> None:
        match s:
            case stmt.Let(v, e):
                self.table[v] = self.table.get(v, NONE) | lanes_of(e, self.table)
            case stmt.Init(state, _):
                for v in state:
                    self.begun[v] = (len(lanes), len(guards))
                    self.table.setdefault(v, NONE)
            case stmt.Fold(state, m, args):
                each = [lanes_of(a, self.table) for a in args]
                lifted = [_through(m.lift, n, each) for n in range(len(state))]
                self.meet(state, m, lifted, lanes, guards)
            case stmt.Join(state, m, other):
                self.meet(state, m, [self.table.get(v, NONE) for v in other], lanes, guards)
            case flat.Loop(v, _, _, kind, body):
                self.block(body, (*lanes, v) if kind == "lane" else lanes, guards)
            case stmt.Guard(c, body):
                self.block(body, lanes, (*guards, c))
            case stmt.If(_, then, orelse):
                self.block(then, lanes, guards)
                self.block(orelse, lanes, guards)
            case stmt.Publish(_, _, _, _, _, body):
                self.block(body, lanes, guards)

    def meet(
        self,
        state: tuple[Var, ...],
        m: Monoid,
        given: list[Lanes],
        lanes: tuple[Var, ...],
        guards: tuple[Any, ...],
    ) -> None:
        at, masks = self.begun[state[0]]
        folded = frozenset(lanes[at:])
        self.folded |= folded & NONE.union(*given)
        mask = NONE.union(*(lanes_of(g, self.table) for g in guards[masks:]))
        for v, g in zip(state, given, strict=True):
            self.table[v] |= (g | mask) - folded
        mine = [self.table[v] for v in state]
        for n, v in enumerate(state):
            self.table[v] |= _through(m.combine, n, [*mine, *mine])


def _through(f: Func, n: int, given: list[Lanes]) -> Lanes:
    """The lanes of one result of a function, from those of its arguments."""
    used = {q for q in walk(f.body[n]) if isinstance(q, Var)}
    return NONE.union(*(g for q, g in zip(f.params, given, strict=True) if q in used))
