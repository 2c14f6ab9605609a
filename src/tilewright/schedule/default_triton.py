"""The default schedule of the Triton back end: one set of rules for every program.

In: an unscheduled stage III program and a setting. Out: a scheduled one, for `lower_to_tile`.

    rows of their own length      a work list (or padded lanes, when there is none)
    inside of blocks              lanes
    a dense product               tiles of bm x bn x bk, grid in groups
    last dense spatial loop       lanes of `width`; what is left: the grid
    variable reductions           serial; constant ones: lanes; dense ones: serial tiles of lanes
    monoids without a lane form   serial, in order
    a compacted list              schedule/append.py
"""

from __future__ import annotations

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const, Load
from tilewright.ir.node import walk
from tilewright.schedule import loop as step
from tilewright.schedule.append import append_of, append_triton
from tilewright.schedule.edit import loops
from tilewright.schedule.options import Setting
from tilewright.schedule.shape import (
    Nest,
    Reduction,
    bounds_another,
    is_steady,
    is_unit,
    nest_of,
    product_of,
)
from tilewright.schedule.work import pad, work_list


def schedule_triton(p: flat.Program, setting: Setting) -> flat.Program:
    """Stage III -> stage III with grid, lanes and serial loops."""
    listed = append_of(p)
    if listed is not None:
        return append_triton(p, listed, setting)
    nest = nest_of(p)
    product = product_of(nest)
    if product is not None:
        p = _product(p, nest, product, setting)
    elif nest.blocks:
        p = _blocks(p, nest, setting)
    elif nest.rows is not None:
        p = _rows(p, nest, setting)
    else:
        p = _entries(p, nest, setting)
    return _rest_to_grid(p, nest)


def _product(p: flat.Program, nest: Nest, product: tuple, setting: Setting) -> flat.Program:
    m, n, k = (x.name if isinstance(x, Reduction) else x.var.name for x in product)
    for name, key, size in ((m, "bm", 64), (n, "bn", 64)):
        p = step.split(p, name, setting.get(key, size))
        p = step.kind(p, f"{name}_i", "lane")
        p = step.kind(p, f"{name}_o", "grid")
    p = step.split(p, k, setting.get("bk", 32))
    p = step.kind(p, f"{k}_i", "lane")
    return step.swizzle(p, setting.get("group", 8))


def _blocks(p: flat.Program, nest: Nest, setting: Setting) -> flat.Program:
    """Block rows in the grid; the inside of a block in lanes, cut to bm and bn."""
    for s in nest.blocks:
        assert isinstance(s.hi, Const)
        p = _cut(p, s.var.name, int(s.hi.value), setting.get("bm", 128), "grid")
    p = _features(p, nest, setting)
    for r in nest.reductions:
        if r.constant and _laned(r):
            p = _cut(p, r.name, int(r.loop.hi.value), setting.get("bn", 128), "serial")  # type: ignore[attr-defined]
        elif not r.variable:
            p = _dense_reduction(p, nest, r, setting)
    return p


def _cut(p: flat.Program, name: str, extent: int, size: int, outer: str) -> flat.Program:
    if extent <= size:
        return step.kind(p, name, "lane")
    p = step.split(p, name, size)
    p = step.kind(p, f"{name}_i", "lane")
    return step.kind(p, f"{name}_o", outer)


def _rows(p: flat.Program, nest: Nest, setting: Setting) -> flat.Program:
    assert nest.rows is not None
    rows, entries = nest.rows
    p = _features(p, nest, setting)
    for r in nest.reductions:
        if r.depth and not r.variable:
            p = _dense_reduction(p, nest, r, setting)
    listed = setting.get("listed") and all(f.monoid.joins for f in entries.folds)
    spread = work_list if listed else pad
    p = spread(p, rows.var.name, entries.name, setting.get("rows", 8), setting.get("unroll", 1))
    grids = [x.var.name for x in loops(p) if x.kind == "grid"]
    first = "u" if listed else f"{rows.var.name}_o"
    others = [g for g in grids if g != first]
    return step.order(p, *others, first) if setting.get("outer") else step.order(p, first, *others)


def _entries(p: flat.Program, nest: Nest, setting: Setting) -> flat.Program:
    """Dense spatial loops: the last in lanes (or, when it is the only one beside reductions, `edges`)."""
    dense = [
        r
        for r in nest.reductions
        if not r.variable and r.depth == 0 and not bounds_another(nest, r)
    ]
    if dense and nest.free and nest.fits_lanes(nest.free[-1]):
        stored = [s for s in nest.free if s.var.name.startswith("p_")]
        name = (stored or nest.free[-1:])[0].var.name
        p = step.split(p, name, setting.get("edges", 32))
        p = step.kind(p, f"{name}_i", "lane")
        p = step.kind(p, f"{name}_o", "grid")
        for r in dense:
            p = _dense_reduction(p, nest, r, setting)
            inner = tuple(x for x in loops(p) if x.var.name == f"{r.name}_i")
            folds = [n for n in walk(inner) if isinstance(n, stmt.Fold)]
            if len(folds) == 1 and folds[0].monoid.joins:
                p = step.rfactor(p, f"{r.name}_i")
        return p
    return _features(p, nest, setting)


def _features(p: flat.Program, nest: Nest, setting: Setting) -> flat.Program:
    """The last dense spatial loop in lanes of `width`; whole when it is known to fit."""
    if not nest.free or nest.spatial[-1] is not nest.free[-1]:
        return p
    s = nest.free[-1]
    if not nest.fits_lanes(s):
        return p
    name, width = s.var.name, setting.get("width", 32)
    if setting.get("whole"):
        return step.lane(p, name, width)
    p = step.split(p, name, width)
    p = step.kind(p, f"{name}_i", "lane")
    return step.kind(p, f"{name}_o", "grid")


def _laned(r: Reduction) -> bool:
    """Whether everything that a loop folds has a lane form; else it stays serial."""
    return all(f.monoid.laned for f in r.folds)


def _dense_reduction(p: flat.Program, nest: Nest, r: Reduction, setting: Setting) -> flat.Program:
    """A reduction over a whole dense dimension: lanes, or tiles of lanes one after the other."""
    if not _laned(r):
        return p
    if bounds_another(nest, r):
        return p
    loads = [n for n in walk(r.loop.body) if isinstance(n, Load)]
    if not any(is_unit(r.loop.var, n.indices[0]) for n in loads):
        return p
    if setting.get("inner"):
        return step.lane(p, r.name, setting["inner"])
    if setting.get("whole") and not r.depth and nest.rows is None:
        return step.lane(p, r.name, setting["width"])
    p = step.split(p, r.name, setting.get("width", 32))
    return step.kind(p, f"{r.name}_i", "lane")


def _rest_to_grid(p: flat.Program, nest: Nest) -> flat.Program:
    """Programs over what is left, down to a loop whose bounds are read from memory: from there on, serial."""
    for s in nest.spatial:
        if not is_steady(s):
            break
        if any(x.var is s.var and x.kind == "serial" for x in loops(p)):
            p = step.kind(p, s.var.name, "grid")
    return p
