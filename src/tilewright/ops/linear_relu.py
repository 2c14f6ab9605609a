"""tw.ops.linear_relu: a layer with ReLU, and an index of what the ReLU left, for the layer after it.

On a GPU the index is made in the epilogue of the product: values are looked at while they are on chip
(pit/joins.py). On a CPU torch multiplies, and a detector follows; so it does for the 32 and 64 bits of a GPU, which
have no tensor cores.

    h, index = linear_relu(x, w1, b1)              # h = relu(x @ w1.T + b1)
    y = tw.linear(h, w2, b2, sparse=index)         # of each 32 rows, only the k's where one of them is not 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.ir.expr import Load
from tilewright.language import functions as fn
from tilewright.language.grad import Gradient
from tilewright.language.trace import Param, Traced, append, axes, part, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import as_written, backend_of
from tilewright.ops.dtypes import name_of
from tilewright.ops.index import Index
from tilewright.ops.kept import by_lanes
from tilewright.ops.library import run
from tilewright.ops.linear import check_operands
from tilewright.ops.products import usual
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.vendor import SERVED
from tilewright.pit.joins import MOST
from tilewright.pit.microtile import micro_tile
from tilewright.support.errors import error
from tilewright.support.places import public

LAYOUTS = ("rows", "k")


@public
def linear_relu(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    tile: tuple[int, int] = (32, 1),
    layout: str | None = None,
    ordered: bool = False,
) -> tuple[Tensor, Index]:
    """h = relu(x @ w.T + b), and for each row of micro-tiles of h a list of those that are not all 0 (NaN is a value).

    x: [..., k]; w: [n, k]; h: [..., n]. tile: rows and columns, powers of two up to 64. layout: "k" stores all rows of
    one column of h side by side, as the product after it gathers them on a GPU; "rows" as usual; None: what suits the
    tile and the device. Lists come in any order, unless `ordered`, or torch asks for deterministic algorithms: then
    they are made in a launch of their own. Gradients are those of the dense layer. Nothing waits for the device.

    >>> h, index = linear_relu(x, w1, b1, tile=(32, 1)); y = linear(h, w2, b2, sparse=index)
    """
    where = "linear_relu(x, w, b, tile=...)"
    check_operands(x, w, b, where)
    rows, columns = _checked(tile, where)
    flat = x.flatten(0, -2)
    given = {"x": flat, "w": w} if b is None else {"x": flat, "w": w, "b": b}
    by_k = _by_k(layout, (rows, columns), x, where)
    lanes = by_lanes(flat) or by_lanes(w)
    ordered = ordered or torch.are_deterministic_algorithms_enabled()
    if backend_of(x.device) == "triton" and lanes:
        h = _by_vendor(flat, w, b, by_k)
        index = Index.from_values(h, (rows, columns), grouped=True, ordered=ordered)
        return h if x.dim() == 2 else h.reshape(*x.shape[:-1], w.shape[0]), index
    name = _layer(rows, columns, by_k, b is not None, ordered)
    text = program_text(name, tuple(dense_arg(n, t) for n, t in given.items()))
    setting = usual(flat, flat.shape[0], w.shape[0])
    h, found, counts = run(text, list(given.values()), [pack(setting)] if setting else [])
    h = h.t() if by_k else h
    index = Index(found, counts, (flat.shape[0], w.shape[0]), (rows, columns), ordered)
    return h if x.dim() == 2 else h.reshape(*x.shape[:-1], w.shape[0]), index


def _by_vendor(x: Tensor, w: Tensor, b: Tensor | None, by_k: bool) -> Tensor:
    """The layer in the widest of the dtypes, as the epilogue has it; autocast changes neither."""
    z = _product(*_promoted(x, w, b), by_k).relu()
    return z.t() if by_k else z


def _product(x: Tensor, w: Tensor, b: Tensor | None, by_k: bool) -> Tensor:
    """x @ w.T + b, or what lies as its transpose does."""
    with as_written(x.device):
        if not by_k:
            return functional.linear(x, w, b)
        return torch.mm(w, x.t()) if b is None else torch.addmm(b[:, None], w, x.t())


def _promoted(x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same in the widest of their dtypes."""
    dtype = torch.promote_types(x.dtype, w.dtype)
    if b is None:
        return x.to(dtype), w.to(dtype), None
    dtype = torch.promote_types(dtype, b.dtype)
    return x.to(dtype), w.to(dtype), b.to(dtype)


