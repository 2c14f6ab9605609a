"""The default schedule of the C back end: threads over rows, vectors over features, rows fetched early.

In: an unscheduled stage III program and the known sizes. Out: a scheduled one with its steps, for `emit_c`.

    last dense spatial loop       lanes: exact width, or tiles of it, inside rows that gather and outermost elsewhere
    outermost spatial loops       the grid: OpenMP threads
    rows with their own lengths   shared by their entries
    innermost dense reduction     lanes, when its extent is a constant
    long ones                     16 lanes of partial sums, added up at the end
    variable reductions           serial, with gathers prefetched; entries and rows of features likewise
    rows, where a list is there   in its order
    searches with growing keys    from the place before
    outputs written by lanes      need not stay in caches
    products of blocks            schedule/default_blocks.py
    sums of sums, attention       schedule/default_tiles.py
    a compacted list              schedule/default_append.py
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.analysis.follow import growing
from tilewright.ir import flat, stmt
from tilewright.ir.expr import FLOATS, Bin, Const, Load, Un, Var, dtype_of
from tilewright.ir.loops import Lookup
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import Node, is_named, parts, walk
from tilewright.schedule.append import append_of
from tilewright.schedule.balance import balanced
from tilewright.schedule.default_append import append_c
from tilewright.schedule.default_blocks import in_registers
from tilewright.schedule.default_tiles import in_tiles
from tilewright.schedule.edit import loops, uses
from tilewright.schedule.follow import followed
from tilewright.schedule.legal import carried, within
from tilewright.schedule.memory import row_bytes
from tilewright.schedule.options import COptions
from tilewright.schedule.record import Scheduled
from tilewright.schedule.shape import Nest, Reduction, bounds_another, is_unit, nest_of

VECTOR = 16
PARTS = 16  # lanes of partial sums
HEADS = 16  # of a row, that are folded at once
FEW = 10  # entries of a row that are folded one by one (measured)
ENTRIES = 32  # of a row, that are folded at once
SHORT = 4  # lanes of a sum that are worth it
COPIED = 512  # longest sum that is written out: where a loop ends is hard to foresee
AHEAD, WIDE = 32, 2048  # entries ahead at most (measured); bytes of a row whose width is not known
# Rows ahead, and the bytes of a row for which that pays (measured).
ROWS, LEAST, MOST = 4, 512, 1024
PLAIN = ("neg", "abs", "relu", "sqrt")


def schedule_c(p: flat.Program, options: COptions) -> Scheduled:
    """Stage III -> stage III with grid, lanes and serial loops."""
    listed = append_of(p)
    if listed is not None:
        return append_c(p, listed)
    s = _rows(Scheduled(p), options)
    nest = nest_of(s.program)
    tile = in_registers(nest, options)
    if tile is not None:
        return _leave(tile(_threads(s, nest.spatial[-2:])))
    tile = in_tiles(nest)
    if tile is not None:
        return _leave(_threads(tile(s)))
    s = _features(s, nest, options)
    for x in nest.spatial:
        if not isinstance(x.lo, Const):
            s = _early(s, x.var.name, options)
    for r in nest.reductions:
        s = _reduction(s, nest, r, options)
    return _leave(_follow(_threads(s)))


def _rows(s: Scheduled, options: COptions) -> Scheduled:
    """Rows with entries in the order of a list, and what they read again and again asked for ahead, where the machine
    does not do so by itself."""
    made = s.tried("visit", _rows_of(s), options.visit) if options.visit else s
    name = _rows_of(made)
    size = row_bytes(made.program, name) if name else 0
    if not options.prefetch or not size or (made is s and not LEAST <= size <= MOST):
        return made
    return made.tried("prefetch", name, ROWS)


def _rows_of(s: Scheduled) -> str:
    """The loop over rows that have entries of their own, or nothing."""
    nest = nest_of(s.program)
    found = nest.rows or nest.edges
    return found[0].var.name if found is not None else ""


def _features(s: Scheduled, nest: Nest, options: COptions) -> Scheduled:
    if not nest.spatial:
        return s
    last = nest.spatial[-1]
    rows = nest.rows
    if (rows is not None and last is rows[0]) or not isinstance(last.lo, Const):
        return s
    if not nest.fits_lanes(last) or _searches(s.program, nest, last) or _strides(nest, last):
        return s
    name = last.var.name
    if isinstance(last.hi, Const):
        tile = feature_tile(int(last.hi.value), options.width)
        if tile == last.hi.value:
            return s.then("kind", name, "lane")
        s = s.then("split", name, tile)
    elif len(nest.spatial) == 1 or not nest.reductions:
        return s
    else:
        s = s.then("split", name, options.width)
    s = s.then("kind", f"{name}_i", "lane")
    if len(nest.spatial) == 2 and nest.spatial[0].body == (last,) and not nest.gathers:
        s = s.then("reorder", nest.spatial[0].var.name, f"{name}_o")
    return s


def _strides(nest: Nest, s: flat.Loop) -> bool:
    """Whether lanes of a loop would read far apart what another sum, inside of it, reads side by side."""
    for r in nest.reductions:
        reads = [n.indices[0] for n in walk(r.loop.body) if isinstance(n, Load)]
        apart = [at for at in reads if uses(at, s.var)]
        along = any(is_unit(r.loop.var, at) for at in reads)
        if r.loop is not s and apart and along and _dense_sum(r):
            return not any(is_unit(s.var, at) for at in apart)
    return False


def _dense_sum(r: Reduction) -> bool:
    """Whether a sum has lanes that are worth it on their own."""
    few = isinstance(r.loop.hi, Const) and int(r.loop.hi.value) < SHORT
    return _vector(r) and not r.variable and not few


def _searches(p: flat.Program, nest: Nest, s: flat.Loop) -> bool:
    """Whether each turn of a loop searches another range: one after the other, they may be merged with another side."""
    found = (n for n in walk(p.body) if isinstance(n, Lookup))
    return any(nest.enters(s.var, n.lo, n.hi) for n in found)


def feature_tile(extent: int, width: int) -> int:
    """The largest divisor up to width, if it is a decent vector; else width with a guarded rest."""
    if extent <= width:
        return extent
    best = max(d for d in range(1, width + 1) if extent % d == 0)
    return best if best >= 2 * VECTOR else width


def _vector(r: Reduction) -> bool:
    """Whether lanes may hold parts of what is reduced."""
    return len(r.folds) == 1 and r.folds[0].monoid.name == "sum" and bool(r.folds[0].state)


def _reduction(s: Scheduled, nest: Nest, r: Reduction, options: COptions) -> Scheduled:
    if r.variable:
        s = _early(s, r.name, options)
    if _functions(nest, r):
        return _at_once(s, nest, r)
    if r.variable:
        return s
    lanes = any(x.kind == "lane" for x in loops(s.program))
    if not _vector(r) or (lanes and r.depth == 0) or bounds_another(nest, r):
        return s
    if _strides(nest, r.loop):
        return s
    extent = int(r.loop.hi.value) if isinstance(r.loop.hi, Const) else 0
    if extent >= 4 * PARTS and extent % PARTS == 0 and not lanes:
        s = s.then("split", r.name, PARTS).then("kind", f"{r.name}_i", "lane")
        s = s.then("rfactor", f"{r.name}_i")
        return s.then("kind", f"{r.name}_o", "unroll") if extent <= COPIED else s
    if 0 < extent <= options.width:
        return s.then("kind", r.name, "lane")
    s = s.then("split", r.name, feature_tile(extent, options.width) if extent else options.width)
    return s.then("kind", f"{r.name}_i", "lane")


def _functions(nest: Nest, r: Reduction) -> bool:
    """Whether a loop folds, itself, what has functions that vectors take many of at once."""
    plain = len(r.folds) == 1 and r.folds[0].monoid.fold is not None and not r.depth
    return plain and not any(isinstance(x, flat.Loop) for x in within(r.loop.body))


def _at_once(s: Scheduled, nest: Nest, r: Reduction) -> Scheduled:
    """Entries in lanes; heads too, which take their turns together."""
    made = s
    if len(nest.spatial) > 2:
        heads, last = nest.spatial[-2:]
        few = isinstance(heads.hi, Const) and int(heads.hi.value) <= HEADS
        if few and heads.body == (last,) and nest.fits_lanes(heads):
            made = made.then("kind", heads.var.name, "lane")
    name = r.name
    if r.variable:
        made, name = made.tried("by_length", name, FEW), f"{name}_long"
    if not isinstance(r.loop.hi, Const) or int(r.loop.hi.value) > ENTRIES:
        made, name = made.then("split", name, ENTRIES), f"{name}_i"
    return made.tried("kind", name, "lane").tried("at_once", name)


def _early(s: Scheduled, name: str, options: COptions) -> Scheduled:
    """Gathers of a loop over entries asked for ahead, if there are any: so many that they are as many bytes."""
    if not options.prefetch:
        return s
    entries = (options.prefetch << 10) // (row_bytes(s.program, name) or WIDE)
    return s.tried("prefetch", name, max(1, min(entries, AHEAD)))


def any_order(p: flat.Program) -> bool:
    """Whether C may add in the order that suits it: lanes are summed, and no other sum or function of several steps
    is there, whose meaning may depend on how numbers are rounded."""
    lanes = [x for x in loops(p) if x.kind == "lane"]
    across = any(isinstance(s, stmt.Fold | stmt.Join) for x in lanes for s in x.body)
    return across and not any(_rounds(s) for s in p.body)


def _rounds(n: Node) -> bool:
    """Whether something but plain sums and products is computed."""
    match n:
        case stmt.Fold() | stmt.Join() if n.monoid.name != "sum":
            return True
        case Un(op) if op not in PLAIN:
            return True
        case Bin("+" | "-") if dtype_of(n) in FLOATS:
            return True
    if is_named(n) or isinstance(n, Monoid):
        return False
    return any(_rounds(c) for c in parts(n) if isinstance(c, Node))


def _threads(s: Scheduled, but: tuple[flat.Loop, ...] = ()) -> Scheduled:
    """The outermost spatial loops, as many as stand directly inside each other; inner ones that merge stay serial.

    Rows with entries of their own number are shared by it, and whole.
    """
    top, inner = s.program.body[0] if s.program.body else None, False
    while isinstance(top, flat.Loop) and top.kind == "serial" and not carried(top):
        if top in but or not isinstance(top.lo, Const) or (inner and growing(top)):
            break
        s = s.then("kind", top.var.name, "grid")
        rows = [] if inner else _begins(s.program, top.var)
        if rows:
            return s.then("balance", rows[0])
        top, inner = top.body[0] if len(top.body) == 1 else None, True
    return s


def _begins(p: flat.Program, row: Var) -> list[str]:
    """The arrays that say where the entries of each row begin, by which rows can be shared."""
    ends = [n for x in loops(p) for n in walk((x.lo, x.hi)) if isinstance(n, Load)]
    found = [n.buffer for n in ends if n.indices == (row,) and n.buffer.role in ("index", "plan")]
    names = dict.fromkeys(b.name for b in found)
    return [n for n in names if balanced(replace(p, balance=n))]


def _follow(s: Scheduled) -> Scheduled:
    """Searches in serial loops go on from the place before."""
    for name in [x.var.name for x in loops(s.program) if followed(s.program, x)]:
        s = s.then("follow", name)
    return s


def _leave(s: Scheduled) -> Scheduled:
    """Outputs that lanes write, and nothing here reads, may leave the caches."""
    p = s.program
    lanes = [x for x in loops(p) if x.kind == "lane"]
    wide = {n.buffer.name for x in lanes for n in walk(x.body) if isinstance(n, stmt.Store)}
    read = {n.buffer.name for n in walk(p.body) if isinstance(n, Load)}
    names = [b.name for b in p.buffers if b.role == "out" and b.name in wide - read]
    return s.then("stream", *names) if names else s
