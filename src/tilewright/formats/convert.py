"""Conversion of real tensors among formats, on their device, keeping the values' order.

Owns: structure -> structure, and values into blocks. In and out: a `Structure` (or `Tree`) and its
values (source order, None for ones). Every format is read through its levels (`walk`) and written
by `lists` from csr, or by `slots` and `fibers` from coordinates.

    to_structure(csr, "csc")          # new index arrays; values stay as they are, `perm` finds them
    bsr = to_blocks(csr, (4, 4))      # entries move into blocks, so values change shape ...
    fill(bsr, values)                 # ... and new values flow in with one index operation

Among csr, csc and coo nothing waits for the device; what has sizes that only the indices tell (the
number of blocks, the longest row) waits once or twice.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from tilewright.formats import fibers, index, lists, slots, walk
from tilewright.formats.entries import Entries, entries_of, gathered
from tilewright.formats.layout import BLOCKED, FAMILIES, FORMATS, SLOTTED, layout, parse
from tilewright.formats.parts import Parts
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.support.errors import error, said

PADDED, STRIPS = 32, (8, 4)  # parameters where none are given
TREES = ("dcsr", "csf", "csf.2")  # made without a list of all rows


def convert(
    s: Structure, values: Tensor | None, name: str, block: tuple[int, int] | None = None
) -> tuple[Structure, Tensor | None]:
    """Structure and values in another format."""
    if not isinstance(name, str):
        expected = "a format's name, for instance 'csr'"
        raise error("argument", where="to_format", name="name", got=repr(name), expected=expected)
    if name == s.format and block in (None, s.block):
        return s, values
    if isinstance(s, Tree):
        return _convert_tree(s, values, name, block)
    if name in BLOCKED:
        return _convert_to_blocks(s, values, name, block)
    if name in ("csr", "csc", "coo"):
        made = to_structure(s, name)
        return made, one_by_one(s, values)
    return _convert_to_tree(s, values, name, block)


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
    raise error(
        "argument", where="to_format", name="name", got=repr(name), expected="csr, csc or coo"
    )


def to_blocks(s: Structure, block: tuple[int, int]) -> Structure:
    """bsr of the blocks that hold an entry, sorted; `slots` says where each source entry goes."""
    check_block(s, block)
    entries, _ = entries_of(s, None)
    outer, indices, place = slots.blocks(entries, block)
    indptr = index.ends(outer, s.shape[0] // block[0])
    return Structure(
        "bsr", s.shape, indptr, indices, block=block, slots=entries.by_source(place), check=False
    )


def fill(s: Structure, values: Tensor) -> Tensor:
    """Source entries [entries, *trailing] -> the stored shape of a bsr or slotted structure.

    Duplicates add up: [nnz, b0, b1, *trailing] for bsr.
    """
    if s.slots is None:
        expected = "a structure with blocks or slots, made from entries (to_format)"
        raise error("argument", where="fill", name="structure", got=repr(s), expected=expected)
    if values.ndim == 0 or values.shape[0] != s.slots.shape[0]:
        raise error(
            "value-count",
            where="with_entries",
            name="values",
            got=values.shape[0] if values.ndim else "no",
            expected=s.slots.shape[0],
        )
    size, trailing = s.values_shape, values.shape[1:]
    flat = values.new_zeros((prod(size), *trailing))
    return flat.index_add_(0, s.slots, values).reshape(*size, *trailing)


def one_by_one(s: Structure, values: Tensor | None) -> Tensor | None:
    """Values for each entry: those of blocks, [nnz, b0, b1, *trailing], without what sticks out of the matrix."""
    return values if values is None or not s.blocked else walk.flattened(s, values)


def stored(s: Structure, values: Tensor) -> Tensor:
    """Values in storage order: values[perm]; zeros where a tree has no entry."""
    if isinstance(s, Parts):
        return values.index_select(0, s.entries()[1])
    if not isinstance(s, Tree) or s.slotted:
        return values if s.perm is None else values.index_select(0, s.perm)
    if s.perm is not None:
        if not values.shape[0]:  # places without entries, which still belong to the values' graph
            values = torch.cat((values, values.new_zeros(s.positions, *values.shape[1:])))
        else:
            values = values.index_select(0, s.perm)
    alive = walk.places(s)[1] if any(level.padded for level in s.levels) else None
    return values if alive is None else only(values, alive)


def only(values: Tensor, alive: Tensor) -> Tensor:
    """Zeros, whatever was there, where there is no entry."""
    return torch.where(alive.reshape(-1, *[1] * (values.ndim - 1)), values, 0)


def ones(s: Structure, dtype: torch.dtype) -> Tensor:
    """The values that None stands for: [nnz], or the stored shape."""
    return torch.ones(s.values_shape, dtype=dtype, device=s.device)


def source_coordinates(s: Structure) -> tuple[Tensor, Tensor]:
    """(row, column) of every entry in the source's order."""
    s = s.as_csr() if s.format == "block_mask" else s
    rows, cols = walk.coordinates(s)
    perm = walk.entry_perm(s)
    if perm is None:
        return rows, cols
    back = index.inverse(perm)
    return rows.index_select(0, back), cols.index_select(0, back)


