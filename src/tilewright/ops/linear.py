"""tw.linear on some rows, or on some k's of each group of rows: gathered in the load, scattered in the store.

y = linear(x, w, b, sparse="rows")        # rows of x that are all 0 are not computed
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import known_text
from tilewright.ops.backend import any_order, backend_of, cpu_backend
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Subject
from tilewright.ops.found import found_product
from tilewright.ops.index import Index
from tilewright.ops.kept import multiplied
from tilewright.ops.library import run
from tilewright.ops.pattern import Pattern, check_device
from tilewright.ops.products import biased_gradient, rows_tiles, with_bias
from tilewright.ops.reach import check_distinct, check_places
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import check_dense, device_of
from tilewright.ops.subject import DENSE, chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error, said
from tilewright.support.places import public

EXPECTED = (
    "'auto', 'rows', 'k', row numbers, a boolean mask over the rows, lengths of a batch [batch, length, k], "
    "or a tw.Index"
)


def rows_product(x: Param, w: Param, rows: Param, y: Param) -> None:
    m, n, k = axes("m n k")
    y.sized(x.dim(0), w.dim(0))
    rows.unique()
    y[rows[m], n] = fn.sum(k, x[rows[m], k] * w[n, k])


_ROWS = register(trace(rows_product))
_BIASED = register(with_bias(_ROWS.traced), biased_gradient(_ROWS.reverse()))


@public
def linear(x: Tensor, w: Tensor, b: Tensor | None = None, *, sparse: Any = None) -> Tensor:
    """y = x @ w.T + b, of which only what `sparse` names is computed. x: [..., k]; w: [n, k]

    "auto": dense, or whatever of the following is expected to pay, from what earlier calls found (`linear.auto`).

    "rows": rows of x that are not all 0; "k": for each 32 rows of x, the k's where one of them is not 0. Both are found
    on the device, and change nothing: y and all gradients are those of the whole product.

    distinct row numbers (int32 or int64), a boolean mask over the rows, lengths [batch] of x: [batch, length, k], or a
    tw.Index of x: what is not named counts as 0 and is no part of the computation. Rows that are not named give b (0
    without b), and get no gradient.

    Nothing waits for the device.

    >>> y = linear(x, w, b, sparse=rows)
    """
    where = "linear(x, w, b, sparse=...)"
    if sparse is None:
        return torch.nn.functional.linear(x, w, b)
    if isinstance(sparse, str) and sparse == "auto":
        made: Tensor = linear.auto(x, w, b)  # type: ignore[attr-defined]
        return made
    check_operands(x, w, b, where)
    flat = x.flatten(0, -2)
    y = _product(flat, w, b, sparse, x, where)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], w.shape[0])


def _product(
    flat: Tensor, w: Tensor, b: Tensor | None, sparse: Any, x: Tensor, where: str
) -> Tensor:
    if isinstance(sparse, str) and sparse in ("rows", "k"):
        return found_product("i" if sparse == "rows" else "k", flat, w, b)
    if isinstance(sparse, Index):
        return Pattern.given(sparse, flat, where).times(flat, w, b)
    if not isinstance(sparse, Tensor):
        raise error("argument", where=where, name="sparse", got=repr(sparse), expected=EXPECTED)
    if sparse.dtype == torch.bool:
        _check_shape(sparse, tuple(x.shape[:-1]), x, where)
        index = Index.from_mask(sparse.reshape(-1), (1, None), ordered=not any_order(x.device))
        return Pattern.given(index, flat, where).times(flat, w, b)
    if x.dim() == 3:
        _check_shape(sparse, (x.shape[0],), x, where)
        index = Index.from_lengths(sparse, x.shape[1])
        return Pattern.given(index, flat, where).times(flat, w, b)
    rows = _rows(sparse, x, where)
    if backend_of(x.device) == "triton":
        inside = b is not None and flat.dtype == w.dtype == b.dtype
        y = run(*_call(flat, w, rows, None, b if inside else None))[0]
        return y if b is None or inside else y + b
    count = torch.full((1,), rows.shape[0], dtype=torch.int32, device=x.device)
    return Pattern("i", rows.int(), count).times(flat, w, b)


def _check_shape(sparse: Tensor, shape: tuple[int, ...], x: Tensor, where: str) -> None:
    if tuple(sparse.shape) != shape:
        got = tuple(sparse.shape)
        raise error(
            "shape", where=where, name="sparse", got=got, expected=f"{said(shape)}, as x has"
        )
    check_device(sparse, x, where)


def _rows(sparse: Any, x: Tensor, where: str) -> Tensor:
    if not isinstance(sparse, Tensor) or sparse.dim() != 1 or x.dim() != 2:
        got = tuple(sparse.shape) if isinstance(sparse, Tensor) else repr(sparse)
        raise error("argument", where=where, name="sparse", got=got, expected=EXPECTED)
    _check_shape(sparse, (sparse.shape[0],), x, where)
    if sparse.dtype not in (torch.int32, torch.int64):
        raise error("index-dtype", where=where, name="sparse", got=sparse.dtype)
    check_places(sparse, x.shape[0], "sparse", where)
    check_distinct(sparse, x.shape[0], "sparse", where)
    return sparse


def check_operands(x: Any, w: Any, b: Any, where: str, least: int = 2) -> None:
    """x: [..., k] of `least` dimensions or more, w: [n, k], b: [n], on one device."""
    rank = max(x.dim(), least) if isinstance(x, Tensor) else least
    check_dense(where, "x", x, rank, device_of(x), "x")
    check_dense(where, "w", w, 2, x.device, "x")
    if w.shape[1] != x.shape[-1]:
        expected = f"{x.shape[-1]} columns, as many as x"
        raise error("shape", where=where, name="w", got=tuple(w.shape), expected=expected)
    if b is not None:
        check_dense(where, "b", b, 1, x.device, "x")
        if b.shape[0] != w.shape[0]:
            raise error(
                "shape", where=where, name="b", got=tuple(b.shape), expected=f"{w.shape[0]} entries"
            )


def _call(
    x: Tensor, w: Tensor, rows: Tensor, setting: Setting | None, b: Tensor | None = None
) -> tuple[str, list[Tensor], list[int]]:
    """The product of rows that are numbered: as many programs as there are rows. A setting is that without a bias."""
    rows, w = rows.contiguous(), multiplied(w, "i")
    given = {"x": x, "w": w, "rows": rows}
    text = known_text(_ROWS.traced.name, given)
    if setting is None and torch.compiler.is_compiling():
        setting = rows_tiles(x, rows.shape[0], w.shape[0], rows.shape[0])
    elif setting is None:
        made = rows_tiles(x, rows.shape[0], w.shape[0], rows.shape[0])
        many = (rows.shape[0].bit_length(), *made.values())
        at = (text, x.shape, w.shape[0], many, x.get_device(), cpu_backend())
        choice = DENSE.get(at)
        if choice is None:
            choice = chosen(DENSE, at, text, [x, w, rows], None, made)
        setting = choice.setting
    if b is not None:
        given["b"] = b
        text = known_text(_BIASED.traced.name, given)
    return text, list(given.values()), [pack(setting)] if setting else []


@public
def rows_plan(x: Tensor, w: Tensor, rows: Tensor, setting: Setting | None = None) -> Launch:
    """A bound launch; setting: bm, bn, bk, group, warps, stages."""
    return Launch(*_call(x, w, rows, setting))


@public
def list_plan(x: Tensor, w: Tensor, index: Index, setting: Setting | None = None) -> Launch:
    """A bound launch over the lists of an index of x; setting: bm, bn, bk, group, warps, stages."""
    return Launch(*Pattern.given(index, x, "list_plan(x, w, index)").call(x, w, setting))


def subject(x: Tensor, w: Tensor, b: Tensor | None = None, *, sparse: Any) -> Subject:
    """A product over an index, or of some rows, as something to tune; b makes no difference."""
    where = "tune(linear, x, w, sparse=rows)"
    check_operands(x, w, b, where)
    if backend_of(x.device) == "c":
        got, expected = "on the CPU torch multiplies", "tensors on a GPU"
        raise error("argument", where=where, name="op", got=got, expected=expected)
    if isinstance(sparse, Index):
        made = Pattern.given(sparse, x, where)
        return subject_of("linear(x, w)", None, lambda setting: (*made.call(x, w, setting), ()))
    if isinstance(sparse, Tensor) and sparse.dtype == torch.bool:
        _check_shape(sparse, tuple(x.shape[:1]), x, where)
        sparse = sparse.nonzero()[:, 0]
    rows = _rows(sparse, x, where)
    return subject_of("linear(x, w)", None, lambda setting: (*_call(x, w, rows, setting), ()))


linear.subject = subject  # type: ignore[attr-defined]
linear.rows_plan = rows_plan  # type: ignore[attr-defined]
linear.list_plan = list_plan  # type: ignore[attr-defined]
