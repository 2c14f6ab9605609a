"""tw.sddmm: e[i, j] = a[i, j] * (x[i] op z[j]) at the stored entries of a."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import E_LIST, dense_arg, program_text
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Subject
from tilewright.ops.library import run
from tilewright.ops.plans import segments_of
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import (
    as_sparse,
    bundle_of,
    check_dense,
    prepare_at_second_use,
    rows_first,
    sparse_arg,
    text_of,
)
from tilewright.ops.subject import chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public

NARROW: Setting = {"edges": 64, "width": 32, "warps": 4}
WIDE: Setting = {"edges": 16, "width": 64, "warps": 2}
WIDE_HALF: Setting = {"edges": 32, "width": 64, "warps": 4}
OPS = ("dot", "add", "sub", "mul", "div")


def sddmm_dot(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, f = axes("i j f")
    e[i, j] = a[i, j] * fn.sum(f, x[i, f] * z[j, f])


def sddmm_add(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, h = axes("i j h")
    e[i, j, h] = a[i, j] * (x[i, h] + z[j, h])


def sddmm_sub(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, h = axes("i j h")
    e[i, j, h] = a[i, j] * (x[i, h] - z[j, h])


def sddmm_mul(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, h = axes("i j h")
    e[i, j, h] = a[i, j] * (x[i, h] * z[j, h])


def sddmm_div(a: Param, x: Param, z: Param, e: Param) -> None:
    i, j, h = axes("i j h")
    e[i, j, h] = a[i, j] * (x[i, h] / z[j, h])


for _program in (sddmm_dot, sddmm_add, sddmm_sub, sddmm_mul, sddmm_div):
    register(trace(_program))


@public
def sddmm(A: Any, x: Tensor, z: Tensor, *, op: str = "dot") -> SparseTensor:
    """Values on A's structure, from a row of x and a row of z for each stored entry.

    dot: A[i, j] * sum over f of x[i, f] * z[j, f]; add, sub, mul, div: A[i, j] * (x[i, h] op z[j, h]), values
    [nnz, h]. Without values A counts as ones. The result keeps the order of A's entries.

    >>> e = sddmm(G, s_dst, s_src, op="add")
    """
    a = as_sparse(A, "sddmm(A, x, z)")
    if op not in OPS:
        raise error(
            "argument", where="sddmm(A, x, z)", name="op", got=repr(op), expected=f"one of {OPS}"
        )
    vector = isinstance(x, Tensor) and isinstance(z, Tensor) and x.dim() == z.dim() == 1
    if vector:
        x, z = x[:, None], z[:, None]
    values = run(*_call(a, x, z, op, None))[0]
    if vector and op != "dot":
        values = values[:, 0]
    return SparseTensor(a.structure, values)


def _call(
    a: SparseTensor, x: Tensor, z: Tensor, op: str, setting: Setting | None
) -> tuple[str, list[Tensor], list[int]]:
    where = "sddmm(A, x, z)"
    for name, t, side in (("x", x, 0), ("z", z, 1)):
        check_dense(where, name, t, 2, a.device, "A")
        if t.shape[0] != a.shape[side]:
            what = ("row", "column")[side]
            expected = f"{a.shape[side]} rows, one for each {what} of A"
            raise error("shape", where=where, name=name, got=tuple(t.shape), expected=expected)
    if x.shape[1] != z.shape[1]:
        expected = f"{x.shape[1]} features, as many as x"
        raise error("shape", where=where, name="z", got=tuple(z.shape), expected=expected)
    a = rows_first(a)
    if (
        a.structure.format == "csr"
        and a.structure.row_of is None
        and not torch.compiler.is_compiling()
    ):
        a.structure.rows_stored()
    prepare_at_second_use(a.structure, torch.is_grad_enabled() and z.requires_grad)
    made = bundle_of(a.structure)
    values = [] if a.values is None else [a.values.contiguous()]
    text = text_of(f"sddmm_{op}", "a", a, made, x=x, z=z)
    tensors = [*made.tensors, *values, x, z]
    if setting is None and torch.compiler.is_compiling():
        setting = usual(x, op)
    elif setting is None:
        key = (text, x.shape[1], cpu_backend())
        choice = made.choices.get(key)
        if choice is None:
            choice = chosen(made.choices, key, text, tensors, a.structure, usual(x, op))
        setting = choice.setting
    if setting.get("chunk"):
        parts = segments_of(a.structure, setting)
        arg = sparse_arg("a", a, (*made.arrays, *E_LIST))
        text = program_text(f"sddmm_{op}", (arg, dense_arg("x", x), dense_arg("z", z)))
        tensors = [*made.tensors, parts.units, parts.segs, *values, x, z]
        return text, tensors, [*made.ints, parts.slots, pack(setting)]
    return text, tensors, [*made.ints, pack(setting)] if setting else made.ints


def usual(x: Tensor, op: str) -> Setting:
    """Tiles by width and dtype."""
    if op != "dot" or backend_of(x.device) != "triton":
        return {}
    wide = WIDE_HALF if x.dtype.itemsize == 2 else WIDE
    return NARROW if x.shape[1] <= NARROW["width"] else wide


@public
def plan(A: Any, x: Tensor, z: Tensor, setting: Setting | None = None) -> Launch:
    """A bound launch of sddmm; setting: edges, width, warps; with rows and chunk, parts of rows from a list."""
    return Launch(*_call(as_sparse(A, "sddmm.plan"), x, z, "dot", setting))


def subject(A: Any, x: Tensor, z: Tensor, *, op: str = "dot") -> Subject:
    """Products at stored entries as something to tune."""
    a = as_sparse(A, "tune(sddmm, A, x, z)")
    s = rows_first(a).structure
    return subject_of("sddmm(A, x, z)", s, lambda setting: (*_call(a, x, z, op, setting), ()))


sddmm.subject = subject  # type: ignore[attr-defined]
sddmm.plan = plan  # type: ignore[attr-defined]
