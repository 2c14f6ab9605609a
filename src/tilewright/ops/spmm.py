"""tw.spmm: y[i, f] = reduce over j of a[i, j] * x[j, f]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.check import check_values
from tilewright.formats.merge import rows_of
from tilewright.formats.parts import Parts
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.tree import Tree
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import dense_arg, program_text, told
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.block_tiles import tiles
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Case, Choice, Subject, program_key
from tilewright.ops.formats import (
    alternatives,
    block_model,
    blocks_of,
    clearly,
    in_blocks,
    with_blocks,
)
from tilewright.ops.plans import choose, in_turns, listed, may_list, may_visit, visiting
from tilewright.ops.recipe import Recipe
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.spaces import SETTINGS, WIDE_SETTINGS
from tilewright.ops.sparse import (
    as_blocks,
    as_rows,
    as_sparse,
    bundle_of,
    check_dense,
    prepare_at_second_use,
    recipe_of,
    rows_first,
    sparse_arg,
    stored_rank,
)
from tilewright.ops.subject import Call, chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public
from tilewright.tune.machine import machine_of

REDUCE = ("sum", "mean", "max", "min")
# rows are the lanes of a vector's kernel: a warp of them
VECTOR: Setting = {"rows": 32, "unroll": 4, "long": 64, "chunk": 1024, "warps": 1}


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


def shaped(reduce: str, batch: bool, heads: bool, vector: bool) -> Callable[..., None]:
    """The same with a leading batch of x, with trailing heads of values and x, or of a vector x[j]."""

    def product(a: Param, x: Param, y: Param) -> None:
        i, j = axes("i j")
        b, h, f = axes("b" * batch), axes("h" * heads), axes("f" * (not vector))
        y[*b, i, *h, *f] = getattr(fn, reduce)(j, a[i, j, *h] * x[*b, j, *h, *f])

    product.__name__ = program_name(reduce, batch, heads, vector)
    return product


def program_name(reduce: str, batch: bool, heads: bool, vector: bool) -> str:
    """spmm_sum, spmm_batch_max, spmm_batch_heads_mean, spmv_min ..."""
    return f"{'spmv' if vector else 'spmm'}_{'batch_' * batch}{'heads_' * heads}{reduce}"


KINDS = ((True, False, False), (False, True, False), (True, True, False), (False, False, True))
for _program in (spmm_sum, spmm_mean, spmm_max, spmm_min):
    register(trace(_program))
for _reduce in REDUCE:
    for _kind_of in KINDS:
        register(trace(shaped(_reduce, *_kind_of)))


@public
def spmm(A: Any, x: Tensor, *, values: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """y[i, f] = reduce over j of A[i, j] * x[j, f], over stored entries.

    A: [n, m] torch CSR/CSC/COO/BSR, SciPy or SparseTensor; x: [m, features], [m] for a vector, or with batches
    in front, [..., m, features]. values: other values on A's structure. Values with heads, [nnz, heads], go with
    x: [..., m, heads, features]. Rows with nothing stored give 0 (sum, mean), -inf (max), inf (min).
    Equal maxima (minima) share the gradient evenly, as in torch.amax.

    >>> y = spmm(A, x, reduce="mean")
    """
    a = A if type(A) is SparseTensor else as_sparse(A, "spmm(A, x)")
    if values is not None:
        check_values(values, a.structure, "spmm(A, x, values=...)")
        a = SparseTensor(a.structure, values)
    if isinstance(a.structure, Tree):
        a = walkable(a, x)
    if isinstance(x, Tensor) and x.dim() > 3:
        batch = x.shape[: -2 - has_heads(a)]
        if len(batch) > 1:
            made = spmm(a, x.flatten(0, len(batch) - 1), reduce=reduce)
            return made.unflatten(0, batch)
    recipe, moving = _kind(a, x, reduce, None)
    return recipe(moving)[0]


def walkable(a: SparseTensor, *dense: Any) -> SparseTensor:
    """A general format as products walk it: dbsr as blocks; for gradients, the others as csr."""
    if isinstance(a.structure, Parts):
        return a
    a = as_blocks(a)
    wanted = any(isinstance(t, Tensor) and t.requires_grad for t in (*dense, a.values))
    return as_rows(a) if wanted and torch.is_grad_enabled() else a


def _kind(
    a: SparseTensor, x: Tensor, reduce: str, setting: Setting | None
) -> tuple[Recipe, list[Tensor]]:
    """The recipe of this kind of call, kept with the structure, and its tensors that change."""
    a = rows_first(a)
    v, s = a.values, a.structure
    grad = x.requires_grad and torch.is_grad_enabled() if isinstance(x, Tensor) else False
    if s.transposed is None:
        prepare_at_second_use(s, grad)
    made = bundle_of(s)
    if setting is not None or torch.compiler.is_compiling():
        recipe = _recipe(a, x, reduce, grad, setting)
    else:
        key = (reduce, None if v is None else (v.dtype, v.shape), told(x), grad)
        recipe = recipe_of(made.recipes, key, lambda: _recipe(a, x, reduce, grad, None))
    if v is None:
        return recipe, [x]
    return recipe, [v if v.is_contiguous() else v.contiguous(), x]


def _call(
    a: SparseTensor, x: Tensor, reduce: str, setting: Setting | None
) -> tuple[str, list[Tensor], list[int]]:
    """The operator's arguments."""
    recipe, moving = _kind(a, x, reduce, setting)
    return recipe.arguments(moving)


