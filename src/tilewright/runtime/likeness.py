"""Rows that share columns, side by side. A run-time primitive, in torch operations.

In: a csr pattern. Out: a rank for each row; rows of near ranks tend to read the same columns, so that what one of them
gathered is still in a near cache when the next one asks for it.

    each row      a name: the least of a hash over its columns
    each column   the name that most of its rows have
    each row      the name that most of its columns have

Rows of one final name are a group, and columns of one name are one column of the groups: groups have ranks by the
same rule, and so on, while there are clearly fewer of them than before. Rows go by the rank of their group, then by
their first name. Linear but for sorts of the entries; the same pattern always gives the same ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIX, BITS = 0x9E3779B1, 31
FEWER, LEVELS = 0.9, 8


def ranks(indptr: Tensor, indices: Tensor, columns: int) -> Tensor:
    """The place of each row among all of them. Waits for the device (how many groups there are)."""
    rows, device = indptr.shape[0] - 1, indptr.device
    row = torch.repeat_interleave(
        torch.arange(rows, device=device), indptr.diff(), output_size=indices.shape[0]
    )
    return _ranks(row, indices.long(), rows, columns, LEVELS)


def _ranks(row: Tensor, column: Tensor, rows: int, columns: int, levels: int) -> Tensor:
    """The same of entries in any order, each once."""
    name = torch.full((rows,), columns, device=row.device)
    name.scatter_reduce_(0, row, _shuffled(columns, row.device)[column], "amin")
    voted = _majority(column, name[row], columns, columns)
    final = _majority(row, voted[column], rows, columns)
    groups, group = torch.unique(final, return_inverse=True)
    if levels and len(groups) < FEWER * rows:
        kept, at = torch.unique(voted, return_inverse=True)
        pairs = torch.unique(group[row] * len(kept) + at[column])
        inside = pairs // max(len(kept), 1), pairs % max(len(kept), 1)
        group = _ranks(*inside, len(groups), len(kept), levels - 1)[group]
    return _places(torch.argsort(group * (columns + 1) + name, stable=True))


def _places(order: Tensor) -> Tensor:
    """Where each number stands in an order of them."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _shuffled(n: int, device: torch.device) -> Tensor:
    """0 .. n - 1 in an order that has nothing to do with theirs."""
    mixed = torch.arange(n, device=device) * MIX % (1 << BITS)
    return _places(torch.argsort(mixed, stable=True))


def _majority(owner: Tensor, name: Tensor, owners: int, names: int) -> Tensor:
    """The most frequent name (0 .. names) of each owner; the larger of equals; `names` where there is none."""
    pairs, counts = torch.unique(owner * (names + 1) + name, return_counts=True)
    who, what = pairs // (names + 1), pairs % (names + 1)
    best = torch.full((owners,), -1, device=owner.device)
    best.scatter_reduce_(0, who, counts * (names + 1) + what, "amax")
    return torch.where(best < 0, names, best % (names + 1))
