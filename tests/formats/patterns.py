"""Random patterns for the tests of formats: empty rows, zero entries, one giant row, duplicates."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from tilewright.formats import SparseTensor

KINDS = ("mixed", "empty", "one", "giant", "duplicates", "full")


def dense_of(rows: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """The plain loop that defines a list of entries."""
    dense = torch.zeros(*shape, *values.shape[1:], dtype=values.dtype)
    for i, j, v in zip(rows.tolist(), cols.tolist(), values, strict=True):
        dense[i, j] += v
    return dense


def entries(kind: str, shape: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    n, m = shape
    count = {"empty": 0, "one": 1, "giant": 2 * m, "duplicates": 3 * n}.get(kind, n * m // 3)
    rows = torch.randint(n, (count,), generator=made)
    cols = torch.randint(m, (count,), generator=made)
    if kind == "giant":
        rows = torch.full_like(rows, n // 2)
    if kind == "duplicates":
        rows, cols = rows // 2, cols // 2
    if kind == "full":
        at = torch.randperm(n * m, generator=made)
        rows, cols = at // m, at % m
    return rows, cols


def tensor(
    kind: str,
    shape: tuple[int, int],
    dtype: torch.dtype = torch.int64,
    trailing: tuple[int, ...] = (),
    seed: int = 0,
) -> SparseTensor:
    """A coo tensor with small integer values, so that every sum is exact."""
    rows, cols = entries(kind, shape, seed)
    values = torch.randint(-9, 9, (rows.shape[0], *trailing)).double()
    return SparseTensor.from_coo(rows.to(dtype), cols.to(dtype), values, shape)


tensors = st.builds(
    tensor,
    st.sampled_from(KINDS),
    st.tuples(st.integers(1, 13), st.integers(1, 13)),
    st.sampled_from((torch.int32, torch.int64)),
    st.sampled_from(((), (2,))),
    st.integers(0, 99),
)
