"""tw.bsr_matmul: y = A x over stored blocks, each a small dense product.

In: a matrix of blocks (bsr or dbsr, torch's BSR included) and dense columns, in batches or not. Out: dense.
The program is spmm's; what is chosen here are the tiles of the block kernel.

    y = bsr_matmul(A, x)                     # A: [n, m] of 64 x 64 blocks, x: [..., m, columns]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend_of, place_of
from tilewright.ops.block_tiles import tiles
from tilewright.ops.bound import Launch
from tilewright.ops.recipe import Recipe
from tilewright.ops.settings import pack
from tilewright.ops.sparse import (
    as_blocks,
    as_sparse,
    bundle_of,
    check_dense,
    prepare_at_second_use,
    sparse_arg,
)
from tilewright.ops.spmm import program_name
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public


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


def _kind(a: SparseTensor, x: Tensor, setting: Setting | None) -> tuple[Recipe, list[Tensor]]:
    """The recipe of this kind of call, kept with the structure, and its tensors that change."""
    s, v = a.structure, a.values
    prepare_at_second_use(s, x.requires_grad and torch.is_grad_enabled())
    made = bundle_of(s)
    moving = [x] if v is None else [v.contiguous(), x]
    if setting is not None or torch.compiler.is_compiling():
        return _recipe(a, x, setting), moving
    key = ("blocks", v is None or v.dtype, x.dtype, x.shape, x.stride(), place_of(s.device))
    if key not in made.recipes:
        made.recipes[key] = _recipe(a, x, None)
    return made.recipes[key], moving


def _recipe(a: SparseTensor, x: Tensor, setting: Setting | None) -> Recipe:
    made = bundle_of(a.structure)
    ints = list(made.ints)
    if backend_of(x.device) == "triton":
        ints.append(pack(setting or tiles(a.structure, x.shape[-1], x.dtype)))
    name = program_name("sum", x.dim() == 3, False, False)
    args = (sparse_arg("a", a, made.arrays), dense_arg("x", x))
    return Recipe(program_text(name, args), list(made.tensors), ints)


@public
def plan(A: Any, x: Tensor, setting: Setting | None = None, values: Tensor | None = None) -> Launch:
    """A bound launch of bsr_matmul; setting: width, warps, stages, outer, blocks, bn."""
    where = "bsr_matmul.plan(A, x)"
    a = as_sparse(A, where)
    a = as_blocks(a if values is None else a.with_values(values))
    _check(a, x, where)
    recipe, moving = _kind(a, x, setting)
    return Launch(*recipe.arguments(moving))


bsr_matmul.plan = plan  # type: ignore[attr-defined]
