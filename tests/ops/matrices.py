"""Matrices for tests of operators, as users hold them, beside the dense ones they stand for.

for kind, make in KINDS.items(): A = make(dense)       # torch CSR, CSC, COO, BSR, SciPy, SparseTensor
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor, autograd

import tilewright as tw

# In random directions, which a wrong element of a Jacobian changes too: element by element takes many times as long
gradcheck = partial(autograd.gradcheck, fast_mode=True)
gradgradcheck = partial(autograd.gradgradcheck, fast_mode=True)

TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}
KINDS: dict[str, Callable[[Tensor], Any]] = {
    "torch-csr": lambda d: d.to_sparse_csr(),
    "torch-csc": lambda d: d.to_sparse_csc(),
    "torch-coo": lambda d: d.to_sparse_coo(),
    "torch-bsr": lambda d: d.to_sparse_bsr((2, 4)),
    "scipy-csr": lambda d: sp.csr_array(d.cpu().numpy()),
    "scipy-coo": lambda d: sp.coo_array(d.cpu().numpy()),
    "scipy-csc": lambda d: sp.csc_matrix(d.cpu().numpy()),
    "scipy-dia": lambda d: sp.dia_array(d.cpu().numpy()),
    "tensor": lambda d: tw.SparseTensor.from_dense(d),
    "tensor-csc": lambda d: tw.SparseTensor.from_dense(d).to_format("csc"),
    "tensor-coo": lambda d: tw.SparseTensor.from_dense(d).to_format("coo"),
    "tensor-bsr": lambda d: tw.SparseTensor.from_dense(d, format="bsr", block=(2, 4)),
}


def matrix(
    rows: int = 10,
    cols: int = 12,
    fill: float = 0.3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
) -> Tensor:
    """A dense matrix with zeros; row 2 is empty, row 3 is full."""
    made = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, cols, generator=made, dtype=torch.float64)
    dense = dense * (torch.rand(rows, cols, generator=made) < fill)
    if rows > 3:
        dense[2] = 0
        dense[3] = torch.randn(cols, generator=made)
    return dense.to(dtype).to(device)


def randn(
    *shape: int, seed: int = 1, dtype: torch.dtype = torch.float32, device: Any = "cpu"
) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype).to(device)


def leaf(t: Tensor) -> Tensor:
    return t.detach().clone().requires_grad_()


def close(got: Tensor, want: Tensor, dtype: torch.dtype | None = None) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), **TOLERANCE[dtype or got.dtype])


def reduced(dense: Tensor, x: Tensor, reduce: str) -> Tensor:
    """The product over entries that are not zero, by dense torch operations that have gradients."""
    terms = dense[:, :, None] * x[None]
    held = (dense != 0)[:, :, None]
    if reduce == "sum":
        return torch.where(held, terms, 0).sum(1)
    if reduce == "mean":
        return torch.where(held, terms, 0).sum(1) / held.sum(1).clamp(min=1)
    empty = float("-inf") if reduce == "max" else float("inf")
    return getattr(torch.where(held, terms, empty), f"a{reduce}")(1)
