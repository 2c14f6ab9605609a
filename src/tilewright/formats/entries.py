"""Entries: coordinates without any storage, what conversions pass from a reader to a writer.

Owns: `Entries`, and the limit on what a format may store. In: a structure and its values. Out: a
coordinate per dimension for each entry, `perm` to the values, and values that hold exactly the
entries: those given, or, where a format stores more than entries, those gathered from it.

    entries_of(ell, values)     # Entries((2, 9), (rows, cols), perm), values
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.formats import index, walk
from tilewright.formats.check import check_index_dtype
from tilewright.formats.layout import FORMATS
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.support.errors import error

PLAIN = ("indptr", "indices", "rows")
LARGEST, SPARE = 64, 1_000_000  # stored places for each entry, and beside them


@dataclass(frozen=True)
class Entries:
    """Coordinates, one tensor for each dimension; perm[p] is the source entry of entry p."""

    shape: tuple[int, ...]
    coords: tuple[Tensor, ...]
    perm: Tensor | None = None

    @property
    def count(self) -> int:
        return self.coords[0].shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.coords[0].dtype

    @property
    def device(self) -> torch.device:
        return self.coords[0].device

    def select(self, order: Tensor | None) -> Entries:
        """Some of them, or all in another order."""
        if order is None:
            return self
        coords = tuple(crd.index_select(0, order) for crd in self.coords)
        return Entries(self.shape, coords, index.compose(self.perm, order.to(self.dtype)))

    def order(self) -> Tensor:
        """perm, written out."""
        if self.perm is not None:
            return self.perm
        return torch.arange(self.count, dtype=self.dtype, device=self.device)

    def by_source(self, known: Tensor) -> Tensor:
        """What is known of each entry, in the order of the source."""
        if self.perm is None:
            return known
        return torch.empty_like(known).scatter_(0, self.perm.long(), known)


def entries_of(s: Structure, values: Tensor | None) -> tuple[Entries, Tensor | None]:
    """The entries of a structure, and the values that they lead to."""
    if isinstance(s, Tree):
        coords, perm = s.entries()
        if s.listed:
            return Entries(s.shape, tuple(coords), perm), values
        return Entries(s.shape, tuple(coords)), gathered(s, values, perm)
    if s.blocked:
        values = None if values is None else walk.flattened(s, values)
        s = s.as_csr() if s.format == "block_mask" else s
    return Entries(s.shape, walk.coordinates(s), walk.entry_perm(s)), values


def gathered(s: Tree, values: Tensor | None, places: Tensor | None) -> Tensor | None:
    """The values of some stored places."""
    if values is None:
        return None
    flat = values.flatten(0, len(s.values_shape) - 1)
    return flat if places is None else flat.index_select(0, places)


def limit(name: str, places: int, nnz: int, instead: str, dtype: torch.dtype | None = None) -> None:
    """Refuse far more places than entries, or more than the dtype of a pointer can count."""
    if places > LARGEST * nnz + SPARE:
        raise error("too-large", where="to_format", name=name, got=places, nnz=nnz, instead=instead)
    if dtype == torch.int32 and places > index.INT32:
        raise misfit(name, f"{places} places with torch.int32 pointers", "torch.int64 index arrays")


def misfit(name: str, got: str, expected: str) -> Exception:
    """The tensor has not the form that a format needs."""
    where = f'to_format("{name}")'
    return error("argument", where=where, name="the tensor", got=got, expected=expected)


def entries_from(coords: Tensor, shape: tuple[int, ...], check: bool, where: str) -> Entries:
    """Entries of a matrix of coordinates [ndim, nnz]; checked with one wait."""
    if not isinstance(coords, Tensor) or coords.ndim != 2 or coords.shape[0] != len(shape):
        got = tuple(coords.shape) if isinstance(coords, Tensor) else type(coords).__name__
        expected = f"({len(shape)}, entries), a row for each dimension of {tuple(shape)}"
        raise error("shape", where=where, name="coords", got=got, expected=expected)
    check_index_dtype(coords, where, "coords")
    if len(shape) < 2 or min(shape) < 0:
        expected = "two sizes or more, none below 0"
        raise error("argument", where=where, name="shape", got=shape, expected=expected)
    if check and coords.shape[1] and not torch.compiler.is_compiling():
        bounds = torch.stack((coords.amin(1), coords.amax(1))).tolist()
        for dim, (low, high) in enumerate(zip(*bounds, strict=True)):
            if low < 0 or high >= shape[dim]:
                got, name = (low if low < 0 else high), f"coords[{dim}]"
                raise error("index-range", where=where, name=name, got=got, expected=shape[dim] - 1)
    rows = tuple(coords[dim].contiguous() for dim in range(len(shape)))
    return Entries(tuple(int(size) for size in shape), rows)


def structure_from_arrays(
    format: str,
    shape: tuple[int, ...],
    arrays: dict[str, Tensor],
    block: tuple[int, int],
    check: bool,
    where: str,
) -> Structure:
    """A structure or a tree over arrays by name."""
    shape = tuple(int(size) for size in shape)
    if format not in FORMATS:
        return Tree(format, shape, arrays, check=check, where=where)
    for name in arrays:
        if name not in PLAIN:
            got, expected = "an array", f"the arrays {', '.join(PLAIN)}, as {format} has them"
            raise error("argument", where=where, name=name, got=got, expected=expected)
    indptr, indices, rows = (arrays.get(name) for name in PLAIN)
    made = Structure(
        format, shape, indptr, indices, rows=rows, block=block, check=check, where=where
    )
    if format == "ragged":
        made.rows_stored()
    return made
