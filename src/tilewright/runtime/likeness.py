"""Rows that share columns, side by side. A run-time primitive, in torch operations.

In: a csr pattern. Out: a rank for each row; rows of near ranks tend to read the same columns, so that what one of them
gathered is still in the first-level cache when the next one asks for it.

    each row      a name: the least of a hash over its columns
    each column   the name that most of its rows have
    each row      the name that most of its columns have; ranks go by that, then by the first

Linear but for three sorts of the entries; the same pattern always gives the same ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIX, BITS = 0x9E3779B1, 31


def ranks(indptr: Tensor, indices: Tensor, columns: int) -> Tensor:
    """The place of each row among all of them."""
    rows, device = indptr.shape[0] - 1, indptr.device
    row = torch.repeat_interleave(
        torch.arange(rows, device=device), indptr.diff(), output_size=indices.shape[0]
    )
    column = indices.long()
    name = torch.full((rows,), columns, device=device)
    name.scatter_reduce_(0, row, _shuffled(columns, device)[column], "amin")
    voted = _majority(column, name[row], columns, columns)
    final = _majority(row, voted[column], rows, columns)
    order = torch.argsort(final * (columns + 1) + name, stable=True)
    return torch.empty_like(order).scatter_(0, order, torch.arange(rows, device=device))


def _shuffled(n: int, device: torch.device) -> Tensor:
    """0 .. n - 1 in an order that has nothing to do with theirs."""
    mixed = torch.arange(n, device=device) * MIX % (1 << BITS)
    order = torch.argsort(mixed, stable=True)
    return torch.empty_like(order).scatter_(0, order, torch.arange(n, device=device))


def _majority(owner: Tensor, name: Tensor, owners: int, names: int) -> Tensor:
    """The most frequent name (0 .. names) of each owner; the larger of equals; `names` where there is none."""
    pairs, counts = torch.unique(owner * (names + 1) + name, return_counts=True)
    who, what = pairs // (names + 1), pairs % (names + 1)
    best = torch.full((owners,), -1, device=owner.device)
    best.scatter_reduce_(0, who, counts * (names + 1) + what, "amax")
    return torch.where(best < 0, names, best % (names + 1))
