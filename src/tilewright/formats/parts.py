"""`Parts`: a structure made of several, each with its own format, over the same shape.

Owns: which part has which entry. In: structures and, for each, an order: the source entry of each of its
places, -1 where there is none. Out: coordinates, csr, transposes, as of any `Tree`. Every entry of the
source is in exactly one part, so that a tensor in parts is the sum of its parts, and also the maximum.

    s = Parts((8, 8), (Part(dbsr, order, 9), Part(csr, perm, 3)))
    s.format, s.nnz                   # "parts+dbsr.4.4+csr", 12

Values are one tensor, in the order of the source; nothing is copied for a part. What is dense inside in
other tensors (blocks, diagonals) is a list here: its `order` has holes, so zeros inside are no entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilewright.formats import walk
from tilewright.formats.layout import Layout
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree


@dataclass(frozen=True)
class Part:
    """Some entries of a tensor: a csr structure or a tree, and the source entry of each place.

    columns: the ranges of columns of which its rule took one.
    """

    structure: Structure
    order: Tensor
    count: int
    columns: int = 1

    @property
    def holes(self) -> bool:
        """Whether a place may have no entry and nothing but the order tells."""
        return self.structure.slotted and self.count < self.order.shape[0]

    @property
    def arrays(self) -> dict[str, Tensor]:
        """Index arrays by name, the order last."""
        s = self.structure
        if isinstance(s, Tree):
            made = {name: array.reshape(-1) for name, array in s.arrays.items()}
        else:
            assert s.indptr is not None and s.indices is not None
            made = {"indptr": s.indptr, "indices": s.indices}
        return {**made, "holes" if self.holes else "perm": self.order}

    def entries(self) -> tuple[list[Tensor], Tensor]:
        """A coordinate per dimension for each entry, and where its value is."""
        s = self.structure
        coords = walk.places(s)[0] if isinstance(s, Tree) else list(walk.coordinates(s))
        there = self.order >= 0
        if there.is_cuda:  # the number is known, so that nothing is waited for
            at = torch.nonzero_static(there, size=self.count).squeeze(1)
        else:
            at = there.nonzero().squeeze(1)
        return [crd.index_select(0, at) for crd in coords], self.order.index_select(0, at)

    def to(self, device: torch.device | str) -> Part:
        return replace(self, structure=self.structure.to(device), order=self.order.to(device))


def part_of(format: str, shape: tuple[int, ...], arrays: dict[str, Tensor]) -> Part:
    """A part from its arrays by name; waits, to count its entries."""
    order = arrays["holes"] if "holes" in arrays else arrays["perm"]
    held = {name: array for name, array in arrays.items() if array is not order}
    count = int((order >= 0).sum())
    if format == "csr":
        csr = Structure(format, shape, held["indptr"], held["indices"], check=False)
        return Part(csr, order, count)
    return Part(Tree(format, shape, held, count=0, check=False), order, count)


class Parts(Tree):
    """An immutable sparsity pattern in parts; `format` names theirs: "parts+ell.2+csr"."""

    __slots__ = ("parts",)

    def __init__(self, shape: tuple[int, ...], parts: tuple[Part, ...]) -> None:
        format = "+".join(("parts", *(part.structure.format for part in parts)))
        Structure.__init__(self, format, shape, check=False)
        self.parts = parts
        self.levels, self.slotted = (), False
        self.arrays = {
            f"{nth}_{name}": array
            for nth, part in enumerate(parts)
            for name, array in part.arrays.items()
        }
        self.count = self.sources = sum(part.count for part in parts)
        self.wide = parts[0].order.dtype == torch.int64

    @property
    def layout(self) -> Layout:
        return Layout(self.format, ())

    @property
    def held(self) -> list[list[Structure | Tensor]]:
        """Each part's structure and order."""
        return [[part.structure, part.order] for part in self.parts]

    @property
    def listed(self) -> bool:
        return True

    @property
    def values_shape(self) -> tuple[int, ...]:
        return (self.count,)

    @property
    def positions(self) -> int:
        return sum(part.order.shape[0] for part in self.parts)

    def check(self, where: str, names: dict[str, str] | None = None) -> bool:
        """Each part was checked when it was made."""
        return False

    def entries(self) -> tuple[list[Tensor], Tensor]:
        """A coordinate per dimension for each entry, part after part, and where its value is."""
        found = [part.entries() for part in self.parts]
        coords = [torch.cat(dims) for dims in zip(*(crds for crds, _ in found), strict=True)]
        return coords, torch.cat([order for _, order in found])

    def places(self) -> tuple[list[Tensor], Tensor | None]:
        """Entries alone: what is stored beside them is left out."""
        return self.entries()[0], None

    def rows_stored(self) -> Tensor:
        return self.entries()[0][0]

    def to(self, device: torch.device | str) -> Structure:
        """The same structure on another device, derived arrays too; plans are left behind."""
        target = torch.device(device)
        if target == self.device or (target.type == self.device.type and target.index is None):
            return self
        made = Parts(self.shape, tuple(part.to(target) for part in self.parts))
        for name in ("csr", "transposed"):
            held = getattr(self, name)
            setattr(made, name, None if held is None else held.to(target))
        return made

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape))
        dtype = str(self.index_dtype).removeprefix("torch.")
        return f"Parts({self.format}, {size}, {dtype}, {self.device})"
