"""tw.spmv: y[i] = reduce over j of a[i, j] * x[j].

In: a sparse matrix and a vector. Out: a vector. `spmm` takes vectors too; this one refuses all else.

    y = spmv(A, x)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tilewright.ops.sparse import as_sparse, check_dense
from tilewright.ops.spmm import has_heads, spmm
from tilewright.support.errors import error
from tilewright.support.places import public


@public
def spmv(A: Any, x: Tensor, *, values: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """y[i] = reduce over j of A[i, j] * x[j], over stored entries.

    A: [n, m] as for spmm; x: [m]. Rows with nothing stored give 0 (sum, mean), -inf (max), inf (min).

    >>> y = spmv(A, x)
    """
    where = "spmv(A, x)"
    a = as_sparse(A, where)
    a = a if values is None else a.with_values(values)
    check_dense(where, "x", x, 1, a.device, "A")
    if has_heads(a):
        expected = "one number for each entry; values with heads go with spmm"
        got = None if a.values is None else tuple(a.values.shape)
        raise error("shape", where=where, name="values", got=got, expected=expected)
    return spmm(a, x, reduce=reduce)
