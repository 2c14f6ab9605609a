"""Memory of large outputs: kept for the next one, bounded, never handed out twice."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import tilewright as tw
from tilewright.runtime import pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are Linux's")
SHAPE = (1024, 1024)  # 4 MB


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()
    pages.settle()
    monkeypatch.setattr(pages, "_idle", [])
    yield


def test_the_next_output_has_the_memory_of_the_last() -> None:
    first = pages.empty(SHAPE, torch.float32)
    where = first.data_ptr()
    assert where % 64 == 0 and first.shape == SHAPE and first.is_contiguous()
    del first
    assert pages.settle() == 4 << 20
    again = pages.empty(SHAPE, torch.float32)
    assert again.data_ptr() == where and pages.settle() == 0


def test_what_came_back_last_goes_out_first() -> None:
    """Caches may hold it still."""
    first, second = (pages.empty(SHAPE, torch.float32) for _ in range(2))
    where = second.data_ptr()
    del first
    del second
    assert pages.empty(SHAPE, torch.float32).data_ptr() == where


def test_memory_that_is_in_use_is_not_handed_out() -> None:
    first = pages.empty(SHAPE, torch.float32).fill_(1.0)
    view = first[1:, ::2]
    del first
    second = pages.empty(SHAPE, torch.float32).fill_(2.0)
    assert (view == 1).all() and second.data_ptr() != view.data_ptr() - 4096


def test_gradients_keep_what_they_need() -> None:
    """The product's output is needed by the square's gradient long after its name is gone."""
    x = torch.randn(2048, 512, requires_grad=True)
    A = tw.SparseTensor.from_dense(torch.eye(2048))
    loss = (tw.spmm(A, x) ** 2).sum()
    for _ in range(3):
        tw.spmm(A, x.detach() * 0)
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_KEEP", "8")
    held = [pages.empty(SHAPE, torch.float32) for _ in range(5)]
    held.clear()
    assert pages.settle() == 8 << 20
    monkeypatch.setenv("TILEWRIGHT_KEEP", "0")
    assert pages.settle() == 0
    plain = pages.empty(SHAPE, torch.float32)
    del plain
    assert pages.settle() == 0


def test_small_ones_are_plain() -> None:
    made = pages.empty((4, 4), torch.float32)
    del made
    assert pages.settle() == 0


@pytest.mark.parametrize("asked", [3 << 20, 5 << 20, 64 << 20])
def test_a_block_serves_what_it_nearly_fits(asked: int) -> None:
    large = pages.empty((6 << 20,), torch.uint8)
    where = large.data_ptr()
    del large
    assert (pages.empty((asked,), torch.uint8).data_ptr() == where) == (asked == 5 << 20)


def test_zeros() -> None:
    pages.empty(SHAPE, torch.float32).fill_(3.0)
    assert (pages.zeros(SHAPE, torch.float32) == 0).all()
    assert (pages.zeros((2, 3), torch.bfloat16) == 0).all()


def test_threads() -> None:
    """Each has what it wrote, whoever's memory came back in between."""
    wrong: list[int] = []

    def work(mine: int) -> None:
        for _ in range(20):
            t = pages.empty(SHAPE, torch.float32).fill_(mine)
            if not bool((t == mine).all()):
                wrong.append(mine)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
