"""Numbers that callers give as places: none beside the arrays, on the CPU; a GPU is asked only on request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.matrices import close, randn

import tilewright as tw
from tilewright.ops import reach


@tw.program
def named(x: Any, rows: Any, count: Any, y: Any) -> None:
    f, r = tw.axes("f r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y[t, f] = x[t, f] * 2.0


@tw.program
def picked(x: Any, at: Any, y: Any) -> None:
    m, f = tw.axes("m f")
    y[m, f] = x[at[m], f]


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("bad", [-1, 6, 5_000_000])
def test_refused(bad: int) -> None:
    x, w = randn(6, 4), randn(5, 4)
    for call in (
        lambda: named(x, ints(1, bad), ints(2)),
        lambda: picked(x, ints(bad, 1)),
        lambda: tw.linear(x, w, sparse=torch.tensor([2, bad])),
        lambda: tw.linear(x, w, sparse=torch.tensor([2, bad + 2**32])),
    ):
        with pytest.raises(tw.TilewrightError, match=r"indices from 0 to 5"):
            call()


@tw.program
def next_row(x: Any, at: Any, y: Any) -> None:
    m, f = tw.axes("m f")
    y[m, f] = x[at[m] + 1, f]


def test_what_is_added_counts() -> None:
    x = randn(6, 4)
    close(next_row(x, ints(-1, 4)), x[[0, 5]])
    for bad in (-2, 5):
        with pytest.raises(tw.TilewrightError, match=r"indices from 0 to 5"):
            next_row(x, ints(bad))


@tw.program
def typed(a: Any, t: Any, w: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * w[t[i, j]])


@pytest.mark.parametrize("format", ["csr", "coo", "ell"])
def test_types_of_edges(format: str) -> None:
    a = tw.SparseTensor.from_dense(torch.eye(4)).to_format(format)
    kinds = torch.tensor([0, 1, 1, 0])
    close(typed(a, a.with_values(kinds), torch.tensor([2.0, 3.0])), torch.tensor([2.0, 3, 3, 2]))
    for bad in (-1, 2):
        with pytest.raises(tw.TilewrightError, match=r"t holds .*\n(.*\n)*.*indices from 0 to 1"):
            typed(a, a.with_values(kinds.clamp(bad, bad)), torch.tensor([2.0, 3.0]))


def test_one_of_several_counts() -> None:
    x = randn(6, 4)
    want = torch.zeros(6, 4)
    want[3] = 2 * x[3]
    close(named(x, ints(3, 99), ints(1, 7, 9)), want)


def test_entries_that_do_not_count_may_hold_anything() -> None:
    x = randn(6, 4)
    want = torch.zeros(6, 4)
    want[3] = 2 * x[3]
    close(named(x, ints(3, -7, 99), ints(1)), want)
    close(picked(x, ints()), x[:0])


def test_a_gpu_is_asked_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Far:
        """A tensor that cannot be looked at without waiting."""

        device = torch.device("cuda")
        looked = 0

        def numel(self) -> int:
            return 1

        def aminmax(self) -> tuple[int, int]:
            self.looked += 1
            return 0, 0

    far: Any = Far()
    monkeypatch.setattr(reach, "ordinary", lambda tensors: True)
    reach.check_places(far, 4, "rows", "a call")
    assert far.looked == 0
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    reach.check_places(far, 4, "rows", "a call")
    assert far.looked == 1


def test_rows_named_twice_are_refused() -> None:
    """Their gradient of w would count them twice, while the output has them once."""
    x, w = randn(6, 4), randn(3, 4)
    with pytest.raises(tw.TilewrightError, match="sparse = a number twice"):
        tw.linear(x, w, sparse=ints(2, 5, 2))
    assert tw.linear(x, w, sparse=ints(5, 2)).count_nonzero(1).tolist() == [0, 0, 3, 0, 0, 3]