def _recipe(
    a: SparseTensor,
    x: Tensor,
    reduce: str,
    grad: bool,
    setting: Setting | None,
    choice: Choice | None = None,
) -> Recipe:
    """The first call of a kind checks, converts and plans. choice: of which the setting is a part."""
    heads = has_heads(a)
    _check(a, x, reduce, heads)
    if setting is not None and choice is None:
        choice = Choice(setting, "given")
    if setting is not None and setting.get("block"):
        rest = {k: v for k, v in setting.items() if k != "block"}
        return _recipe(in_blocks(a, setting["block"]), x, reduce, grad, rest, choice)
    name = program_name(reduce, x.dim() == 3 + heads, heads, x.dim() == 1)
    made = bundle_of(a.structure)
    arrays, tensors, ints = made.arrays, list(made.tensors), list(made.ints)
    s, args = a.structure, (sparse_arg("a", a, arrays), dense_arg("x", x))
    span = 1 if x.dim() == 1 else x.shape[-1]
    rows = rows_of(s)
    if rows is not None and may_list(s, x, setting):
        if x.dim() == 1 and choice is None:
            choice, setting = Choice(VECTOR, "default"), VECTOR
        program = program_key(name, args)
        case = lambda: Case(program, "lists", (tuple(x.shape),), rows, x.device)
        if choice is None:
            choice = choose(rows, span, x.dtype, program, case)
            if choice.source == "model" and may_block(a, x, reduce):
                choice = _in_blocks(choice, s, span, x.dtype)
            if choice.setting.get("block"):
                return _recipe(a, x, reduce, grad, choice.setting, choice)
        names, more, plan_ints = listed(s, span, x.dtype, grad, setting, program, case)
        args = (sparse_arg("a", a, (*arrays, *names)), args[1])
        tensors += more
        ints += plan_ints
    text = program_text(name, args)
    if choice is None and not torch.compiler.is_compiling():
        moving = [x] if a.values is None else [a.values, x]
        key = (text, x.shape, cpu_backend())
        choice = chosen(made.choices, key, text, [*tensors, *moving], s, _usual(s, x, reduce))
        if choice.setting.get("block"):
            return _recipe(a, x, reduce, grad, choice.setting, choice)
    used = {} if choice is None else choice.setting
    if used and "long" not in used:
        ints.append(pack(used))
    wide = x.shape[-1 - heads :].numel() if x.dim() > 1 else 1
    names, more = visiting(s, wide, x.itemsize, used, grad)
    if names:
        text = program_text(name, (sparse_arg("a", a, (*arrays, *names)), args[1]))
        return Recipe(text, [*tensors, *more], ints, in_turns(choice))
    return Recipe(text, tensors, ints, choice)


