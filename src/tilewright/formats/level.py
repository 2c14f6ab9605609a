"""Storage levels: the parts a format is made of.

Owns: `Level`. In: nothing. Out: levels that `layout` puts together and `walk` reads.

The world is {dense, sparse} x {fixed, variable}. A level takes the positions of the level above it
and gives each one some children; a child has a position of its own and a coordinate in dimension
`dim`.

    kind    extent    children of parent p            coordinate of child q   arrays
    dense   fixed     length                          q % length              none
    dense   variable  indptr[p] .. indptr[p + 1]      q - indptr[p]           indptr
    sparse  variable  indptr[p] .. indptr[p + 1]      indices[q]              indptr, indices
    sparse  fixed     length (1: the one of coo)      indices[q]              indices

Two levels with the same `dim` make one coordinate in mixed radix: outer * length + inner. A sparse
variable level at the root has one parent, so its indptr would be [0, nnz]; it is left out, and its
coordinates are the array `rows`.

    csr = (Level("dense", "fixed", 0), Level("sparse", "variable", 1))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["dense", "sparse"]
Extent = Literal["fixed", "variable"]


@dataclass(frozen=True, slots=True)
class Level:
    """One storage level. `length`: constant length of a fixed level; None: the size of `dim`."""

    kind: Kind
    extent: Extent
    dim: int
    length: int | None = None

    def arrays(self, root: bool = False) -> tuple[str, ...]:
        """The names of the index arrays this level stores."""
        if root and self.kind == "sparse":
            return ("rows",)
        pointers = ("indptr",) if self.extent == "variable" else ()
        return pointers + (("indices",) if self.kind == "sparse" else ())

    def __str__(self) -> str:
        size = f"({self.length})" if self.length is not None else ""
        return f"dim {self.dim} {self.kind} {self.extent}{size}"
