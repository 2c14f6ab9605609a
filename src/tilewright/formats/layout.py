"""Named formats as compositions of levels.

Owns: `Layout` and the six named ones. In: a name and a block size. Out: a tuple of levels.

Each format is defined by the loop that rebuilds its dense matrix. `v` is the value of a stored
entry in *storage* order (`values[perm]`).

    layout("bsr", (4, 8)).levels   # dense rows of blocks, sparse block columns, dense 4, dense 8
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.formats.level import Level
from tilewright.support.errors import error

FORMATS = ("csr", "csc", "coo", "bsr", "ragged", "block_mask")
BLOCKED = ("bsr", "block_mask")


@dataclass(frozen=True, slots=True)
class Layout:
    """A named list of levels, outermost first."""

    name: str
    levels: tuple[Level, ...]
    block: tuple[int, int] = (1, 1)

    @property
    def major(self) -> int:
        """The dimension that the outermost level runs over."""
        return self.levels[0].dim

    @property
    def blocked(self) -> bool:
        return len(self.levels) > 2

    def __str__(self) -> str:
        return f"{self.name}: " + " > ".join(str(level) for level in self.levels)


def csr() -> Layout:
    """Compressed rows.

    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            dense[i, indices[p]] += v[p]
    """
    return Layout("csr", (Level("dense", "fixed", 0), Level("sparse", "variable", 1)))


def csc() -> Layout:
    """Compressed columns.

    for j in range(m):
        for p in range(indptr[j], indptr[j + 1]):
            dense[indices[p], j] += v[p]
    """
    return Layout("csc", (Level("dense", "fixed", 1), Level("sparse", "variable", 0)))


def coo() -> Layout:
    """A list of entries in any order; duplicates are separate entries.

    for p in range(nnz):
        dense[rows[p], indices[p]] += v[p]
    """
    return Layout("coo", (Level("sparse", "variable", 0), Level("sparse", "fixed", 1, 1)))


def bsr(b0: int, b1: int) -> Layout:
    """Compressed rows of dense blocks.

    for bi in range(n // b0):
        for p in range(indptr[bi], indptr[bi + 1]):
            for r in range(b0):
                for c in range(b1):
                    dense[bi * b0 + r, indices[p] * b1 + c] += v[p, r, c]
    """
    return Layout("bsr", _blocks(b0, b1), (b0, b1))


def ragged() -> Layout:
    """Rows of different lengths, packed; the coordinate is the position less the row's start.

    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            dense[i, p - indptr[i]] = v[p]
    """
    return Layout("ragged", (Level("dense", "fixed", 0), Level("dense", "variable", 1)))


def block_mask(b0: int, b1: int) -> Layout:
    """Blocks that are kept, without values; the last row and column of blocks may stick out.

    for bi in range(ceil(n / b0)):
        for p in range(indptr[bi], indptr[bi + 1]):
            dense[bi * b0 : (bi + 1) * b0, indices[p] * b1 : (indices[p] + 1) * b1] = True
    """
    return Layout("block_mask", _blocks(b0, b1), (b0, b1))


def layout(name: str, block: tuple[int, int] = (1, 1)) -> Layout:
    """The layout of a format's name: layout("csr")."""
    match name:
        case "csr":
            return csr()
        case "csc":
            return csc()
        case "coo":
            return coo()
        case "ragged":
            return ragged()
        case "bsr":
            return bsr(*block)
        case "block_mask":
            return block_mask(*block)
    raise error("argument", name="format", got=repr(name), expected=f"one of {', '.join(FORMATS)}")


def _blocks(b0: int, b1: int) -> tuple[Level, ...]:
    outer = (Level("dense", "fixed", 0), Level("sparse", "variable", 1))
    return (*outer, Level("dense", "fixed", 0, b0), Level("dense", "fixed", 1, b1))
