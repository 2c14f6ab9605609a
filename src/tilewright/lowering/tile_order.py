"""The one order of tile dimensions: contiguous lanes last, and the wide side of a product first.

In: stage III and its lanes. Out: lanes in canonical order.

    x[c * n_f + f], lanes r (in c) and f  ->  (r, f)
"""

from __future__ import annotations

from tilewright.analysis.cost import BYTES
from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Expr, LaneSplit, Load, Var
from tilewright.ir.node import walk
from tilewright.lowering.lanes import Table, lane_extents, lanes_of

WARPGROUP_ROWS = 64
LANE_ROWS = 32


def lane_order(p: flat.Program, table: Table) -> tuple[Var, ...]:
    """All lanes, sorted so that in every access the lane of unit stride comes last."""
    extents = lane_extents(p)
    defs = {s.var: s.value for s in walk(p.body) if isinstance(s, stmt.Let)}
    before: dict[Var, set[Var]] = {v: set() for v in extents}
    for s in walk(p.body):
        if isinstance(s, Load | stmt.Store | stmt.Atomic):
            unit = _unit_lanes(s.indices[0], defs, extents)
            for c in unit:
                before[c] |= lanes_of(s.indices[0], table) - unit
    out: list[Var] = []
    todo = list(extents)
    while todo:
        ready = [v for v in todo if not (before[v] & set(todo)) - {v}]
        out.append((ready or todo)[0])
        todo.remove(out[-1])
    return _parts_beside(p, _wide_first(p, out, extents, table))


def _parts_beside(p: flat.Program, order: tuple[Var, ...]) -> tuple[Var, ...]:
    """The two lanes that a lane is split into, where it stands."""
    made = list(order)
    for s in (n for n in walk(p.body) if isinstance(n, LaneSplit)):
        made = [v for v in made if v not in (s.outer, s.inner)]
        at = made.index(s.lane) + 1
        made[at:at] = [s.outer, s.inner]
    return tuple(made)


def _wide_first(
    p: flat.Program, order: list[Var], extents: dict[Var, int], table: Table
) -> tuple[Var, ...]:
    """Swap a product's sides when the first has fewer rows than a warpgroup and the second has not.

    Tensor cores want it. Products of wider numbers are sums of lanes, and want it for a few rows only.
    """
    for s in walk(p.body):
        if not (isinstance(s, stmt.Fold) and s.monoid.name == "sum"):
            continue
        product = isinstance(s.args[0], Bin) and s.args[0].op == "*"
        sides = [v for v in order if v in table[s.state[0]]]
        inner = lanes_of(s.args[0], table) - table[s.state[0]]
        if product and inner and len(sides) == 2:
            a, b = sides
            most = WARPGROUP_ROWS if _half(s.args[0]) else LANE_ROWS
            if extents[a] < most and extents[b] >= WARPGROUP_ROWS:
                i, j = order.index(a), order.index(b)
                order[i], order[j] = b, a
                break
    return tuple(order)


def _half(e: Expr) -> bool:
    """Whether all that is multiplied has 16 bits or less."""
    match e:
        case Bin(_, a, b):
            return _half(a) and _half(b)
        case Cast(_, a):
            return _half(a)
    return not isinstance(e, Load) or BYTES[e.buffer.dtype] <= 2


def _unit_lanes(e: Expr, defs: dict[Var, Expr], lanes: dict[Var, int]) -> set[Var]:
    """Lanes that enter an index with factor 1."""
    match e:
        case Var() if e in lanes:
            return {e}
        case Var() if e in defs:
            return _unit_lanes(defs[e], defs, lanes)
        case Bin("+", a, b):
            return _unit_lanes(a, defs, lanes) | _unit_lanes(b, defs, lanes)
        case Cast(_, a) | Bin("%", a, _):
            return _unit_lanes(a, defs, lanes)
    return set()
