"""Work lists in which rows that share columns are neighbours: the order, and what is computed with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.matrices import close, reduced
from ops.places import Place

import tilewright as tw
from tilewright.formats.structure import Structure
from tilewright.ops.plans import work_list_of
from tilewright.runtime.likeness import ranks
from tilewright.schedule.options import Setting

SETTING: Setting = {"rows": 4, "unroll": 2, "long": 16, "chunk": 64, "warps": 1, "alike": 1}


def pattern(lists: list[list[int]], columns: int) -> Structure:
    rows = torch.repeat_interleave(
        torch.arange(len(lists)), torch.tensor([len(r) for r in lists], dtype=torch.int64)
    )
    cols = torch.tensor([c for r in lists for c in r], dtype=torch.int64)
    made = tw.SparseTensor.from_coo(rows, cols, torch.ones(len(cols)), (len(lists), columns))
    return made.to_format("csr").structure


@given(st.lists(st.lists(st.integers(0, 8), max_size=9, unique=True).map(sorted), max_size=20))
def test_ranks_are_places(lists: list[list[int]]) -> None:
    s = pattern(lists, 9)
    assert s.indptr is not None and s.indices is not None
    got = ranks(s.indptr, s.indices, 9)
    assert sorted(got.tolist()) == list(range(len(lists)))
    assert torch.equal(got, ranks(s.indptr, s.indices, 9))


def test_rows_that_share_columns_come_together() -> None:
    """Rows of three families, dealt in turn: afterwards each unit holds rows of one family."""
    families = [[0, 3, 7, 11], [1, 4, 8, 12], [2, 5, 9, 13]]
    s = pattern([families[n % 3] for n in range(24)], 14)
    for alike, distinct in ((0, 12), (1, 4)):
        units = work_list_of(s, {**SETTING, "alike": alike}).segs[:, 0]
        assert s.indptr is not None and s.indices is not None
        for rows in units.tolist():
            seen = {c for r in rows for c in s.indices[s.indptr[r] : s.indptr[r + 1]].tolist()}
            assert len(seen) == distinct


@given(st.lists(st.lists(st.integers(0, 40), max_size=40, unique=True).map(sorted), max_size=30))
def test_every_entry_is_in_one_unit(lists: list[list[int]]) -> None:
    s = pattern(lists, 41)
    work = work_list_of(s, {**SETTING, "long": 8, "chunk": 16})
    entries = []
    for (trip, _, pieces, _), (rows, starts, stops) in zip(
        work.units.tolist(), work.segs.tolist(), strict=True
    ):
        step = 4 if pieces else 1
        for row, start, stop in zip(rows, starts, stops, strict=True):
            own = range(start, stop, step) if row >= 0 else range(0)
            assert len(own) <= trip
            entries += own
    assert sorted(entries) == list(range(s.nnz))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_the_same_product(reduce: str, tiled: Place) -> None:
    random = torch.Generator().manual_seed(3)
    dense = torch.randn(60, 90, generator=random).relu() * (torch.rand(60, 90) < 0.3)
    dense[5], dense[11] = 1.0, 0.0
    dense = dense.to(tiled.device)
    x = torch.randn(90, 20, generator=random).to(tiled.device)
    plan = tw.spmm.plan(tw.SparseTensor.from_dense(dense), x, SETTING, reduce=reduce)
    plan.out.fill_(float("nan"))
    plan.launch()
    close(plan.out, reduced(dense, x, reduce))


def test_the_same_entries(tiled: Place) -> None:
    random = torch.Generator().manual_seed(4)
    dense = (torch.rand(40, 50, generator=random) < 0.2).float().to(tiled.device)
    x, z = (torch.randn(n, 16, generator=random).to(tiled.device) for n in (40, 50))
    A = tw.SparseTensor.from_dense(dense)
    setting = {"rows": 4, "edges": 4, "chunk": 8, "inner": 16, "warps": 1, "alike": 1}
    plan = tw.sddmm.plan(A, x, z, setting)
    plan.out.fill_(float("nan"))
    plan.launch()
    rows, cols = dense.nonzero().t()
    close(plan.out, (x[rows] * z[cols]).sum(1))
