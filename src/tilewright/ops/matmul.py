"""tw.ops.matmul: a @ b of which only what an operand holds is computed.

y = matmul(a, b, sparse="k")        # for each 32 rows of a, the k's where one of them is not 0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.ops.found import found_product
from tilewright.ops.index import Index
from tilewright.ops.pattern import Pattern, check_device
from tilewright.ops.sparse import check_dense, device_of
from tilewright.support.errors import error
from tilewright.support.places import public

AXES = {"rows": "i", "k": "k", "columns": "n"}
EXPECTED = "'rows', 'k', 'columns', or a tw.Index of a or b"


@public
def matmul(a: Tensor, b: Tensor, *, sparse: Any = None) -> Tensor:
    """a @ b, of which only what `sparse` names is computed. a: [m, k]; b: [k, n]

    "rows": rows of a that are not all 0; "k": for each 32 rows of a, the k's where one of them is not 0; "columns":
    columns of b that are not all 0. They change nothing: the result and all gradients are those of the whole product.

    A tw.Index of a (rows, k's, or k's for each group of rows) or of b (k's or columns; where the shapes are the same it
    is one of a): what is not named counts as 0, and is no part of the computation: it gets no gradient.

    Nothing waits for the device.

    >>> y = matmul(torch.relu(h), w, sparse="k")
    """
    where = "matmul(a, b, sparse=...)"
    if sparse is None:
        return torch.matmul(a, b)
    check_dense(where, "a", a, 2, device_of(a), "a")
    check_dense(where, "b", b, 2, a.device, "a")
    if a.shape[1] != b.shape[0]:
        expected = f"{a.shape[1]} rows, as many as a has columns"
        raise error("shape", where=where, name="b", got=tuple(b.shape), expected=expected)
    if isinstance(sparse, str) and sparse in AXES:
        return found_product(AXES[sparse], a, b.t())
    return _pattern(a, b, sparse, where).times(a, b.t())


def _pattern(a: Tensor, b: Tensor, sparse: Any, where: str) -> Pattern:
    if not isinstance(sparse, Index):
        raise error("argument", where=where, name="sparse", got=repr(sparse), expected=EXPECTED)
    if tuple(sparse.shape) == tuple(b.shape) and tuple(a.shape) != tuple(b.shape):
        return _of_b(sparse, b, where)
    return Pattern.given(sparse, a, where)


def _of_b(index: Index, b: Tensor, where: str) -> Pattern:
    """k's or columns that an index of b names."""
    check_device(index.positions, b, where)
    k, columns = index.tile
    if index.positions.dim() == 2 or (k is not None and columns is not None):
        got, expected = "a list for each group of k, which is summed up", "rows or columns of b"
        raise error("argument", where=where, name="sparse", got=got, expected=expected)
    return Pattern(
        "k" if columns is None else "n", index.positions, index.counts, k or columns or 1
    )
