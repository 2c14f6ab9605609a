"""Walking the levels of a structure: from storage positions to coordinates.

Owns: the one reader of all formats. In: a `Structure`. Out: a coordinate per dimension for every
stored entry, in storage order; blocks are opened, so a structure of k blocks (b0, b1) has k * b0 *
b1 entries.

    coordinates(bsr with one block (2, 1) at block row 0, block column 3) -> ([0, 1], [3, 3])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tilewright.formats.level import Level

if TYPE_CHECKING:
    from tilewright.formats.structure import Structure


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
