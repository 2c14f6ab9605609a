"""Block products at given tile settings: several blocks in a step, feature tiles outermost, wide block rows."""

from __future__ import annotations

import pytest
import torch
from ops.matrices import close, matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.schedule.options import Setting

SETTINGS: list[Setting] = [
    {"blocks": 4},
    {"blocks": 2, "outer": 1, "width": 16},
    {"blocks": 8, "outer": 1, "width": 32, "warps": 2},
    {"outer": 1, "width": 16, "blocks": 1},
    {},
]


def blocky(device: torch.device, rows: int, columns: int) -> torch.Tensor:
    """Rows of 0, 1, few and all blocks."""
    gone = torch.ones(6, 5, dtype=torch.bool)
    gone[1, 2] = gone[3] = gone[4, ::2] = gone[5, 4] = False
    dense = torch.randn(6 * rows, 5 * columns)
    dense[gone.repeat_interleave(rows, 0).repeat_interleave(columns, 1)] = 0
    return dense.to(device)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("block", [(16, 16), (64, 16), (4, 8)], ids=str)
@pytest.mark.parametrize("width", [16, 45])
def test_product(block: tuple[int, int], width: int, setting: Setting, tiled: Place) -> None:
    dense = blocky(tiled.device, *block)
    A = tw.SparseTensor.from_dense(dense, format="bsr", block=block)
    x = randn(dense.shape[1], width, device=tiled.device)
    plan = tw.spmm.plan(A, x, setting)
    plan.launch()
    close(plan.out, dense @ x)
    several = setting.get("blocks", 1) > 1
    assert ("% " in plan.kernel.stages["scheduled"]) == several


def test_nothing_read_outside(tiled: Place) -> None:
    """The last step of a row has fewer blocks than others: NaN in rows of x that nothing refers to."""
    dense = blocky(tiled.device, 16, 16)
    dense[:, 16:32] = 0
    A = tw.SparseTensor.from_dense(dense, format="bsr", block=(16, 16))
    x = randn(dense.shape[1], 16, device=tiled.device)
    want = dense @ x
    x[16:32] = float("nan")
    plan = tw.spmm.plan(A, x, {"blocks": 4})
    plan.launch()
    close(plan.out, want)


@pytest.mark.parametrize("strips", [16, 4])
def test_strips_of_16_bits_are_multiplied_several_at_once(strips: int, tiled: Place) -> None:
    """Their number is no multiple of a step, nor are rows and features; what no strip names may be NaN."""
    dense = matrix(50, 70, 0.1, dtype=torch.float16, device=tiled.device)
    dense[:, 9] = 0
    x = randn(70, 21, dtype=torch.float16, device=tiled.device)
    want = (dense.double() @ x.double()).half()
    x[9] = float("nan")
    made = tw.SparseTensor.from_dense(dense).to_format(f"srbcrs.16.{strips}")
    plan = tw.spmm.plan(made, x)  # type: ignore[attr-defined]
    plan.launch()
    close(plan.out, want)
    assert " dot(" in plan.kernel.stages["tile"]
