"""A gallery: one small matrix in every format, one small tensor in those of three dimensions.

Owns: `gallery`. In: nothing. Out: the text that `print` gives, by the format's name.

    print(gallery()["ell.3"])
"""

from __future__ import annotations

import torch

from tilewright.formats.tensor import SparseTensor

MATRIX = (
    *("csr", "csc", "coo", "bsr", "block_mask", "dcsr", "dbsr.2.2", "ell.3", "padded.2"),
    *("srbcrs.4.2", "dia", "two_four", "bitmap", "csf.2"),
)
CUBE = ("csf.3", "csf.3.dense", "bucket.2", "grouped.3.1")


def gallery() -> dict[str, str]:
    """Pictures, fill, padding and bytes by format."""
    made = {}
    a, cube = _matrix(), _cube()
    for name in MATRIX:
        drawn = a.to_format(name, (2, 2) if name in ("bsr", "block_mask") else None)
        made[drawn.format] = str(drawn)
    for name in CUBE:
        made[name] = str(cube.to_format(name))
    rows = torch.tensor([0, 3, 3, 8, 9])
    made["ragged"] = str(SparseTensor.from_arrays("ragged", (4, 5), torch.ones(9), indptr=rows))
    outer, inner = torch.tensor([0, 2, 3]), torch.tensor([0, 3, 4, 6])
    made["ragged.3"] = str(
        SparseTensor.from_arrays("ragged.3", (2, 2, 3), torch.ones(6), indptr1=outer, indptr2=inner)
    )
    return made


def _matrix() -> SparseTensor:
    """Three diagonals and an empty band of rows; at most two entries among four columns."""
    rows = torch.tensor([0, 0, 1, 1, 2, 2, 6, 6, 7, 7])
    cols = torch.tensor([0, 4, 1, 5, 2, 6, 6, 2, 7, 3])
    return SparseTensor.from_coo(rows, cols, torch.arange(1.0, 11.0), (8, 8))


def _cube() -> SparseTensor:
    coords = torch.tensor([[0, 0, 0, 2, 2], [1, 1, 3, 0, 0], [0, 4, 2, 1, 5]])
    return SparseTensor.from_coords(coords, torch.arange(1.0, 6.0), (3, 4, 6))
