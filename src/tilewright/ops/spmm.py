"""tw.spmm: y[i, f] = reduce over j of a[i, j] * x[j, f]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.bound import Launch
from tilewright.ops.library import run
from tilewright.ops.plans import SETTINGS, listed, with_lists
from tilewright.ops.registry import register
from tilewright.ops.sparse import as_sparse, bundle, check_dense, rows_first
from tilewright.schedule.options import Setting
from tilewright.support.errors import error

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


def spmm(A: Any, x: Tensor, *, values: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """y[i, f] = reduce over j of A[i, j] * x[j, f], over stored entries.

    A: [n, m] torch CSR/CSC/COO/BSR, SciPy or SparseTensor; x: [m, features] (or [m] for a vector).
    values: other values on A's structure. Rows with nothing stored give 0 (sum, mean), -inf (max), inf (min).

    >>> y = spmm(A, x, reduce="mean")
    """
    a = as_sparse(A, "spmm(A, x)")
    if values is not None:
        a = a.with_values(values)
    if x.dim() == 1:
        return spmm(a, x[:, None], reduce=reduce)[:, 0]
    return run(*_call(a, x, reduce, None))[0]


def _call(
    a: SparseTensor, x: Tensor, reduce: str, setting: Setting | None
) -> tuple[str, list[Tensor], list[int]]:
    """The operator's arguments."""
    heads = a.values is not None and a.values.dim() == 2 and a.structure.format != "bsr"
    _check(a, x, reduce, heads)
    a = rows_first(a)
    s = a.structure
    arg, tensors, ints = bundle("a", a)
    span = x.shape[-1]
    if x.is_cuda and s.format == "csr" and not torch.compiler.is_compiling():
        grad = torch.is_grad_enabled() and x.requires_grad
        prepared = s.transposed is not None or setting is not None
        if prepared:
            names, more, plan = listed(arg, s, span, x.dtype, grad, setting)
            arg = with_lists(arg, names)
            at = len(arg.arrays) - len(names)
            tensors[at:at] = more
            ints += plan
    tensors.append(x)
    name = "spmm_heads_sum" if heads else f"spmm_{reduce}"
    return program_text(name, (arg, dense_arg("x", x))), tensors, ints


def _check(a: SparseTensor, x: Tensor, reduce: str, heads: bool) -> None:
    where = "spmm(A, x)"
    if reduce not in REDUCE:
        raise error("argument", where=where, name="reduce", got=repr(reduce), expected=f"one of {REDUCE}")
    check_dense(where, "x", x, 3 if heads else 2, a.device, "A")
    if x.shape[0] != a.shape[1]:
        expected = f"{a.shape[1]} rows, one for each column of A"
        raise error("shape", where=where, name="x", got=tuple(x.shape), expected=expected)
    if heads and reduce != "sum":
        raise error("argument", where=where, name="reduce", got=reduce, expected="sum with head values")


def plan(A: Any, x: Tensor, setting: Setting | None = None, reduce: str = "sum") -> Launch:
    """A bound launch of spmm, at a given setting or at the one that would be chosen."""
    a = rows_first(as_sparse(A, "spmm.plan(A, x)"))
    if x.is_cuda and a.structure.transposed is None:
        a.structure.prepare()
    return Launch(*_call(a, x, reduce, setting))


__all__ = ["SETTINGS", "plan", "spmm"]
