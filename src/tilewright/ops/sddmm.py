"""tw.sddmm: e[i, j] = a[i, j] * (x[i] op z[j]) at the stored entries of a.

In: a pattern, with values or not, and a row of x and of z for each row and column. Out: values on the pattern.

    e = sddmm(G, s_dst, s_src, op="add").map(F.leaky_relu)       # values [E, H]
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from sys import maxsize
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.parts import Parts
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.tree import Tree
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import E_LIST, dense_arg, program_text, told
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Choice, Subject
from tilewright.ops.formats import in_cache, worth_cutting
from tilewright.ops.plans import in_turns, may_visit, segments_of, visiting
from tilewright.ops.recipe import Recipe
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.spaces import PARTS, near_parts
from tilewright.ops.sparse import (
    as_rows,
    as_sparse,
    bundle_of,
    check_dense,
    from_rows,
    prepare_at_second_use,
    recipe_of,
    rows_first,
    sparse_arg,
    stored_rank,
    text_of,
)
from tilewright.ops.spmm import walkable
from tilewright.ops.subject import chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error, said
from tilewright.support.places import public

# Tiles by the width of rows, measured on thirteen graphs (H200)
NARROW: Setting = {"edges": 64, "width": 32, "warps": 4}
MIDDLE: Setting = {"edges": 32, "width": 32, "warps": 4}
WIDE: Setting = {"edges": 16, "width": 32, "warps": 4}
FEW_HALF: Setting = {"edges": 16, "width": 64, "warps": 4}  # up to FEW entries of 16 bits
FEW = 1 << 17
# Parts of rows, which read once what belongs to a row, by the bytes of a number: up to which width (H200)
SHORT_PARTS: Setting = {"rows": 4, "edges": 8, "chunk": 32, "width": 32, "warps": 1}
LONG_PARTS: Setting = {"rows": 2, "edges": 32, "chunk": 256, "width": 32, "warps": 2}
ONE_ROW: Setting = {"rows": 1, "edges": 16, "chunk": 128, "width": 32, "warps": 1}
ONE_WIDE_ROW: Setting = {"rows": 1, "edges": 8, "chunk": 128, "width": 128, "warps": 1}
HALF_PARTS: Setting = {"rows": 4, "edges": 8, "chunk": 32, "width": 64, "warps": 2}
LONG, MANY = 128, 28  # entries of a mean row
LONG_ROWS = {
    4: ((32, LONG_PARTS), (maxsize, ONE_ROW)),
    2: ((32, LONG_PARTS), (64, SHORT_PARTS), (128, ONE_ROW), (maxsize, ONE_WIDE_ROW)),
}
MANY_ENTRIES = {4: ((32, SHORT_PARTS),), 2: ((64, {}), (128, HALF_PARTS))}
ENOUGH = 200_000  # entries that keep a device busy in parts of rows
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "max": fn.maximum,
    "min": fn.minimum,
}
OPS = ("dot", *BINARY)


def sddmm_dot(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, f = axes("i j f")
    e[i, j] = a[i, j] * fn.sum(f, x[i, f] * z[j, f])


def sddmm_dot_heads(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, h, f = axes("i j h f")
    e[i, j, h] = a[i, j] * fn.sum(f, x[i, h, f] * z[j, h, f])


def sddmm_dot_heads_weighted(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, h, f = axes("i j h f")
    e[i, j, h] = a[i, j, h] * fn.sum(f, x[i, h, f] * z[j, h, f])


def elementwise(op: str, weighted: bool) -> Callable[..., None]:
    """A function of two numbers for each entry and head; weighted: a has a value for each head, too."""

    def edges(a: Param, x: Param, z: Param, e: Param) -> None:
        i, j, h = axes("i j h")
        e[i, j, h] = (a[i, j, h] if weighted else a[i, j]) * BINARY[op](x[i, h], z[j, h])

    edges.__name__ = f"sddmm_{op}{'_weighted' * weighted}"
    return edges


for _program in (sddmm_dot, sddmm_dot_heads, sddmm_dot_heads_weighted):
    register(trace(_program))
for _op in BINARY:
    for _weighted in (False, True):
        register(trace(elementwise(_op, _weighted)))


@public
def sddmm(A: Any, x: Tensor, z: Tensor, *, op: str = "dot") -> SparseTensor:
    """Values on A's structure, from a row of x and a row of z for each stored entry.

    dot: A[i, j] * sum over f of x[i, f] * z[j, f]; rows with heads, [n, heads, f], give values [nnz, heads].
    add, sub, mul, div, max, min: A[i, j] * (x[i, ...] op z[j, ...]), values [nnz, ...].
    Without values A counts as ones; values [nnz, heads] multiply head by head, and values [nnz, ...] as they are made,
    number by number. The order of A's entries is kept.

    >>> e = sddmm(G, s_dst, s_src, op="add")
    """
    a = A if type(A) is SparseTensor else as_sparse(A, "sddmm(A, x, z)")
    used = _walked(a, x, z) if isinstance(a.structure, Tree) else a
    used = _number_by_number(used, x) if op != "dot" and isinstance(x, Tensor) else used
    recipe, moving = _kind(used, x, z, op, None)
    values = recipe(moving)[0]
    if isinstance(a.structure, Tree) and used.format == "csr":
        values = from_rows(a.structure, values)
    if op != "dot" and x.dim() != 2:
        values = values.reshape(*values.shape[:-1], *x.shape[1:])
    return SparseTensor(a.structure, values)


def _number_by_number(a: SparseTensor, x: Tensor) -> SparseTensor:
    """Values with heads where rows have more dimensions: [nnz, heads] beside x [n, heads, f] as [nnz, heads * f]."""
    v, rank = a.values, stored_rank(a.structure)
    own = () if v is None else v.shape[rank:]
    if v is None or not own or x.dim() < 3 or own != x.shape[1 : 1 + len(own)]:
        return a
    more = x.shape[1 + len(own) :]
    wide = v.reshape(*v.shape, *[1] * len(more)).expand(*v.shape, *more)
    return SparseTensor(a.structure, wide.flatten(rank))


def _walked(a: SparseTensor, x: Any, z: Any) -> SparseTensor:
    """A general format as gradients walk it; as csr where it has no values either, since places may be no entries."""
    a = walkable(a, x, z)
    return as_rows(a) if a.values is None and not isinstance(a.structure, Parts) else a


def _kind(
    a: SparseTensor, x: Tensor, z: Tensor, op: str, setting: Setting | None
) -> tuple[Recipe, list[Tensor]]:
    """The recipe of this kind of call, kept with the structure, and its tensors that change."""
    a = rows_first(a)
    s, v = a.structure, a.values
    grad = isinstance(z, Tensor) and z.requires_grad and torch.is_grad_enabled()
    if s.transposed is None:
        prepare_at_second_use(s, grad)
    if s.format == "csr" and s.row_of is None and not torch.compiler.is_compiling():
        s.rows_stored()
    if torch.compiler.is_compiling() or setting is not None:
        recipe = _recipe(a, x, z, op, grad, setting)
    else:
        known = bundle_of(s).recipes
        key = ("sddmm", op, None if v is None else (v.dtype, v.shape), told(x), told(z), grad)
        recipe = recipe_of(known, key, lambda: _recipe(a, x, z, op, grad, None))
    if x.dim() != 2:
        x, z = _flat(x, op), _flat(z, op)
    return recipe, [x, z] if v is None else [v if v.is_contiguous() else v.contiguous(), x, z]


def _flat(t: Tensor, op: str) -> Tensor:
    """Rows as programs read them: one number is one feature, and trailing dimensions are one."""
    return t[:, None] if t.dim() == 1 else t if op == "dot" else t.flatten(1)


def _check(a: SparseTensor, x: Tensor, z: Tensor, op: str) -> None:
    where = "sddmm(A, x, z)"
    if op not in OPS:
        raise error("argument", where=where, name="op", got=repr(op), expected=f"one of {OPS}")
    for name, t, side in (("x", x, 0), ("z", z, 1)):
        rank = t.dim() if isinstance(t, Tensor) else 2
        limit = 3 if op == "dot" else rank
        check_dense(where, name, t, min(max(rank, 1), limit), a.device, "A")
        if t.shape[0] != a.shape[side]:
            what = ("row", "column")[side]
            expected = f"{a.shape[side]} rows, one for each {what} of A"
            raise error("shape", where=where, name=name, got=tuple(t.shape), expected=expected)
    if x.shape[1:] != z.shape[1:]:
        expected = f"rows of shape {said(tuple(x.shape[1:]))}, as x"
        raise error("shape", where=where, name="z", got=tuple(z.shape), expected=expected)
    heads = x.shape[1] if op == "dot" and x.dim() == 3 else None
    if op != "dot" and x.dim() > 1:
        heads = x.shape[1:].numel()
    if weights(a) is not None and weights(a) != heads:
        got = tuple(a.explicit_values().shape)
        expected = "one value for each entry" + (
            f", or {heads}, one for each head" if heads else ""
        )
        raise error("shape", where=where, name="the values of A", got=got, expected=expected)


def weights(a: SparseTensor) -> int | None:
    """How many heads the values have; None if they have no such dimension."""
    trailing = () if a.values is None else a.values.shape[stored_rank(a.structure) :]
    return None if not trailing else trailing[0] if len(trailing) == 1 else -1


def _recipe(
    a: SparseTensor, x: Tensor, z: Tensor, op: str, grad: bool, setting: Setting | None
) -> Recipe:
    """The first call of a kind checks and chooses."""
    _check(a, x, z, op)
    name = f"sddmm_{op}{'_heads' * (op == 'dot' and x.dim() == 3)}"
    name += "_weighted" * (weights(a) is not None)
    x, z = _flat(x, op), _flat(z, op)
    s, made = a.structure, bundle_of(a.structure)
    text, ints = text_of(name, "a", a, made, x=x, z=z), list(made.ints)
    choice = Choice(setting if setting is not None else usual(s, x, name), "given")
    if setting is None and not torch.compiler.is_compiling():
        key = (text, x.shape[1:], cpu_backend())
        tensors = [*made.tensors, *([] if a.values is None else [a.values]), x, z]
        choice = chosen(made.choices, key, text, tensors, s, choice.setting)
    if choice.setting.get("chunk"):
        parts = segments_of(s, choice.setting)
        arg = sparse_arg("a", a, (*made.arrays, *E_LIST))
        text = program_text(name, (arg, dense_arg("x", x), dense_arg("z", z)))
        ints += [parts.slots, pack(choice.setting)]
        return Recipe(text, [*made.tensors, parts.units, parts.segs], ints, choice)
    ints += [pack(choice.setting)] if choice.setting else []
    names, more = visiting(s, z.shape[1:].numel(), z.itemsize, choice.setting, grad, both=True)
    if names:
        arg = sparse_arg("a", a, (*made.arrays, *names))
        text = program_text(name, (arg, dense_arg("x", x), dense_arg("z", z)))
        choice = in_turns(choice)
    return Recipe(text, [*made.tensors, *more], ints, choice)


def _call(
    a: SparseTensor, x: Tensor, z: Tensor, op: str, setting: Setting | None
) -> tuple[str, list[Tensor], list[int]]:
    """The operator's arguments."""
    recipe, moving = _kind(a, x, z, op, setting)
    return recipe.arguments(moving)


