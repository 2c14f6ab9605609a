"""How threads share rows in C: every row once, whatever the lengths, however many threads there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tilewright as tw
from tilewright import driver
from tilewright.schedule.record import parse_steps
from tilewright.support.errors import ScheduleError

LENGTHS = {
    "no rows": [],
    "one row": [3],
    "empty rows": [0] * 40,
    "even": [3] * 100,
    "a giant first": [5000] + [1] * 60,
    "a giant last": [1] * 60 + [5000],
    "giants among nothing": [0, 0, 900, 0, 0, 0, 900, 0],
    "many short": [2, 0, 1] * 3000,
}


@pytest.fixture(params=[1, 2, 3, 7])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


COLUMNS = 50


def entries_of(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    return rows, torch.arange(rows.numel()) * 7 % COLUMNS


def rows_of(lengths: list[int], dtype: torch.dtype = torch.int32) -> tw.SparseTensor:
    rows, cols = (t.to(dtype) for t in entries_of(lengths))
    return tw.SparseTensor.from_coo(rows, cols, None, (len(lengths), COLUMNS))


@pytest.mark.parametrize("grain", [64, 1024, 4096])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_row_once(lengths: list[int], dtype: torch.dtype, grain: int, threads: int) -> None:
    """Large enough for all threads, by the width of x; a row that is left out, or done twice, counts wrong."""
    A, x = rows_of(lengths, dtype), torch.ones(COLUMNS, 4096)
    setting = {"width": 128, "prefetch": 16, "grain": grain}
    plan = tw.spmm.plan(A, x, setting=setting)
    assert "tw_take(" in plan.kernel.stages["c"]
    plan.out.fill_(torch.nan)
    plan.launch()
    want = torch.tensor(lengths, dtype=torch.float32)[:, None].expand(-1, 4096)
    assert torch.equal(plan.out, want)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_entries(lengths: list[int], threads: int) -> None:
    x, z = torch.randn(len(lengths), 600), torch.randn(COLUMNS, 600)
    rows, cols = entries_of(lengths)
    e = tw.sddmm(rows_of(lengths), x, z)
    torch.testing.assert_close(e.values, (x[rows] * z[cols]).sum(1), rtol=1e-4, atol=1e-4)


def test_rows_that_are_gone() -> None:
    """A step after `balance` may leave no loop that it speaks of."""
    flat = tw.spmm.plan(rows_of([1, 2]), torch.ones(COLUMNS, 4)).kernel.stages["flat"]
    steps = parse_steps("kind(i, grid)\nbalance(a_indptr)\npersistent(i, 2)")
    with pytest.raises(ScheduleError, match="no turns of a grid loop any more"):
        driver.resume(flat, schedule=steps)
    kept = driver.resume(flat, schedule=steps[:2])
    assert "tw_cut_i32(a_indptr, n_i, tw_piece, tw_pieces)" in kept.text
    again = driver.resume(kept.stages["scheduled"])  # as text, and back
    assert again.text == kept.text
