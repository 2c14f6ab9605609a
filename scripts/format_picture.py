"""The picture of docs/formats.md: one matrix in all two-dimensional formats. Needs matplotlib.

python scripts/format_picture.py            # writes docs/pictures/formats.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import torch

from tilewright import SparseTensor
from tilewright.formats.tree import Tree
from tilewright.formats.walk import coordinates

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "formats.png"
SIZE, BLOCK = 8, 2
ENTRY, PAD, LINE = "#8fb8de", "#f4c28a", "#333333"
NAMES = (
    *("csr", "csc", "coo", "dcsr", "ell.3", "padded.4", "bsr", "dbsr.2.2", "block_mask"),
    *("srbcrs.4.4", "dia", "two_four", "bitmap", "csf.2", "ragged"),
)
Place = tuple[int, int]


def matrix(name: str) -> SparseTensor:
    """The matrix of the page; of ragged, which has no columns of its own, its row lengths."""
    rows = torch.tensor([0, 0, 1, 1, 2, 2, 6, 6, 7, 7])
    cols = torch.tensor([0, 4, 1, 5, 2, 6, 6, 2, 7, 3])
    made = SparseTensor.from_coo(rows, cols, torch.arange(1.0, 11.0), (SIZE, SIZE))
    if name == "ragged":
        ends = made.to_format("csr").structure.indptr
        return SparseTensor.from_arrays("ragged", (SIZE, SIZE), made.values, indptr=ends)
    return made.to_format(name, (BLOCK, BLOCK) if name in ("bsr", "block_mask") else None)


def places(a: SparseTensor) -> list[Place]:
    """Row and column of every stored place, in the order of storage; blocks one after the other."""
    s = a.structure
    if s.format == "bitmap":
        return [(r, c) for r in range(SIZE) for c in range(SIZE)]
    if isinstance(s, Tree):
        coords, _ = s.entries()
        return list(zip(coords[0].tolist(), coords[-1].tolist(), strict=True))
    if not s.blocked:
        rows, cols = coordinates(s)
        return list(zip(rows.tolist(), cols.tolist(), strict=True))
    corners = zip(s.parents().tolist(), s.indices.tolist(), strict=True)
    inside = [(r, c) for r in range(BLOCK) for c in range(BLOCK)]
    return [(i * BLOCK + r, j * BLOCK + c) for i, j in corners for r, c in inside]


def pads(a: SparseTensor, found: list[Place]) -> list[tuple[int, int, int]]:
    """(first row, height, how many) of places without coordinates, row by row."""
    s = a.structure
    counts = [sum(r == i for r, _ in found) for i in range(SIZE)]
    family, given = s.layout.family, s.format.split(".")[1:]
    if family == "ell":
        return [(i, 1, int(given[0]) - n) for i, n in enumerate(counts)]
    if family == "padded":
        have = s.arrays["indptr1"].diff().tolist()
        return [(i, 1, h - n) for i, (h, n) in enumerate(zip(have, counts, strict=True))]
    if family == "two_four":
        return [(i, 1, SIZE // 2 - n) for i, n in enumerate(counts)]
    if family == "srbcrs":
        t, have = int(given[0]), s.arrays["indptr1"].diff().tolist()
        return [(k * t, t, h - counts[k * t]) for k, h in enumerate(have)]
    return []


def frames(name: str, found: list[Place]) -> set[tuple[int, int, int, int]]:
    """(row, column, height, width) of blocks, strips and groups."""
    family = name.partition(".")[0]
    if family == "two_four":
        return {(r, c, 1, 4) for r in range(SIZE) for c in range(0, SIZE, 4)}
    if family == "srbcrs":
        return {(r // 4 * 4, c, 4, 1) for r, c in found}
    if family in ("bsr", "dbsr", "block_mask"):
        return {(r // BLOCK * BLOCK, c // BLOCK * BLOCK, BLOCK, BLOCK) for r, c in found}
    return set()


def heads(name: str, found: list[Place]) -> list[tuple[float, float]]:
    """Where the coordinates of the outermost level are: rows, rows of blocks, or columns."""
    family = name.partition(".")[0]
    if family == "coo":
        return []
    if family == "csc":
        return [(k + 0.5, -0.5) for k in range(SIZE)]
    step = {"bsr": BLOCK, "dbsr": BLOCK, "block_mask": BLOCK, "srbcrs": 4}.get(family, 1)
    held = {r // step for r, _ in found}
    every = [k for k in range(SIZE // step) if k in held or family not in ("dcsr", "dbsr", "csf")]
    return [(-0.5, (k + 0.5) * step) for k in every]


def draw(axes: Any, name: str) -> None:
    a = matrix(name)
    found = places(a)
    full = a.to_dense() != 0
    axes.add_patch(Rectangle((0, 0), SIZE, SIZE, fill=False, color=LINE, lw=0.8))
    for n, (r, c) in enumerate(found):
        shade = ENTRY if full[r, c] else PAD
        axes.add_patch(Rectangle((c, r), 1, 1, facecolor=shade, edgecolor="white", lw=0.5))
        axes.text(c + 0.5, r + 0.5, str(n), ha="center", va="center", fontsize=5)
    for r, high, many in pads(a, found):
        for k in range(many):
            at = (SIZE + 0.5 + k, r)
            axes.add_patch(Rectangle(at, 1, high, facecolor=PAD, edgecolor="white", lw=0.5))
    for across, down in heads(name, found):
        axes.plot(across, down, ".", color=LINE, markersize=3)
    for r, c, high, wide in frames(name, found):
        axes.add_patch(Rectangle((c, r), wide, high, fill=False, color=LINE, lw=0.6))
    axes.set_title(a.format, fontsize=8, family="monospace")
    axes.set_xlim(-0.8, SIZE + 5)
    axes.set_ylim(SIZE + 0.2, -0.8)
    axes.set_aspect("equal")
    axes.axis("off")


def main() -> Path:
    figure, panels = pyplot.subplots(3, 5, figsize=(9.5, 5), dpi=120, layout="constrained")
    for axes, name in zip(panels.flat, NAMES, strict=True):
        draw(axes, name)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, metadata={"Software": None})
    return OUT


if __name__ == "__main__":
    print(main())
