"""The default schedule of the Triton back end: one set of rules for every program.

In: an unscheduled stage III program and a setting. Out: a scheduled one with its steps, for `lower_to_tile`.

    rows of their own length      a work list (or padded lanes, when there is none)
    entries of such rows          parts of rows from a list, several entries of each at once
    inside of blocks              lanes; of strips of one column, several at once: products of 16-bit numbers
    a dense product               tiles of bm x bn x bk, grid in groups; the sums of its last wave in pieces,
                                  or its last rows in a tile of `tail`
    last dense spatial loop       lanes of `width`; what is left: the grid
    variable reductions           serial; constant ones: lanes; dense ones: serial tiles of lanes
    several reductions            share a tile of LANES a warp: the innermost has its lanes first
    monoids without a lane form   serial, in order
    small parts, and tests        schedule/default_look.py
    a compacted list              schedule/default_append.py; of what a product makes: in the product's tiles
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.analysis.cost import BYTES
from tilewright.ir import flat
from tilewright.ir.expr import Const, Load
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.schedule.append import append_of
from tilewright.schedule.attach import listed
from tilewright.schedule.default_append import append_triton
from tilewright.schedule.default_look import by_lane, laned, look, looks
from tilewright.schedule.edit import loops
from tilewright.schedule.options import CORES, WARPS, Setting
from tilewright.schedule.record import Scheduled
from tilewright.schedule.shape import (
    DOT_ROWS,
    Nest,
    Reduction,
    bounds_another,
    inside_blocks,
    is_steady,
    is_unit,
    multiplies,
    nest_of,
    product_of,
    strip_product,
)

LANES = 1024  # numbers that a reduction holds, over all lanes, for each warp: 32 of a thread
# Lanes of an inner reduction that is not cut; of each part of a longer one, of which several are on their way at once
WHOLE, PART = 512, 128
# Copies of a turn in a kernel, at most; of one that keeps several numbers of 64 bits
COPIES, FEWEST = 64, 2
SHARED, MOST_BESIDE = 227 << 10, 4  # bytes of a multiprocessor; programs that it has at once
STRIPS = 1024  # numbers of strips of one column each, in one step of a product
NARROW = 64  # columns of a low last tile, for each of the programs that share it


def schedule_triton(p: flat.Program, setting: Setting) -> Scheduled:
    """Stage III -> stage III with grid, lanes and serial loops."""
    found, made = append_of(p), listed(p)
    if found is not None and not made:
        return append_triton(p, found, setting)
    nest = nest_of(replace(p, body=p.body[:1]) if made else p)
    product = product_of(nest)
    s = Scheduled(p)
    if product is not None:
        s = _product(s, nest, product, setting)
    elif nest.blocks:
        s = _blocks(s, nest, setting)
    elif nest.rows is not None:
        s = _rows(s, nest, setting)
    elif nest.edges is not None and setting.get("listed"):
        s = _segments(s, nest, setting)
    else:
        s = _entries(s, nest, setting)
    s = _rest_to_grid(s, nest)
    s = s.then("attach", made) if made else s
    return _tiles_first(s, nest) if nest.blocks and setting.get("outer") else s


def _product(s: Scheduled, nest: Nest, product: tuple, setting: Setting) -> Scheduled:
    """Tiles of bm x bn, summed up bk at once; the inside of a group and of a listed tile is not cut further."""
    m, n, k = product
    for side, key in ((m, "bm"), (n, "bn")):
        name, size = side.var.name, setting.get(key, 64)
        if isinstance(side.hi, Const):
            s = _inside(s, nest, side, size)
            continue
        s = s.then("split", name, size)
        s = s.then("kind", f"{name}_i", "lane")
        s = s.then("kind", f"{name}_o", "grid")
    s = _summed(s, nest, k, setting.get("bk", 32))
    s = _rest_to_grid(s, nest)
    grids = [x.var.name for x in loops(s.program) if x.kind == "grid"]
    serial = [x.var.name for x in loops(s.program) if x.kind == "serial"]
    group, pieces = setting.get("group", 8), setting.get("pieces", 0)
    if pieces and len(grids) == 2 and len(serial) == len(s.program.body) == 1:
        programs = setting.get("cores", CORES) * _beside(s, setting)
        s = s.then("share", *grids, *serial, programs, pieces, group)
    elif len(grids) > 1:
        s = s.then("swizzle", group)
    few = setting.get("tail", 0)
    if not few or few >= setting.get("bm", 64) or pieces > 1 or isinstance(m.hi, Const):
        return s
    wide, known = f"{n.var.name}_i", {x.var.name: x for x in loops(s.program)}
    shared = not pieces and wide in known and setting.get("bn", 64) > NARROW
    more = (wide, NARROW, setting.get("cores", CORES)) if shared else ()
    return s.then("tail", f"{m.var.name}_i", few, *more)


def _beside(s: Scheduled, setting: Setting) -> int:
    """How many programs a multiprocessor has at once, by what their operands take of its shared memory."""
    wide = max((BYTES[b.dtype] for b in s.program.buffers if b.role == "in"), default=4)
    held = (setting.get("bm", 64) + setting.get("bn", 64)) * setting.get("bk", 32) * wide
    return max(1, min(MOST_BESIDE, SHARED // (held * setting.get("stages", 3))))


def _inside(s: Scheduled, nest: Nest, side: Loop, size: int) -> Scheduled:
    """A side that is the inside of a tile: that of one, or of several which a list names one after the other."""
    assert isinstance(side.hi, Const)
    name, held = side.var.name, int(side.hi.value)
    outer = nest.spatial[max(nest.spatial.index(side) - 1, 0)]
    listed = outer in nest.free and side not in outer.body  # it is asked whether the tile counts
    if listed and size // held > 1:
        s = _several(s, outer.var.name, name, size // held)
        return s.then("kind", f"{outer.var.name}_o", "grid")
    return _cut(s, name, held, size, "grid")


def _summed(s: Scheduled, nest: Nest, k: Reduction, bk: int) -> Scheduled:
    """What a product sums up, bk at once: of a list of tiles, the insides of several."""
    within = [n for n in walk(k.loop.body) if isinstance(n, Loop)]
    inner = next((r for r in nest.reductions if r.constant and r.loop in within), None)
    if inner is not None:
        assert isinstance(inner.loop.hi, Const)
        held = int(inner.loop.hi.value)
        if held >= bk:
            return _cut(s, inner.name, held, bk, "serial")
        return _several(s, k.name, inner.name, bk // held)
    return s.then("split", k.name, bk).then("kind", f"{k.name}_i", "lane")


def _blocks(s: Scheduled, nest: Nest, setting: Setting) -> Scheduled:
    """Block rows in the grid; the inside of a block in lanes, cut to bm and bn."""
    for inside in nest.blocks:
        assert isinstance(inside.hi, Const)
        if nest.fits_lanes(inside):
            s = _cut(s, inside.var.name, int(inside.hi.value), setting.get("bm", 128), "grid")
    s = _features(s, nest, setting)
    gang, strips = inside_blocks(nest), strip_product(nest) if _half(s.program) else None
    for r in nest.reductions:
        if r.constant and bounds_another(nest, r):
            continue  # one after the other: each has entries of its own
        around = gang[0].name if gang is not None and r is gang[1] else ""
        if around and laned(r) and setting.get("blocks", 1) > 1:
            s = _several(s, around, r.name, setting["blocks"])
        elif r.constant and laned(r):
            extent, most = int(r.loop.hi.value), setting.get("bn", 128)  # type: ignore[attr-defined]
            s = _cut(s, r.name, extent, most, "serial")
            if around and extent > most:  # one loop: Triton pipelines those
                s = s.then("fuse", around, f"{r.name}_o")
        elif not r.variable:
            s = _dense_reduction(s, nest, r, setting)
        elif r is strips:
            (high,) = (int(b.hi.value) for b in nest.blocks if isinstance(b.hi, Const))
            s = s.then("split", r.name, setting.get("bk", max(DOT_ROWS, STRIPS // high)))
            s = s.then("kind", f"{r.name}_i", "lane")
    return s


def _several(s: Scheduled, outer: str, inner: str, blocks: int) -> Scheduled:
    """serial p: lane k in B  ->  serial p_o: lane k in blocks * B"""
    s = (
        s.then("split", outer, blocks)
        .then("kind", f"{outer}_i", "lane")
        .then("kind", inner, "lane")
    )
    return s.then("fuse", f"{outer}_i", inner)


def _tiles_first(s: Scheduled, nest: Nest) -> Scheduled:
    """Feature tiles outermost, so that the tile of the dense side stays in the second-level cache."""
    grids = [x.var.name for x in loops(s.program) if x.kind == "grid"]
    last = f"{nest.spatial[-1].var.name}_o"
    return s.then("order", last, *(g for g in grids if g != last)) if last in grids else s


def _cut(s: Scheduled, name: str, extent: int, size: int, outer: str) -> Scheduled:
    if extent <= size:
        return s.then("kind", name, "lane")
    s = s.then("split", name, size)
    s = s.then("kind", f"{name}_i", "lane")
    return s.then("kind", f"{name}_o", outer)


def _rows(s: Scheduled, nest: Nest, setting: Setting) -> Scheduled:
    assert nest.rows is not None
    rows, entries = nest.rows
    s = _features(s, nest, setting)
    for r in nest.reductions:
        if r.depth and not r.variable:
            s = _dense_reduction(s, nest, r, setting)
    alone = all(r.depth for r in nest.reductions if r is not entries)  # pieces are of one reduction
    listed = setting.get("listed") and alone and all(f.monoid.joins for f in entries.folds)
    shared = (1,) if setting.get("shared") else ()
    spread = (rows.var.name, entries.name)
    spread_by = (setting.get("rows", 8), min(setting.get("unroll", 1), _copies(entries)))
    others = [x.var.name for x in loops(s.program) if x.kind == "grid"]
    s = _rest_to_grid(s, nest, rows)
    before = {x.var.name for x in loops(s.program) if x.kind == "grid"}
    one_each = s.tried("work_list", *spread, *spread_by, *shared) if listed else s
    s = s.then("pad", *spread, *spread_by) if one_each is s else one_each
    made = [x.var.name for x in loops(s.program) if x.kind == "grid"]
    (first,) = (name for name in made if name not in before)
    grids = [*others, first] if setting.get("outer") else [first, *others]
    s = s.then("order", *grids)
    return s.then("stream", *_read_once(entries)) if setting.get("stream") else s


def _copies(entries: Reduction) -> int:
    """How many copies of an entry's turn may stand in a kernel: exponentials of 64 bits are long, and compile so."""
    several = (f.monoid for f in entries.folds if len(f.monoid.dtypes) > 1)
    return FEWEST if any("f64" in m.dtypes for m in several) else COPIES


