"""The same computations in plain PyTorch: what a user would write without a compiler.

Owns: the peers of the demo, also run in float64 as its reference. In: a CSR matrix and x. Out: functions of
(values, x), differentiable. The index arrays they need are made beforehand, outside of any timing.

    peers = relu_max_peers(A);  y = peers["gather + scatter_reduce"](values, x)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor

Fn = Callable[[Tensor, Tensor], Tensor]


def arrays(a: SparseTensor) -> tuple[Tensor, Tensor, Tensor]:
    """indptr, the row of every entry, its column."""
    indptr, cols = a.structure.indptr, a.structure.indices
    assert indptr is not None and cols is not None
    rows = torch.repeat_interleave(torch.arange(a.shape[0], device=a.device), indptr.diff())
    return indptr, rows, cols


def relu_max_peers(a: SparseTensor) -> dict[str, Fn]:
    """y[i, f] = max over j of a[i, j] * relu(x[j, f]), -inf where a row is empty."""
    indptr, rows, cols = arrays(a)
    empty = (indptr.diff() == 0)[:, None]

    def scatter(values: Tensor, x: Tensor) -> Tensor:
        sent = x.relu().index_select(0, cols) * values[:, None]
        lowest = x.new_full((a.shape[0], x.shape[1]), -torch.inf)
        return lowest.scatter_reduce(0, rows[:, None].expand_as(sent), sent, "amax")

    def segment(values: Tensor, x: Tensor) -> Tensor:
        sent = x.relu().index_select(0, cols) * values[:, None]
        return torch.segment_reduce(sent, "max", offsets=indptr, axis=0, unsafe=True)

    def product(values: Tensor, x: Tensor) -> Tensor:
        matrix = torch.sparse_csr_tensor(indptr, cols, values, a.shape, check_invariants=False)
        return torch.sparse.mm(matrix, x.relu(), "amax").masked_fill(empty, -torch.inf)

    made: dict[str, Fn] = {"gather + scatter_reduce": scatter, "gather + segment_reduce": segment}
    if a.device.type == "cpu":  # torch has this product for CPU tensors alone
        made["torch.sparse.mm, amax"] = product
    return made
