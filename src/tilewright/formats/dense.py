"""Dense tensors to sparse ones and back.

Owns: what is an entry of a dense tensor, and the sum that rebuilds it. In: a dense tensor and a
mask, or a structure and values. Out: csr, bsr or coordinates; or the dense tensor, differentiable.

    dense_to_csr(tensor([[0, 5], [0, 0]]), None)     # indptr [0, 1, 1], indices [1], values [5]
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from tilewright.formats import index, walk
from tilewright.formats.convert import check_block, only, stored
from tilewright.formats.entries import Entries
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.support.errors import error


def to_dense(s: Structure, values: Tensor) -> Tensor:
    """[rows, cols, *trailing]; duplicates add up; differentiable in the values."""
    if values.dtype == torch.bool:
        return to_dense(s, values.to(torch.uint8)).to(torch.bool)
    if isinstance(s, Tree):
        return _tree_to_dense(s, values)
    if s.blocked:
        return _blocks_to_dense(s, stored(s, values))
    rows, cols = walk.coordinates(s)
    trailing = values.shape[1:]
    flat = values.new_zeros((s.shape[0] * s.shape[1], *trailing))
    at = rows.long() * s.shape[1] + cols
    return flat.index_add_(0, at, stored(s, values)).reshape(*s.shape, *trailing)


def dense_to_csr(dense: Tensor, mask: Tensor | None) -> tuple[Structure, Tensor]:
    """csr of the entries that are kept (mask) or not zero; values follow row-major order."""
    kept = _kept(dense, mask)
    rows, cols = kept.nonzero(as_tuple=True)
    shape = (dense.shape[0], dense.shape[1])
    made = Structure("csr", shape, index.ends(rows, shape[0]), cols, check=False)
    made.row_of = rows
    return made, dense[rows, cols]


def dense_to_blocks(
    dense: Tensor, mask: Tensor | None, block: tuple[int, int]
) -> tuple[Structure, Tensor]:
    """bsr of the blocks that hold a kept entry; what is not kept is zero inside."""
    kept = _kept(dense, mask)
    shape = (dense.shape[0], dense.shape[1])
    probe = Structure("bsr", shape, block=block, check=False)
    check_block(probe, block)
    at_row, at_col = _tiles(kept, block).flatten(2).any(2).nonzero(as_tuple=True)
    dense = dense if mask is None else dense * kept.reshape(*shape, *[1] * (dense.ndim - 2))
    indptr = index.ends(at_row, shape[0] // block[0])
    made = Structure("bsr", shape, indptr, at_col, block=block, check=False)
    return made, _tiles(dense, block)[at_row, at_col]


def dense_to_entries(dense: Tensor, mask: Tensor | None, dims: int) -> tuple[Entries, Tensor]:
    """Coordinates of the first `dims` dimensions, in their order, and values [nnz, *trailing]."""
    coords = _kept(dense, mask, dims).nonzero(as_tuple=True)
    return Entries(tuple(dense.shape[:dims]), coords), dense[coords]


def _tree_to_dense(s: Tree, values: Tensor) -> Tensor:
    trailing = values.shape[len(s.values_shape) :]
    coords, alive = s.places()
    flat = values.new_zeros((prod(s.shape), *trailing))
    at = coords[0].long()
    for crd, size in zip(coords[1:], s.shape[1:], strict=True):
        at = at * size + crd
    held = stored(s, values).reshape(at.shape[0], *trailing)
    if alive is not None:
        at, held = torch.where(alive, at, 0), only(held, alive)
    if not flat.shape[0]:  # places of no matrix, if any
        at, held = at[:0], held[:0]
    return flat.index_add(0, at, held).reshape(*s.shape, *trailing)


def _blocks_to_dense(s: Structure, values: Tensor) -> Tensor:
    assert s.indices is not None
    size = [index.ceil_div(n, b) for n, b in zip(s.shape, s.block, strict=True)]
    trailing = values.shape[3:]
    flat = values.new_zeros((size[0] * size[1], *values.shape[1:]))
    flat = flat.index_add(0, s.rows_stored().long() * size[1] + s.indices, values)
    tiles = flat.reshape(*size, *s.block, *trailing).transpose(1, 2)
    padded = tiles.reshape(size[0] * s.block[0], size[1] * s.block[1], *trailing)
    return padded[: s.shape[0], : s.shape[1]]


def _tiles(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """[n, m, ...] -> [n / b0, m / b1, b0, b1, ...], a view."""
    (b0, b1), (n, m) = block, dense.shape[:2]
    return dense.reshape(n // b0, b0, m // b1, b1, *dense.shape[2:]).transpose(1, 2)


def _kept(dense: Tensor, mask: Tensor | None, dims: int = 2) -> Tensor:
    if dense.ndim < dims or dims < 2:
        got = tuple(dense.shape)
        expected = "(rows, columns, ...)" if dims <= 2 else f"{dims} dimensions or more"
        raise error("shape", where="from_dense", name="dense", got=got, expected=expected)
    if mask is None:
        nonzero = dense != 0
        return nonzero.flatten(dims).any(dims) if dense.ndim > dims else nonzero
    if tuple(mask.shape) != tuple(dense.shape[:dims]):
        got, wanted = tuple(mask.shape), tuple(dense.shape[:dims])
        raise error("shape", where="from_dense", name="mask", got=got, expected=wanted)
    return mask.to(torch.bool)
