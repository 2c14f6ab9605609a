"""Searches that go on from the place before: two sorted sides are merged, and nothing depends on their being sorted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ops.matrices import close
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright import driver
from tilewright.ir.interp import run_flat
from tilewright.ir.parse import parse
from tilewright.ops.backend import backend
from tilewright.schedule.follow import follow
from tilewright.support.errors import ScheduleError


@tw.program
def times(a: Any, b: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * b[i, j]


@tw.program
def turned(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * b[j, i] * x[j, f])


@tw.program
def product(a: Any, b: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i, k] = tw.sum(j, a[i, j] * b[j, k])


@tw.program
def plus(a: Any, b: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] + b[i, j]


def matrix(rows: int, cols: int, seed: int, order: str = "sorted", giant: bool = True) -> Any:
    """Empty rows, a full row; entries in order, in any order, or (twice) some of them in two parts."""
    rng = np.random.default_rng(seed)
    keep = rng.random((rows, cols)) < 0.3
    keep[::5] = False
    if giant:
        keep[rows // 2] = True
    at = np.argwhere(keep)
    if order == "twice":
        at = np.concatenate([at, at[:: len(at) // 5 + 1]])
    if order != "sorted":
        at = at[rng.permutation(len(at))]
    values = torch.from_numpy(rng.integers(-8, 9, len(at)) / 4.0).float()
    rows_, cols_ = torch.from_numpy(at.T.copy())
    return tw.SparseTensor.from_coo(rows_, cols_, values, (rows, cols)).to_format("csr")


ORDERS = ("sorted", "any", "twice")


@pytest.mark.parametrize("second", ORDERS)
@pytest.mark.parametrize("first", ORDERS)
def test_any_order_on_either_side(first: str, second: str, where: Place) -> None:
    a, b = matrix(11, 13, 1, first).to(where.device), matrix(11, 13, 2, second).to(where.device)
    close(times(a, b).to_dense(), a.to_dense() * b.to_dense())
    close(plus(a, b), a.to_dense() + b.to_dense())


@pytest.mark.parametrize("second", ORDERS)
def test_by_columns(second: str, where: Place) -> None:
    a, b = matrix(9, 14, 1).to(where.device), matrix(14, 9, 2, second).to(where.device)
    x = torch.randn(14, 6, device=where.device)
    close(turned(a, b, x), (a.to_dense() * b.to_dense().T) @ x)
    close(product(a, b), a.to_dense() @ b.to_dense())


@pytest.mark.parametrize(
    ("run", "rows", "cols"), [(times, 11, 13), (turned, 13, 11), (product, 13, 9), (plus, 11, 13)]
)
def test_the_search_is_merged(run: Any, rows: int, cols: int) -> None:
    """On the CPU each search begins where the last one ended, in the view in which its range stays."""
    given = [matrix(11, 13, 1), matrix(rows, cols, 2)]
    given += [torch.randn(13, 4)] if run is turned else []
    with backend("c"):
        (kernel,) = run.kernels(*given)
    assert "start=near" in kernel.stages["scheduled"]
    assert "tw_find_" not in kernel.stages["c"].split("TW_SEARCH(int64_t, i64)")[1]


def test_each_thread_has_its_own_cursor() -> None:
    a, b = matrix(3000, 60, 1, giant=False), matrix(3000, 60, 2, giant=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with backend("c"):
            close(times(a, b).to_dense(), a.to_dense() * b.to_dense())
    finally:
        torch.set_num_threads(before)


SEEK = """\
@flat
def seek(
    held: index[i32[n]], keys: index[i32[m]], starts: index[i64[m]], y: out[i64[m]], n, m, lo, hi
):
    for p in serial(m):
        at = find(keys[p], held[lo:hi], start=starts[p])
        y[p] = at"""


def sought(held: Tensor, keys: Tensor, starts: Tensor, lo: int, hi: int) -> Tensor:
    kernel = driver.resume(SEEK)
    y = torch.full((len(keys),), 77)
    tensors = [held, keys, starts, y]
    kernel.call(tensors, [t.data_ptr() for t in tensors], [len(held), len(keys), lo, hi], [])
    return y


@pytest.mark.parametrize(("n", "lo", "hi"), [(40, 0, 40), (40, 3, 29), (5, 2, 3), (7, 4, 4)])
def test_where_a_search_begins_does_not_matter(n: int, lo: int, hi: int) -> None:
    """Every key from every start: C, the interpreter and the definition agree."""
    held = torch.from_numpy(np.sort(np.random.default_rng(n).choice(60, n, replace=False))).int()
    some = [-(2**63), *range(-1, n + 2), 2**62]
    keys = torch.arange(-1, 62, dtype=torch.int32).repeat_interleave(len(some))
    starts = torch.tensor(some).repeat(63)
    part = held[lo:hi]
    at = lo + torch.searchsorted(part, keys)
    there = (at < hi) & (held[at.clamp(max=n - 1)] == keys)
    want = torch.where(there, at, -1 - at)
    assert torch.equal(sought(held, keys, starts, lo, hi), want)
    arrays = {"held": held.numpy(), "keys": keys[:500].numpy(), "starts": starts[:500].numpy()}
    sizes = {"n": n, "m": 500, "lo": lo, "hi": hi}
    assert np.array_equal(run_flat(parse(SEEK), arrays, sizes)["y"], want[:500].numpy())


@pytest.mark.parametrize(
    "line",
    ["at = find(7, held[lo:hi])", "at = find(keys[p], held[p:hi])", "at = keys[p]"],
    ids=["one key", "another range", "no search"],
)
def test_merge_refuses(line: str) -> None:
    p = parse(SEEK.replace("at = find(keys[p], held[lo:hi], start=starts[p])", line))
    with pytest.raises(ScheduleError, match="no search in it has growing keys"):
        follow(p, "p")
