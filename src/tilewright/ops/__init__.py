"""Operators: programs in the language, compiled by the pipeline, with gradients."""

from tilewright.ops import attention as _attention
from tilewright.ops import linear as _linear
from tilewright.ops import sddmm as _sddmm
from tilewright.ops import spmm as _spmm

spmm = _spmm.spmm
spmm.plan = _spmm.plan  # type: ignore[attr-defined]
sddmm = _sddmm.sddmm
sddmm.plan = _sddmm.plan  # type: ignore[attr-defined]
linear = _linear.linear
linear.rows_plan = _linear.rows_plan  # type: ignore[attr-defined]
attention = _attention.attention
attention.plan = _attention.plan  # type: ignore[attr-defined]

__all__ = ["attention", "linear", "sddmm", "spmm"]
