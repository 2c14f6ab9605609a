"""tw.attention over the blocks of a mask: softmax-weighted sums, one pass, nothing of size S x S."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ir.monoid import LOG2E
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.bound import Launch
from tilewright.ops.changing import NUMBERS, changing
from tilewright.ops.choice import Subject
from tilewright.ops.library import run
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import bundle_of, check_dense, prepare_at_second_use, text_of
from tilewright.ops.subject import chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error, said
from tilewright.support.places import public


def attention_blocks(mask: Param, q: Param, k: Param, v: Param, scale: Any, o: Param) -> None:
    b, g, i, j, e, d = axes("b g i j e d")
    score = mask[i, j] * fn.sum(e, (q[b, g, i, e] * scale) * k[b, j, e])
    o[b, g, i, d] = fn.softmax2_sum(j, score, v[b, j, d])


register(trace(attention_blocks, scalars=("scale",)))


@public
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: SparseTensor,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q @ k.T * scale) @ v over the blocks of a mask; queries without any block give 0.

    q: [..., heads, S, d]; k, v: [..., heads, T, d], as in scaled_dot_product_attention; mask: block_mask(bits).
    scale: a number, or a tensor without dimensions, which has a gradient; 1 / sqrt(d) if there is none.
    With enable_gqa, k and v may have fewer heads: a divisor of q's.

    >>> y = attention(q, k, v, mask=block_mask(bits, block=128))
    """
    _check(q, k, v, mask, enable_gqa)
    if scale is not None:
        q, scale = _scaled(q, scale)
    return run(*_call(q, k, v, mask, scale, None))[0].view(*q.shape[:-1], v.shape[-1])


def _scaled(q: Tensor, scale: Any) -> tuple[Tensor, float]:
    """q and a number. Tensors, and numbers that change inside torch.compile, multiply q."""
    where = "attention(q, k, v, mask)"
    if isinstance(scale, Tensor):
        check_dense(where, "scale", scale, 0, q.device, "q")
    elif not isinstance(scale, NUMBERS):
        got, expected = repr(scale), "a number, or a tensor without dimensions"
        raise error("argument", where=where, name="scale", got=got, expected=expected)
    elif not changing(scale):
        return q, float(scale)
    return q * scale, 1.0


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Any, gqa: bool) -> None:
    where = "attention(q, k, v, mask)"
    if not isinstance(mask, SparseTensor) or mask.structure.format != "block_mask":
        got = mask.structure.format if isinstance(mask, SparseTensor) else type(mask).__name__
        raise error(
            "layout",
            where=where,
            name="mask",
            got=got,
            expected="a block mask: tw.block_mask(bits)",
        )
    if mask.values is not None:
        expected = "a block mask without values: mask.with_values(None)"
        raise error("argument", where=where, name="mask", got=mask, expected=expected)
    rank = max(q.dim(), 3) if isinstance(q, Tensor) else 3
    for name, t in (("q", q), ("k", k), ("v", v)):
        check_dense(where, name, t, rank, mask.device, "mask")
        if t.dtype != q.dtype:
            raise error("dtype", where=where, name=name, got=t.dtype, expected=f"{q.dtype}, as q")
    want = (q.shape[-2], k.shape[-2])
    if tuple(mask.shape) != want:
        expected = f"{said(want)}: queries x keys (pass shape= to block_mask)"
        raise error("shape", where=where, name="mask", got=tuple(mask.shape), expected=expected)
    heads, kv = q.shape[-3], k.shape[-3]
    fits = heads == kv or (gqa and kv and heads % kv == 0)
    if (
        not fits
        or k.shape[-1] != q.shape[-1]
        or k.shape[:-1] != v.shape[:-1]
        or q.shape[:-3] != k.shape[:-3]
    ):
        expected = (
            f"heads, keys and features to fit q {said(tuple(q.shape))} and v {said(tuple(v.shape))}"
        )
        if not gqa and kv and heads % kv == 0:
            expected += ", or enable_gqa=True for query heads in groups" * (heads != kv)
        raise error("shape", where=where, name="k", got=tuple(k.shape), expected=expected)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: SparseTensor,
    scale: float | None,
    setting: Setting | None,
) -> tuple[str, list[Tensor], list[int], list[float]]:
    """Heads in two dimensions: [batch * kv heads, query heads each, S, d]."""
    kv = math.prod(k.shape[:-2])
    group = q.shape[-3] // max(k.shape[-3], 1)
    q4 = q.reshape(kv, group, *q.shape[-2:]).contiguous()
    k3 = k.reshape(kv, *k.shape[-2:]).contiguous()
    v3 = v.reshape(kv, *v.shape[-2:]).contiguous()
    grad = torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
    if grad:
        prepare_at_second_use(mask.structure, grad)
    made = bundle_of(mask.structure)
    text = text_of("attention_blocks", "mask", mask, made, q=q4, k=k3, v=v3)
    tensors = [*made.tensors, q4, k3, v3]
    if setting is None:
        tiled = backend_of(q.device) == "triton"
        setting = choose(q.shape[-1], mask.structure.block) if tiled else {}
        if not torch.compiler.is_compiling():
            key = (text, q4.shape, v3.shape, cpu_backend())
            found = made.choices.get(key)
            found = found or chosen(made.choices, key, text, tensors, mask.structure, setting)
            setting = found.setting
    ints = [*made.ints, pack(setting)] if setting else list(made.ints)
    factor = (scale if scale is not None else 1.0 / math.sqrt(max(q.shape[-1], 1))) * LOG2E
    return text, tensors, ints, [factor]


def choose(d: int, block: tuple[int, int]) -> Setting:
    """Tiles by head width: 64 queries for narrow heads, 128 for wide ones."""
    if d <= 64:
        return {"bm": min(64, block[0]), "bn": min(128, block[1]), "warps": 4, "stages": 3}
    return {"bm": min(128, block[0]), "bn": min(128, block[1]), "warps": 8, "stages": 3}


@public
def plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: SparseTensor,
    scale: float | None = None,
    setting: Setting | None = None,
) -> Launch:
    """A bound launch; setting: bm, bn, warps, stages."""
    return Launch(*_call(q, k, v, mask, scale, setting))


def subject(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: SparseTensor,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Subject:
    """Attention as something to tune."""
    _check(q, k, v, mask, enable_gqa)
    s = mask.structure
    return subject_of("attention(q, k, v)", s, lambda new: _call(q, k, v, mask, scale, new))


attention.subject = subject  # type: ignore[attr-defined]
attention.plan = plan  # type: ignore[attr-defined]
