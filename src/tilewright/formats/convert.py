"""Conversion of real tensors among formats, on their device, keeping the values' order.

Owns: structure -> structure, values into blocks, dense <-> sparse. In and out: a `Structure` and
its values (source order, None for ones). All of it goes through the levels: `walk.coordinates`
reads any format, and grouping the coordinates of the outer level writes one.

    to_structure(csr, "csc")          # new index arrays; values stay as they are, `perm` finds them
    bsr = to_blocks(csr, (4, 4))      # entries move into blocks, so values change shape ...
    fill_blocks(bsr, values)          # ... and new values flow in with one index operation

Only entries -> blocks and dense -> sparse wait for the device: the number of blocks is not known
before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats import index, walk
from tilewright.formats.layout import BLOCKED
from tilewright.formats.structure import Structure
from tilewright.support.errors import error


def convert(
    s: Structure, values: Tensor | None, name: str, block: tuple[int, int] | None = None
) -> tuple[Structure, Tensor | None]:
    """Structure and values in another format."""
    if name == s.format and block in (None, s.block):
        return s, values
    if name in BLOCKED:
        return _convert_to_blocks(s, values, name, block)
    made = to_structure(s, name)
    return made, flatten_blocks(values) if s.format == "bsr" and values is not None else values


def to_structure(s: Structure, name: str) -> Structure:
    """csr, csc or coo of the same matrix; `perm` leads to the same source order."""
    if name == s.format:
        return s
    match name:
        case "csr":
            return s.as_csr()
        case "csc":
            return (s.as_csr() if s.blocked or s.format == "ragged" else s).transpose().T
        case "coo":
            return _to_coo(s)
    expected = "csr, csc, coo, bsr or block_mask"
    raise error("argument", where="to_format", name="name", got=repr(name), expected=expected)


def to_blocks(s: Structure, block: tuple[int, int]) -> Structure:
    """bsr of the blocks that hold an entry, sorted; `slots` says where each source entry goes."""
    _check_block(s, block)
    rows, cols = source_coordinates(s)
    across = s.shape[1] // block[1]
    at_row, at_col = _split(rows, block[0]), _split(cols, block[1])
    keys = at_row[0].long() * across + at_col[0]
    kept, place = _distinct(keys)
    slots = (place * block[0] + at_row[1]) * block[1] + at_col[1]
    outer, inner = _split(kept, max(across, 1))
    indptr = index.pointers(outer.to(rows.dtype), s.shape[0] // block[0])
    indices = inner.to(rows.dtype)
    return Structure("bsr", s.shape, indptr, indices, block=block, slots=slots, check=False)


def fill_blocks(s: Structure, values: Tensor) -> Tensor:
    """Source entries [entries, *trailing] -> blocks [nnz, b0, b1, *trailing]; duplicates add up."""
    if s.slots is None:
        expected = "a bsr structure made from entries (to_format)"
        raise error(
            "argument", where="fill_blocks", name="structure", got=repr(s), expected=expected
        )
    if values.ndim == 0 or values.shape[0] != s.slots.shape[0]:
        raise error(
            "value-count",
            where="with_entries",
            name="values",
            got=values.shape[0] if values.ndim else "no",
            expected=s.slots.shape[0],
        )
    trailing = values.shape[1:]
    flat = values.new_zeros((s.nnz * s.block[0] * s.block[1], *trailing))
    return flat.index_add(0, s.slots, values).reshape(s.nnz, *s.block, *trailing)


def flatten_blocks(values: Tensor) -> Tensor:
    """[nnz, b0, b1, *trailing] -> [nnz * b0 * b1, *trailing]."""
    return values.flatten(0, 2)


def stored(s: Structure, values: Tensor) -> Tensor:
    """Values in storage order: values[perm]."""
    return values if s.perm is None else values.index_select(0, s.perm)


def ones(s: Structure, dtype: torch.dtype) -> Tensor:
    """The values that None stands for: [nnz], or [nnz, b0, b1] for bsr."""
    size = (s.nnz, *s.block) if s.format == "bsr" else (s.nnz,)
    return torch.ones(size, dtype=dtype, device=s.device)


def source_coordinates(s: Structure) -> tuple[Tensor, Tensor]:
    """(row, column) of every entry in the source's order."""
    s = s.as_csr() if s.format == "block_mask" else s
    rows, cols = walk.coordinates(s)
    perm = walk.entry_perm(s)
    if perm is None:
        return rows, cols
    back = index.inverse(perm)
    return rows.index_select(0, back), cols.index_select(0, back)


def to_dense(s: Structure, values: Tensor) -> Tensor:
    """[rows, cols, *trailing]; duplicates add up; differentiable in the values."""
    if values.dtype == torch.bool:
        return to_dense(s, values.to(torch.uint8)).to(torch.bool)
    if s.blocked:
        return _blocks_to_dense(s, stored(s, values))
    rows, cols = walk.coordinates(s)
    trailing = values.shape[1:]
    flat = values.new_zeros((s.shape[0] * s.shape[1], *trailing))
    at = rows.long() * s.shape[1] + cols
    return flat.index_add(0, at, stored(s, values)).reshape(*s.shape, *trailing)


