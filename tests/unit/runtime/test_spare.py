"""Counters for graphs: zero, of nobody else, and made anew where there are none left."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tilewright.runtime import spare

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "_ALL", {})
    monkeypatch.setattr(spare, "_LEFT", {})


def span(t: torch.Tensor) -> range:
    return range(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size())


def test_no_two_share_a_counter() -> None:
    spare.ready(CPU)
    made = [spare.zero(n, d, CPU) for n in (1, 3, 64) for d in (torch.int64, torch.int32)]
    assert [len(t) for t in made] == [1, 1, 3, 3, 64, 64]
    assert all(not t.any() for t in made)
    spans = sorted((span(t) for t in made), key=lambda r: r.start)
    assert all(a.stop <= b.start for a, b in pairwise(spans))
    whole = span(spare._ALL[CPU])
    assert all(r.start in whole for r in spans)


@pytest.mark.parametrize("size", [0, spare.MOST + 1])
def test_others_are_made(size: int) -> None:
    spare.ready(CPU)
    made = spare.zero(size, torch.int64, CPU)
    assert made.shape == (size,) and not made.any()
    assert len(spare._LEFT[CPU]) == spare.ROOM


def test_none_are_left() -> None:
    assert not spare.zero(2, torch.int64, CPU).any()  # nothing was made ready
    spare.ready(CPU)
    spare._LEFT[CPU] = spare._LEFT[CPU][:1]
    before = spare.zero(1, torch.int64, CPU)
    after = spare.zero(1, torch.int64, CPU)
    assert before.data_ptr() == spare._ALL[CPU].data_ptr()
    assert after.data_ptr() not in span(spare._ALL[CPU])
