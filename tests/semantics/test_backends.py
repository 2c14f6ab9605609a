"""Compiled code means what the dense NumPy reference says: C, Triton's interpreter, and a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.places import Place
from semantics.programs import CASES, Case, exact
from semantics.structures import PATTERNS, Pattern, patterns

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def check(case: Case, dtype: torch.dtype = torch.float32) -> None:
    got = case.run()
    assert got.dtype == dtype
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(
        exact(got).reshape(case.want.shape), case.want, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", CASES)
def test_pattern(name: str, pattern: str, where: Place) -> None:
    width = 1 if pattern == "single" else 5
    check(CASES[name](PATTERNS[pattern], torch.float32, width, where.device))


@pytest.mark.parametrize("width", [1, 33, 48])
@pytest.mark.parametrize("name", CASES)
def test_width(name: str, width: int, where: Place) -> None:
    check(CASES[name](PATTERNS["mixed"], torch.float32, width, where.device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dtype(name: str, dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16 and name == "rows-product":
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    check(CASES[name](PATTERNS["giant"], dtype, 5, where.device), dtype)


@pytest.mark.parametrize("rows", [0, 1, 33, 48])
@pytest.mark.parametrize("name", ["spmm-sum", "spmm-max", "sddmm-dot", "rows-product"])
def test_rows(name: str, rows: int, where: Place) -> None:
    pattern = Pattern([[r % 5, 2] for r in range(rows)], 7)
    check(CASES[name](pattern, torch.float32, 6, where.device))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns(), st.sampled_from(sorted(CASES)), st.sampled_from([1, 33, 48]))
def test_any_pattern(where: Place, pattern: Pattern, name: str, width: int) -> None:
    check(CASES[name](pattern, torch.float32, width, where.device))
