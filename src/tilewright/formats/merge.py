"""Parts that are alike as one: lists of rows merge into a single csr part.

Owns: `merged`, `rows_of`. In: `Parts`. Out: csr where every part is a list of rows (csr, dcsr, ell, padded, and
those of listed rows), else `Parts` in which one csr part stands for all of them. A row's entries lie part after
part; `perm` leads to the same values, and is left out where it would change nothing.

    merged(A.decompose(rules.hyb(2, 3)).structure).format                      # "csr"
    merged(A.decompose(rules.blocks(4), rules.hyb(1, 3)).structure).format     # "parts+dbsr.4.4+csr"

Why csr: such parts differ in nothing but which rows they have, where these start and how long they are. A work
list has all that in its units, so that one kernel in one launch serves them: lengths alike side by side, long rows in
pieces, and ranges of columns one after the other if the rules cut any (`plans["columns"]`).
"""

from __future__ import annotations

import torch

from tilewright.formats.layout import parse
from tilewright.formats.parts import Part, Parts
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside
from tilewright.formats.tree import Tree

LISTS = ("csr", "dcsr", "ell", "dell", "padded", "dpadded")


@outside
def merged(s: Parts) -> Structure:
    """The structure with its lists of rows as one; made once, kept with the structure. Waits for the device."""
    if torch.compiler.is_compiling() or len(s.shape) != 2:
        return s
    if "merged" not in s.plans:
        s.plans["merged"] = _merged(s)
    made: Structure = s.plans["merged"]
    if made.transposed is None and s.transposed is not None:
        _share(s, made)
    return made


def _share(s: Parts, made: Structure) -> None:
    """What was prepared for the parts serves them merged: it leads to the same values."""
    made.transposed = s.transposed
    if isinstance(made, Parts):
        made.csr = s.csr
    else:
        made.rows_stored()


def rows_of(s: Structure) -> Structure | None:
    """csr whose rows a work list may deal out: a matrix itself, its part that is csr, or one grouped dimension."""
    if isinstance(s, Tree) and s.format.startswith("grouped."):
        if "rows" not in s.plans:
            kept, last = s.levels[0].dim, len(s.levels) - 1
            arrays = s.arrays["indptr1"], s.arrays[f"indices{last}"]
            shape = (s.shape[kept], s.shape[s.levels[last].dim])
            s.plans["rows"] = Structure("csr", shape, *arrays, check=False)
        rows: Structure = s.plans["rows"]
        return rows
    last_part = s.parts[-1].structure if isinstance(s, Parts) else s
    return last_part if last_part.format == "csr" else None


def is_list(part: Part) -> bool:
    return parse(part.structure.format)[0] in LISTS


def _merged(s: Parts) -> Structure:
    alike = [part for part in s.parts if is_list(part)]
    others = [part for part in s.parts if not is_list(part)]
    if not alike or (others and len(alike) == 1 and rows_of(s) is alike[0].structure):
        return s
    rows = s.as_csr() if not others else Parts(s.shape, tuple(alike)).as_csr()
    order = rows.perm
    assert order is not None
    csr = Structure("csr", s.shape, rows.indptr, rows.indices, check=False)
    (columns, *more) = {part.columns for part in alike}
    csr.plans["columns"] = 1 if more else columns
    if others:
        return Parts(s.shape, (*others, Part(csr, order, order.shape[0])))
    if not torch.equal(order, torch.arange(order.shape[0], device=order.device)):
        csr.perm = order
    return csr
