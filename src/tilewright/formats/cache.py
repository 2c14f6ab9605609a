"""The cache in front of operators: one `Structure` for a torch sparse tensor that is passed again.

Owns: the memory of structures seen. In: a torch CSR, CSC, COO, BSR or BSC tensor. Out: its structure,
and how often it was asked for, so that the caller can prepare on the second use.

    structure, uses = CACHE.lookup(A)
    if uses == 2:
        structure.prepare()

An entry is found by its index *storages* (not by the tensor: `A.crow_indices()` is a new object on
every call, and a new A may be built over the same indices in every training step), with offset,
shape, strides and dtype, and it is valid only for the versions of the index tensors that it saw. An
address alone is never trusted: the entry keeps its storages alive, so no other storage can have
their address while it is in the table.

That must not keep alive what the user has dropped. The structure shares the storages, so a weak
reference could not tell; the storages' use counts can: when nobody but the entry holds them, the
entry is dead. A miss looks at all entries, every sixteenth lookup too, and the table is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tilewright.formats.interop import structure_from_torch
from tilewright.formats.structure import Structure

Key = tuple[object, ...]
SWEEP_EVERY = 16


@dataclass(slots=True)
class _Entry:
    """A structure, the index versions it is for, and how its storages are held by itself alone."""

    structure: Structure
    versions: tuple[int, int]
    storages: tuple[int, ...]
    own: int
    uses: int
    last: int


class StructureCache:
    """A bounded table from index storages to structures; see the module's docstring."""

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = capacity
        self._clock = 0
        self._table: dict[Key, _Entry] = {}

    def __len__(self) -> int:
        return len(self._table)

    def clear(self) -> None:
        self._table.clear()

    def lookup(self, a: Tensor, check: bool = True) -> tuple[Structure, int]:
        """The structure of `a` and the number of times it was asked for, this one included."""
        outer, inner = _index_arrays(a)
        key = _key(a, outer, inner)
        entry = self._table.get(key)
        versions = _versions(outer, inner)
        self._clock = now = self._clock + 1
        if entry is None or entry.versions != versions:
            return self._insert(key, versions, a, outer, inner, check), 1
        entry.uses += 1
        entry.last = now
        if now % SWEEP_EVERY == 0:
            self.sweep()
        return entry.structure, entry.uses

    def sweep(self) -> None:
        """Drop every entry whose index arrays nobody else holds."""
        for key, entry in list(self._table.items()):
            if _holders(entry.storages) <= entry.own:
                self._table.pop(key, None)

    def _insert(
        self,
        key: Key,
        versions: tuple[int, int],
        a: Tensor,
        outer: Tensor,
        inner: Tensor,
        check: bool,
    ) -> Structure:
        self._table.pop(key, None)
        self.sweep()
        storages = tuple({_address(outer), _address(inner)})
        before = _holders(storages)
        structure = structure_from_torch(a, check)
        own = _holders(storages) - before + len(storages) * _wrapper_holds()
        self._table[key] = _Entry(structure, versions, storages, own, 1, self._clock)
        self._evict()
        return structure

    def _evict(self) -> None:
        while len(self._table) > self.capacity:
            oldest = min(self._table, key=lambda key: self._table[key].last)
            self._table.pop(oldest, None)


CACHE = StructureCache()


def _index_arrays(a: Tensor) -> tuple[Tensor, Tensor]:
    layout = a.layout
    if layout is torch.sparse_coo:
        at = a._indices()
        return at, at
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return a.ccol_indices(), a.row_indices()
    return a.crow_indices(), a.col_indices()


def _key(a: Tensor, outer: Tensor, inner: Tensor) -> Key:
    return (
        a.layout,
        a.shape,
        outer.untyped_storage()._cdata,
        outer.storage_offset(),
        outer.stride(),
        inner.untyped_storage()._cdata,
        inner.storage_offset(),
        inner.stride(),
        inner.shape,
        inner.dtype,
    )


def _versions(outer: Tensor, inner: Tensor) -> tuple[int, int]:
    try:
        return outer._version, inner._version
    except RuntimeError:  # inference tensors keep no version
        return -1, -1


def _address(array: Tensor) -> int:
    return int(array.untyped_storage()._cdata)


def _holders(storages: tuple[int, ...]) -> int:
    return sum(torch._C._storage_Use_Count(address) for address in storages)


@cache
def _wrapper_holds() -> int:
    """What torch's Python object of a storage adds to its use count (1 in torch 2.13)."""
    probe = torch.empty(1)
    return _holders((_address(probe),)) - 1
