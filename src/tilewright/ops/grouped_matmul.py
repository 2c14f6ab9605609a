"""tw.ops.grouped_matmul: each token by the weights of the experts that it chose, gathered and scattered in one product.

Places of one expert are cut into tiles, on the device, once for an index: a tile has an owner, its places in the index,
and a number of them. There are as many programs as there could be tiles; those without a place do nothing.

    index = tw.Index.from_choices(ids, experts)             # ids: [tokens, slots]
    h = grouped_matmul(x, w, index)                         # [tokens, slots, n]
    y = grouped_matmul(x, w, index, weights=gates)          # [tokens, n], slots added up
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.transforms import outside
from tilewright.language import functions as fn
from tilewright.language.grad import Gradient
from tilewright.language.trace import Param, Traced, axes, listed, part, trace
from tilewright.ops.again import Ints, again
from tilewright.ops.backend import as_written, backend_of
from tilewright.ops.index import Index
from tilewright.ops.kept import keeps
from tilewright.ops.products import LARGE, SMALL
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import check_dense, device_of
from tilewright.ops.step import PRODUCT
from tilewright.ops.vendor import SERVED
from tilewright.support.errors import error, said
from tilewright.support.places import public

STAGES = 4  # of small tiles: there are many, so that two share a multiprocessor
FIELDS = (
    4  # behind the places of a tile: its owner, their number, and nothing, so that rows are aligned
)


# --- programs -------------------------------------------------------------------------------------


@cache
def grouped_product(slots: int) -> Traced:
    """The product for so many choices of each token: place q is choice q % slots of token q // slots."""

    def product(
        x: Param, w: Param, positions: Param, places: Param, owner: Param, fill: Param, y: Param
    ) -> None:
        t, r, n, k = axes("t r n k")
        q = listed("q", positions[places[t, r]], r, below=fill[t])
        y.sized(positions.dim(0), w.dim(2))
        y[q, n] = fn.sum(k, x[q // slots if slots > 1 else q, k] * w[owner[t], k, n])

    def to_q(
        d_y: Param, w: Param, positions: Param, places: Param, owner: Param, fill: Param, d_q: Param
    ) -> None:
        """The gradient of what each place read."""
        t, r, n, k = axes("t r n k")
        q = listed("q", positions[places[t, r]], r, below=fill[t])
        d_q.sized(d_y.dim(0), w.dim(1))
        d_q[q, k] = fn.sum(n, d_y[q, n] * w[owner[t], k, n])

    def to_x(d_q: Param, x: Param, d_x: Param) -> None:
        m, k = axes("m k")
        d_x.sized(x.dim(0), x.dim(1))
        if not slots:
            d_x[m, k] = 0.0
            return
        q = part(m, slots, "q")
        d_x[m, k] = fn.sum(q, d_q[q, k])

    def to_w(
        x: Param, d_y: Param, positions: Param, ends: Param, number: Param, d_w: Param
    ) -> None:
        e, n, k, p = axes("e n k p")
        q = listed("q", positions[ends[e] - number[e] + p], p, below=number[e])
        d_w[e, k, n] = fn.sum(q, x[q // slots if slots > 1 else q, k] * d_y[q, n])

    def named(program: Callable[..., None], name: str, by_torch: Any = None, **how: Any) -> Traced:
        program.__name__ = f"grouped_product_{name}{slots}"
        if by_torch is not None:
            SERVED[program.__name__] = partial(by_torch, slots)
        return replace(trace(program), vendor=by_torch is not None, **how)

    made = named(product, "", by_tiles)
    first = named(to_q, "to_q_", by_tiles, wide=True)
    of = {"x": named(to_x, "to_x_", kept=("d_q",)), "w": named(to_w, "to_w_", by_experts)}
    register(made, Gradient((first,), {n: (t,) for n, t in of.items()}))
    return made


@cache
def expert_tiles(size: int) -> Traced:
    """The program that cuts what each expert has into tiles of `size` places. room: [tiles at most, size + FIELDS]"""

    def tiles(number: Param, ends: Param, room: Param, last: Param, unit: Param) -> None:
        e, c, t, f = axes("e c t f")
        held = (number[c] + (size - 1)) // size
        last.typed("i32")
        last.sized(number.dim(0))
        last[e] = fn.sum(c, fn.where(c <= e, held, 0))
        begin = last[c] - held  # tiles of other experts
        first = ends[c] - number[c] + (t - begin) * size
        field = fn.where(fn.equal(f, size), c, fn.minimum(ends[c] - first, size))
        mine = fn.where(f < size, first + f, field)
        unit.typed("i32")
        unit.sized(room.dim(0), room.dim(1))
        unit[t, f] = fn.sum(c, fn.where((begin <= t) & (t < last[c]), mine, 0))

    tiles.__name__ = f"expert_tiles_{size}"
    return register(trace(tiles)).traced


def by_tiles(slots: int, t: Mapping[str, Tensor]) -> Tensor:
    """The product, or the gradient of what it read, by torch, tile after tile."""
    forward = "d_y" not in t
    a, w = t["x" if forward else "d_y"].detach(), t["w"].detach()
    w = w if forward else w.transpose(1, 2)
    wide = a.dtype if forward or a.dtype.itemsize > 2 else torch.float32
    y = a.new_zeros(len(t["positions"]), w.shape[2], dtype=wide)
    for places, e, count in zip(t["places"], t["owner"].tolist(), t["fill"].tolist(), strict=True):
        if count:
            rows = t["positions"][places[:count]].long()
            y[rows] = (a[rows // slots if forward else rows] @ w[e]).to(wide)
    return y


def by_experts(slots: int, t: Mapping[str, Tensor]) -> Tensor:
    """The gradient of w by torch, expert after expert."""
    x, d_y, number = t["x"].detach(), t["d_y"], t["number"].tolist()
    d_w = x.new_zeros(len(number), x.shape[1], d_y.shape[1])
    for e, (end, count) in enumerate(zip(t["ends"].tolist(), number, strict=True)):
        rows = t["positions"][end - count : end].long()
        torch.mm(x[rows // slots].t(), d_y[rows], out=d_w[e])
    return d_w


def _product_name(slots: int) -> str:
    """A constant to torch.compile, as the next."""
    return grouped_product(slots).name


def _tiles_name(size: int) -> str:
    return expert_tiles(size).name


_product_name._dynamo_marked_constant = True  # type: ignore[attr-defined]
_tiles_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


# --- the operator ---------------------------------------------------------------------------------


@public
def grouped_matmul(x: Tensor, w: Tensor, index: Index, *, weights: Tensor | None = None) -> Tensor:
    """x[t] @ w[e] for each expert e that token t chose: [tokens, slots, n]; with weights [tokens, slots] their sum
    over the slots: [tokens, n].

    x: [tokens, k]; w: [experts, k, n]; index: tw.Index.from_choices(ids, experts). Slots whose id is no expert give 0.
    Gradients for x, w and weights. Nothing waits for the device.

    >>> y = grouped_matmul(x, w, tw.Index.from_choices(ids, 64), weights=gates)
    """
    _check(x, w, index, weights)
    if x.dtype != w.dtype and backend_of(x.device) == "c":  # torch multiplies there, in one dtype
        wide = torch.promote_types(x.dtype, w.dtype)
        x, w = x.to(wide), w.to(wide)
    tokens, slots = index.shape
    y = again(*_call(x, w, index))[0].reshape(tokens, slots, w.shape[2])
    if weights is None:
        return y
    with as_written(x.device):
        return torch.bmm(weights.to(y.dtype)[:, None], y)[:, 0]


def _call(x: Tensor, w: Tensor, index: Index) -> tuple[str, dict[str, Tensor], Ints]:
    """The program, its operands, and its setting."""
    tokens, slots = index.shape
    size = tile_of(tokens * slots, w.shape[0])
    assert index.ends is not None
    given = {"x": x, "w": w, "positions": index.positions, **tiles_of(index, size)}
    given |= {"ends": index.ends, "number": index.counts}
    return _product_name(_known(slots)), given, lambda *_: _setting(x, size)


def _known(slots: int) -> int:
    """The same number; torch.compile knows it then."""
    made = 0
    while made < slots:
        made += 1
    return made


def _setting(x: Tensor, size: int) -> list[int]:
    if backend_of(x.device) != "triton":
        return []
    wide = LARGE if size >= 128 else {**SMALL, "stages": STAGES}
    return [pack({**(wide if x.dtype.itemsize == 2 else PRODUCT), "bm": size})]


def tile_of(places: int, experts: int) -> int:
    """Places in a tile: about as many as an expert has, from 16 to 128."""
    size = 16  # torch.compile knows it: places are asked, not used
    while size < 128 and places >= 2 * size * experts:
        size *= 2
    return size


def tiles_of(index: Index, size: int) -> dict[str, Tensor]:
    """Tiles of at most `size` places of one expert: where these stand in the index, its owner, how many. As many tiles
    as there could be; made once for an index."""
    if not keeps(index.counts):
        return _tiles(index, size)
    kept: dict[int, dict[str, Tensor]] = index.__dict__.setdefault("_tiles", {})
    if size not in kept:
        kept[size] = outside(_tiles)(index, size)
    return kept[size]


def _tiles(index: Index, size: int) -> dict[str, Tensor]:
    assert index.ends is not None
    many = index.positions.shape[0] // size + index.groups
    room = index.counts.new_empty(many, size + FIELDS)
    given = {"number": index.counts, "ends": index.ends, "room": room}
    unit = again(_tiles_name(size), given, lambda *_: [])[1]
    return {"places": unit[:, :size], "owner": unit[:, size], "fill": unit[:, size + 1]}


def _check(x: Tensor, w: Tensor, index: Index, weights: Tensor | None) -> None:
    where = "grouped_matmul(x, w, index)"
    check_dense(where, "x", x, 2, device_of(x), "x")
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
    if weights is not None:
        check_dense(where, "weights", weights, 2, x.device, "x")
    if weights is not None and tuple(weights.shape) != tuple(index.shape):
        expected = f"{said(tuple(index.shape))}, one for each choice"
        raise error(
            "shape", where=where, name="weights", got=tuple(weights.shape), expected=expected
        )
