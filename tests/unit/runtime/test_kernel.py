"""Launches: what goes to a compiled kernel, and when nothing does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilewright.runtime.kernel import triton_caller


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for a compiled kernel; `ran` holds what launches were given."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    ran: list[tuple[Any, ...]] = []
    made = SimpleNamespace(ran=ran, function="function", packed_metadata="packed")
    made.run = lambda *given: ran.append(given)
    return made


def test_addresses_sizes_and_scalars_go_in_order(compiled: Any) -> None:
    call = triton_caller(compiled, lambda n: 2 * n)
    call([torch.ones(3)], [64], [5], [0.5])
    assert compiled.ran == [(10, 1, 1, 7, "function", "packed", None, None, None, 64, 5, 0.5)]


def test_a_grid_of_nothing_is_not_launched(compiled: Any) -> None:
    triton_caller(compiled, lambda n: n)([torch.ones(3)], [64], [0], [])
    assert not compiled.ran


def test_a_kernel_without_tensors_is_not_launched(compiled: Any) -> None:
    """It writes nothing, and no tensor says on which device it would run."""
    triton_caller(compiled, lambda n: n)([], [], [5], [])
    assert not compiled.ran
