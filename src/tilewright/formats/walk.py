"""Walking the levels of a structure: from storage positions to coordinates.

Owns: the readers of all formats. In: a `Structure` or a `Tree`. Out: a coordinate per dimension for
every stored place, in storage order; blocks are opened, so a structure of k blocks (b0, b1) has k *
b0 * b1 places. `coordinates` is for structures, where every place is an entry; `places` is for
trees, and says which places are.

    coordinates(bsr with one block (2, 1) at block row 0, block column 3) -> ([0, 1], [3, 3])
    places(ell.2 of [[7, 0], [0, 0]])  ->  [[0, 0, 1, 1], [0, -1, -1, -1]], [True, False, ...]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.level import Level, radices

if TYPE_CHECKING:
    from tilewright.formats.structure import Structure
    from tilewright.formats.tree import Tree


def coordinates(structure: Structure) -> tuple[Tensor, Tensor]:
    """(row, column) of every stored entry in storage order."""
    found: list[Tensor | None] = [None, None]
    for depth, level in enumerate(structure.layout.levels):
        found = _descend(structure, level, depth, found)
    rows, cols = found
    assert rows is not None and cols is not None
    return rows, cols


def entry_perm(structure: Structure) -> Tensor | None:
    """`perm` for entries: that of blocks is opened to the values' flat order [blocks * b0 * b1]."""
    perm, size = structure.perm, structure.block[0] * structure.block[1]
    if perm is None or size == 1:
        return perm
    inside = torch.arange(size, dtype=perm.dtype, device=perm.device)
    return (perm[:, None] * size + inside).reshape(-1)


def flattened(structure: Structure, values: Tensor) -> Tensor:
    """Values of blocks one by one, in the order of the source, without those outside of the matrix."""
    flat, at, perm = values.flatten(0, 2), inside(structure), entry_perm(structure)
    if at is None:
        return flat
    held = at if perm is None else index.sort(perm.index_select(0, at))[0]
    return flat.index_select(0, held)


def inside(structure: Structure) -> Tensor | None:
    """The stored places inside of the matrix, where blocks stick out of it; None: all of them."""
    (rows, cols), (high, wide) = structure.shape, structure.block
    if not (rows % high or cols % wide):
        return None
    i, j = coordinates(structure)
    return ((i < rows) & (j < cols)).nonzero()[:, 0].to(i.dtype)


def _descend(
    structure: Structure, level: Level, depth: int, found: list[Tensor | None]
) -> list[Tensor | None]:
    if depth == 0:
        return _root(structure, level)
    if level.extent == "variable":
        parent = structure.parents()
        found = [None if crd is None else crd.index_select(0, parent) for crd in found]
        found[level.dim] = (
            structure.indices if level.kind == "sparse" else _offset(structure, parent)
        )
    elif level.kind == "sparse":
        found[level.dim] = structure.indices
    else:
        found = _open(level, found)
    return found


def _root(structure: Structure, level: Level) -> list[Tensor | None]:
    found: list[Tensor | None] = [None, None]
    if level.kind == "sparse":
        found[level.dim] = structure.rows
    else:
        indptr = structure.indptr
        assert indptr is not None
        count = indptr.shape[0] - 1
        found[level.dim] = torch.arange(count, dtype=indptr.dtype, device=indptr.device)
    return found


def _offset(structure: Structure, parent: Tensor) -> Tensor:
    assert structure.indptr is not None
    place = torch.arange(parent.shape[0], dtype=parent.dtype, device=parent.device)
    return place - structure.indptr.index_select(0, parent)


def _open(level: Level, found: list[Tensor | None]) -> list[Tensor | None]:
    assert level.length is not None
    opened: list[Tensor | None] = []
    for dim, crd in enumerate(found):
        assert crd is not None
        inside = torch.arange(level.length, dtype=crd.dtype, device=crd.device)
        step = inside if dim == level.dim else torch.zeros_like(inside)
        scale = level.length if dim == level.dim else 1
        opened.append((crd[:, None] * scale + step).reshape(-1))
    return opened


def places(tree: Tree) -> tuple[list[Tensor], Tensor | None]:
    """A coordinate per dimension for every place of the last level, and which exist (None: all)."""
    found: list[Tensor | None] = [None] * len(tree.shape)
    alive: Tensor | None = None
    weights, lengths, counts = radices(tree.levels), tree.lengths, tree.counts
    for depth, level in enumerate(tree.levels):
        parent = _parent(tree, depth, counts[depth])
        length = lengths[depth]
        found = [_carry(crd, parent, length) for crd in found]
        crd, here = _children(tree, depth, level, parent, found)
        alive = _both(_carry(alive, parent, length), here)
        crd = crd * weights[depth] if weights[depth] > 1 else crd
        outer = found[level.dim]
        found[level.dim] = crd if outer is None else outer + crd
    whole = [crd for crd in found if crd is not None]
    for dim, size in enumerate(tree.shape):
        if size % _outermost(tree.levels, weights, dim):
            alive = _both(alive, whole[dim] < size)
    return whole, alive


def _outermost(levels: tuple[Level, ...], weights: tuple[int, ...], dim: int) -> int:
    return max(w for level, w in zip(levels, weights, strict=True) if level.dim == dim)


def _parent(tree: Tree, depth: int, count: int) -> Tensor | None:
    """The parent of each position of a variable level."""
    indptr = tree.arrays.get(f"indptr{depth}")
    return None if indptr is None else index.expand(indptr, count)


def _carry(held: Tensor | None, parent: Tensor | None, length: int | None) -> Tensor | None:
    """What belongs to parents, given to their children."""
    if held is None:
        return None
    if parent is not None:
        return held.index_select(0, parent)
    assert length is not None
    return held if length == 1 else held[:, None].expand(-1, length).reshape(-1)


def _children(
    tree: Tree, depth: int, level: Level, parent: Tensor | None, found: list[Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    """The coordinates of a level's positions, and which of them exist."""
    count, length = tree.counts[depth], tree.lengths[depth]
    if level.kind != "sparse":
        mask = tree.arrays[f"mask{depth}"] if level.kind == "bitmap" else None
        place = torch.arange(length or count, dtype=tree.index_dtype, device=tree.device)
        if parent is not None:
            return place - tree.arrays[f"indptr{depth}"].index_select(0, parent), None
        return _again(place, length, count), None if mask is None else mask != 0
    crd = tree.arrays[f"indices{depth}"]
    crd = _again(crd, length, count) if level.shared else crd
    if level.relative is not None:
        from_dim = found[level.relative]
        assert from_dim is not None
        crd = crd + from_dim
        return crd, (crd >= 0) & (crd < tree.shape[level.dim])
    return crd, crd >= 0 if level.padded else None


def _again(once: Tensor, length: int | None, count: int) -> Tensor:
    """The children of one parent, repeated for all."""
    times = count // length if length else 0
    return once if times == 1 else once.repeat(times)


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b