def _read_once(entries: Reduction) -> list[str]:
    """The arrays that have one element for each entry."""
    own = (entries.loop.var,)
    found = {
        n.buffer.name: None
        for n in walk(entries.loop.body)
        if isinstance(n, Load) and n.indices == own
    }
    return list(found)


def _segments(s: Scheduled, nest: Nest, setting: Setting) -> Scheduled:
    """Parts of rows in the units of a list, `edges` entries of each at once; dense reductions in lanes."""
    assert nest.edges is not None
    rows, entries = nest.edges
    if nest.spatial[-1] is not entries:
        s = _features(s, nest, setting)
    for r in nest.reductions:
        s = by_lane(_dense_reduction(s, nest, r, setting), r)
    lanes, across = setting.get("rows", 8), setting.get("edges", 4)
    names = (rows.var.name, entries.var.name)
    return s.then("segments", *names, lanes, across, setting.get("unroll", 1))


def _entries(s: Scheduled, nest: Nest, setting: Setting) -> Scheduled:
    """Dense spatial loops: the last in lanes (or, when it is the only one beside reductions, `edges`).

    Without a reduction the first takes `edges` lanes as well: one program would else have a few numbers to do.
    """
    dense = [
        r
        for r in nest.reductions
        if not r.variable and r.depth == 0 and not bounds_another(nest, r)
    ]
    if looks(nest, dense):
        return look(s, nest, dense, setting.get("warps", WARPS))
    if dense and nest.free and nest.fits_lanes(nest.free[-1]):
        stored = [x for x in nest.free if x.var.name.startswith("p_")]
        name = (stored or nest.free[-1:])[0].var.name
        s = s.then("split", name, setting.get("edges", 32))
        s = s.then("kind", f"{name}_i", "lane")
        s = s.then("kind", f"{name}_o", "grid")
        for r in reversed(dense):
            s = _dense_reduction(s, nest, r, setting)
        for r in dense:
            s = by_lane(s, r)
        return _unasked(s, f"{name}_i")
    s = _features(s, nest, setting)
    first = nest.free[0] if len(nest.free) > 1 and not nest.reductions else None
    if first is not None and setting.get("edges") and nest.fits_lanes(first):
        s = s.then("split", first.var.name, setting["edges"])
        s = s.then("kind", f"{first.var.name}_i", "lane")
        s = s.then("kind", f"{first.var.name}_o", "grid")
    return s


