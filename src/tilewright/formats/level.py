"""Storage levels: the parts a format is made of.

Owns: `Level`. In: nothing. Out: levels that `layout` puts together and `walk` reads.

The world is {dense, sparse, bitmap} x {fixed, variable}. A level takes the positions of the level
above it (the root has one parent, position 0) and gives each one some children; a child has a
position q of its own and a coordinate in dimension `dim`.

    kind    extent    children of parent p            coordinate of child q   arrays
    dense   fixed     p * length .. + length          q % length              none
    dense   variable  indptr[p] .. indptr[p + 1]      q - indptr[p]           indptr
    sparse  variable  indptr[p] .. indptr[p + 1]      indices[q]              indptr, indices
    sparse  fixed     p * length .. + length          indices[q]              indices
    bitmap  fixed     those where mask[q] != 0        q % length              mask

Positions count what is stored, whether it exists or not. What does not exist: the children of what
does not exist, an index of -1 (`padded`), a mask of 0, and a coordinate outside its dimension.

    padded     indices may hold -1: no entry there
    relative   d: the coordinate is indices[q] + the coordinate of dimension d (diagonals)
    shared     sparse fixed: indices has `length` entries in all; child t has indices[t]
    radix      how far the coordinate counts, where that is not `length` (2:4: two places of four)

Two levels with the same `dim` make one coordinate in mixed radix: outer * inner + inner coordinate,
where `inner` is the radix of the inner level. A fixed level without `length` is as long as its
dimension, divided by the radix of the inner levels of that dimension and rounded up. A sparse
variable level at the root has one parent, so its indptr would be [0, nnz]; it is left out.

    csr = (Level("dense", "fixed", 0), Level("sparse", "variable", 1))
    ell = (Level("dense", "fixed", 0), Level("sparse", "fixed", 1, 8, padded=True))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["dense", "sparse", "bitmap"]
Extent = Literal["fixed", "variable"]


@dataclass(frozen=True, slots=True)
class Level:
    """One storage level; see the module's docstring for the fields."""

    kind: Kind
    extent: Extent
    dim: int
    length: int | None = None
    padded: bool = False
    relative: int | None = None
    shared: bool = False
    radix: int | None = None

    @property
    def base(self) -> int | None:
        """How far its coordinate counts, if that is a constant."""
        return self.length if self.radix is None else self.radix

    def arrays(self, root: bool = False) -> tuple[str, ...]:
        """The names of its index arrays in csr, csc, coo, bsr, ragged and block_mask."""
        if root and self.kind == "sparse":
            return ("rows",)
        return self.stored()

    def stored(self, depth: int | None = None) -> tuple[str, ...]:
        """The names of its index arrays as level `depth` of a tree: indptr1, indices1, mask1."""
        pointers = ("indptr",) if self.extent == "variable" else ()
        own = {"dense": (), "sparse": ("indices",), "bitmap": ("mask",)}[self.kind]
        if depth is None:
            return pointers + own
        at_root = depth == 0 and self.kind == "sparse"
        return tuple(f"{name}{depth}" for name in (own if at_root else pointers + own))

    def __str__(self) -> str:
        size = f"({self.length})" if self.length is not None else ""
        marks = (
            " padded" if self.padded else "",
            f" relative to dim {self.relative}" if self.relative is not None else "",
            " shared" if self.shared else "",
            f" of {self.radix}" if self.radix is not None else "",
        )
        return f"dim {self.dim} {self.kind} {self.extent}{size}{''.join(marks)}"


def lengths(levels: tuple[Level, ...], shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """The length of every fixed level for a shape; None for variable ones."""
    return tuple(_length(levels, depth, shape) for depth in range(len(levels)))


def radices(levels: tuple[Level, ...]) -> tuple[int, ...]:
    """What a level's coordinate counts for in its dimension: the product of the inner radices."""
    return tuple(_inner(levels, depth) for depth in range(len(levels)))


def _length(levels: tuple[Level, ...], depth: int, shape: tuple[int, ...]) -> int | None:
    level = levels[depth]
    if level.extent == "variable" or level.length is not None:
        return level.length
    inner = _inner(levels, depth)
    return (shape[level.dim] + inner - 1) // inner


def _inner(levels: tuple[Level, ...], depth: int) -> int:
    made = 1
    for level in levels[depth + 1 :]:
        if level.dim == levels[depth].dim:
            assert level.base is not None, "an inner level of a split dimension has a length"
            made *= level.base
    return made
