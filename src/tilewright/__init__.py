"""Tilewright: sparse tensors, index notation and fast kernels for PyTorch.

import tilewright as tw
A = tw.SparseTensor.from_torch(csr)
y = tw.spmm(A, x)
"""

from typing import Any

from tilewright import ops
from tilewright.formats import rules
from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions as _functions
from tilewright.language.trace import axes
from tilewright.ops import (
    attention,
    bsr_matmul,
    einsum,
    linear,
    program,
    sddmm,
    softmax,
    spmm,
    spmv,
    tune,
)
from tilewright.ops.doors import block_mask, graph, ragged
from tilewright.ops.index import Index
from tilewright.support.errors import TilewrightError
from tilewright.support.version import VERSION
from tilewright.view.explain import explain

__version__ = VERSION

__all__ = [
    "Index",
    "SparseTensor",
    "TilewrightError",
    "attention",
    "axes",
    "block_mask",
    "bsr_matmul",
    "einsum",
    "explain",
    "graph",
    "linear",
    "ops",
    "program",
    "ragged",
    "rules",
    "sddmm",
    "softmax",
    "spmm",
    "spmv",
    "tune",
]


def __getattr__(name: str) -> Any:
    """The words of the notation: tw.sum, tw.max, tw.relu, tw.where ..."""
    if name in _functions.__all__:
        return getattr(_functions, name)
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
