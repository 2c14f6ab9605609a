"""Families of products y = x @ w.T over zeros of x that are found in each call: a table.

In: x [rows, k], w [n, k]. A family says what to look for in x (`detect`) and multiplies what was found (`run`).

    rows      whole rows that are not 0: gathered in the load, scattered in the store
    k         for each 32 rows, the k's where one of them is not 0
    blocks    32 x 64 blocks of x that hold something: a sum over the blocks of each 32 rows

    y = FAMILIES["blocks"].run(x, w, FAMILIES["blocks"].detect(x))

On the CPU products are torch's: parts of x are gathered, multiplied and put in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.backend import backend_of
from tilewright.ops.block_tiles import tiles
from tilewright.ops.index import Index, Tile
from tilewright.ops.library import run
from tilewright.ops.linear import linear
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import bundle_of, text_of


@dataclass(frozen=True)
class Family:
    """A way to skip: micro-tiles of x to look for, and the product over those that were found."""

    name: str
    tile: Tile
    run: Callable[[Tensor, Tensor, Index], Tensor]
    grouped: bool = False  # a list for each row of micro-tiles, not one of all

    def detect(self, x: Tensor) -> Index:
        return Index.from_values(x, self.tile, grouped=self.grouped)


def block_product(mask: Param, x: Param, w: Param, y: Param) -> None:
    i, n, k = axes("i n k")
    y[i, n] = fn.sum(k, mask[i, k] * x[i, k] * w[n, k])


register(trace(block_product))


def _listed(x: Tensor, w: Tensor, index: Index) -> Tensor:
    return linear(x, w, sparse=index)


def _blocks(x: Tensor, w: Tensor, index: Index) -> Tensor:
    if backend_of(x.device) == "c":
        return _by_columns(x, w, index)
    mask = block_mask_of(index)
    made = bundle_of(mask.structure)
    text = text_of("block_product", "mask", mask, made, x=x, w=w)
    ints = [*made.ints, pack(tiles(mask.structure, w.shape[0], x.dtype))]
    return run(text, [*made.tensors, x, w], ints)[0]


def block_mask_of(index: Index) -> SparseTensor:
    """An ordered list of micro-tiles as a block mask; nothing waits for the device, the list keeps its room."""
    rows, columns = index.grid
    at = torch.arange(index.positions.numel(), dtype=torch.int32, device=index.positions.device)
    held = torch.where(at < index.counts, index.positions, rows * columns)
    ends = torch.arange(rows + 1, dtype=torch.int32, device=at.device) * columns
    return SparseTensor.from_arrays(
        "block_mask",
        tuple(index.shape),
        block=(index.tile[0] or 1, index.tile[1] or 1),
        check=False,
        indptr=torch.searchsorted(held, ends, out_int32=True),
        indices=index.positions % columns,
    )


def _by_columns(x: Tensor, w: Tensor, index: Index) -> Tensor:
    """For each column of blocks, the rows that have a block there, times that part of w."""
    positions = index.compact()
    assert isinstance(positions, Tensor)
    (high, wide), columns = index.tile, index.grid[1]
    assert high and wide
    row, column = positions // columns, positions % columns
    order = column.argsort(stable=True)
    first = row[order].long()[:, None] * high + torch.arange(high)
    wide_dtype = torch.promote_types(x.dtype, torch.float32)  # sums of parts are rounded once
    out = x.new_zeros(x.shape[0], w.shape[0], dtype=wide_dtype)
    parts = first.split(torch.bincount(column, minlength=columns).tolist())
    for c, part in enumerate(parts):
        rows, k = part.flatten(), slice(c * wide, (c + 1) * wide)
        rows = rows[rows < x.shape[0]]
        if rows.numel():
            some = x[:, k].index_select(0, rows).to(wide_dtype)
            out.index_add_(0, rows, some @ w[:, k].t().to(wide_dtype))
    return out.to(x.dtype)


FAMILIES = {
    family.name: family
    for family in (
        Family("rows", (1, None), _listed),
        Family("k", (32, 1), _listed, grouped=True),
        Family("blocks", (32, 64), _blocks),
    )
}
