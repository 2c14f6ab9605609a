"""Statistics on their way to the host: nothing waits, nothing is mixed up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilewright.pit import watch
from tilewright.pit.choice import Seen
from tilewright.pit.watch import EVERY, OFTEN, Watch


def test_on_the_cpu_at_once() -> None:
    w = Watch()
    w.send("rows", torch.tensor([7]), of=10, groups=10)
    w.send("k", torch.tensor([3, 0, 5]), of=30, groups=3)
    assert w.seen() == {"rows": Seen(7, 10, 1, 10), "k": Seen(8, 30, 5, 3)}


def test_one_list_of_several_groups_is_taken_to_be_even() -> None:
    w = Watch()
    w.send("blocks", torch.tensor([9]), of=40, groups=4)
    assert w.seen()["blocks"] == Seen(9, 40, 3, 4)


def test_all_are_looked_for_in_the_first_call_and_then_seldom() -> None:
    w = Watch()
    assert [n for n in range(2 * EVERY + 1) if w.due()] == [0, EVERY, 2 * EVERY]


def test_the_family_in_use_tells_now_and_then() -> None:
    w = Watch()
    told = [n for n in range(2 * OFTEN + 1) if (w.due(), w.telling())[1]]
    assert told == [0, OFTEN, 2 * OFTEN]


def test_what_was_known_is_no_news() -> None:
    w = Watch()
    assert not w.news()
    w.send("rows", torch.tensor([7]), of=10, groups=10)
    assert w.news() and w.seen() and not w.news()
    w.send("rows", torch.tensor([7]), of=10, groups=10)
    assert not w.news()


class _Event:
    """Stands in for an event of a device: done when the test says so."""

    ready = False

    def record(self, stream: object) -> None: ...

    def query(self) -> bool:
        return _Event.ready


class _Counts:
    """Counts of a device; the copy takes what is there when it is made."""

    is_cuda, device, shape, dtype = True, "cuda", (1,), torch.int32

    def __init__(self, n: int) -> None:
        self.n = n


def test_nothing_waits_and_newer_counts_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    class Host(torch.Tensor):
        def copy_(self, other: Any, non_blocking: bool = False) -> Any:  # type: ignore[override]
            assert non_blocking
            return self.fill_(other.n)

    made: Any = lambda shape, dtype, pin_memory: torch.zeros(1, dtype=dtype).as_subclass(Host)
    monkeypatch.setattr(watch.torch, "empty", made)
    monkeypatch.setattr(watch.torch.cuda, "Event", _Event)
    monkeypatch.setattr(watch.torch.cuda, "current_stream", lambda device: "a stream")
    w, counts = Watch(), [_Counts(3), _Counts(5)]
    w.send("rows", counts[0], 10, 10)  # type: ignore[arg-type]
    w.send("rows", counts[1], 10, 10)  # type: ignore[arg-type]
    assert w.seen() == {}
    _Event.ready = True
    assert w.seen()["rows"].kept == 3
    w.send("rows", counts[1], 10, 10)  # type: ignore[arg-type]
    assert w.seen()["rows"].kept == 5
