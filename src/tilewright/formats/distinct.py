"""Structures without duplicates, for operands that are looked up: one entry for one place.

In: a csr structure. Out: whether it has duplicates (waits for the device, once), the structure that adds them up, and
the same entries in order.

    made, place = distinct(s)      # values.new_zeros(made.nnz).index_add(0, place, values)
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.convert import convert, source_coordinates
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside


def has_duplicates(s: Structure) -> bool:
    """Kept with the structure."""
    if "duplicates" not in s.plans:
        keys = torch.sort(_keys(s)).values
        s.plans["duplicates"] = bool((keys[1:] == keys[:-1]).any())
    found: bool = s.plans["duplicates"]
    return found


def is_sorted(s: Structure) -> bool:
    """Whether the columns of each row increase: no duplicates, in order. Kept with the structure."""
    if "sorted" not in s.plans:
        assert s.indices is not None and s.indptr is not None
        later = torch.ones(s.nnz + 1, dtype=torch.bool, device=s.device)
        torch.gt(s.indices[1:], s.indices[:-1], out=later[1:-1])
        s.plans["sorted"] = bool(later.index_fill_(0, s.indptr.long(), True).all())
    found: bool = s.plans["sorted"]
    return found


@outside
def sorted_rows(s: Structure) -> Structure:
    """The same entries with columns in order; values keep the source's order. Kept with the structure."""
    if "sorted rows" not in s.plans:
        rows, cols = source_coordinates(s)
        order = torch.sort(_keys(s)).indices
        indptr = index.pointers(rows, s.shape[0])
        perm = order.to(s.index_dtype)
        made = Structure("csr", s.shape, indptr, cols[order], perm=perm, check=False)
        made.plans["sorted"] = not has_duplicates(s)
        s.plans["sorted rows"] = made
    found: Structure = s.plans["sorted rows"]
    return found


@outside
def distinct(s: Structure) -> tuple[Structure, Tensor]:
    """The csr structure of distinct places, and the place of each source entry; kept with the structure."""
    if torch.compiler.is_compiling():
        return _distinct(s)
    if "distinct" not in s.plans:
        s.plans["distinct"] = _distinct(s)
    found: tuple[Structure, Tensor] = s.plans["distinct"]
    return found


def as_torch_asks(s: Structure, values: Tensor) -> tuple[Structure, Tensor]:
    """csr, csc or bsr with the places of each row in order, each once: entries of one place are added up."""
    rows = s.T if s.format == "csc" else s
    if s.format == "coo" or torch.compiler.is_compiling() or is_sorted(rows):
        return s, values
    if s.blocked:
        csr, held = convert(s, values, "csr")
        made, blocks = convert(csr, held, "bsr", s.block)
        assert blocks is not None
        return made, blocks
    made, place = distinct(rows)
    whole = values.to(torch.uint8) if values.dtype == torch.bool else values
    summed = whole.new_zeros((made.nnz, *values.shape[1:])).index_add(0, place, whole)
    return made.T if s.format == "csc" else made, summed.to(values.dtype)


def _distinct(s: Structure) -> tuple[Structure, Tensor]:
    keys, place = torch.unique(_keys(s), return_inverse=True)
    across = max(s.shape[1], 1)
    rows = torch.div(keys, across, rounding_mode="floor")
    cols = (keys - rows * across).to(s.index_dtype)
    indptr = index.pointers(rows.to(s.index_dtype), s.shape[0])
    made = Structure("csr", s.shape, indptr, cols, check=False)
    made.plans["sorted"] = True
    return made, place


def _keys(s: Structure) -> Tensor:
    rows, cols = source_coordinates(s)
    return rows.long() * s.shape[1] + cols
