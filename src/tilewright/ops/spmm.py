"""tw.spmm: y[i, f] = reduce over j of a[i, j] * x[j, f]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.library import run
from tilewright.ops.registry import register
from tilewright.ops.sparse import as_sparse, bundle, check_device, rows_first
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


for _program in (spmm_sum, spmm_mean, spmm_max, spmm_min):
    register(trace(_program))


def spmm(A: Any, x: Tensor, *, values: Tensor | None = None, reduce: str = "sum") -> Tensor:
    a = rows_first(as_sparse(A, "spmm(A, x)"))
    arg, tensors, ints = bundle("a", a)
    tensors.append(x)
    made = run(program_text(f"spmm_{reduce}", (arg, dense_arg("x", x))), tensors, ints)
    return made[0]
