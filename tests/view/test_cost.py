"""Bytes and operations against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.analysis.cost import Cost
from tilewright.ops.backend import backend
from tilewright.view import parts
from tilewright.view.rates import MACHINES, Rates, rates_of, seconds_of

N, M, F = 37, 53, 24


def sparse(index: torch.dtype = torch.int64, values: bool = True) -> tw.SparseTensor:
    """37 x 53; rows of unequal length, some empty."""
    keep = torch.rand(N, M) < torch.rand(N, 1) * 0.4
    keep[::5] = False
    rows, cols = (t.to(index) for t in keep.nonzero(as_tuple=True))
    made = tw.SparseTensor.from_coo(rows, cols, torch.randn(len(rows)) if values else None, (N, M))
    return made.to_format("csr")


def launched(launch: Any) -> Cost:
    (part,) = parts.of_launch(launch)
    return parts.cost(part)


@pytest.mark.parametrize("name", ["c", "triton"])
@pytest.mark.parametrize("index, width", [(torch.int32, 4), (torch.int64, 8)])
def test_spmm(index: torch.dtype, width: int, name: str) -> None:
    """Every index, value and row of x and y once; a row of x for each entry; a product and a sum each."""
    a, x = sparse(index), torch.randn(M, F)
    with backend(name):
        cost = launched(tw.spmm.plan(a, x))  # type: ignore[attr-defined]
    nnz = a.nnz
    touched = (N + 1) * width + nnz * width + nnz * 4 + M * F * 4 + N * F * 4
    assert a.structure.index_dtype == index
    assert cost.compulsory == touched
    assert cost.gathered == nnz * F * 4
    assert cost.flops == 2 * nnz * F


def test_ones_are_not_read() -> None:
    a, x = sparse(values=False), torch.randn(M, F)
    cost = launched(tw.spmm.plan(a, x))  # type: ignore[attr-defined]
    assert cost.compulsory == (N + 1) * 8 + a.nnz * 8 + M * F * 4 + N * F * 4


def test_half() -> None:
    a = sparse()
    a = a.with_values(a.values.half())  # type: ignore[union-attr]
    cost = launched(tw.spmm.plan(a, torch.randn(M, F).half()))  # type: ignore[attr-defined]
    assert cost.gathered == a.nnz * F * 2


def test_few_entries_touch_few_rows() -> None:
    """No more of x counts than entries can name."""
    a = tw.SparseTensor.from_coo(torch.tensor([1]), torch.tensor([2]), torch.ones(1), (N, M))
    cost = launched(tw.spmm.plan(a, torch.randn(M, F)))  # type: ignore[attr-defined]
    assert cost.traffic["x"].bytes == F * 4


def test_nothing_stored() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    a = tw.SparseTensor.from_coo(empty, empty, torch.zeros(0), (N, M))
    cost = launched(tw.spmm.plan(a, torch.randn(M, F)))  # type: ignore[attr-defined]
    assert cost.gathered == cost.flops == 0
    assert cost.compulsory == (N + 1) * 8 + N * F * 4


def test_sddmm() -> None:
    a, x, z = sparse(), torch.randn(N, F), torch.randn(M, F)
    cost = launched(tw.sddmm.plan(a, x, z))  # type: ignore[attr-defined]
    touched = (N + 1) * 8 + a.nnz * 8 + 2 * a.nnz * 4 + N * F * 4 + M * F * 4
    assert cost.compulsory == touched
    assert cost.gathered == a.nnz * F * 4
    assert cost.flops == 2 * a.nnz * F + a.nnz


def test_rows_of_a_product() -> None:
    x, w, rows = torch.randn(N, F), torch.randn(M, F), torch.arange(0, N, 3)
    cost = launched(tw.linear.rows_plan(x, w, rows))  # type: ignore[attr-defined]
    some = len(rows)
    assert cost.flops == 2 * some * M * F
    assert cost.gathered == some * F * 4
    assert cost.compulsory == some * F * 4 + M * F * 4 + some * 8 + some * M * 4


def test_a_dense_program() -> None:
    @tw.program
    def twice(x: Any, y: Any) -> None:
        i, f = tw.axes("i f")
        y[i, f] = tw.exp(x[i, f]) * 2.0

    name, given, floats = twice.inputs(torch.randn(N, F))
    (part,) = parts.of_call(name, given, floats)
    cost = parts.cost(part)
    assert (cost.compulsory, cost.gathered, cost.flops) == (2 * N * F * 4, 0, 2 * N * F)


def test_inner_reductions_do_not_count_for_outer_features() -> None:
    """In attention the scores do not depend on the features of v."""
    q = torch.randn(1, 1, 32, 8)
    v = torch.randn(1, 1, 32, 64)
    mask = tw.block_mask(torch.ones(2, 2, dtype=torch.bool), block=16)
    cost = launched(tw.attention.plan(q, q, v, mask))  # type: ignore[attr-defined]
    scores = 32 * 32 * 8 * 3  # a product with the scale, one with k, a sum
    assert scores < cost.flops < scores + 32 * 32 * 64 * 8


def test_seconds_are_those_of_the_slowest_part() -> None:
    a, x = sparse(), torch.randn(M, F)
    cost = launched(tw.spmm.plan(a, x))  # type: ignore[attr-defined]
    slow = Rates("slow gathers", 1e12, 1e3, cache=1e9)
    assert seconds_of(cost, slow) == pytest.approx(cost.gathered / 1e3)
    late = Rates("late", 1e30, 1e30, launch=1.0)
    assert seconds_of(cost, late) == pytest.approx(1.0)
    assert seconds_of(cost, Rates("no cache", 1e3, 1e30)) == pytest.approx(
        max(cost.gathered, cost.compulsory) / 1e3
    )
    assert seconds_of(cost, Rates("computing", 1e30, 1e30, flops=2.0)) == cost.flops / 2


def test_rates() -> None:
    here = rates_of(torch.device("cpu"))
    assert 1e8 < here.memory < 1e13
    assert MACHINES["H200"].memory == 4.27e12 and MACHINES["H200"].gather == 8.8e12
