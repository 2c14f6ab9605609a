"""`Tree`: where the entries of a sparse tensor are, for every format that is a list of levels.

Owns: the index arrays, numbered by level, and what is derived from them. In: a format's name, an
n-dimensional shape, arrays by the names of `Level.stored`. Out: coordinates, csr, transposes. It
stands where a `Structure` does: csr, csc, coo, bsr, ragged and block_mask are structures, dcsr,
dbsr, ell, padded, srbcrs, dia, csf, bucket, two_four, bitmap and ragged.n are trees.

    t = Tree("ell.2", (2, 9), {"indices1": tensor([4, -1, 0, 8])})
    t.counts, t.as_coordinates()      # (2, 4), ([[0, 1, 1], [4, 0, 8]], [0, 2, 3])

Values. A *list* (dcsr, ell, padded, csf, bucket, ragged.n) keeps values in the order of the source,
[entries, ...]; `perm` has one source entry for each position of the last level (anything where
there is none), None: values are in storage order, one for each position. A *slotted* format (dbsr,
srbcrs, dia, two_four, bitmap) keeps values in storage order in the stored shape, zeros where
nothing is: the positions before the dense levels of constant length at the end, then those lengths:
[blocks, b0, b1] for dbsr, [entries, t] for srbcrs, [positions] for the others. `slots` says where
in the flattened values each source entry goes; duplicates add up there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats import index, walk
from tilewright.formats.check_tree import check_tree
from tilewright.formats.layout import Layout, layout
from tilewright.formats.level import lengths
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside
from tilewright.support.errors import error


class Tree(Structure):
    """An immutable sparsity pattern of any format and number of dimensions.

    format   the name with its parameters, "srbcrs.8.4"; `levels` are those of its layout
    shape    a size for each dimension
    arrays   index arrays by name: indptr1, indices1, mask1 for level 1
    perm     lists: [positions] position -> source entry; None is the identity
    slots    slotted formats made from entries: [entries] source entry -> place in flattened values
    count    entries: those of the source, or the places that exist when made from arrays
    sources  the length of the values that `perm` leads to; more than `count` for a part of a tensor
    ordered  the coordinates of dimension 0 are known not to decrease in storage order
    wide     index arrays are int64 (a bitmap has none to tell)
    """

    slotted: bool
    __slots__ = ("arrays", "levels", "slotted", "count", "sources", "wide")

    def __init__(
        self,
        format: str,
        shape: tuple[int, ...],
        arrays: dict[str, Tensor],
        *,
        perm: Tensor | None = None,
        slots: Tensor | None = None,
        count: int | None = None,
        sources: int | None = None,
        ordered: bool = False,
        wide: bool | None = None,
        check: bool = True,
        where: str = "Tree",
    ) -> None:
        super().__init__(format, shape, perm=perm, slots=slots, ordered=ordered, check=False)
        self.arrays = arrays
        described = layout(format)
        self.levels, self.slotted = described.levels, described.slotted
        first = self.levels[0]
        alone = all(level.dim != first.dim for level in self.levels[1:])
        self.ordered = ordered or (first.kind == "dense" and first.dim == 0 and alone)
        self.wide = _is_wide(arrays) if wide is None else wide
        self.count = -1 if count is None else count
        if check and not torch.compiler.is_compiling():
            self.ordered = self.check(where) or self.ordered
        if count is None:
            self.count = self._existing()
        self.sources = self.count if sources is None else sources

    def check(self, where: str, names: dict[str, str] | None = None) -> bool:
        return check_tree(self, where)

    @property
    def layout(self) -> Layout:
        return layout(self.format)

    @property
    def nnz(self) -> int:
        """Entries: those of the source, or the places that exist."""
        return self.count

    @property
    def listed(self) -> bool:
        """Whether values hold exactly the entries, in the order of the source."""
        held = self.positions if self.perm is None else self.sources
        return not self.slotted and self.count == held

    @property
    def values_shape(self) -> tuple[int, ...]:
        if not self.slotted:
            return (self.positions if self.perm is None else self.sources,)
        end = len(self.levels)
        while self.levels[end - 1].kind == "dense":
            end -= 1
        inner = [level.length for level in self.levels[end:] if level.length is not None]
        return (self.counts[end - 1], *inner)

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """The length of each fixed level; None for variable ones."""
        return lengths(self.levels, self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of positions of each level, from the shapes of arrays alone."""
        made, count = [], 1
        for depth, length in enumerate(self.lengths):
            count = self._variable(depth) if length is None else count * length
            made.append(count)
        return tuple(made)

    @property
    def positions(self) -> int:
        """The number of stored places."""
        return self.counts[-1]

    @property
    def device(self) -> torch.device:
        return next(iter(self.arrays.values())).device

    @property
    def index_dtype(self) -> torch.dtype:
        return torch.int64 if self.wide else torch.int32

    def parents(self) -> Tensor:
        """The parent of each position of the last variable level."""
        last = max(d for d, level in enumerate(self.levels) if level.extent == "variable")
        return index.expand(self.arrays[f"indptr{last}"], self.counts[last])

    @outside
    def rows_stored(self) -> Tensor:
        """The coordinate of dimension 0 of each stored place, kept as `row_of`."""
        if self.row_of is None:
            made = self.places()[0][0]
            if torch.compiler.is_compiling():
                return made
            self.row_of = made
        return self.row_of

    def places(self) -> tuple[list[Tensor], Tensor | None]:
        """A coordinate per dimension for every stored place, and which exist (None: all)."""
        return walk.places(self)

    def entries(self) -> tuple[list[Tensor], Tensor | None]:
        """A coordinate per dimension for each existing place in storage order, and `perm`."""
        found, alive = self.places()
        if alive is None:
            return found, self.perm
        kept = self._where(alive)
        perm = kept if self.perm is None else self.perm.index_select(0, kept)
        return [crd.index_select(0, kept) for crd in found], perm

    def as_coordinates(self) -> tuple[Tensor, Tensor | None]:
        found, perm = self.entries()
        return torch.stack(found), perm

    @outside
    def as_csr(self) -> Structure:
        """csr of the same matrix; `perm` leads to the values, flattened if they are slotted."""
        if self.csr is None:
            made = self._compress_rows()
            if torch.compiler.is_compiling():
                return made
            self.csr = made
        return self.csr

    @property
    def T(self) -> Structure:
        """The transpose as csc, over the same values (flattened if they are slotted)."""
        return self.as_csr().T

    @outside
    def transpose(self) -> Structure:
        """The transpose as csr, kept as `transposed`."""
        if self.transposed is None:
            made = self.as_csr().transpose()
            if torch.compiler.is_compiling():
                return made
            self.transposed = made
        return self.transposed

    @outside
    def prepare(self, transpose: bool = True) -> Structure:
        """Make and keep csr and, for two dimensions, the transpose."""
        if len(self.shape) == 2:
            self.as_csr().prepare(transpose)
            if transpose:
                self.transpose()
        return self

    def to(self, device: torch.device | str) -> Structure:
        """The same structure on another device, derived arrays too; plans are left behind."""
        target = torch.device(device)
        if target == self.device or (target.type == self.device.type and target.index is None):
            return self
        made = self.over({name: array.to(target) for name, array in self.arrays.items()})
        for name in ("perm", "slots", "csr", "transposed", "row_of"):
            held = getattr(self, name)
            setattr(made, name, None if held is None else held.to(target))
        return made

    def over(self, arrays: dict[str, Tensor]) -> Tree:
        """The same description over other arrays, unchecked; perm and slots are left out."""
        return Tree(
            self.format,
            self.shape,
            arrays,
            count=self.count,
            sources=self.sources,
            ordered=self.ordered,
            wide=self.wide,
            check=False,
        )

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape))
        dtype = str(self.index_dtype).removeprefix("torch.")
        return f"Tree({self.format}, {size}, {dtype}, {self.device})"

    def _variable(self, depth: int) -> int:
        """Positions of a variable level."""
        indices = self.arrays.get(f"indices{depth}")
        if indices is not None:
            return indices.shape[0]
        below = self.arrays.get(f"indptr{depth + 1}")
        if below is not None:
            return below.shape[0] - 1
        return self.count if self.count >= 0 else int(self.arrays[f"indptr{depth}"][-1])

    def _existing(self) -> int:
        """The number of places that exist; waits for the device where that is not plain."""
        self.count = -1
        alive = self.places()[1]
        return self.positions if alive is None else int(alive.sum())

    def _where(self, alive: Tensor) -> Tensor:
        if not self.slotted and alive.is_cuda:  # the number is known, so that nothing is waited for
            found = torch.nonzero_static(alive, size=self.count)
        else:
            found = alive.nonzero()
        return found.squeeze(1).to(self.index_dtype)

    def _compress_rows(self) -> Structure:
        if len(self.shape) != 2:
            expected = "two dimensions; n-dimensional formats have as_coordinates()"
            raise error(
                "shape", where="as_csr", name="the tensor", got=self.shape, expected=expected
            )
        (rows, cols), perm = self.entries()
        order = None
        if not self.ordered:
            rows, order = index.grouped(rows)
        return Structure(
            "csr",
            self.shape,
            index.ends(rows, self.shape[0]),
            cols if order is None else cols.index_select(0, order),
            perm=index.compose(perm, order),
            check=False,
        )


def _is_wide(arrays: dict[str, Tensor]) -> bool:
    held = [array for name, array in arrays.items() if not name.startswith("mask")]
    return not held or held[0].dtype == torch.int64
