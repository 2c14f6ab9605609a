"""tw.softmax: p[i, j] = exp(e[i, j]) / sum over stored k of exp(e[i, k]), on e's structure.

Three passes forward: each row's maximum m and sum t, kept in the accumulator's precision, then the entries. As
exact as torch's: a logarithm of the sum would lose digits of large scores. Two passes backward, from e, m and t.

    p = softmax(e)                    # e: a SparseTensor, values [nnz] or [nnz, heads]
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ir.coord import Stored
from tilewright.language import functions as fn
from tilewright.language.grad import Gradient
from tilewright.language.trace import Param, Traced, axes, trace
from tilewright.ops.call import call
from tilewright.ops.registry import register
from tilewright.ops.sparse import as_rows, as_sparse, stored_rank
from tilewright.support.errors import error
from tilewright.support.places import public


def row_softmax(e: Param, p: Param, m: Param, t: Param) -> None:
    i, j, h = axes("i j h")
    m[i, h] = fn.max(j, e[i, j, h])
    t[i, h] = fn.sum(j, fn.exp(e[i, j, h] - m[i, h]))
    p[i, j, h] = Stored(e[i, j, h]) * (fn.exp(e[i, j, h] - m[i, h]) / t[i, h])


def row_softmax_pull(e: Param, m: Param, t: Param, d_p: Param, s: Param) -> None:
    """The mean of the gradient over a row, weighted by p."""
    i, j, h = axes("i j h")
    s[i, h] = fn.sum(j, d_p[i, j, h] * fn.exp(e[i, j, h] - m[i, h])) / t[i, h]


def row_softmax_d_e(e: Param, m: Param, t: Param, d_p: Param, s: Param, d_e: Param) -> None:
    i, j, h = axes("i j h")
    p = fn.exp(e[i, j, h] - m[i, h]) / t[i, h]
    d_e[i, j, h] = Stored(e[i, j, h]) * (p * (d_p[i, j, h] - s[i, h]))


def _kept(program: Any) -> Traced:
    """Sums of rows in the accumulator's precision."""
    return replace(trace(program), kept=("m", "t", "s"))


register(
    _kept(row_softmax),
    Gradient((_kept(row_softmax_pull),), {"e": (_kept(row_softmax_d_e),)}, saved=("m", "t")),
)


@public
def softmax(e: Any) -> SparseTensor:
    """The softmax of each row's stored entries, on the same structure; trailing dimensions each by themselves.

    e: [n, m], values [nnz, ...]. Rows without entries have nothing to give. -inf counts as 0, and a row of
    nothing but -inf is NaN, as in torch.softmax.

    >>> p = softmax(sddmm(G, s_dst, s_src, op="add"))
    """
    where = "softmax(e)"
    a = as_rows(as_sparse(e, where, "e"))
    v = a.explicit_values()
    if not v.dtype.is_floating_point:
        raise error("dtype", where=where, name="e", got=v.dtype, expected="a floating point dtype")
    first = stored_rank(a.structure)
    flat = v.reshape(*v.shape[:first], prod(v.shape[first:]))
    made: SparseTensor = call("row_softmax", {"e": a.with_values(flat)}, [])[0]
    values: Tensor = made.explicit_values()
    return SparseTensor(a.structure, values.reshape(v.shape))
