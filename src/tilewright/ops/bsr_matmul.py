"""tw.bsr_matmul: y = A x over stored blocks, each a small dense product.

In: a matrix of blocks (bsr or dbsr, torch's BSR included) and dense columns, in batches or not. Out: dense.
The program is spmm's; what is chosen here are the tiles of the block kernel, and on GPUs how many rows of blocks are
taken as one (`ops/tall.py`): for structures that are prepared, where no gradient is wanted.

    y = bsr_matmul(A, x)                     # A: [n, m] of 64 x 64 blocks, x: [..., m, columns]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend_of, cpu_backend, place_of
from tilewright.ops.block_tiles import settings, tiles
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Choice, Subject
from tilewright.ops.kept import keeps
from tilewright.ops.recipe import Recipe
from tilewright.ops.settings import pack
from tilewright.ops.sparse import (
    as_blocks,
    as_sparse,
    bundle_of,
    check_dense,
    prepare_at_second_use,
    recipe_of,
    sparse_arg,
)
from tilewright.ops.spmm import program_name
from tilewright.ops.subject import Call, chosen, subject_of
from tilewright.ops.tall import HIGHEST, TALL, Tall, tall, worth
from tilewright.ops.tall import values as values_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public
from tilewright.tune.space import Param


@public
def bsr_matmul(A: Any, x: Tensor, *, values: Tensor | None = None) -> Tensor:
    """y[..., i, n] = sum over stored blocks of A[i, j] * x[..., j, n].

    A: [n, m], bsr or dbsr, with blocks of any size; x: [..., m, columns]. values: other blocks on A's
    structure, [blocks, b0, b1]. Gradients go to A's blocks and x.

    >>> y = bsr_matmul(A, x)
    """
    where = "bsr_matmul(A, x)"
    a = as_sparse(A, where)
    a = as_blocks(a if values is None else a.with_values(values))
    batch = _check(a, x, where)
    if len(batch) > 1:
        return bsr_matmul(a, x.flatten(0, len(batch) - 1)).unflatten(0, batch)
    recipe, moving = _kind(a, x, None)
    return recipe(moving)[0]


def _check(a: SparseTensor, x: Any, where: str) -> tuple[int, ...]:
    """The batch dimensions of x."""
    if a.structure.format != "bsr":
        expected = 'blocks: torch BSR, or A.to_format("bsr", block=(32, 32))'
        raise error("layout", where=where, name="A", got=a.structure.format, expected=expected)
    if a.values is not None and a.values.dim() != 3:
        got = tuple(a.values.shape)
        raise error("shape", where=where, name="values", got=got, expected="[blocks, b0, b1]")
    rank = x.dim() if isinstance(x, Tensor) else 2
    check_dense(where, "x", x, max(rank, 2), a.device, "A")
    if x.shape[-2] != a.shape[1]:
        expected = f"{a.shape[1]} rows, one for each column of A"
        raise error("shape", where=where, name="x", got=tuple(x.shape), expected=expected)
    return tuple(x.shape[:-2])


@dataclass(frozen=True)
class _Kind:
    """What calls of a kind have in common: the recipe, and blocks of several rows in one if they are taken so."""

    recipe: Recipe
    tall: Tall | None

    def moving(self, v: Tensor | None, x: Tensor) -> list[Tensor]:
        """The tensors that change from call to call."""
        if v is None:
            return [x]
        return [v.contiguous() if self.tall is None else values_of(self.tall, v), x]


def _kind(a: SparseTensor, x: Tensor, setting: Setting | None) -> tuple[Recipe, list[Tensor]]:
    """The recipe of this kind of call, kept with the structure, and its tensors that change."""
    s, v = a.structure, a.values
    grad = torch.is_grad_enabled() and (x.requires_grad or (v is not None and v.requires_grad))
    prepare_at_second_use(s, grad)
    if setting is not None or torch.compiler.is_compiling():
        kind = _planned(a, x, setting or {})
        return kind.recipe, kind.moving(v, x)
    known = bundle_of(s).recipes
    key = ("blocks", v is None or v.dtype, x.dtype, x.shape, x.stride(), place_of(s.device), grad)
    kind = recipe_of(known, key, lambda: _best(a, x, grad))
    if v is not None and kind.tall is not None and not keeps(v):  # a graph would copy v each time
        kind = recipe_of(known, (*key, "plain"), lambda: _planned(a, x, {}))
    return kind.recipe, kind.moving(v, x)


def _best(a: SparseTensor, x: Tensor, grad: bool) -> _Kind:
    """The product as it is usually made, or as one that was measured."""
    kind = _planned(a, x, {})
    choice = None if grad else _measured(a, x, kind)
    if choice is not None and choice.setting:
        kind = _planned(a, x, choice.setting)
        kind.recipe.choice = choice
    return kind


def _usual(a: SparseTensor, x: Tensor) -> Setting:
    """How many rows of blocks are expected to serve best as one."""
    s, v = a.structure, a.values
    if backend_of(x.device) != "triton" or v is None or s.transposed is None or not keeps(v):
        return {}
    many = worth(s, v, x)
    return {"tall": many} if many > 1 else {}


def _measured(a: SparseTensor, x: Tensor, kind: _Kind) -> Choice:
    """What was measured for such a product, or the usual."""
    text, held, _ = kind.recipe.arguments(kind.moving(a.values, x))
    key = (text, x.shape, cpu_backend())
    return chosen(bundle_of(a.structure).choices, key, text, held, a.structure, _usual(a, x))


def _planned(a: SparseTensor, x: Tensor, setting: Setting) -> _Kind:
    """The call at a setting: blocks as they are stored, or `tall` rows of them in one."""
    many, s, v = setting.get("tall", 1), a.structure, a.values
    made = tall(s, many) if many > 1 and v is not None else None
    of = a if made is None or v is None else SparseTensor(made.structure, v.new_empty(0, 1, 1))
    held, rest = bundle_of(of.structure), {k: n for k, n in setting.items() if k != "tall"}
    ints = list(held.ints)
    if backend_of(x.device) == "triton":
        ints.append(pack(rest or tiles(of.structure, x.shape[-1], x.dtype)))
    elif "grain" in rest:
        ints.append(pack(rest))
    args, choice = (sparse_arg("a", of, held.arrays), dense_arg("x", x)), Choice(setting, "given")
    if made is None or made.rows is None:
        text = program_text(program_name("sum", x.dim() == 3, False, False), args)
        return _Kind(Recipe(text, list(held.tensors), ints, choice), made)
    text = program_text("bsr_tall", (dense_arg("rows", made.rows), *args))
    return _Kind(Recipe(text, [made.rows, *held.tensors], ints, choice), made)


@public
def plan(A: Any, x: Tensor, setting: Setting | None = None, values: Tensor | None = None) -> Launch:
    """A bound launch of bsr_matmul; setting: width, warps, stages, outer, blocks, bn; tall, rows of blocks in one."""
    where = "bsr_matmul.plan(A, x)"
    a = as_sparse(A, where)
    a = as_blocks(a if values is None else a.with_values(values))
    _check(a, x, where)
    recipe, moving = _kind(a, x, setting)
    return Launch(*recipe.arguments(moving), choice=recipe.choice)


def subject(A: Any, x: Tensor, *, values: Tensor | None = None) -> Subject:
    """A product over blocks as something to tune."""
    where = "tune(bsr_matmul, A, x)"
    a = as_sparse(A, where)
    a = as_blocks(a if values is None else a.with_values(values))
    _check(a, x, where)
    s, v = a.structure, a.values

    def at(setting: Setting | None) -> Call:
        recipe, moving = _kind(a, x, {} if setting is None else setting)
        return *recipe.arguments(moving), ()

    made = subject_of("bsr_matmul(A, x)", s, at)
    if made.case.space != "blocks" or v is None:
        return made
    several = {n: tall(s, n) for n in TALL if n * s.block[0] <= HIGHEST}
    held = {1: s} | {n: t.structure for n, t in several.items() if t is not None}
    space = replace(
        made.space, params=(Param("tall", tuple(held), format=True), *made.space.params)
    )
    columns, dtype = x.shape[-1], x.dtype
    shown = [{"tall": n, **t} for n, s in held.items() for t in settings(s, columns, dtype)]
    first = {"tall": _usual(a, x).get("tall", 1), **made.first}
    return replace(made, space=space, first=first, shown=tuple(shown))


bsr_matmul.plan = plan  # type: ignore[attr-defined]
bsr_matmul.subject = subject  # type: ignore[attr-defined]
