"""Sparsity patterns that kernels get wrong: empty rows, nothing at all, one giant row, duplicates, any order.

A pattern is a list of column lists. Two columns that nobody uses stand at the end, for NaN and inf.

    PATTERNS["giant"].tensor(torch.float32)     # SparseTensor with values of its own
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

import tilewright as tw

Rows = list[list[int]]


@dataclass(frozen=True)
class Pattern:
    """source: how the user holds it; csr in order, coo shuffled, csc by columns."""

    rows: Rows
    columns: int
    index: torch.dtype = torch.int32
    source: str = "csr"

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.columns

    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of each entry, in the order of the source."""
        at = [(i, c) for i, r in enumerate(self.rows) for c in r]
        made = np.array(at, np.int64).reshape(-1, 2)
        if self.source == "coo":
            made = made[np.random.default_rng(5).permutation(len(made))]
        return made[:, 0], made[:, 1]

    def tensor(self, device: torch.device | str = "cpu") -> tw.SparseTensor:
        """The structure, without values."""
        rows, cols = (torch.from_numpy(a).to(self.index).to(device) for a in self.entries())
        made = tw.SparseTensor.from_coo(rows, cols, None, self.shape)
        return made if self.source == "coo" else made.to_format(self.source)

    def used(self, side: int) -> np.ndarray:
        """Which rows (0) or columns (1) hold an entry."""
        made = np.zeros(self.shape[side], bool)
        made[self.entries()[side]] = True
        return made


def scattered(seed: int, rows: int, columns: int, each: int) -> Rows:
    """Random rows with 0 to `each` columns, in any order, duplicates allowed."""
    rng = np.random.default_rng(seed)
    return [
        list(map(int, rng.integers(0, columns, rng.integers(0, each + 1)))) for _ in range(rows)
    ]


MIXED: Rows = [[0, 2], [], [5, 1, 1], [3], [], [4, 0]]
PATTERNS = {
    "mixed": Pattern(MIXED, 8),
    "mixed-i64": Pattern(MIXED, 8, torch.int64),
    "mixed-coo": Pattern(MIXED, 8, torch.int64, "coo"),
    "mixed-csc": Pattern(MIXED, 8, torch.int32, "csc"),
    "nothing": Pattern([[], [], []], 4),
    "single": Pattern([[0]], 1),
    "giant": Pattern([[1], [j * 7 % 11 for j in range(90)], [], [0, 10]], 13),
    "33x48-seed0": Pattern(scattered(0, 33, 46, 4), 48),
}


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    """Any pattern, held in any way."""
    columns = draw(st.integers(1, 9))
    cell = st.integers(0, columns - 1)
    rows = draw(st.lists(st.lists(cell, max_size=5), min_size=1, max_size=9))
    if draw(st.booleans()):
        rows[draw(st.integers(0, len(rows) - 1))] = draw(st.lists(cell, min_size=40, max_size=90))
    index = draw(st.sampled_from([torch.int32, torch.int64]))
    source = draw(st.sampled_from(["csr", "coo", "csc"]))
    return Pattern(rows, columns + 2, index, source)
