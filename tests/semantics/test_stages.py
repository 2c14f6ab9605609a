"""Every program means the same at every stage, on every pattern: interpreters I, II, III, tile form against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from semantics.programs import CASES, user_attention
from semantics.stages import STAGES, run_stage
from semantics.structures import PATTERNS, Pattern, patterns

from tilewright.formats.rules import hyb
from tilewright.ops.backend import backend
from tilewright.ops.plans import work_list_of
from tilewright.ops.sparse import rows_first
from tilewright.ops.spmm import _call as spmm_call

SMALL = [n for n in PATTERNS if n not in ("33x48-seed0", "mixed-i64")]
WIDTH = {"single": 1, "mixed": 33}


def close(got: np.ndarray, want: np.ndarray, rtol: float = 2e-5) -> None:
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=rtol, atol=rtol)


def stage_of(name: str, stage: str, p: Pattern, dtype: torch.dtype, width: int) -> tuple:  # type: ignore[type-arg]
    with backend("c" if stage == "for-c" else "triton"):
        case = CASES[name](p, dtype, width, "cpu")
        return run_stage(stage, *case.call), case.want


@pytest.mark.parametrize("pattern", SMALL)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", CASES)
def test_stage(name: str, stage: str, pattern: str) -> None:
    width = 3 if name == "block-attention" else WIDTH.get(pattern, 3)
    got, want = stage_of(name, stage, PATTERNS[pattern], torch.float32, width)
    close(got, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stage", ["coord", "for-c", "tile"])
@pytest.mark.parametrize("name", CASES)
def test_dtype(name: str, stage: str, dtype: torch.dtype) -> None:
    """16-bit numbers are accumulated in 32 and rounded once."""
    got, want = stage_of(name, stage, PATTERNS["mixed"], dtype, 5)
    close(got, want, {torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype])


@pytest.mark.parametrize("width", [1, 33, 48])
@pytest.mark.parametrize("stage", ["for-c", "for-triton", "tile"])
@pytest.mark.parametrize("name", ["spmm-sum", "sddmm-dot", "sddmm-add", "rows-product"])
def test_width(name: str, stage: str, width: int) -> None:
    got, want = stage_of(name, stage, PATTERNS["33x48-seed0"], torch.float32, width)
    close(got, want)


@pytest.mark.parametrize("stage", ["for-c", "for-triton", "tile"])
@pytest.mark.parametrize("name", ["spmm-sum", "sddmm-dot", "sddmm-add", "block-attention"])
def test_no_width(name: str, stage: str) -> None:
    """Operands without features: nothing may be read (the interpreters see reads past the end)."""
    got, want = stage_of(name, stage, PATTERNS["mixed"], torch.float32, 0)
    close(got, want)


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("stage", ["for-triton", "tile"])
@pytest.mark.parametrize("columns", [1, 3])
def test_work_list(how: str, stage: str, columns: int) -> None:
    """The giant row is cut in pieces that several programs share, and so are all rows where columns are cut."""
    p = PATTERNS["giant"]
    setting = {"rows": 4, "unroll": 2, "long": 8, "chunk": 16, "warps": 1, "columns": columns}
    with backend("triton"):
        case = CASES[f"spmm-{how}"](p, torch.float32, 33, "cpu")
        _, tensors, *_ = case.call
        a, x = p.tensor().with_values(tensors[-2]), tensors[-1]
        if columns > 1:
            a = rows_first(a.decompose(hyb(columns, 2)))
        listed = spmm_call(a, x, how, setting)
        pieces = work_list_of(a.structure, setting).units[:, 2]
        assert pieces.max() > 1 and (pieces.min() < -1) == (columns > 1)
        close(run_stage(stage, *listed, []), case.want)


@pytest.mark.parametrize("stage", ["for-triton", "tile"])
@pytest.mark.parametrize("unroll", [1, 8])
@pytest.mark.parametrize("rows", [2, 16])
def test_lanes_without_a_row(stage: str, unroll: int, rows: int) -> None:
    """What a program reads of each row is not read where a unit has rows left over."""
    setting = {"rows": rows, "unroll": unroll, "long": 8, "chunk": 16, "warps": 1}
    with backend("triton"):
        case = user_attention(PATTERNS["giant"], torch.float32, 5, "cpu", setting)
        close(run_stage(stage, *case.call), case.want)


@settings(max_examples=12)
@given(patterns(), st.sampled_from(sorted(CASES)), st.sampled_from([1, 3, 33]))
def test_any_pattern(pattern: Pattern, name: str, width: int) -> None:
    for stage in ("for-c", "tile"):
        got, want = stage_of(name, stage, pattern, torch.float32, width)
        close(got, want)