def _unasked(s: Scheduled, entries: str) -> Scheduled:
    """Rows of 16-bit numbers are gathered without asking whether there is an entry (H200, the same tiles: 6 % with 128
    features, 1 % with 32). Those of 32 bits did not gain."""
    return s.tried("clamp", entries) if _half(s.program) else s


def _half(p: flat.Program) -> bool:
    """Whether what is read has 16 bits or fewer."""
    return max((BYTES[b.dtype] for b in p.buffers if b.role == "in"), default=4) <= 2


def _features(s: Scheduled, nest: Nest, setting: Setting) -> Scheduled:
    """The last dense spatial loop in lanes of `width`; whole when it is known to fit."""
    if not nest.free or nest.spatial[-1] is not nest.free[-1]:
        return s
    last = nest.free[-1]
    if not nest.fits_lanes(last):
        return s
    name, width = last.var.name, setting.get("width", 32)
    if setting.get("whole"):
        return s.then("lane", name, width)
    s = s.then("split", name, width)
    s = s.then("kind", f"{name}_i", "lane")
    return s.then("kind", f"{name}_o", "grid")


def _dense_reduction(s: Scheduled, nest: Nest, r: Reduction, setting: Setting) -> Scheduled:
    """A reduction over a whole dense dimension: lanes, or tiles of lanes one after the other."""
    if not laned(r):
        return s
    if bounds_another(nest, r):
        return s
    loads = [n for n in walk(r.loop.body) if isinstance(n, Load)]
    if not any(is_unit(r.loop.var, n.indices[0]) for n in loads):
        return s
    deep = any(o.depth for o in nest.reductions if not (o.variable or o.constant))
    if setting.get("inner") and (r.depth or not deep):
        return _whole(s, r, setting["inner"])
    if setting.get("whole") and not r.depth and nest.rows is None:
        return s.then("lane", r.name, setting["width"])
    width = setting.get("width", 32)
    asked = setting.get("edges", 1) * width
    width = min(
        width, max(asked, LANES * setting.get("warps", WARPS)) // _held(s, nest, r, setting)
    )
    return s.then("split", r.name, width).then("kind", f"{r.name}_i", "lane") if width > 1 else s


