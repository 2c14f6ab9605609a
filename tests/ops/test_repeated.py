"""Calls of one kind on one structure, again and again: what is decided once never answers for anything that changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import close, matrix, randn
from torch import Tensor

import tilewright as tw
from tilewright.ops.ready import served
from tilewright.runtime.kernel import SMALL, CFunction

ROWS, COLS, WIDTH = 10, 12, 8
Op = Callable[[tw.SparseTensor, Tensor], Tensor]


def rows_of(x: Tensor) -> Tensor:
    return randn(ROWS, *x.shape[1:], seed=2, dtype=x.dtype)


def edges(A: tw.SparseTensor, x: Tensor) -> Tensor:
    return tw.sddmm(A, rows_of(x), x).to_dense()


def wanted(op: Op, A: tw.SparseTensor, x: Tensor) -> Tensor:
    dense = A.to_dense()
    return dense @ x if op is tw.spmm else dense * (rows_of(x) @ x.t())


@pytest.fixture
def A() -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(matrix(ROWS, COLS)).prepare()


@pytest.fixture(params=[tw.spmm, edges], ids=["spmm", "sddmm"])
def op(request: Any, A: tw.SparseTensor) -> Op:
    """An operator whose calls on x[COLS, WIDTH] are known already."""
    for _ in range(2):
        request.param(A, randn(COLS, WIDTH))
    made: Op = request.param
    return made


def in_place(x: Tensor) -> Tensor:
    return x.mul_(2)


def other_memory(x: Tensor) -> Tensor:
    x.data = randn(COLS, WIDTH, seed=5)
    return x


def set_to(x: Tensor) -> Tensor:
    return x.set_(randn(COLS, WIDTH, seed=6))


def turned(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def offset(x: Tensor) -> Tensor:
    return torch.cat((x[:1], x))[1:]


def narrower(x: Tensor) -> Tensor:
    return x[:, :5].contiguous()


def none(x: Tensor) -> Tensor:
    return x[:, :0]


CHANGES = (in_place, other_memory, set_to, turned, offset, narrower, none, torch._neg_view)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_operand(op: Op, A: tw.SparseTensor, change: Callable[[Tensor], Tensor]) -> None:
    x = randn(COLS, WIDTH)
    op(A, x)
    x = change(x)
    close(op(A, x), wanted(op, A, x))


def test_changed_values(op: Op, A: tw.SparseTensor) -> None:
    x = randn(COLS, WIDTH)
    assert A.values is not None
    A.values.mul_(3)
    close(op(A, x), wanted(op, A, x))
    A.values.data = torch.ones_like(A.values)
    close(op(A, x), wanted(op, A, x))
    other = A.with_values(A.values.repeat_interleave(2)[::2] * 2)
    close(op(other, x), wanted(op, other, x))


def test_ones_and_values(op: Op, A: tw.SparseTensor) -> None:
    x, ones = randn(COLS, WIDTH), A.with_values(None)
    for _ in range(2):
        close(op(ones, x), wanted(op, ones, x))
        close(op(A, x), wanted(op, A, x))


def test_outputs_are_new(op: Op, A: tw.SparseTensor) -> None:
    """Plain tensors, laid out as torch does, that can be resized."""
    x = randn(COLS, WIDTH)
    first, second = tw.spmm(A, x), tw.spmm(A, x)
    assert first.data_ptr() != second.data_ptr() and first.stride() == (WIDTH, 1)
    assert second.resize_(64, 64).shape == (64, 64)
    none_made = [tw.spmm(A, x[:, :0]) for _ in range(2)]
    assert {t.stride() for t in none_made} == {torch.empty(ROWS, 0).stride()}


def test_inference_mode_and_back(op: Op, A: tw.SparseTensor) -> None:
    x = randn(COLS, WIDTH)
    with torch.inference_mode():
        inside = tw.spmm(A, x)
    outside = tw.spmm(A, x)
    assert inside.is_inference() and not outside.is_inference()
    outside.requires_grad_()


def test_gradients_in_between(op: Op, A: tw.SparseTensor) -> None:
    x = randn(COLS, WIDTH)
    for wants in (True, False, True):
        made = op(A, x.requires_grad_(wants))
        assert made.requires_grad == wants
        close(made.detach(), wanted(op, A, x.detach()))


def test_a_large_output_follows_the_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing kept, storages can be resized: also those of calls that are known."""
    A, x = tw.SparseTensor.from_dense(torch.eye(2048)), torch.ones(2048, 512)
    for keep in ("8", "0"):
        monkeypatch.setenv("TILEWRIGHT_KEEP", keep)
        made = [tw.spmm(A, x) for _ in range(2)][1]
        assert made.untyped_storage().resizable() == (keep == "0") and bool((made == 1).all())


def test_operands_are_not_kept(A: tw.SparseTensor) -> None:
    x, z = randn(COLS, 7), randn(ROWS, 7)
    values = torch.ones(A.nnz, dtype=torch.float64)
    gone = [weakref.ref(t) for t in (x, z, values)]
    for _ in range(2):
        tw.spmm(A.with_values(values), x)
        tw.sddmm(A.with_values(values), z, x)
    del x, z, values
    gc.collect()
    assert [r() for r in gone] == [None] * 3


def test_those_who_watch_see_known_calls(op: Op, A: tw.SparseTensor) -> None:
    with served() as found:
        op(A, randn(COLS, WIDTH))
    assert len(found) == 1


class Recorded:
    """In place of a C function."""

    def __call__(self, *given: Any) -> None:
        self.given = [getattr(g, "value", g) for g in given]


def test_bound_launches() -> None:
    """Addresses that stay, addresses that are new, sizes, and the threads of this moment."""
    fn, threads = Recorded(), torch.get_num_threads()
    stays, large, small, out = torch.ones(3), torch.ones(SMALL + 1), torch.ones(2), torch.ones(2, 4)
    launch = CFunction(fn, 4, 2, ()).bind(
        [stays, large, large, out], {1: 1, 2: 0, 3: 2}, (5, 1 << 40), [out]
    )
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            (made,) = launch(small, large)
            assert fn.given[:4] == [t.data_ptr() for t in (stays, large, small, made)]
            assert fn.given[4:] == [5, 1 << 40, count] and made.shape == out.shape
    finally:
        torch.set_num_threads(threads)


def test_bound_launches_of_small_tensors_have_one_thread() -> None:
    fn, small = Recorded(), torch.ones(2)
    (made,) = CFunction(fn, 2, 0, ()).bind([small, small], {1: 0}, (), [small])()
    assert fn.given == [small.data_ptr(), made.data_ptr(), 1]
