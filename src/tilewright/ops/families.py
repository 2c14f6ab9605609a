"""Families of products y = x @ w.T over zeros of x that are found in each call: a table.

In: x [rows, k], w [n, k]. A family says what to look for in x (`detect`) and multiplies what was found (`run`).

    rows      whole rows that are not 0: gathered in the load, scattered in the store
    k         for each 32 rows, the k's where one of them is not 0
    blocks    for each 32 rows, the 64 k's where one of them is not 0

    y = FAMILIES["blocks"].run(x, w, FAMILIES["blocks"].detect(x))

On the CPU products are torch's: parts of x are gathered, multiplied and put in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilewright.ops.backend import any_order, backend_of
from tilewright.ops.found import GROUP, found_lists, found_rows
from tilewright.ops.index import Index, Tile
from tilewright.ops.kept import multiplied
from tilewright.ops.pattern import Pattern
from tilewright.runtime import pages

FEW = 128  # rows that a column of blocks has, from which on they are multiplied together


@dataclass(frozen=True)
class Family:
    """A way to skip: micro-tiles of x to look for, and the product over those that were found."""

    name: str
    tile: Tile
    run: Callable[..., Tensor]  # of x, w, the index, and b or nothing
    grouped: bool = False  # a list for each row of micro-tiles, not one of all
    find: Callable[[Tensor], Index] | None = None  # its own way to find them
    at_once: Callable[..., tuple[Tensor, Index]] | None = None  # on GPUs: finds and multiplies

    def found(self, x: Tensor, w: Tensor, b: Tensor | None, expected: int) -> tuple[Tensor, Index]:
        """The product over what x holds, and the index of that. expected: about how many micro-tiles are found."""
        if self.at_once is not None and backend_of(x.device) == "triton" and any_order(x.device):
            return self.at_once(x, w, b, expected)
        index = replace(self.detect(x), expected=expected)
        made: Tensor = self.run(x, w, index, b)
        return made, index

    def detect(self, x: Tensor) -> Index:
        """An index of x. Whole rows may come in any order: each of them is a product of its own."""
        if self.find is not None:
            return self.find(x)
        ordered = self.grouped or not any_order(x.device)
        return Index.from_values(x, self.tile, grouped=self.grouped, ordered=ordered)


def _listed(x: Tensor, w: Tensor, index: Index, b: Tensor | None = None) -> Tensor:
    return Pattern.given(index, x, "a family").times(x, w, b)


def _blocks(x: Tensor, w: Tensor, index: Index, b: Tensor | None = None) -> Tensor:
    if backend_of(x.device) != "c":
        return _listed(x, w, index, b)
    wide = x.dtype == w.dtype and x.dtype.itemsize > 2
    shared = int(index.counts.sum()) * (index.tile[0] or 1) // max(index.grid[1], 1)
    y = (_by_groups if wide and shared < FEW else _by_columns)(x, w, index)
    return y if b is None else y + b


def _by_groups(x: Tensor, w: Tensor, index: Index) -> Tensor:
    """For each group of rows, its blocks times the parts of w that they meet, added up in place."""
    high, wide = index.tile
    assert high and wide
    y = pages.empty((x.shape[0], w.shape[0]), x.dtype)
    x, by_k = x.detach(), multiplied(w, "k").detach().t()
    lists = zip(index.positions.tolist(), index.counts.tolist(), strict=True)
    for g, (columns, count) in enumerate(lists):
        rows = slice(g * high, (g + 1) * high)
        part = y[rows]
        for n, c in enumerate(columns[:count]):
            k = slice(c * wide, (c + 1) * wide)
            torch.addmm(part, x[rows, k], by_k[k], beta=int(n > 0), out=part)
        if not count:
            part.zero_()
    return y


def _by_columns(x: Tensor, w: Tensor, index: Index) -> Tensor:
    """For each column of blocks, the rows that have a block there, times that part of w."""
    (high, wide), (_, columns) = index.tile, index.grid
    assert high and wide
    kept = torch.arange(columns) < index.counts[:, None]
    row, column = kept.nonzero(as_tuple=True)[0], index.positions[kept]
    order = column.argsort(stable=True)
    first = row[order][:, None] * high + torch.arange(high)
    wide_dtype = torch.promote_types(x.dtype, torch.float32)  # sums of parts are rounded once
    out = pages.zeros((x.shape[0], w.shape[0]), wide_dtype)
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
        Family("rows", (1, None), _listed, at_once=found_rows),
        Family("k", (GROUP, 1), _listed, grouped=True, find=found_lists),
        Family("blocks", (GROUP, 64), _blocks, grouped=True),
    )
}
