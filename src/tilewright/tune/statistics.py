"""Statistics of a structure: all that a plan may depend on, in a few integers.

In: a structure. Out: sizes, the longest row, and how many rows (and entries in them) there are of each length
class. Class 0 has the empty rows; class c those of 2**(c-2) + 1 to 2**(c-1) entries.

    s = statistics_of(A.structure)       # on the device, one wait; kept with the structure
    s.label                              # "r12-c12-e14-l8-q0220": equal for structures alike
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree

CLASSES = 33
QUARTERS = ((0, 4), (4, 7), (7, 11), (11, CLASSES))  # rows up to 4, 32 and 512 entries, and longer


@dataclass(frozen=True)
class Statistics:
    """rows, columns, entries and the longest row; rows and entries by length class (empty: not known)."""

    rows: int
    cols: int
    nnz: int
    longest: int = 0
    counts: tuple[int, ...] = ()
    entries: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        return self.nnz / max(self.rows, 1)

    @property
    def label(self) -> str:
        """The class of structures that a measurement speaks for: sizes by powers of two, entries by row length."""
        sizes = zip("rcel", (self.rows, self.cols, self.nnz, self.longest), strict=True)
        made = "-".join(f"{letter}{max(n - 1, 0).bit_length()}" for letter, n in sizes)
        if not self.entries:
            return made
        parts = [sum(self.entries[a:b]) for a, b in QUARTERS]
        return f"{made}-q{''.join(str(round(4 * p / max(self.nnz, 1))) for p in parts)}"


def statistics_of(s: Structure | Tree) -> Statistics:
    """The statistics of a structure, made once. Waits for the device, so it belongs in preparation."""
    if "statistics" not in s.plans:
        s.plans["statistics"] = _made(s)
    made: Statistics = s.plans["statistics"]
    return made


def _made(s: Structure | Tree) -> Statistics:
    rows, cols = (s.shape[0], s.shape[-1]) if s.shape else (1, 1)
    pointers = None if isinstance(s, Tree) else s.indptr
    if pointers is None:
        return Statistics(rows, cols, s.nnz)
    lengths = pointers.diff().long()
    edges = torch.tensor([0, *(1 << c for c in range(CLASSES - 2))], device=lengths.device)
    length_class = torch.bucketize(lengths, edges)
    counts = torch.bincount(length_class, minlength=CLASSES)
    entries = torch.zeros_like(counts).index_add_(0, length_class, lengths)
    longest = lengths.max()[None] if lengths.numel() else lengths.new_zeros(1)
    told = torch.cat([longest, counts, entries]).tolist()
    return Statistics(
        rows, cols, s.nnz, told[0], tuple(told[1 : 1 + CLASSES]), tuple(told[1 + CLASSES :])
    )


def known(s: Structure | Tree) -> bool:
    """Whether the statistics are there already."""
    return "statistics" in s.plans
