"""Storage orders of a sparse argument: which one a statement walks, and making those that were not prepared.

view_of(d_x[j, f] = sum(i, a[i, j] * d_y[i, f]), a)   ->   "csc"
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from tilewright.formats.parts import Parts, part_of
from tilewright.formats.storage import parts_of, stored_dims
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.ir import coord
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.language.trace import Ref, Traced
from tilewright.ops.args import Arg

VIEWS = {
    "csr": {"indptr": "indptr", "indices": "indices", "perm": "perm"},
    "csc": {"indptr": "t_indptr", "indices": "t_indices", "perm": "t_perm"},
    "coo": {"rows": "rows", "indices": "indices", "perm": "perm"},
    "ragged": {"indptr": "indptr"},
    "bsr": {"indptr": "indptr", "indices": "indices", "perm": "perm"},
    "bcoo": {"rows": "rows", "indices": "indices", "perm": "perm"},
    "bsc": {"indptr": "t_indptr", "indices": "t_indices", "perm": "t_perm"},
}


def rows_view(kind: str) -> str:
    """Rows first."""
    return "bsr" if kind in ("bsr", "block_mask") else kind


def sorted_view(kind: str) -> str:
    """The order that can be searched: grouping by columns leaves rows in order, whatever the source's order was."""
    if kind.startswith("parts+"):
        return "csc"
    return {"csr": "csc", "bsr": "bsc", "block_mask": "bsc"}.get(kind, kind)


def is_crossed(traced: Traced, names: Collection[str]) -> bool:
    """Whether one structure is addressed in several ways, a[i, j] and a[j, i]: then it is searched, too."""
    found = {
        n.indices[:2]
        for n in walk(traced.body)
        if isinstance(n, Load) and isinstance(n.buffer, Ref) and n.buffer.name in names
    }
    return len(found) > 1


def view_of(traced: Traced, arg: Arg, nested: bool, borrowers: Sequence[str] = ()) -> str:
    """The storage order a statement needs of a sparse argument: rows, columns or single entries first.

    Where a list names rows, their entries are found by row.
    """
    in_parts = arg.kind.startswith("parts+") and stored_dims(arg.kind) == 2
    if arg.kind not in ("csr", "bsr", "block_mask") and not in_parts:
        return arg.kind
    blocked = arg.kind in ("bsr", "block_mask")
    by_row, by_column = ("bsr", "bsc") if blocked else ("csr", "csc")
    s = traced.body[0]
    assert isinstance(s, coord.Assign)
    held = set(coord.spatial(s))
    names = (arg.name, *borrowers)
    for n in walk(s):
        if isinstance(n, Load) and isinstance(n.buffer, Ref) and n.buffer.name in names:
            row, col = n.indices[0], n.indices[1]
            if row in held and col in held and not in_parts:
                by_list = {row, col} & {x.index for x in s.listed}
                return by_row if nested or by_list else "bcoo" if blocked else "coo"
            if col in held and row not in held:
                return by_column
            break
    return arg.kind if in_parts else by_row


def derive_views(
    name: str, arg: Arg, have: dict[str, Tensor], shape: tuple[int, ...], wanted: Sequence[str]
) -> dict[str, Tensor]:
    """Transposed and entry views from the arrays of a structure."""
    from_structure = structure_of(name, arg, have, shape)
    made: dict[str, Tensor] = {}
    if f"{name}.indptr" in wanted:
        csr = from_structure.as_csr()
        made |= {f"{name}.{label}": getattr(csr, label) for label in VIEWS["csr"]}
    if f"{name}.rows" in wanted:
        made[f"{name}.rows"] = from_structure.rows_stored()
    if f"{name}.t_indptr" in wanted:
        t = from_structure.transpose()
        for label, array in (("indptr", t.indptr), ("indices", t.indices), ("perm", t.perm)):
            if array is not None:
                made[f"{name}.t_{label}"] = array
    return made


def structure_of(name: str, arg: Arg, have: dict[str, Tensor], shape: tuple[int, ...]) -> Structure:
    """A sparse argument's structure from its arrays."""
    if arg.kind.startswith("parts+"):
        made = []
        for nth, format in enumerate(parts_of(arg.kind)):
            mark = f"{nth}_"
            mine = [label for label in arg.arrays if label.startswith(mark)]
            arrays = {label.removeprefix(mark): have[f"{name}.{label}"] for label in mine}
            made.append(part_of(format, shape, arrays))
        return Parts(shape, tuple(made))
    if arg.kind not in VIEWS and arg.kind != "block_mask":
        arrays = {label: have[f"{name}.{label}"] for label in arg.arrays if label != "perm"}
        perm, wide = have.get(f"{name}.perm"), arg.index == "i64"
        return Tree(arg.kind, shape, arrays, perm=perm, wide=wide, check=False)
    return Structure(
        arg.kind,
        (shape[0], shape[1]),
        have.get(f"{name}.indptr"),
        have.get(f"{name}.indices"),
        perm=have.get(f"{name}.perm"),
        block=arg.blocks,
        check=False,
    )
