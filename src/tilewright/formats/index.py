"""Index arrays: the few device operations that all conversions are made of.

Owns: pointers, expansion, stable grouping and permutations. In and out: 1-D integer tensors on one
device. None of these waits for the device. An order or permutation says, for each new position, the
old one.

    rows = [2, 0, 2]        grouping(rows) = [1, 0, 2]        pointers(rows, 3) = [0, 1, 1, 3]
"""

from __future__ import annotations

import torch
from torch import Tensor

INDEX_DTYPES = (torch.int32, torch.int64)


def pointers(major: Tensor, size: int) -> Tensor:
    """Counts of 0 .. size - 1, summed up: [size + 1]; `major` need not be sorted."""
    counts = torch.zeros(size + 1, dtype=major.dtype, device=major.device)
    counts[1:].index_add_(0, major, torch.ones_like(major))
    return torch.cumsum(counts, 0, dtype=major.dtype)


def expand(indptr: Tensor, nnz: int) -> Tensor:
    """The parent of each position, the inverse of `pointers`: [nnz]."""
    parents = torch.arange(indptr.shape[0] - 1, dtype=indptr.dtype, device=indptr.device)
    return torch.repeat_interleave(parents, indptr.diff(), output_size=nnz)


def grouping(major: Tensor) -> Tensor:
    """The stable order that sorts `major`; torch sorts integers by radix, in linear time."""
    return torch.sort(major, stable=True).indices.to(major.dtype)


def compose(perm: Tensor | None, order: Tensor | None) -> Tensor | None:
    """perm[order], where None is the identity."""
    if order is None:
        return perm
    return order if perm is None else perm.index_select(0, order)


def inverse(perm: Tensor) -> Tensor:
    """inverse(perm)[perm[p]] == p."""
    places = torch.arange(perm.shape[0], dtype=perm.dtype, device=perm.device)
    return torch.empty_like(perm).scatter_(0, perm.long(), places)


def same_dtype(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Contiguous arrays of one index dtype, the wider one if they differ; copies only if needed."""
    wide = any(a.dtype == torch.int64 for a in arrays)
    narrow = any(a.dtype == torch.int32 for a in arrays)
    if wide and narrow:
        arrays = tuple(a.long() if a.dtype == torch.int32 else a for a in arrays)
    return tuple(a.contiguous() for a in arrays)


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b
