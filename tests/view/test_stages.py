"""Stages as text."""

from __future__ import annotations

import pytest
import torch

from tilewright.runtime.kernel import Kernel
from tilewright.view import samples, stages


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return samples.launch("spmm").kernel


def test_every_stage_has_a_heading(kernel: Kernel) -> None:
    told = stages.show(kernel)
    assert [t for k, t in stages.TITLES.items() if k in kernel.stages and t not in told] == []


def test_some_stages(kernel: Kernel) -> None:
    assert "stage I:" in stages.show(kernel, only=("coord",))
    assert "stage II" not in stages.show(kernel, only=("coord",))


def test_helpers_of_c_are_left_out() -> None:
    told = stages.readable("c", "#include <math.h>\n\nvoid f(int n) {\n}\n")
    assert told == "// 1 lines of includes and helpers left out\nvoid f(int n) {\n}"


def test_two_stages_stand_beside_each_other(kernel: Kernel) -> None:
    lines = stages.beside(kernel, "flat", "scheduled", width=121).splitlines()
    assert all(len(line) <= 121 for line in lines)
    assert any("for i in serial" in line and "for i in grid" in line for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the stages of C")
@pytest.mark.parametrize("name", samples.NAMES)
def test_samples(name: str) -> None:
    assert "void " in samples.code(name)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="one of coord"):
        samples.code("spmm", ("flat", "nothing"))


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="one of"):
        samples.code("nothing")
