"""Which detectors go into the epilogue of the statement before: the list is made while the values are still on chip.

In: two statements that follow each other. Out: whether one kernel may serve both. It pays for a product: a tile of it
holds whole micro-tiles, and the detector's launch and its pass over memory are saved. Lists are then in any order,
since tiles are made by programs of their own (schedule/attach.py does it).

    h[i, n] = relu(sum(k, x[i, k] * w[n, k]))
    append(found, count, N, group=(I,), over=(N,), where=any((i, n), h[i, n] != 0), ordered=False)     # joins
"""

from __future__ import annotations

from tilewright.ir.coord import Append, Assign, Index, Reduce, Stmt
from tilewright.ir.expr import Bin, Expr, Load
from tilewright.ir.node import walk

MOST = 64  # rows, or columns, of a micro-tile: the usual tiles of a product are multiples of it
LEAST = 4  # elements of a micro-tile: of thinner ones a tile has too many for its registers


def joins(made: Stmt, listed: Stmt) -> bool:
    """Whether a list of micro-tiles can be made in the tiles of the product before it."""
    if not isinstance(made, Assign) or not isinstance(listed, Append) or listed.ordered:
        return False
    reads = {n for n in walk((listed.where, listed.value)) if isinstance(n, Load)}
    folds = [n for n in walk(listed.where) if isinstance(n, Reduce)]
    if len(reads) != 1 or len(folds) != 1 or not folds[0].monoid.laned:
        return False
    (load,) = reads
    cut = [_cut(ix) for ix in load.indices]
    if {outer for outer, _ in cut} != {*listed.group, *listed.over} or len(cut) != 2:
        return False
    fits = len(listed.group) == 1 and all(n <= MOST and n & (n - 1) == 0 for _, n in cut)
    mine = load.buffer is made.targets[0].buffer and cut[0][1] * cut[1][1] >= LEAST
    return fits and mine and _is_product(made)


def _cut(ix: Expr) -> tuple[Expr, int]:
    """An index inside a micro-tile: the one over micro-tiles, and how many of its own belong to each."""
    return ix.within if isinstance(ix, Index) and ix.within is not None else (ix, 1)


def _is_product(s: Assign) -> bool:
    """h[i, n] = f(sum(k, a[i, k] * b[n, k]))"""
    sides = tuple(ix for ix in s.targets[0].indices if isinstance(ix, Index))
    plain = len(s.targets) == 1 and len(set(sides)) == 2 and not s.adds and not s.listed
    sums = [n for n in walk(s.values) if isinstance(n, Reduce)]
    if not plain or len(sums) != 1 or sums[0].monoid.name != "sum" or len(sums[0].over) != 1:
        return False
    match sums[0].args[0]:
        case Bin("*", Load() as a, Load() as b):
            (k,) = sums[0].over
            pairs = [{*a.indices}, {*b.indices}]
            return all(len(t.indices) == 2 for t in (a, b)) and all({k, x} in pairs for x in sides)
    return False