def usual(s: Structure, x: Tensor, name: str) -> Setting:
    """Parts of rows, or tiles of entries."""
    if name != "sddmm_dot" or backend_of(x.device) != "triton":
        return {}
    return (not x.is_meta and _parts(s, x.shape[1], x.dtype)) or _tiles(s, x)


def _tiles(s: Structure, x: Tensor) -> Setting:
    """Tiles of entries by width and dtype."""
    width, half = x.shape[1], x.dtype.itemsize == 2
    if half and 64 < width <= 128 and not torch.compiler.is_compiling() and s.nnz <= FEW:
        return FEW_HALF  # inside torch.compile there is one graph for all sizes
    if width <= (128 if half else 32):
        return NARROW
    return MIDDLE if width <= 64 else WIDE


def _parts(s: Structure, width: int, dtype: torch.dtype) -> Setting:
    """Parts of rows, where a prepared structure has long ones; nothing where tiles do as well. Waits for the device
    once, where columns may be cut."""
    prepared = s.format == "csr" and s.transposed is not None and not torch.compiler.is_compiling()
    if not prepared or s.nnz < max(ENOUGH, MANY * s.shape[0]):
        return {}
    long = s.nnz >= LONG * s.shape[0]
    known = (LONG_ROWS if long else MANY_ENTRIES).get(dtype.itemsize, ())
    made = next((setting for widest, setting in known if width <= widest), {})
    if not made or made["width"] > width:
        return {}
    columns = in_cache(s, width, dtype) if long else 1
    return {**made, "columns": columns} if columns > 1 else made


