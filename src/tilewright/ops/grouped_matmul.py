"""tw.ops.grouped_matmul: each token by the weights of the experts that it chose, gathered and scattered in one product.

Tokens of one expert are cut into tiles, on the device: a tile has an owner, places and a number of them. There are as
many programs as there could be tiles; those without a place do nothing.

    index = tw.Index.from_choices(ids, experts)             # ids: [tokens, slots]
    h = grouped_matmul(x, w, index)                         # [tokens, slots, n]
    y = grouped_matmul(x, w, index, weights=gates)          # [tokens, n], slots added up
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tilewright.language import functions as fn
from tilewright.language.grad import Gradient
from tilewright.language.trace import Param, axes, listed, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend_of
from tilewright.ops.index import Index
from tilewright.ops.library import run
from tilewright.ops.products import LARGE, SMALL
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import check_dense
from tilewright.support.errors import error
from tilewright.support.places import public


def grouped_product(
    x: Param, w: Param, token: Param, places: Param, owner: Param, fill: Param, y: Param
) -> None:
    t, r, n, k = axes("t r n k")
    q = listed("q", places[t, r], r, below=fill[t])
    y.sized(token.dim(0), w.dim(2))
    y[q, n] = fn.sum(k, x[token[q], k] * w[owner[t], k, n])


def grouped_product_to_q(
    d_y: Param, w: Param, places: Param, owner: Param, fill: Param, d_q: Param
) -> None:
    """The gradient of what each place read."""
    t, r, n, k = axes("t r n k")
    q = listed("q", places[t, r], r, below=fill[t])
    d_q.sized(d_y.dim(0), w.dim(1))
    d_q[q, k] = fn.sum(n, d_y[q, n] * w[owner[t], k, n])


def grouped_product_to_x(d_q: Param, slot: Param, x: Param, d_x: Param) -> None:
    m, s, k = axes("m s k")
    d_x.sized(x.dim(0), x.dim(1))
    d_x[m, k] = fn.sum(s, d_q[slot[m, s], k])


def grouped_product_to_w(
    x: Param, d_y: Param, token: Param, positions: Param, first: Param, number: Param, d_w: Param
) -> None:
    e, n, k, p = axes("e n k p")
    q = listed("q", positions[first[e] + p], p, below=number[e])
    d_w[e, k, n] = fn.sum(q, x[token[q], k] * d_y[q, n])


register(
    trace(grouped_product),
    Gradient(
        (replace(trace(grouped_product_to_q), wide=True),),
        {
            "x": (replace(trace(grouped_product_to_x), kept=("d_q",)),),
            "w": (trace(grouped_product_to_w),),
        },
    ),
)


@public
def grouped_matmul(x: Tensor, w: Tensor, index: Index, *, weights: Tensor | None = None) -> Tensor:
    """x[t] @ w[e] for each expert e that token t chose: [tokens, slots, n]; with weights [tokens, slots] their sum
    over the slots: [tokens, n].

    x: [tokens, k]; w: [experts, k, n]; index: tw.Index.from_choices(ids, experts). Slots whose id is no expert give 0.
    Gradients for x, w and weights. Nothing waits for the device.

    >>> y = grouped_matmul(x, w, tw.Index.from_choices(ids, 64), weights=gates)
    """
    _check(x, w, index, weights)
    tokens, slots = index.shape
    y = run(*_call(x, w, index))[0].reshape(tokens, slots, w.shape[2])
    return y if weights is None else torch.bmm(weights.to(y.dtype)[:, None], y)[:, 0]


def _call(x: Tensor, w: Tensor, index: Index) -> tuple[str, list[Tensor], list[int]]:
    tokens, slots = index.shape
    size = tile_of(tokens * slots, w.shape[0])
    slot = torch.arange(tokens * slots, dtype=torch.int32, device=x.device)
    given = {"x": x, "w": w, "token": slot // slots if slots > 1 else slot}
    given |= expert_tiles(index, size)
    given |= {"slot": slot.reshape(tokens, slots), "positions": index.positions}
    given |= {"first": index.ends - index.counts, "number": index.counts}  # type: ignore[operator]
    text = program_text("grouped_product", tuple(dense_arg(n, t) for n, t in given.items()))
    if backend_of(x.device) != "triton" or x.dtype.itemsize != 2:
        setting = {"bm": size, "bn": 64, "bk": 32, "group": 8, "warps": 4, "stages": 3}
    else:
        setting = {**(LARGE if size >= 128 else SMALL), "bm": size}
    triton = backend_of(x.device) == "triton"
    return text, list(given.values()), [pack(setting)] if triton else []


def tile_of(places: int, experts: int) -> int:
    """Places in a tile: about as many as an expert has, from 16 to 128."""
    size = 16  # torch.compile knows it: places are asked, not used
    while size < 128 and places >= 2 * size * experts:
        size *= 2
    return size


def expert_tiles(index: Index, size: int) -> dict[str, Tensor]:
    """Tiles of at most `size` places of one expert: its owner, the places, how many. As many as there could be."""
    assert index.ends is not None
    number, ends, experts = index.counts, index.ends, index.groups
    room = index.positions.shape[0]
    held = (number + (size - 1)) // size
    last = held.cumsum(0)
    at = torch.arange(room // size + experts, device=number.device)
    owner = torch.searchsorted(last, at, right=True).clamp(max=experts - 1)
    first = (ends - number)[owner] + (at - (last - held)[owner]) * size
    fill = (ends[owner] - first).clamp(0, size)
    within = first[:, None] + torch.arange(size, device=number.device)
    places = index.positions[within.clamp(max=max(room - 1, 0))] if room else within
    return {n: t.int() for n, t in (("places", places), ("owner", owner), ("fill", fill))}


def _check(x: Tensor, w: Tensor, index: Index, weights: Tensor | None) -> None:
    where = "grouped_matmul(x, w, index)"
    check_dense(where, "x", x, 2, x.device, "x")
    check_dense(where, "w", w, 3, x.device, "x")
    if not isinstance(index, Index) or index.ends is None:
        got = index if isinstance(index, Index) else type(index).__name__
        expected = "tw.Index.from_choices(ids, experts)"
        raise error("argument", where=where, name="index", got=got, expected=expected)
    if index.shape[0] != x.shape[0]:
        expected = f"{index.shape[0]} rows, as many as the index has tokens"
        raise error("shape", where=where, name="x", got=tuple(x.shape), expected=expected)
    if w.shape[:2] != (index.groups, x.shape[1]):
        expected = f"({index.groups}, {x.shape[1]}, n): experts and columns of x"
        raise error("shape", where=where, name="w", got=tuple(w.shape), expected=expected)
    if weights is not None and tuple(weights.shape) != tuple(index.shape):
        expected = f"{tuple(index.shape)}, one for each choice"
        raise error(
            "shape", where=where, name="weights", got=tuple(weights.shape), expected=expected
        )