def _whole(s: Scheduled, r: Reduction, most: int) -> Scheduled:
    """All of an inner reduction in lanes, as many as it needs if that is known; of a very long one, a part at once."""
    if isinstance(r.loop.hi, Const):
        most = min(most, max(DOT_ROWS, 1 << (int(r.loop.hi.value) - 1).bit_length()))
    if most <= WHOLE:
        return s.then("lane", r.name, most)
    return s.then("split", r.name, PART).then("kind", f"{r.name}_i", "lane")


def _held(s: Scheduled, nest: Nest, r: Reduction, setting: Setting) -> int:
    """How many lanes of other loops there are in what a reduction folds; products of matrices hold none of it, unless
    one sum is over several loops: its terms are added up in lanes before they are joined."""
    args = tuple(a for f in r.folds for a in f.args)
    lanes = {x.var.name: x for x in loops(s.program) if x.kind == "lane"}
    found: dict[Loop, int] = {}
    for x in (*nest.spatial, *(o.loop for o in nest.reductions if o is not r)):
        lane = lanes.get(x.var.name) or lanes.get(f"{x.var.name}_i")
        if lane is not None and isinstance(lane.hi, Const) and nest.enters(x.var, *args):
            found[x] = 1 << (int(lane.hi.value) - 1).bit_length()
    alone = all(o is r or o.loop not in found or o.folds != r.folds for o in nest.reductions)
    if alone and min(found.values(), default=0) >= DOT_ROWS and multiplies(nest, r, *found):
        return 1
    return prod(found.values()) * (setting.get("rows", 8) if nest.rows is not None else 1)


def _rest_to_grid(s: Scheduled, nest: Nest, but: Loop | None = None) -> Scheduled:
    """Programs over what is left, down to a loop whose bounds are read from memory: from there on, serial."""
    for left in nest.spatial:
        if not is_steady(left):
            break
        if left is not but and any(
            x.var is left.var and x.kind == "serial" for x in loops(s.program)
        ):
            s = s.then("kind", left.var.name, "grid")
    return s
