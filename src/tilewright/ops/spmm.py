"""tw.spmm: y[i, f] = reduce over j of a[i, j] * x[j, f]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend_of, cpu_backend, place_of
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Case, Choice, Subject, program_key
from tilewright.ops.plans import choose, listed, may_list
from tilewright.ops.recipe import Recipe
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.spaces import SETTINGS
from tilewright.ops.sparse import (
    as_sparse,
    bundle_of,
    check_dense,
    prepare_at_second_use,
    rows_first,
    sparse_arg,
    stored_rank,
)
from tilewright.ops.subject import chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public

REDUCE = ("sum", "mean", "max", "min")


def spmm_sum(a: Param, x: Param, y: Param) -> None:
    i, j, f = axes("i j f")
    y[i, f] = fn.sum(j, a[i, j] * x[j, f])


def spmm_mean(a: Param, x: Param, y: Param) -> None:
    i, j, f = axes("i j f")
    y[i, f] = fn.mean(j, a[i, j] * x[j, f])


def spmm_max(a: Param, x: Param, y: Param) -> None:
    i, j, f = axes("i j f")
    y[i, f] = fn.max(j, a[i, j] * x[j, f])


def spmm_min(a: Param, x: Param, y: Param) -> None:
    i, j, f = axes("i j f")
    y[i, f] = fn.min(j, a[i, j] * x[j, f])


def spmm_heads_sum(a: Param, x: Param, y: Param) -> None:
    i, j, h, f = axes("i j h f")
    y[i, h, f] = fn.sum(j, a[i, j, h] * x[j, h, f])


for _program in (spmm_sum, spmm_mean, spmm_max, spmm_min, spmm_heads_sum):
    register(trace(_program))


@public
def spmm(A: Any, x: Tensor, *, values: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """y[i, f] = reduce over j of A[i, j] * x[j, f], over stored entries.

    A: [n, m] torch CSR/CSC/COO/BSR, SciPy or SparseTensor; x: [m, features] (or [m] for a vector).
    values: other values on A's structure. Rows with nothing stored give 0 (sum, mean), -inf (max), inf (min).

    >>> y = spmm(A, x, reduce="mean")
    """
    a = A if type(A) is SparseTensor else as_sparse(A, "spmm(A, x)")
    if values is not None:
        a = a.with_values(values)
    if isinstance(x, Tensor) and x.dim() == 1:
        return spmm(a, x[:, None], reduce=reduce)[:, 0]
    recipe, moving = _kind(a, x, reduce, None)
    return recipe(moving)[0]


def _kind(
    a: SparseTensor, x: Tensor, reduce: str, setting: Setting | None
) -> tuple[Recipe, list[Tensor]]:
    """The recipe of this kind of call, kept with the structure, and its tensors that change."""
    v, s = a.values, a.structure
    grad = x.requires_grad and torch.is_grad_enabled() if isinstance(x, Tensor) else False
    if s.transposed is None:
        prepare_at_second_use(s, grad)
    made = bundle_of(s)
    if setting is not None or torch.compiler.is_compiling():
        recipe = _recipe(a, x, reduce, grad, setting)
    else:
        key = (
            reduce,
            None if v is None else (v.dtype, v.dim()),
            *_told(x),
            grad,
            place_of(s.device),
        )
        if key not in made.recipes:
            made.recipes[key] = _recipe(a, x, reduce, grad, None)
        recipe = made.recipes[key]
    if v is None:
        return recipe, [x]
    return recipe, [v if v.is_contiguous() else v.contiguous(), x]


def _call(
    a: SparseTensor, x: Tensor, reduce: str, setting: Setting | None
) -> tuple[str, list[Tensor], list[int]]:
    """The operator's arguments."""
    recipe, moving = _kind(a, x, reduce, setting)
    return recipe.arguments(moving)


def _told(x: Any) -> tuple[object, ...]:
    """All that a call's validity and program depend on in x."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided:
        return (None,)
    return (x.dtype, x.shape, x.stride(), x.device)


def _recipe(a: SparseTensor, x: Tensor, reduce: str, grad: bool, setting: Setting | None) -> Recipe:
    """The first call of a kind checks, converts and plans."""
    heads = a.values is not None and a.values.dim() - stored_rank(a.structure) == 1
    _check(a, x, reduce, heads)
    name = f"heads_{reduce}" if heads else reduce
    a = rows_first(a)
    made = bundle_of(a.structure)
    arrays, tensors, ints = made.arrays, list(made.tensors), list(made.ints)
    s, args = a.structure, (sparse_arg("a", a, arrays), dense_arg("x", x))
    choice = Choice(setting, "given") if setting is not None else None
    if may_list(s, x, setting):
        program = program_key(f"spmm_{name}", args)
        case = lambda: Case(program, "lists", (tuple(x.shape),), s, x.device)
        choice = choice or choose(s, x.shape[-1], x.dtype, program, case)
        names, more, plan_ints = listed(s, x.shape[-1], x.dtype, grad, setting, program, case)
        args = (sparse_arg("a", a, (*arrays, *names)), args[1])
        tensors += more
        ints += plan_ints
    text = program_text(f"spmm_{name}", args)
    if choice is None and not torch.compiler.is_compiling():
        moving = [x] if a.values is None else [a.values, x]
        key = (text, x.shape, cpu_backend())
        choice = chosen(made.choices, key, text, [*tensors, *moving], s, {})
    if choice is not None and "long" not in choice.setting and choice.setting:
        ints.append(pack(choice.setting))
    return Recipe(text, tensors, ints, choice)


def _check(a: SparseTensor, x: Tensor, reduce: str, heads: bool) -> None:
    where = "spmm(A, x)"
    if reduce not in REDUCE:
        raise error(
            "argument", where=where, name="reduce", got=repr(reduce), expected=f"one of {REDUCE}"
        )
    check_dense(where, "x", x, 3 if heads else 2, a.device, "A")
    if x.shape[0] != a.shape[1]:
        expected = f"{a.shape[1]} rows, one for each column of A"
        raise error("shape", where=where, name="x", got=tuple(x.shape), expected=expected)
    if heads and reduce != "sum":
        raise error(
            "argument", where=where, name="reduce", got=reduce, expected="sum with head values"
        )


@public
def plan(A: Any, x: Tensor, setting: Setting | None = None, reduce: str = "sum") -> Launch:
    """A bound launch of spmm, at a given setting or at the one that would be chosen."""
    a = rows_first(as_sparse(A, "spmm.plan(A, x)"))
    if backend_of(x.device) == "triton" and a.structure.transposed is None:
        a.structure.prepare()
    recipe, moving = _kind(a, x, reduce, setting)
    return Launch(*recipe.arguments(moving), choice=recipe.choice)


def subject(A: Any, x: Tensor, *, values: Tensor | None = None, reduce: str = "sum") -> Subject:
    """A product as something to tune."""
    given = as_sparse(A, "tune(spmm, A, x)")
    a = rows_first(given if values is None else given.with_values(values))
    s = a.structure
    if backend_of(s.device) == "triton" and s.transposed is None:
        s.prepare()
    made = subject_of("spmm(A, x)", s, lambda setting: (*_call(a, x, reduce, setting), ()))
    return replace(made, given=given.structure)


spmm.subject = subject  # type: ignore[attr-defined]
spmm.plan = plan  # type: ignore[attr-defined]

__all__ = ["SETTINGS", "plan", "spmm"]
