"""Structures to show things on: five patterns of one size.

In: rows, entries per row, a seed. Out: CSR `SparseTensor`s with random values, each made by a rule in its docstring.

    for name, a in cases(rows=4096, mean=16, device="cpu").items(): ...
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from tilewright.formats.tensor import SparseTensor

Made = tuple[Tensor, Tensor]
BLOCK = 16


def power_law(n: int, mean: int, g: Generator) -> Made:
    """Row lengths fall as rank ** -0.7, in random order: a few rows have thousands of entries."""
    weight = torch.arange(1, n + 1, dtype=torch.float64) ** -0.7
    length = (weight * (n * mean / weight.sum())).round().long().clamp(1, n // 4)
    length = length[torch.randperm(n, generator=g)]
    rows = torch.repeat_interleave(torch.arange(n), length)
    skew = torch.rand(rows.shape[0], generator=g, dtype=torch.float64) ** 2
    return rows, (skew * n).long()


def banded(n: int, mean: int, g: Generator) -> Made:
    """`mean` diagonals around the main one."""
    rows = torch.repeat_interleave(torch.arange(n), mean)
    cols = rows + (torch.arange(mean) - mean // 2).repeat(n)
    inside = (cols >= 0) & (cols < n)
    return rows[inside], cols[inside]


def blocks(n: int, mean: int, g: Generator) -> Made:
    """Dense blocks of 16 x 16 at random places."""
    across = max(n // BLOCK, 1)
    count = max(n * mean // BLOCK**2, 1)
    at = torch.randperm(across * across, generator=g)[:count]
    inner = torch.arange(BLOCK)
    rows = (at // across * BLOCK)[:, None, None] + inner[None, :, None]
    cols = (at % across * BLOCK)[:, None, None] + inner[None, None, :]
    shape = (count, BLOCK, BLOCK)
    return rows.expand(shape).flatten(), cols.expand(shape).flatten()


def uniform(n: int, mean: int, g: Generator) -> Made:
    """Entries anywhere, with the same chance."""
    draw = torch.randint(n * n, (n * mean,), generator=g)
    return draw // n, draw % n


def empty_rows(n: int, mean: int, g: Generator) -> Made:
    """Two rows of three hold nothing."""
    rows, cols = uniform(n, 3 * mean, g)
    kept = rows % 3 == 0
    return rows[kept], cols[kept]


RULES: dict[str, Callable[[int, int, Generator], Made]] = {
    "power law": power_law,
    "banded": banded,
    "blocks": blocks,
    "uniform": uniform,
    "empty rows": empty_rows,
}


def case(name: str, rows: int, mean: int, device: str = "cpu", seed: int = 0) -> SparseTensor:
    """One of the patterns, with values; duplicate places are dropped."""
    g = Generator().manual_seed(seed)
    row, col = RULES[name](rows, mean, g)
    place = torch.unique(row * rows + col)
    row, col = place // rows, place % rows
    indptr = torch.zeros(rows + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(row, minlength=rows).cumsum(0)
    values = torch.randn(place.shape[0], generator=g)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        csr = torch.sparse_csr_tensor(indptr, col, values, (rows, rows), check_invariants=True)
    return SparseTensor.from_torch(csr.to(device)).prepare()


def cases(rows: int, mean: int, device: str = "cpu", seed: int = 0) -> dict[str, SparseTensor]:
    """All of them."""
    return {name: case(name, rows, mean, device, seed) for name in RULES}


def density(a: SparseTensor, cells: int = 64) -> list[list[float]]:
    """The share of stored places in each cell of a grid laid over the matrix."""
    indptr, cols = a.structure.indptr, a.structure.indices
    assert indptr is not None and cols is not None
    n, m = a.shape
    high, wide = min(cells, n), min(cells, m)
    row = torch.repeat_interleave(torch.arange(n, device=a.device), indptr.diff())
    at = (row * high // n) * wide + cols.long() * wide // m
    counts = torch.bincount(at, minlength=high * wide).double()
    grid: list[list[float]] = (counts * (high * wide / (n * m))).reshape(high, wide).cpu().tolist()
    return grid
