"""How many programs a launch has is known before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright import driver
from tilewright.schedule.record import apply, parse_steps
from tilewright.support.errors import ScheduleError


def test_grids_have_a_known_size() -> None:
    @tw.program
    def scores(a: Any, x: Any, e: Any) -> None:
        i, j, f = tw.axes("i j f")
        e[i, j] = a[i, j] * tw.sum(f, x[j, f])

    a, x = tw.SparseTensor.from_dense(torch.eye(3)), torch.ones(3, 4)
    (kernel,) = scores.kernels(a, x)
    p = driver.read(kernel.stages["flat"])
    for said in ("kind(i, grid)\nkind(p_j_o, grid)", "kind(p_j_o, grid)\nkind(i, grid)"):
        with pytest.raises(ScheduleError, match="there are would depend on i"):
            apply(p, parse_steps(f"split(p_j, 2)\n{said}"))
