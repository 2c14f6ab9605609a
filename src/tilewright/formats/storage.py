"""Formats as storage trees of stage I: axes, the coordinates they give, and how many positions are stored.

In: what must be known of an argument (`Spec`) and a place to declare sizes (`Sizes`). Out: `Storage`.

    storage(sizes, "a", Spec("csr", "f32", 2), [n_i, n_j])   ->   axes (i dense, j sparse under i), coords, a_nnz

csr, csc, coo, bsr, bsc, bcoo and ragged have names of their own for arrays; every other format is read level by
level from its layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.formats.layout import layout
from tilewright.formats.level import Level
from tilewright.ir.coord import Axis
from tilewright.ir.drive import stored as is_stored
from tilewright.ir.expr import Buffer, Const, Expr, Var

Storage = tuple[tuple[Axis, ...], tuple[tuple[tuple[Axis, int], ...], ...], Expr]


@dataclass(frozen=True)
class Spec:
    """What must be known of an argument to compile: everything but sizes and contents.

    strides: for dense arguments that are not contiguous, the dimension of unit stride (or -1).
    holes: the order of values is -1 where there is no entry. parts: those of a tensor in parts.
    ordered: csr whose columns increase in each row.
    met: other arguments at whose entries the entries of this one are known, and whether by swapped indices.
    """

    format: str
    dtype: str
    rank: int
    index: str = "i32"
    block: tuple[int, int] = (1, 1)
    perm: bool = False
    values: bool = True
    strided: int | None = None
    holes: bool = False
    parts: tuple[Spec, ...] = ()
    ordered: bool = False
    met: tuple[tuple[str, bool], ...] = ()


class Sizes(Protocol):
    """Where run-time sizes and index arrays are declared."""

    def rule(
        self, size: str, array: str, dim: int, offset: int = 0, stride: bool = False
    ) -> Var: ...

    def array(self, name: str, what: str, s: Spec, length: Expr) -> Buffer: ...

    def label(self, name: str, dim: int) -> str: ...

    def dim_name(self, name: str, dim: int) -> str: ...


def storage(sizes: Sizes, name: str, s: Spec, shape: list[Expr]) -> Storage:
    """The storage tree of a format."""
    made: Storage = _TREES.get(s.format, _tree)(sizes, name, s, shape)
    return made


def stored_dims(format: str) -> int:
    """How many dimensions a format stores; parts+csr+dbsr.4.4 those of its parts."""
    format = parts_of(format)[0]
    return 2 if format in _TREES else 1 + max(lv.dim for lv in layout(format).levels)


def parts_of(format: str) -> tuple[str, ...]:
    """The formats of the parts; a plain format is its own only part."""
    first, *rest = format.split("+")
    return tuple(rest) if first == "parts" else (format,)


def inner_lengths(path: Sequence[Axis]) -> list[Expr]:
    """The lengths of the dense axes inside the stored entries: the sides of a block."""
    last = max(n for n, ax in enumerate(path) if is_stored(ax))
    return [ax.length for ax in path[last + 1 :] if ax.length is not None]


def _tree(sizes: Sizes, name: str, s: Spec, shape: list[Expr]) -> Storage:
    """Any other format, level by level."""
    levels = layout(s.format).levels
    last = max(n for n, lv in enumerate(levels) if lv.kind != "dense" or lv.extent == "variable")
    axes: list[Axis] = []
    parts: list[list[tuple[Axis, int]]] = [[] for _ in shape]
    count: Expr = Const(1, "i64")
    for n, lv in enumerate(levels):
        later = [o.base or 1 for o in levels[n + 1 :] if o.dim == lv.dim and o.relative is None]
        scale = math.prod(later)
        label = sizes.label(name, lv.dim) + (f"_{n}" if parts[lv.dim] or scale > 1 else "")
        parent = axes[-1] if axes and n <= last else None
        ax, count = _level(sizes, name, s, lv, n, label, parent, shape[lv.dim], scale, count)
        if lv.relative is not None:
            parts[lv.dim] += parts[lv.relative]
        parts[lv.dim].append((ax, scale))
        axes.append(ax)
        if n == last:
            stored = count
    return tuple(axes), tuple(tuple(p) for p in parts), stored


def _counted(name: str, s: Spec, n: int) -> tuple[str, int, int]:
    """(array, dimension, offset) that tell how many positions a level of a ragged format has."""
    last = n + 1 == len(layout(s.format).levels)
    return (name, 0, 0) if last else (f"{name}_indptr{n + 1}", 0, -1)


def _level(
    sizes: Sizes,
    name: str,
    s: Spec,
    lv: Level,
    n: int,
    label: str,
    parent: Axis | None,
    size: Expr,
    scale: int,
    count: Expr,
) -> tuple[Axis, Expr]:
    """One axis, and how many positions it has."""
    if lv.extent == "variable" and not (n == 0 and lv.kind == "sparse"):
        ptr = sizes.array(name, f"indptr{n}", s, count + 1)
        if lv.kind == "dense":
            total = sizes.rule(f"{name}_c{n}", *_counted(name, s, n))
            return Axis(label, "dense", "variable", None, parent, ptr), total
        total = sizes.rule(f"{name}_c{n}", f"{name}_indices{n}", 0)
        idx = sizes.array(name, f"indices{n}", s, total)
        below = layout(s.format).levels[n + 1 :]
        again = any(o.kind == "sparse" and o.extent == "fixed" for o in below)
        made = Axis(label, "sparse", "variable", None, parent, ptr, idx, lv.padded, repeats=again)
        return made, total
    if n == 0 and lv.kind == "sparse":
        total = sizes.rule(f"{name}_c{n}", f"{name}_indices{n}", 0)
        return Axis(
            label,
            "sparse",
            "fixed",
            total,
            None,
            None,
            sizes.array(name, f"indices{n}", s, total),
        ), total
    length: Expr = Const(lv.length, "i64") if lv.length is not None else size
    if lv.length is None and scale > 1:
        length = (size + (scale - 1)) // scale
    held: Expr = length if parent is None else count * length
    if lv.kind == "dense":
        return Axis(label, "dense", "fixed", length, parent), held
    if lv.kind == "bitmap":
        mask = Buffer(f"{name}_mask{n}", "u8", (held,), "index")
        return Axis(label, "sparse", "fixed", length, parent, mask=mask), held
    idx = sizes.array(name, f"indices{n}", s, length if lv.shared else held)
    made = Axis(label, "sparse", "fixed", length, parent, None, idx, lv.padded, lv.shared)
    return made, held


def _compressed(sizes: Sizes, name: str, s: Spec, shape: list[Expr], outer: int) -> Storage:
    """csr (outer = 0) and csc (outer = 1)"""
    n = sizes.rule(sizes.dim_name(name, outer), f"{name}_indptr", 0, -1)
    nnz = sizes.rule(f"{name}_nnz", f"{name}_indices", 0)
    a = Axis(sizes.label(name, outer), "dense", "fixed", n)
    ptr, idx = sizes.array(name, "indptr", s, n + 1), sizes.array(name, "indices", s, nnz)
    label = sizes.label(name, 1 - outer)
    b = Axis(label, "sparse", "variable", None, a, ptr, idx, ordered=s.ordered)
    coords = (((a, 1),), ((b, 1),)) if outer == 0 else (((b, 1),), ((a, 1),))
    return (a, b), coords, nnz


def _entries(sizes: Sizes, name: str, s: Spec, shape: list[Expr]) -> Storage:
    """coo: a position axis with row coordinates, and one column each"""
    nnz = sizes.rule(f"{name}_nnz", f"{name}_indices", 0)
    rows, cols = sizes.array(name, "rows", s, nnz), sizes.array(name, "indices", s, nnz)
    a = Axis(sizes.label(name, 0), "sparse", "fixed", nnz, None, None, rows)
    b = Axis(sizes.label(name, 1), "sparse", "fixed", Const(1, "i64"), a, None, cols)
    return (a, b), (((a, 1),), ((b, 1),)), nnz


def _blocked(sizes: Sizes, name: str, s: Spec, shape: list[Expr], outer: int) -> Storage:
    """bsr and block masks (outer = 0), and the same by block columns (outer = 1)"""
    n = sizes.rule(f"{name}_block_rows", f"{name}_indptr", 0, -1)
    nnz = sizes.rule(f"{name}_nnz", f"{name}_indices", 0)
    i, j = sizes.label(name, 0), sizes.label(name, 1)
    labels = (i, j) if outer == 0 else (j, i)
    first = Axis(f"{labels[0]}_b", "dense", "fixed", n)
    ptr, idx = sizes.array(name, "indptr", s, n + 1), sizes.array(name, "indices", s, nnz)
    second = Axis(f"{labels[1]}_b", "sparse", "variable", None, first, ptr, idx)
    b0, b1 = s.block
    ii = Axis(f"{i}_in", "dense", "fixed", Const(b0, "i64"))
    jj = Axis(f"{j}_in", "dense", "fixed", Const(b1, "i64"))
    row, col = (first, second) if outer == 0 else (second, first)
    return (first, second, ii, jj), (((row, b0), (ii, 1)), ((col, b1), (jj, 1))), nnz


def _block_entries(sizes: Sizes, name: str, s: Spec, shape: list[Expr]) -> Storage:
    """bcoo: single blocks, with the row and the column of each"""
    nnz = sizes.rule(f"{name}_nnz", f"{name}_indices", 0)
    rows, cols = sizes.array(name, "rows", s, nnz), sizes.array(name, "indices", s, nnz)
    i, j = sizes.label(name, 0), sizes.label(name, 1)
    a = Axis(f"{i}_b", "sparse", "fixed", nnz, None, None, rows)
    b = Axis(f"{j}_b", "sparse", "fixed", Const(1, "i64"), a, None, cols)
    b0, b1 = s.block
    ii = Axis(f"{i}_in", "dense", "fixed", Const(b0, "i64"))
    jj = Axis(f"{j}_in", "dense", "fixed", Const(b1, "i64"))
    return (a, b, ii, jj), (((a, b0), (ii, 1)), ((b, b1), (jj, 1))), nnz


def _variable(sizes: Sizes, name: str, s: Spec, shape: list[Expr]) -> Storage:
    """ragged: rows of their own length, coordinates counted from the start of the row"""
    n = sizes.rule(sizes.dim_name(name, 0), f"{name}_indptr", 0, -1)
    total = sizes.rule(f"{name}_nnz", name, 0)
    a = Axis(sizes.label(name, 0), "dense", "fixed", n)
    ptr = sizes.array(name, "indptr", s, n + 1)
    b = Axis(sizes.label(name, 1), "dense", "variable", None, a, ptr)
    return (a, b), (((a, 1),), ((b, 1),)), total


_TREES: dict[str, Any] = {
    "csr": lambda sizes, name, s, shape: _compressed(sizes, name, s, shape, 0),
    "csc": lambda sizes, name, s, shape: _compressed(sizes, name, s, shape, 1),
    "coo": _entries,
    "bsr": lambda sizes, name, s, shape: _blocked(sizes, name, s, shape, 0),
    "bsc": lambda sizes, name, s, shape: _blocked(sizes, name, s, shape, 1),
    "bcoo": _block_entries,
    "ragged": _variable,
}
