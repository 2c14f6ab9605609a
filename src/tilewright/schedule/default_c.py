"""The default schedule of the C back end: threads over rows, vectors over features, rows fetched early.

In: an unscheduled stage III program and the known sizes. Out: a scheduled one, for `emit_c`.

    last dense spatial loop       lanes (exact width, or tiles of it outermost)
    outermost spatial loops       the grid: OpenMP threads
    innermost dense reduction     lanes, when its extent is a constant
    variable reductions           serial, with gathers prefetched
    a compacted list              schedule/append.py
"""

from __future__ import annotations

from tilewright.ir import flat
from tilewright.ir.expr import Const
from tilewright.schedule import loop as step
from tilewright.schedule.append import append_c, append_of
from tilewright.schedule.edit import loops
from tilewright.schedule.memory import prefetch
from tilewright.schedule.options import COptions
from tilewright.schedule.shape import Nest, Reduction, bounds_another, nest_of
from tilewright.support.errors import ScheduleError

VECTOR = 16


def schedule_c(p: flat.Program, options: COptions) -> flat.Program:
    """Stage III -> stage III with grid, lanes and serial loops."""
    listed = append_of(p)
    if listed is not None:
        return append_c(p, listed)
    nest = nest_of(p)
    p = _features(p, nest, options)
    for r in nest.reductions:
        p = _reduction(p, nest, r, options)
    return _threads(p, nest)


def _features(p: flat.Program, nest: Nest, options: COptions) -> flat.Program:
    if not nest.spatial:
        return p
    last = nest.spatial[-1]
    rows = nest.rows
    if (rows is not None and last is rows[0]) or not isinstance(last.lo, Const):
        return p
    if not nest.fits_lanes(last):
        return p
    name = last.var.name
    if isinstance(last.hi, Const):
        tile = feature_tile(int(last.hi.value), options.width)
        if tile == last.hi.value:
            return step.kind(p, name, "lane")
        p = step.split(p, name, tile)
    elif len(nest.spatial) == 1 or not nest.reductions:
        return p
    else:
        p = step.split(p, name, options.width)
    p = step.kind(p, f"{name}_i", "lane")
    if len(nest.spatial) == 2 and nest.spatial[0].body == (last,):
        p = step.reorder(p, nest.spatial[0].var.name, f"{name}_o")
    return p


def feature_tile(extent: int, width: int) -> int:
    """The largest divisor up to width, if it is a decent vector; else width with a guarded rest."""
    if extent <= width:
        return extent
    best = max(d for d in range(1, width + 1) if extent % d == 0)
    return best if best >= 2 * VECTOR else width


def _reduction(p: flat.Program, nest: Nest, r: Reduction, options: COptions) -> flat.Program:
    if r.variable:
        try:
            return prefetch(p, r.name, options.prefetch)
        except ScheduleError:
            return p
    vector = all(f.monoid.name == "sum" and f.state for f in r.folds) and len(r.folds) == 1
    lanes = any(x.kind == "lane" for x in loops(p))
    if not vector or (lanes and r.depth == 0) or bounds_another(nest, r):
        return p
    if isinstance(r.loop.hi, Const) and r.loop.hi.value <= options.width:
        return step.kind(p, r.name, "lane")
    p = step.split(p, r.name, options.width)
    return step.kind(p, f"{r.name}_i", "lane")


def _threads(p: flat.Program, nest: Nest) -> flat.Program:
    """The outermost spatial loops, as many as stand directly inside each other."""
    top = p.body[0] if p.body else None
    while isinstance(top, flat.Loop) and top.kind == "serial" and not step.carried(top):
        if isinstance(top.lo, Const):
            p = step.kind(p, top.var.name, "grid")
        else:
            break
        top = top.body[0] if len(top.body) == 1 else None
    return p