def dense_to_csr(dense: Tensor, mask: Tensor | None) -> tuple[Structure, Tensor]:
    """csr of the entries that are kept (mask) or not zero; values follow row-major order."""
    kept = _kept(dense, mask)
    rows, cols = kept.nonzero(as_tuple=True)
    shape = (dense.shape[0], dense.shape[1])
    made = Structure("csr", shape, index.pointers(rows, shape[0]), cols, check=False)
    made.row_of = rows
    return made, dense[rows, cols]


def dense_to_blocks(
    dense: Tensor, mask: Tensor | None, block: tuple[int, int]
) -> tuple[Structure, Tensor]:
    """bsr of the blocks that hold a kept entry; what is not kept is zero inside."""
    kept = _kept(dense, mask)
    shape = (dense.shape[0], dense.shape[1])
    probe = Structure("bsr", shape, block=block, check=False)
    _check_block(probe, block)
    at_row, at_col = _tiles(kept, block).flatten(2).any(2).nonzero(as_tuple=True)
    dense = dense if mask is None else dense * kept.reshape(*shape, *[1] * (dense.ndim - 2))
    indptr = index.pointers(at_row, shape[0] // block[0])
    made = Structure("bsr", shape, indptr, at_col, block=block, check=False)
    return made, _tiles(dense, block)[at_row, at_col]


def _convert_to_blocks(
    s: Structure, values: Tensor | None, name: str, block: tuple[int, int] | None
) -> tuple[Structure, Tensor | None]:
    if block is None and s.blocked:
        block = s.block
    if block is None:
        expected = "a block size, for instance block=(16, 16)"
        raise error("argument", where="to_format", name="block", got=None, expected=expected)
    made = s if s.blocked and s.block == block else to_blocks(s, block)
    if name == "block_mask":
        mask = Structure(name, s.shape, made.indptr, made.indices, block=block, check=False)
        return mask, None
    if s.format == "block_mask" and made is s:
        indptr, indices = s.indptr, s.indices
        _check_block(s, block)
        return Structure(
            "bsr", s.shape, indptr, indices, block=block, perm=s.perm, check=False
        ), None
    if values is None:
        return made, _filled_with_ones(s, made)
    return made, fill_blocks(made, flatten_blocks(values) if s.format == "bsr" else values)


def _filled_with_ones(s: Structure, made: Structure) -> Tensor:
    assert made.slots is not None
    dtype = torch.bool if s.format == "block_mask" else torch.get_default_dtype()
    entries = torch.ones(made.slots.shape[0], device=s.device)
    return fill_blocks(made, entries).to(dtype)


def _to_coo(s: Structure) -> Structure:
    s = s.as_csr() if s.format == "block_mask" else s
    rows, cols = walk.coordinates(s)
    ordered = s.format in ("csr", "ragged")
    perm = walk.entry_perm(s)
    return Structure("coo", s.shape, None, cols, rows=rows, perm=perm, ordered=ordered, check=False)


def _blocks_to_dense(s: Structure, values: Tensor) -> Tensor:
    assert s.indices is not None
    size = [index.ceil_div(n, b) for n, b in zip(s.shape, s.block, strict=True)]
    if s.format == "block_mask":
        values = values.reshape(-1, 1, 1).expand(-1, *s.block)
    trailing = values.shape[3:]
    flat = values.new_zeros((size[0] * size[1], *values.shape[1:]))
    flat = flat.index_add(0, s.rows_stored().long() * size[1] + s.indices, values)
    tiles = flat.reshape(*size, *s.block, *trailing).transpose(1, 2)
    padded = tiles.reshape(size[0] * s.block[0], size[1] * s.block[1], *trailing)
    return padded[: s.shape[0], : s.shape[1]]


def _tiles(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """[n, m, ...] -> [n / b0, m / b1, b0, b1, ...], a view."""
    (b0, b1), (n, m) = block, dense.shape[:2]
    return dense.reshape(n // b0, b0, m // b1, b1, *dense.shape[2:]).transpose(1, 2)


def _kept(dense: Tensor, mask: Tensor | None) -> Tensor:
    if dense.ndim < 2:
        got = tuple(dense.shape)
        raise error(
            "shape", where="from_dense", name="dense", got=got, expected="(rows, columns, ...)"
        )
    if mask is None:
        nonzero = dense != 0
        return nonzero.flatten(2).any(2) if dense.ndim > 2 else nonzero
    if tuple(mask.shape) != tuple(dense.shape[:2]):
        got, expected = tuple(mask.shape), tuple(dense.shape[:2])
        raise error("shape", where="from_dense", name="mask", got=got, expected=expected)
    return mask.to(torch.bool)


def _distinct(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct keys in order, and the place of each key among them; linear, unlike torch.unique."""
    ordered, order = torch.sort(keys, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    place = torch.empty_like(order).scatter_(0, order, torch.cumsum(first, 0) - 1)
    return ordered[first], place


def _split(a: Tensor, size: int) -> tuple[Tensor, Tensor]:
    whole = torch.div(a, size, rounding_mode="floor")
    return whole, a - whole * size


def _check_block(s: Structure, block: tuple[int, int]) -> None:
    if min(block) < 1 or s.shape[0] % block[0] or s.shape[1] % block[1]:
        raise error("block-size", where="to_format", got=block, expected=f"divisors of {s.shape}")
