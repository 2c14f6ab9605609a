"""Detectors on drawn patterns, against NumPy: which micro-tiles hold something.

    python -m fuzz.run --count 0 --lists 10000      # as `make fuzz` does, after its programs

Widths up to 512 are compiled exactly, so only some of them are drawn; heights are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from fuzz.draws import each
from torch import Tensor

from tilewright.ops.backend import backend
from tilewright.ops.index import Index, Tile

TILES: list[Tile] = [
    *((1, 1), (8, 1), (16, 1), (32, 1), (1, 32), (1, 64), (32, 64)),
    *((1, None), (16, None), (None, 1), (None, 8)),
]
WIDTHS = (1, 33, 64)
DTYPES = (torch.float32, torch.bfloat16)
KINDS = ("nothing", "one", "some", "row", "column", "blocks", "all")


@dataclass(frozen=True)
class Draw:
    """A pattern and what is asked of it."""

    number: int
    x: Tensor
    tile: Tile
    ordered: bool
    grouped: bool
    threshold: float
    where: str
    words: str


def pattern(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    keep = np.zeros((rows, columns), bool)
    if kind == "all":
        keep[:] = True
    elif kind == "one" and keep.size:
        keep.flat[rng.integers(keep.size)] = True
    elif kind == "some":
        keep = rng.random((rows, columns)) < rng.choice([0.01, 0.1, 0.5])
    elif kind == "row" and rows:
        keep[rng.integers(rows)] = True
    elif kind == "column" and columns:
        keep[:, rng.integers(columns)] = True
    elif kind == "blocks":
        coarse = rng.random((rows // 8 + 1, columns // 8 + 1)) < 0.2
        keep = coarse.repeat(8, 0).repeat(8, 1)[:rows, :columns]
    return keep


def draw(seed: int, number: int, triton: float = 0.01, widths: Sequence[int] = WIDTHS) -> Draw:
    rng = np.random.default_rng([seed, number])
    kind, tile = str(rng.choice(KINDS)), TILES[rng.integers(len(TILES))]
    wide = rng.random() < 0.3 and widths is WIDTHS
    columns = int(rng.integers(513, 700)) if wide else int(rng.choice(widths))
    rows = int(rng.integers(0, 80))
    threshold = float(rng.choice([0.0, 0.5]))
    values = rng.standard_normal((rows, columns)) * np.where(rng.random() < 0.1, np.nan, 1.0)
    x = torch.from_numpy(np.where(pattern(rng, kind, rows, columns), values, 0.0))
    x = x.to(DTYPES[rng.integers(len(DTYPES))])
    grouped = bool(rng.random() < 0.4 and None not in tile)
    where = "triton" if rng.random() < triton else "c"
    words = (
        f"{kind} {rows} x {columns} {x.dtype} tile {tile} threshold {threshold} grouped {grouped}"
    )
    return Draw(number, x, tile, bool(rng.random() < 0.5), grouped, threshold, where, words)


def wanted(x: Tensor, tile: Tile, threshold: float = 0.0) -> np.ndarray:
    """Which micro-tiles hold something: a grid of booleans."""
    seen = ~(np.abs(x.double().numpy()) <= threshold)
    rows, columns = (n if t is None else t for n, t in zip(x.shape, tile, strict=True))
    grid = [1 if t is None else -(-n // t) for n, t in zip(x.shape, tile, strict=True)]
    made = np.zeros(grid, bool)
    for i, k in np.argwhere(seen):
        made[i // max(rows, 1), k // max(columns, 1)] = True
    return made


def same(index: Index, want: np.ndarray) -> str | None:
    """What is wrong with an index, if anything."""
    got = index.compact()
    lists = [got] if isinstance(got, Tensor) else list(got)
    expected = (
        [np.flatnonzero(want)] if isinstance(got, Tensor) else [np.flatnonzero(r) for r in want]
    )
    for one, right in zip(lists, expected, strict=True):
        held = one.cpu().numpy()
        if not np.array_equal(held if index.ordered else np.sort(held), right):
            return f"{held[:20]} instead of {right[:20]}"
    return None


def judge(d: Draw) -> str | None:
    with backend(d.where):
        made = Index.from_values(
            d.x, d.tile, threshold=d.threshold, grouped=d.grouped, ordered=d.ordered
        )
        return same(made, wanted(d.x, d.tile, d.threshold))


def run(count: int, seed: int) -> Iterator[str]:
    return each("list", draw, judge, count, seed)
