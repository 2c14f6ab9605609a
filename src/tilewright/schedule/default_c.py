"""The default schedule of the C back end: threads over rows, vectors over features, rows fetched early.

In: an unscheduled stage III program and the known sizes. Out: a scheduled one, for `emit_c`.

    last dense spatial loop       lanes (exact width, or tiles of it outermost)
    outermost spatial loops       the grid: OpenMP threads
    innermost dense reduction     lanes, when its extent is a constant
    long ones                     32 lanes of partial sums, added up at the end
    variable reductions           serial, with gathers prefetched; entries likewise
"""

from __future__ import annotations

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const
from tilewright.schedule import loop as step
from tilewright.schedule.edit import loops
from tilewright.schedule.memory import prefetch
from tilewright.schedule.options import COptions
from tilewright.schedule.shape import Nest, Reduction, bounds_another, nest_of
from tilewright.support.errors import ScheduleError

VECTOR = 16
PARTS = 32


def schedule_c(p: flat.Program, options: COptions) -> flat.Program:
    """Stage III -> stage III with grid, lanes and serial loops."""
    nest = nest_of(p)
    p = _features(p, nest, options)
    for s in nest.spatial:
        if not isinstance(s.lo, Const):
            p = _early(p, s.var.name, options)
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
    if len(nest.spatial) == 2:
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
        return _early(p, r.name, options)
    vector = all(f.monoid.name == "sum" and f.state for f in r.folds) and len(r.folds) == 1
    lanes = any(x.kind == "lane" for x in loops(p))
    if not vector or (lanes and r.depth == 0) or bounds_another(nest, r):
        return p
    extent = int(r.loop.hi.value) if isinstance(r.loop.hi, Const) else 0
    if extent >= 4 * PARTS and extent % PARTS == 0 and not lanes:
        p = step.kind(step.split(p, r.name, PARTS), f"{r.name}_i", "lane")
        return step.rfactor(p, f"{r.name}_i")
    if 0 < extent <= options.width:
        return step.kind(p, r.name, "lane")
    p = step.split(p, r.name, options.width)
    return step.kind(p, f"{r.name}_i", "lane")


def _early(p: flat.Program, name: str, options: COptions) -> flat.Program:
    """Gathers of a loop over entries asked for ahead, if there are any."""
    try:
        return prefetch(p, name, options.prefetch)
    except ScheduleError:
        return p


def vector_bits(p: flat.Program) -> int:
    """The width of vectors that suits a scheduled program: narrow ones where all that lanes do is to be added up,
    once for each number that is made."""
    lanes = [x for x in loops(p) if x.kind == "lane"]
    across = {x.var for x in lanes if any(isinstance(s, stmt.Fold | stmt.Join) for s in x.body)}
    return 256 if across and all(x.var in across for x in lanes) else 512


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
