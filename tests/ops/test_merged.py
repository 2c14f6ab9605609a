"""Parts that are alike in one launch: the same results as the whole, however the parts were cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.matrices import TOLERANCE, gradcheck
from ops.places import TILED, Place, at
from torch import Tensor

import tilewright as tw
from tilewright.formats.merge import merged, rows_of
from tilewright.ops.plans import work_list_of
from tilewright.ops.ready import served
from tilewright.support.errors import TilewrightError

R = tw.rules
SETTING = {"rows": 4, "unroll": 2, "long": 8, "chunk": 6, "warps": 1}
REDUCES = ("sum", "mean", "max", "min")
EMPTY = {"sum": 0.0, "mean": 0.0, "max": -torch.inf, "min": torch.inf}
# rules whose parts are lists of rows; what they leave is csr
ALIKE = {
    "buckets": (R.hyb(1, 2),),
    "ranges": (R.hyb(2, 1),),
    "odd": (R.long_rows(3), R.hyb(3, 0)),
    "columns": (R.column_parts(4, "csr"),),
    "padded": (R.padded(3),),
    "nothing": (R.Rule(lambda left: left.coords[0] < 0, "ell"),),
}


def entries(
    n: int, m: int, lengths: list[int], seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of these lengths, with duplicates, in no order; columns from m - 2 on are never used."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.repeat_interleave(torch.arange(n), torch.tensor(lengths))
    cols = torch.randint(0, max(m - 2, 1), (len(rows),), generator=g)
    order = torch.randperm(len(rows), generator=g)
    return rows[order], cols[order], torch.randn(len(rows), generator=g).to(dtype)


def expected(a: tuple[Tensor, Tensor, Tensor], n: int, x: Tensor, reduce: str) -> Tensor:
    rows, cols, values = a
    each = values.double()[:, None] * x.double()[cols]
    made = torch.full((n, x.shape[1]), EMPTY[reduce], dtype=torch.float64)
    how = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[reduce]
    at = rows[:, None].expand_as(each)
    return made.scatter_reduce(0, at, each, how, include_self=reduce in ("max", "min"))


@st.composite
def cases(draw: Any) -> tuple[Any, ...]:
    n, m = draw(st.integers(1, 8)), draw(st.integers(3, 40))
    length = st.one_of(st.just(0), st.integers(0, 9), st.integers(20, 30))
    lengths = draw(st.lists(length, min_size=n, max_size=n))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    rules = draw(st.lists(st.sampled_from(sorted(ALIKE)), min_size=1, max_size=2))
    width, reduce = draw(st.sampled_from([3, 17])), draw(st.sampled_from(REDUCES))
    return n, m, lengths, dtype, rules, width, reduce, draw(st.integers(0, 9))


@settings(max_examples=12, deadline=None)
@given(cases())
def test_any_parts_in_one_launch(case: tuple[Any, ...]) -> None:
    n, m, lengths, dtype, rules, width, reduce, seed = case
    a = entries(n, m, lengths, seed, dtype)
    x = torch.randn(m, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[m - 2 :] = torch.nan
    want = expected(a, n, x, reduce)
    whole = tw.SparseTensor.from_coo(*a, (n, m))
    places = [(TILED, None), (TILED, SETTING), ("c", None)]
    for name, setting in places if width == 3 else places[:2]:  # C is compiled for each width
        with at(name) as place, served() as kernels:
            parts = whole.to(place.device).decompose(*(r for k in rules for r in ALIKE[k]))
            given = x.to(place.device)
            if setting is None:
                got = tw.spmm(parts, given, reduce=reduce)
            else:
                plan = tw.spmm.plan(parts, given, setting, reduce=reduce)
                plan.launch()
                plan.launch()  # counters are left as they were found
                got = plan.out
        assert len(kernels) <= 1
        torch.testing.assert_close(got.double().cpu(), want, **TOLERANCE[dtype])


@settings(max_examples=8, deadline=None)
@given(cases(), st.sampled_from([2, 3, 4]))
def test_ranges_of_columns_of_any_matrix(case: tuple[Any, ...], columns: int) -> None:
    """A sorted matrix is cut where it lies: no other array than the list of work."""
    n, m, lengths, dtype, _, width, reduce, seed = case
    a = entries(n, m, lengths, seed, dtype)
    x = torch.randn(m, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    order = torch.argsort(a[0] * m + a[1], stable=True)
    csr = tw.SparseTensor.from_coo(*(t[order] for t in a), (n, m)).to_format("csr")
    with at(TILED) as place:
        csr, given = csr.to(place.device), x.to(place.device)
        plan = tw.spmm.plan(csr, given, {**SETTING, "columns": columns}, reduce=reduce)
        plan.launch()
        plan.launch()
    want = expected(a, n, x, reduce)
    torch.testing.assert_close(plan.out.double().cpu(), want, **TOLERANCE[dtype])


def graph(place: Place, dtype: torch.dtype = torch.float32) -> tw.SparseTensor:
    lengths = [0, 3, 40, 1, 0, 2, 9, 5, 4, 4, 12, 1]
    rows, cols, values = entries(12, 30, lengths, 0, dtype)
    made = tw.SparseTensor.from_coo(rows, cols, values, (12, 30))
    return made.to_format("csr").to(place.device)


@pytest.mark.parametrize("rules", ["buckets", "ranges"])
def test_one_launch(rules: str, where: Place) -> None:
    """Whatever is reduced, and for results on the entries."""
    whole = graph(where)
    a = whole.decompose(*ALIKE[rules]).prepare()
    x, z = (torch.randn(n, 5, device=where.device) for n in (30, 12))
    for reduce in ("sum", "max"):
        with served() as kernels:
            got = tw.spmm(a, x, reduce=reduce)
        assert len(kernels) == 1, reduce
        torch.testing.assert_close(got, tw.spmm(whole, x, reduce=reduce))
    with served() as kernels:
        e = tw.sddmm(a, z, x)
    assert len(kernels) == 1 and e.structure is a.structure
    torch.testing.assert_close(e.to_dense(), tw.sddmm(whole, z, x).to_dense())
    torch.testing.assert_close(tw.softmax(e).values, tw.softmax(tw.sddmm(whole, z, x)).values)


def test_blocks_stay_a_launch_of_their_own(where: Place) -> None:
    dense = torch.zeros(12, 30, device=where.device)
    dense[4:8, 8:12], dense[:, ::7], dense[2] = 1.0, 2.0, 3.0
    whole = tw.SparseTensor.from_dense(dense)
    a = whole.decompose(R.blocks(4, 1.0), R.hyb(2, 2)).prepare()
    s = merged(a.structure)
    assert s.format == "parts+dbsr.4.4+csr" and len(a.structure.parts) > 3
    x = torch.randn(30, 6, device=where.device)
    with served() as kernels:
        got = tw.spmm(a, x)
    assert len(kernels) == 2
    torch.testing.assert_close(got, dense @ x)
    listed = where.backend == "triton"
    assert any(k[0] == "list" for k in rows_of(s).plans if isinstance(k, tuple)) == listed


def test_nothing_is_copied_where_nothing_moves(fast: Place) -> None:
    """Sorted rows in buckets are the rows of the matrix: values are read as they lie."""
    a = tw.SparseTensor.from_dense(torch.eye(9, device=fast.device) + 1)
    s = merged(a.decompose(R.hyb(3, 1)).structure)
    assert s.format == "csr" and s.perm is None and s.plans["columns"] == 3
    assert torch.equal(s.indices, a.structure.indices)


def test_made_once(fast: Place) -> None:
    a = graph(fast).decompose(R.hyb(2, 2))
    tw.spmm(a, torch.randn(30, 4, device=fast.device))
    first = merged(a.structure)
    tw.spmm(a.with_values(a.values * 2), torch.randn(30, 4, device=fast.device))
    assert merged(a.structure) is first


def test_pieces_of_ranges_are_combined_in_order(tiled: Place) -> None:
    """Groups of short rows and cut long ones share rows between units; two runs give the same bits."""
    a = graph(tiled).decompose(R.hyb(3, 2))
    s, setting = merged(a.structure), {**SETTING, "columns": 3}
    pieces = work_list_of(s, setting).units[:, 2]
    assert int(pieces.min()) == -3 and int(pieces.max()) > 3
    plan = tw.spmm.plan(a, torch.randn(30, 20, device=tiled.device), setting)
    plan.launch()
    first = plan.out.clone()
    plan.launch()
    assert torch.equal(plan.out, first)


def test_columns_in_no_order_are_not_cut(tiled: Place) -> None:
    x = torch.randn(30, 4, device=tiled.device)
    with pytest.raises(TilewrightError, match="columns are in no order"):
        tw.spmm.plan(graph(tiled), x, {**SETTING, "columns": 2})


@pytest.mark.parametrize("rules", ["buckets", "ranges"])
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_gradients(rules: str, reduce: str, fast: Place) -> None:
    a = graph(fast, torch.float64).decompose(*ALIKE[rules]).prepare()
    v = a.values.clone().requires_grad_()
    x = torch.randn(30, 2, dtype=torch.float64, device=fast.device, requires_grad=True)
    keep = lambda y: torch.where(y.isfinite(), y, 0)
    product = lambda v, x: keep(tw.spmm(a, x, values=v, reduce=reduce))
    assert gradcheck(product, (v, x), fast_mode=True)
