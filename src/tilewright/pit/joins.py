"""Which statements share a kernel with the one before.

In: two statements that follow each other. Out: whether one kernel may serve both.

A detector goes into the epilogue of a product: a tile of it holds whole micro-tiles, which are looked at while they are
on chip; the detector's launch and its pass over memory are saved. Lists are then in any order, since tiles are made by
programs of their own (schedule/attach.py does it).

    h[i, n] = relu(sum(k, x[i, k] * w[n, k]))
    append(found, count, N, group=(I,), over=(N,), where=any((i, n), h[i, n] != 0), ordered=False)     # joins

What is moved by lists goes behind them: the program that makes the list of a group has all that it needs for its part
(`merge` in schedule/together.py does it).

    append(ks, count, K, group=(I,), over=(K,), where=any((i, k), x[i, k] != 0)), i within 32 of I
    k = listed(ks[I, p], place=p, below=count[I]);  packed[p, i] = x[i, k]                             # joins

What rows begin as is written by the program that looks at them: memory is read and written at once.

    append(rows, count, I, over=(I,), where=any(k, x[I, k] != 0), ordered=False)
    y[i, n] = b[n], as many rows as x                                                                  # joins
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.coord import Append, Assign, Index, Reduce, Stmt
from tilewright.ir.expr import Bin, Expr, Load
from tilewright.ir.node import walk

MOST = 64  # rows, or columns, of a micro-tile: the usual tiles of a product are multiples of it
LEAST = 4  # elements of a micro-tile: of thinner ones a tile has too many for its registers


Sized = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def joins(first: Stmt, second: Stmt, sized: Sized = ()) -> bool:
    """Whether one kernel serves both. sized: outputs that are as long as a dimension of another tensor."""
    if isinstance(first, Assign) and isinstance(second, Append):
        return _in_epilogue(first, second)
    if not (isinstance(first, Append) and isinstance(second, Assign)):
        return False
    return _behind(first, second) or _begins(first, second, sized)


def _begins(made: Append, begun: Assign, sized: Sized) -> bool:
    """Whether rows are written that are as many as those which are looked at, and by nothing but places."""
    if made.ordered or made.group or len(made.over) != 1:
        return False
    if begun.adds or begun.listed or len(begun.targets) != 1 or len(begun.targets[0].indices) != 2:
        return False
    (y,) = begun.targets
    if any(not isinstance(ix, Index) or ix.within for ix in y.indices) or len({*y.indices}) != 2:
        return False
    read = [n.buffer for n in walk(begun.values) if isinstance(n, Load)]
    sums = any(isinstance(n, Reduce) for n in walk(begun.values))
    if sums or made.list in read or made.count in read:
        return False
    rows = dict(sized).get(y.buffer.name, (None,))[0]
    looked = (n for n in walk(made.where) if isinstance(n, Load))
    cut = ((n.buffer.name, d, _cut(ix)) for n in looked for d, ix in enumerate(n.indices))
    return rows in [(name, d) for name, d, of in cut if of == (made.over[0], 1)]


def _behind(made: Append, moved: Assign) -> bool:
    """Whether values are moved by a list for each group of rows, in the groups that the lists were made for."""
    if not made.ordered or made.start is not None or len(made.group) != 1 or moved.adds:
        return False
    if len(moved.targets) != 1 or len(moved.targets[0].indices) != 2:
        return False
    if any(isinstance(n, Reduce) for n in walk(moved.values)) or len(moved.listed) != 1:
        return False
    (by,) = moved.listed
    mine = by.at.buffer is made.list and by.below is not None and by.below.buffer is made.count
    more = any(n in (made.list, made.count) for n in walk(moved.values))
    if not mine or more or len(by.at.indices) != 2:
        return False
    rows = _rows(made.where, made.group[0])
    return bool(rows) and rows == _rows(moved.values, by.at.indices[0])


def _rows(e: Any, group: Expr) -> set[tuple[Any, int, int]]:
    """What is cut in groups: buffer, dimension, and how many belong to a group."""
    loads = (n for n in walk(e) if isinstance(n, Load))
    cut = ((n.buffer, d, _cut(ix)) for n in loads for d, ix in enumerate(n.indices))
    return {(b, d, size) for b, d, (outer, size) in cut if outer is group and size > 1}


def _in_epilogue(made: Assign, listed: Append) -> bool:
    """Whether a list of micro-tiles can be made in the tiles of the product before it."""
    if listed.ordered:
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
