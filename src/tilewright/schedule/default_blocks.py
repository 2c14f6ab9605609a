"""Products of blocks in C: sums side by side, in registers, that share what they read.

In: an unscheduled stage III program whose blocks are multiplied and summed, or made by products of rows. Out: the same
with its tile of registers; None where there is no such program, or features are no whole number of lines.

    i_b, i_in, f:        sum over p, j_in of a[p, i_in, j_in] * x[j, f]
 -> i_b, f_o, i_in_o:    8 rows x 2 vectors of sums
    i_b, p, i_in, j_in:  sum over f of x[i, f] * z[j, f]
 -> i_b, p, i_in_o, j_in_o:  2 x 8 vectors of partial sums
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.analysis.cost import BYTES
from tilewright.ir import stmt
from tilewright.ir.expr import Const
from tilewright.ir.flat import Loop
from tilewright.schedule.edit import find
from tilewright.schedule.legal import within
from tilewright.schedule.options import COptions
from tilewright.schedule.record import Scheduled
from tilewright.schedule.shape import Nest, Reduction, inside_blocks, multiplies
from tilewright.schedule.trim import ending

LINE = 64
VECTORS = 2  # of features, for each row
ROWS, FEW = 8, 4  # rows at once: with 32 registers, as wide vectors have them, and with 16
PARTS = 16  # lanes of partial sums


def in_registers(nest: Nest, options: COptions) -> Callable[[Scheduled], Scheduled] | None:
    """What makes the tile of registers of a product with blocks, or of blocks made by products; both by the two
    innermost spatial loops. Loops around them are in the grid by then: that their turns differ is not seen later."""
    if len(nest.spatial) < 3 or not isinstance(nest.spatial[-2].hi, Const):
        return None
    return _product(nest, options) or _dots(nest, options)


def _product(nest: Nest, options: COptions) -> Callable[[Scheduled], Scheduled] | None:
    """Rows of a block, each times two vectors of features."""
    found, (high, last) = inside_blocks(nest), nest.spatial[-2:]
    lanes = _lanes(last, found[1], options) if found else 0
    if not found or lanes == 0 or not nest.fits_lanes(last):
        return None
    inner = found[1].name

    def tile(s: Scheduled) -> Scheduled:
        s = _in_lanes(_trimmed(s, high.var.name, inner), high, last, lanes)
        return _jammed(s, high, _rows_at_once(options))

    return tile


def _dots(nest: Nest, options: COptions) -> Callable[[Scheduled], Scheduled] | None:
    """Rows of x by rows of z: each of two by eight, so that a number read serves several sums."""
    high, wide = nest.spatial[-2:]
    if len(nest.reductions) != 1 or not isinstance(wide.hi, Const):
        return None
    (r,) = nest.reductions
    extent = int(r.loop.hi.value) if isinstance(r.loop.hi, Const) else 0
    if extent < 4 * PARTS or extent % PARTS or not multiplies(nest, r, high, wide):
        return None

    def tile(s: Scheduled) -> Scheduled:
        s = _trimmed(s, high.var.name, wide.var.name)
        s = s.then("split", r.name, PARTS).then("kind", f"{r.name}_i", "lane")
        s = _jammed(s.then("rfactor", f"{r.name}_i"), wide, _rows_at_once(options))
        return _jammed(s, high, 2) if _rows_at_once(options) == ROWS else s

    return tile


def _trimmed(s: Scheduled, *names: str) -> Scheduled:
    """Loops over the inside of blocks, of which the last one may lie beyond the matrix."""
    for name in names:
        s = s.then("trim", name) if ending(find(s.program, name)) else s
    return s


def _rows_at_once(options: COptions) -> int:
    return FEW if options.vector == 32 else ROWS


def _jammed(s: Scheduled, loop: Loop, rows: int) -> Scheduled:
    assert isinstance(loop.hi, Const)
    rows = min(rows, int(loop.hi.value))
    return s.then("jam", loop.var.name, rows) if rows > 1 else s


def _lanes(features: Loop, r: Reduction, options: COptions) -> int:
    """So many features that they are whole lines, at most two vectors of them; 0 if there are none, or no sum."""
    folds = [n for n in within(r.loop.body) if isinstance(n, stmt.Fold)]
    if not isinstance(features.hi, Const) or len(folds) != 1 or folds[0].monoid.name != "sum":
        return 0
    (dtype,) = folds[0].monoid.dtypes
    size, extent = BYTES[dtype], int(features.hi.value)
    most = max(VECTORS * options.vector, LINE) // size
    fits = (n for n in range(LINE // size, most + 1, LINE // size) if extent % n == 0)
    return max(fits, default=0) if dtype in ("f32", "f64") else 0


def _in_lanes(s: Scheduled, high: Loop, last: Loop, lanes: int) -> Scheduled:
    """The features in lanes; several parts of them one after the other, around the rows."""
    name = last.var.name
    if last.hi == Const(lanes, last.hi.dtype):  # type: ignore[attr-defined]
        return s.then("kind", name, "lane")
    s = s.then("split", name, lanes).then("kind", f"{name}_i", "lane")
    return s.then("reorder", high.var.name, f"{name}_o")