def _convert_to_blocks(
    s: Structure, values: Tensor | None, name: str, block: tuple[int, int] | None
) -> tuple[Structure, Tensor | None]:
    if block is None and s.blocked:
        block = s.block
    if block is None:
        raise _no_block()
    made = s if s.blocked and s.block == block else to_blocks(s, block)
    if name == "block_mask":
        mask = Structure(name, s.shape, made.indptr, made.indices, block=block, check=False)
        return mask, None
    if s.format == "block_mask" and made is s:
        indptr, indices = s.indptr, s.indices
        check_block(s, block)
        bsr = Structure("bsr", s.shape, indptr, indices, block=block, perm=s.perm, check=False)
        return bsr, values
    held = one_by_one(s, values)
    return made, _filled_with_ones(s, made) if held is None else fill(made, held)


def _filled_with_ones(s: Structure, made: Structure) -> Tensor:
    assert made.slots is not None
    dtype = torch.bool if s.format == "block_mask" else torch.get_default_dtype()
    entries = torch.ones(made.slots.shape[0], device=s.device)
    return fill(made, entries).to(dtype)


def _to_coo(s: Structure) -> Structure:
    s = s.as_csr() if s.format == "block_mask" else s
    rows, cols = walk.coordinates(s)
    ordered = s.format in ("csr", "ragged")
    perm = walk.entry_perm(s)
    return Structure("coo", s.shape, None, cols, rows=rows, perm=perm, ordered=ordered, check=False)


def _convert_tree(
    s: Tree, values: Tensor | None, name: str, block: tuple[int, int] | None
) -> tuple[Structure, Tensor | None]:
    if name == s.layout.family and name not in FORMATS and block is None:
        return s, values
    if len(s.shape) != 2 or name.partition(".")[0] in SLOTTED or name in TREES:
        return _convert_to_tree(s, values, name, block)
    if name == "coo":
        entries, values = entries_of(s, values)
        rows, cols = entries.coords
        perm, ordered = entries.perm, s.ordered
        made = Structure(
            name, s.shape, None, cols, rows=rows, perm=perm, ordered=ordered, check=False
        )
        return made, values
    csr = s.as_csr()
    if not s.listed:
        values = gathered(s, values, csr.perm)
        csr = Structure("csr", s.shape, csr.indptr, csr.indices, check=False)
    return convert(csr, values, name, block)


def _convert_to_tree(
    s: Structure, values: Tensor | None, name: str, block: tuple[int, int] | None
) -> tuple[Structure, Tensor | None]:
    family, given = parse(layout(name).name if "." in name else name)
    if len(s.shape) == 2 and (family not in FAMILIES or family == "bucket"):
        known = dict.fromkeys((*FORMATS, *FAMILIES))
        expected = f"one of {', '.join(f for f in known if f != 'bucket')}"
        raise error("argument", where="to_format", name="name", got=repr(name), expected=expected)
    if len(s.shape) == 2 and _by_rows(s, name, family):
        return _to_list(s.as_csr(), family, given, name), one_by_one(s, values)
    entries, values = entries_of(s, values)
    if len(s.shape) == 2 and family in SLOTTED:
        made = _to_slots(entries, family, given, block)
        return made, _filled_with_ones(s, made) if values is None else fill(made, values)
    tree = fibers.csf(entries, name) if name == "dcsr" else fibers.build(entries, name)
    return (_plain_ragged(tree) if name == "ragged" and len(s.shape) == 2 else tree), values


def _by_rows(s: Structure, name: str, family: str) -> bool:
    """Whether csr is the way; dcsr of other sources goes without, as it may have too many rows."""
    return (
        family in ("ell", "dell", "padded", "dpadded")
        or name == "csf.2.dense"
        or (name in TREES and not isinstance(s, Tree) and (s.format == "csr" or s.csr is not None))
    )


def _to_list(csr: Structure, family: str, given: tuple[int, ...], name: str) -> Tree:
    match family:
        case "ell":
            return lists.ell(csr, *given)
        case "dell":
            return lists.dell(csr, *given)
        case "padded":
            return lists.padded(csr, *given or (PADDED,))
        case "dpadded":
            return lists.dpadded(csr, *given or (PADDED,))
    if name == "csf.2.dense":
        return lists.csf_rows(csr)
    return lists.dcsr(csr, "dcsr" if family == "dcsr" else "csf.2")


def _to_slots(
    entries: Entries, family: str, given: tuple[int, ...], block: tuple[int, int] | None
) -> Tree:
    match family:
        case "srbcrs":
            return slots.srbcrs(entries, *given or STRIPS)
        case "dia":
            return slots.dia(entries, *given)
        case "bitmap":
            return slots.bitmap(entries)
        case "two_four":
            return slots.two_four(entries)
    size = given or block
    if not size:
        raise _no_block()
    return slots.dbsr(entries, *size)


def _plain_ragged(tree: Tree) -> Structure:
    indptr = tree.arrays["indptr1"]
    made = Structure("ragged", tree.shape, indptr, perm=tree.perm, check=False)
    made.row_of = index.expand(indptr, tree.count)
    return made


def _no_block() -> Exception:
    expected = "a block size, for instance block=(16, 16)"
    return error("argument", where="to_format", name="block", got=None, expected=expected)


def check_block(s: Structure, block: tuple[int, int]) -> None:
    if min(block) < 1 or s.shape[0] % block[0] or s.shape[1] % block[1]:
        raise error(
            "block-size", where="to_format", got=block, expected=f"divisors of {said(s.shape)}"
        )
