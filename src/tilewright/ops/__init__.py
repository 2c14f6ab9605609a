"""Operators: programs in the language, compiled by the pipeline, with gradients."""

from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ops import attention as _attention
from tilewright.ops import einsum as _einsum
from tilewright.ops import linear as _linear
from tilewright.ops import program as _program
from tilewright.ops import sddmm as _sddmm
from tilewright.ops import spmm as _spmm
from tilewright.ops import tuning as _tuning

spmm = _spmm.spmm
sddmm = _sddmm.sddmm
linear = _linear.linear
attention = _attention.attention
einsum = _einsum.einsum
program = _program.program
tune = _tuning.tune

spmm.plan = _spmm.plan  # type: ignore[attr-defined]
sddmm.plan = _sddmm.plan  # type: ignore[attr-defined]
linear.rows_plan = _linear.rows_plan  # type: ignore[attr-defined]
attention.plan = _attention.plan  # type: ignore[attr-defined]


def _matmul(a: SparseTensor, x: Tensor) -> Tensor:
    return spmm(a, x)


SparseTensor.__matmul__ = _matmul  # type: ignore[operator, attr-defined, unused-ignore]

__all__ = ["attention", "einsum", "linear", "program", "sddmm", "spmm", "tune"]
