"""tw.linear on some rows: rows gathered in the load, results scattered in the store."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import dense_arg, dense_key, program_text
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.bound import Launch
from tilewright.ops.choice import Subject
from tilewright.ops.library import run
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.sparse import check_dense
from tilewright.ops.subject import DENSE, chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public


def rows_product(x: Param, w: Param, rows: Param, y: Param) -> None:
    m, n, k = axes("m n k")
    y.sized(x.dim(0), w.dim(0))
    rows.unique()
    y[rows[m], n] = fn.sum(k, x[rows[m], k] * w[n, k])


register(trace(rows_product))

_TEXTS: dict[object, str] = {}
LARGE: Setting = {"bm": 128, "bn": 256, "bk": 64, "group": 8, "warps": 8, "stages": 4}
SMALL: Setting = {"bm": 64, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 4}


@public
def linear(x: Tensor, w: Tensor, b: Tensor | None = None, *, sparse: Any = None) -> Tensor:
    """y = x @ w.T + b, where only the rows named by `sparse` are computed; the others count as zero rows.

    x: [rows, k]; w: [n, k]; sparse: distinct row numbers (int32 or int64), or a boolean mask over the rows
    (which waits for the device to count them). Rows that are not named give b (0 without b).

    >>> y = linear(x, w, b, sparse=rows)
    """
    where = "linear(x, w, b, sparse=rows)"
    if sparse is None:
        return torch.nn.functional.linear(x, w, b)
    rows = _rows(sparse, x, where)
    _check(x, w, b, where)
    y = run(*_call(x, w, rows, None))[0]
    return y if b is None else y + b


def _rows(sparse: Any, x: Tensor, where: str) -> Tensor:
    if not isinstance(sparse, Tensor) or sparse.dim() != 1:
        got = tuple(sparse.shape) if isinstance(sparse, Tensor) else repr(sparse)
        expected = "a list of row numbers or a boolean mask over the rows"
        raise error("argument", where=where, name="sparse", got=got, expected=expected)
    if sparse.device != x.device:
        raise error(
            "device", where=where, name="sparse", got=sparse.device, other="x", expected=x.device
        )
    if sparse.dtype == torch.bool:
        if sparse.shape[0] != x.shape[0]:
            raise error(
                "shape",
                where=where,
                name="sparse",
                got=tuple(sparse.shape),
                expected=f"{x.shape[0]} rows",
            )
        return sparse.nonzero()[:, 0]
    if sparse.dtype not in (torch.int32, torch.int64):
        raise error("index-dtype", where=where, name="sparse", got=sparse.dtype)
    return sparse


def _check(x: Tensor, w: Tensor, b: Tensor | None, where: str) -> None:
    check_dense(where, "x", x, 2, x.device, "x")
    check_dense(where, "w", w, 2, x.device, "x")
    if w.shape[1] != x.shape[1]:
        expected = f"{x.shape[1]} columns, as many as x"
        raise error("shape", where=where, name="w", got=tuple(w.shape), expected=expected)
    if b is not None:
        check_dense(where, "b", b, 1, x.device, "x")
        if b.shape[0] != w.shape[0]:
            raise error(
                "shape", where=where, name="b", got=tuple(b.shape), expected=f"{w.shape[0]} entries"
            )


def _call(
    x: Tensor, w: Tensor, rows: Tensor, setting: Setting | None
) -> tuple[str, list[Tensor], list[int]]:
    rows = rows.contiguous()
    key = (dense_key(x), dense_key(w), dense_key(rows))
    text = (
        None if torch.compiler.is_compiling() else _TEXTS.get(key)
    )  # a guard on it would fail later
    if text is None:
        args = (dense_arg("x", x), dense_arg("w", w), dense_arg("rows", rows))
        text = program_text("rows_product", args)
        if not torch.compiler.is_compiling():
            _TEXTS[key] = text
    if setting is None and torch.compiler.is_compiling():
        setting = usual(x, rows)
    elif setting is None:
        many = rows.shape[0].bit_length()
        at = (text, x.shape, w.shape[0], many, x.get_device(), cpu_backend())
        choice = DENSE.get(at)
        if choice is None:
            choice = chosen(DENSE, at, text, [x, w, rows], None, usual(x, rows))
        setting = choice.setting
    return text, [x, w, rows], [pack(setting)] if setting else []


def usual(x: Tensor, rows: Tensor) -> Setting:
    """Tiles by the number of rows."""
    if backend_of(x.device) != "triton" or x.dtype.itemsize != 2:
        return {}
    return LARGE if rows.shape[0] >= 1024 else SMALL


@public
def rows_plan(x: Tensor, w: Tensor, rows: Tensor, setting: Setting | None = None) -> Launch:
    """A bound launch; setting: bm, bn, bk, group, warps, stages."""
    return Launch(*_call(x, w, rows, setting))


def subject(x: Tensor, w: Tensor, b: Tensor | None = None, *, sparse: Any) -> Subject:
    """A product of some rows as something to tune; b is added afterwards and makes no difference."""
    where = "tune(linear, x, w, sparse=rows)"
    _check(x, w, b, where)
    rows = _rows(sparse, x, where)
    return subject_of("linear(x, w)", None, lambda setting: (*_call(x, w, rows, setting), ()))


linear.subject = subject  # type: ignore[attr-defined]
linear.rows_plan = rows_plan  # type: ignore[attr-defined]
