"""Cases of dynamic sparsity: sizes, granularities, sparsities, and an x with zeros of that kind.

A granularity is the micro-tile that is 0 or not as a whole, rows x columns; None is all of them.

    x, w = operands(Case(4096, 4096, 4096, "bf16", "32x1", 0.95), "cuda")
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.bench.suite import dtype_of, seeded

Tile = tuple[int | None, int | None]
GRANULARITIES: dict[str, Tile] = {
    **{f"{r}x{c}": (r, c) for r, c in ((1, 1), (8, 1), (16, 1), (32, 1))},
    **{f"{r}x{c}": (r, c) for r, c in ((1, 32), (1, 64), (32, 64))},
    "row": (1, None),
    "column": (None, 1),
}
SPARSITIES = (0.0, 0.5, 0.9, 0.95, 0.99)
SQUARE, DEEP = (4096, 4096, 4096), (4096, 4096, 16384)
# rows are tokens; projections and both halves of feed-forward layers
TRANSFORMER = (
    (128, 4096, 1024),
    (1024, 1024, 4096),
    (2048, 8192, 2048),
    (8192, 4096, 4096),
    (32768, 1024, 1024),
    (4096, 8192, 8192),
)
QUICK = (128, 96, 192)  # on the CPU


@dataclass(frozen=True)
class Case:
    """y[m, n] = x[m, k] @ w[n, k].T"""

    m: int
    n: int
    k: int
    dtype: str
    granularity: str
    sparsity: float

    @property
    def tile(self) -> Tile:
        return GRANULARITIES[self.granularity]

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def name(self) -> str:
        return f"{self.shape} {self.dtype} {self.granularity} {self.sparsity:.0%}"


def cases(device: str, quick: bool) -> list[Case]:
    """The most telling first: a run that is cut short keeps them."""
    if device != "cuda":
        return list(_on_cpu(quick))
    if quick:
        return list(_product((SQUARE,), ("bf16",), ("32x1", "32x64", "row"), (0.0, 0.5, 0.95)))
    every = tuple(GRANULARITIES)
    return [
        *_product((SQUARE,), ("bf16",), every, SPARSITIES),
        *_product(TRANSFORMER, ("bf16",), ("32x1", "32x64", "row"), (0.5, 0.9, 0.99)),
        *_product((DEEP,), ("bf16",), every, SPARSITIES),
        *_product((SQUARE, TRANSFORMER[1]), ("fp32",), ("32x1", "32x64", "row"), SPARSITIES[1:]),
    ]


def _on_cpu(quick: bool) -> Iterator[Case]:
    shapes = (QUICK,) if quick else ((1024, 1024, 1024), (256, 4096, 1024))
    sparsities = (0.5, 0.9) if quick else (0.0, 0.5, 0.9, 0.99)
    return _product(shapes, ("fp32",), ("row", "32x64"), sparsities)


def _product(
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    granularities: tuple[str, ...],
    sparsities: tuple[float, ...],
) -> Iterator[Case]:
    for (m, n, k), d, g, s in itertools.product(shapes, dtypes, granularities, sparsities):
        yield Case(m, n, k, d, g, s)


def operands(case: Case, device: str, seed: int = 1) -> tuple[Tensor, Tensor]:
    """x with its zeros, and w; normal values."""
    random, dtype = seeded(device, seed), dtype_of(case.dtype)
    x = torch.randn(case.m, case.k, generator=random, device=device)
    w = torch.randn(case.n, case.k, generator=random, device=device).to(dtype)
    return (x * kept((case.m, case.k), case.tile, case.sparsity, random)).to(dtype), w


def kept(sides: tuple[int, int], tile: Tile, sparsity: float, random: torch.Generator) -> Tensor:
    """Which elements are there, as a mask that spreads over x: each micro-tile by its own chance."""
    grid = [1 if t is None else -(-n // t) for n, t in zip(sides, tile, strict=True)]
    mask = torch.rand(grid, generator=random, device=random.device) >= sparsity
    for dim, (n, t) in enumerate(zip(sides, tile, strict=True)):
        if t is not None and t > 1:
            mask = mask.repeat_interleave(t, dim).narrow(dim, 0, n)
    return mask