def may_block(a: SparseTensor, x: Tensor, reduce: str) -> bool:
    """Whether full blocks may be multiplied apart: a sum of plain rows, whose output holds it without rounding."""
    dtypes = {x.dtype, x.dtype if a.values is None else a.values.dtype}
    exact = dtypes <= {torch.float32} or dtypes <= {torch.float64}
    return a.format == "csr" and reduce == "sum" and x.dim() == 2 and exact and not has_heads(a)


def _in_blocks(choice: Choice, s: Structure, span: int, dtype: torch.dtype) -> Choice:
    """A modelled choice, with full blocks apart where that is clearly better."""
    sizes = blocks_of(s)[1:]
    if not sizes or choice.model is None:
        return choice
    model = block_model(choice.model, s, span, dtype.itemsize, machine_of(s.device))
    return clearly(choice, model, alternatives(choice.candidates, "block", sizes))


def _usual(s: Structure, x: Tensor, reduce: str) -> Setting:
    """Tiles for blocks that are products; else what the schedule takes by itself."""
    product = s.format == "bsr" and min(s.block) >= 16 and reduce == "sum" and x.dim() > 1
    return tiles(s, x.shape[-1], x.dtype) if product and backend_of(x.device) == "triton" else {}


def _check(a: SparseTensor, x: Tensor, reduce: str, heads: bool) -> None:
    where = "spmm(A, x)"
    if reduce not in REDUCE:
        raise error(
            "argument", where=where, name="reduce", got=repr(reduce), expected=f"one of {REDUCE}"
        )
    given = x.dim() if isinstance(x, Tensor) else 2
    rank = 2 + heads if given < 2 + heads and (heads or given != 1) else min(given, 3 + heads)
    check_dense(where, "x", x, rank, a.device, "A")
    if x.shape[rank == 3 + heads] != a.shape[1]:
        expected = f"{a.shape[1]} rows, one for each column of A"
        raise error("shape", where=where, name="x", got=tuple(x.shape), expected=expected)
    if heads and a.values is not None and x.shape[-2] != a.values.shape[-1]:
        expected = f"{a.values.shape[-1]} heads, as many as the values"
        raise error("shape", where=where, name="x", got=tuple(x.shape), expected=expected)


def has_heads(a: SparseTensor) -> bool:
    """Whether values have one trailing dimension more than the structure."""
    return a.values is not None and a.values.dim() - stored_rank(a.structure) == 1


@public
def plan(
    A: Any,
    x: Tensor,
    setting: Setting | None = None,
    reduce: str = "sum",
    values: Tensor | None = None,
) -> Launch:
    """A bound launch of spmm, at a given setting or at the one that would be chosen."""
    a = rows_first(as_sparse(A, "spmm.plan(A, x)"))
    a = a if values is None else a.with_values(values)
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
    now = _kind(a, x, reduce, None)[0].choice
    used = {} if now is None else now.setting
    whole = {k: v for k, v in used.items() if k != "block"}

    def at(setting: Setting | None) -> Call:
        return *_call(a, x, reduce, whole if setting is None else setting), ()

    homes = (given.structure, s)
    made = replace(subject_of("spmm(A, x)", rows_of(s) or s, at, may_visit(s)), homes=homes)
    sizes = blocks_of(s) if may_block(a, x, reduce) else (0,)
    if len(sizes) == 1 or made.model is None:
        return made
    model = block_model(made.model, s, x.shape[-1], x.dtype.itemsize, machine_of(s.device))
    return replace(
        made,
        space=with_blocks(made.space, sizes),
        model=model,
        first=used if used.get("block") else made.first,
        shown=(*made.shown, *alternatives([made.first], "block", sizes[1:])),
    )


spmm.subject = subject  # type: ignore[attr-defined]
spmm.plan = plan  # type: ignore[attr-defined]

__all__ = ["SETTINGS", "WIDE_SETTINGS", "plan", "spmm"]