@public
def plan(A: Any, x: Tensor, z: Tensor, setting: Setting | None = None, op: str = "dot") -> Launch:
    """A bound launch of sddmm; setting: edges, width, warps; with rows and chunk, parts of rows from a list."""
    return Launch(*_call(as_sparse(A, "sddmm.plan"), x, z, op, setting))


def subject(A: Any, x: Tensor, z: Tensor, *, op: str = "dot") -> Subject:
    """Products at stored entries as something to tune."""
    a = as_sparse(A, "tune(sddmm, A, x, z)")
    s = rows_first(a).structure
    at = lambda setting: (*_call(a, x, z, op, setting), ())
    in_parts = op == "dot" and x.dim() == 2 and s.format == "csr"
    if not in_parts or backend_of(x.device) != "triton":
        return subject_of("sddmm(A, x, z)", s, at, may_visit(s))
    of_tiles = lambda setting: at(_tiles(s, x) if setting is None else setting)
    made = subject_of("sddmm(A, x, z)", s, of_tiles, may_visit(s))
    used = _kind(a, x, z, op, None)[0].choice
    if used is not None and "chunk" in used.setting:
        made = replace(made, first=used.setting)
    near = partial(near_parts, columns=worth_cutting(s, z.shape[1], z.dtype))
    return replace(made, shown=tuple(p for p in PARTS if p["width"] <= x.shape[1]), near=near)


sddmm.subject = subject  # type: ignore[attr-defined]
sddmm.plan = plan  # type: ignore[attr-defined]