def _checked(tile: Any, where: str) -> tuple[int, int]:
    """Two powers of two. All rows or all columns at once are no part of one tile of a product."""
    sizes = tuple(1 << n for n in range(MOST.bit_length()))
    if not isinstance(tile, tuple) or len(tile) != 2 or any(t not in sizes for t in tile):
        expected = f"two powers of two up to {MOST}; Index.from_values finds other micro-tiles of h"
        raise error("argument", where=where, name="tile", got=tile, expected=expected)
    return tile


def _by_k(layout: Any, tile: tuple[int, int], x: Tensor, where: str) -> bool:
    """Whether h is stored by columns: asked for, or since a GPU's memory delivers more than a row of a micro-tile."""
    if layout is None:
        return backend_of(x.device) == "triton" and _asks_for_k(*tile, name_of(x.dtype))
    if layout not in LAYOUTS:
        expected = " or ".join(map(repr, LAYOUTS))
        raise error("argument", where=where, name="layout", got=repr(layout), expected=expected)
    return bool(layout == "k")


def _asks_for_k(rows: int, columns: int, dtype: str) -> bool:
    return not micro_tile((rows, columns), 1, dtype).legal


_asks_for_k._dynamo_marked_constant = True  # type: ignore[attr-defined]


# --- programs ---------------------------------------------------------------------------------------


def _layer(rows: int, columns: int, by_k: bool, bias: bool, ordered: bool) -> str:
    """The name of the layer's program; a constant to torch.compile."""
    return _registered(rows, columns, by_k, bias, ordered)


_layer._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _registered(rows: int, columns: int, by_k: bool, bias: bool, ordered: bool) -> str:
    def layer(x: Param, w: Param, b: Param | None, h: Param, found: Param, count: Param) -> None:
        i, n, k, I, N = axes("i n k I N")
        z = fn.sum(k, x[i, k] * w[n, k])
        made = fn.relu(z if b is None else z + b[n])
        if by_k:
            h[n, i] = made
        else:
            h[i, n] = made
        p, q = part(I, rows, "p"), part(N, columns, "q")
        seen = fn.any((p, q), fn.not_equal(h[q, p] if by_k else h[p, q], 0))
        append(found, count, N, where=seen, over=N, group=I, ordered=ordered)

    def without(x: Param, w: Param, h: Param, found: Param, count: Param) -> None:
        layer(x, w, None, h, found, count)

    marks = f"{'_k' if by_k else ''}{'_bias' if bias else ''}{'' if ordered else '_any_order'}"
    traced = _vendor(layer if bias else without, f"linear_relu_{rows}x{columns}{marks}")
    register(traced, _gradient(by_k))
    SERVED[f"{traced.name}_0"] = partial(_by_torch, by_k=by_k)
    return traced.name


def _vendor(program: Callable[..., None], name: str) -> Traced:
    return replace(trace(program), name=name, vendor=True)


def _by_torch(tensors: Mapping[str, Tensor], by_k: bool) -> Tensor:
    """The product on a CPU."""
    x, w, b = (None if n not in tensors else tensors[n].detach() for n in ("x", "w", "b"))
    assert x is not None and w is not None
    return _product(*_promoted(x, w, b), by_k).relu_()


@cache
def _gradient(by_k: bool) -> Gradient:
    """d_z is d_h where h is above 0 (or NaN, as torch has it); x and w see it as in any product."""

    def at(t: Param, i: Any, n: Any) -> Load:
        made: Load = t[n, i] if by_k else t[i, n]
        return made

    def to_z(h: Param, d_h: Param, d_z: Param) -> None:
        i, n = axes("i n")
        kept = fn.where(at(h, i, n) <= 0, 0.0, at(d_h, i, n))
        if by_k:
            d_z[n, i] = kept
        else:
            d_z[i, n] = kept

    def to_x(d_z: Param, w: Param, d_x: Param) -> None:
        i, n, k = axes("i n k")
        d_x[i, k] = fn.sum(n, at(d_z, i, n) * w[n, k])

    def to_w(d_z: Param, x: Param, d_w: Param) -> None:
        i, n, k = axes("i n k")
        d_w[n, k] = fn.sum(i, at(d_z, i, n) * x[i, k])

    def to_b(d_z: Param, d_b: Param) -> None:
        i, n = axes("i n")
        d_b[n] = fn.sum(i, at(d_z, i, n))

    mark = "_k" if by_k else ""
    z, x, w, b = (_vendor(f, f"linear_relu_{f.__name__}{mark}") for f in (to_z, to_x, to_w, to_b))
    return Gradient((z,), {"x": (x,), "w": (w,), "b": (b,)}, saved=("h",))
