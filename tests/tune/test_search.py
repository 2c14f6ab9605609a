"""Successive halving: budget, agreement, failures, interruption. Time is the test's own: load does not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilewright.tune import measure, progress
from tilewright.tune import search as search_module
from tilewright.tune.search import Found, search

CPU = torch.device("cpu")
GOOD = torch.arange(4.0)


class Clock:
    """Stands for the module `time`; calls move it on."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter


CLOCK = Clock()


@pytest.fixture(autouse=True)
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK.now = 0.0
    monkeypatch.setattr(search_module, "time", CLOCK)
    monkeypatch.setattr(measure, "time", CLOCK)


def sleeper(seconds: float, out: torch.Tensor = GOOD) -> Callable[[], list[torch.Tensor]]:
    def call() -> list[torch.Tensor]:
        CLOCK.now += seconds
        return [out]

    return call


def settings(n: int) -> list[dict[str, int]]:
    return [{"n": k} for k in range(n)]


def test_the_fastest_is_found() -> None:
    takes = [4e-3, 3e-3, 1e-3, 2e-3]
    found = search(settings(4), lambda s: sleeper(takes[s["n"]]), CPU, 5.0)
    assert found.best.setting == {"n": 2}
    assert found.gain == pytest.approx(4)
    assert found.ended == "all 4 of 4 settings"


def test_better_ones_are_repeated_more_and_the_first_stays() -> None:
    takes = [8e-4, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4]
    found = search(settings(8), lambda s: sleeper(takes[s["n"]]), CPU, 20.0)
    stayed = {t.setting["n"]: t.rounds for t in found.trials}
    assert stayed[1] == stayed[0] > stayed[3] > stayed[7] == 0
    assert len(found.trials[1].times) > 2 * len(found.trials[3].times)
    assert found.spent_s < 20


def test_a_small_gain_changes_nothing() -> None:
    takes = [1.0e-3, 0.99e-3]
    found = search(settings(2), lambda s: sleeper(takes[s["n"]]), CPU, 5.0)
    assert found.best is found.first and found.gain == 1.0


def test_the_budget_holds() -> None:
    found = search(settings(500), lambda s: sleeper(2e-3), CPU, 0.3)
    assert 0.15 < found.spent_s <= 0.3
    assert 5 < len(found.trials) < 50
    assert found.ended.endswith("of 500 settings")


def test_at_least_two_are_tried_whatever_the_budget() -> None:
    assert len(search(settings(3), lambda s: sleeper(1e-3), CPU, 0.0).trials) == 2


def test_one_that_disagrees_is_dropped() -> None:
    made = lambda s: sleeper(0 if s["n"] else 1e-3, GOOD + s["n"])
    found = search(settings(2), made, CPU, 1.0)
    assert found.best.setting == {"n": 0}
    assert found.trials[1].why == "output 0 differs by 1.00e+00"


def test_one_that_cannot_be_built_is_dropped() -> None:
    def made(s: dict[str, int]) -> Callable[[], Any]:
        if s["n"] == 1:
            raise RuntimeError("out of registers\nand more")
        return sleeper(0)

    found = search(settings(3), made, CPU, 1.0)
    assert found.trials[1].why == "out of registers" and len(found.right) == 2


def test_the_first_must_work() -> None:
    def made(s: dict[str, int]) -> Callable[[], Any]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        search(settings(2), made, CPU, 1.0)


@pytest.mark.parametrize("when", ["build", "run"])
def test_an_interruption_keeps_what_was_found(when: str) -> None:
    def made(s: dict[str, int]) -> Callable[[], Any]:
        if s["n"] < 2:
            return sleeper(2e-3 if s["n"] == 0 else 0)
        if when == "build":
            raise KeyboardInterrupt

        def interrupted() -> None:
            raise KeyboardInterrupt

        return interrupted

    found = search(settings(9), made, CPU, 5.0)
    assert found.ended == "2 of 9 settings until interrupted"
    assert found.best.setting == {"n": 1}


def test_an_interruption_before_anything_was_found() -> None:
    def made(s: dict[str, int]) -> Callable[[], Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(settings(2), made, CPU, 1.0)


@pytest.mark.parametrize(
    "a, b, why",
    [
        (GOOD, GOOD + 1e-5, None),
        (GOOD, GOOD + 1e-2, "output 0 differs"),
        (torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1]), None),
        (torch.tensor([float("nan"), 1]), torch.tensor([0.0, 1]), "output 0 differs by inf"),
        (torch.tensor([float("inf"), 1]), torch.tensor([float("inf"), 1]), None),
        (torch.tensor([1]), torch.tensor([2]), "output 0 has other integers"),
        (GOOD, GOOD.double(), "output 0 is torch.float32"),
        (GOOD[:0], GOOD[:0], None),
    ],
)
def test_agreement(a: torch.Tensor, b: torch.Tensor, why: str | None) -> None:
    got = measure.differs([a], [b])
    assert got is None if why is None else got is not None and got.startswith(why)


def test_clocks_take_turns() -> None:
    calls: list[str] = []
    made = {name: sleeper(n) for n, name in enumerate("ab", 1)}
    fns = [lambda name=name: (calls.append(name), made[name]()) for name in "ab"]
    assert measure.seconds(fns, 3, CPU) == [[1.0] * 3, [2.0] * 3]
    assert calls == ["a", "a", "b", "b"] * 3  # the first of each is not timed


def test_progress_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tqdm", None)
    tell = progress.teller("spmm", 10.0, show=True)
    search(settings(2), lambda s: sleeper(1e-4), CPU, 0.1, tell=tell)
    assert "tune spmm:" in capsys.readouterr().err


def test_progress_is_quiet_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress.teller("spmm", 10.0)("trying", Found([]), 0.0)
    assert capsys.readouterr().err == ""


def test_what_is_near_to_the_fastest_comes_before_the_rest() -> None:
    takes = {0: 3e-3, 1: 1e-3, 2: 2e-3, 3: 4e-3, 10: 0.2e-3}
    near = lambda s: [{"n": 10}, {"n": 2}] if s["n"] == 1 else []
    found = search(settings(4), lambda s: sleeper(takes[s["n"]]), CPU, 5.0, near=near, after=3)
    assert [t.setting["n"] for t in found.trials] == [0, 1, 2, 10, 3]
    assert found.best.setting == {"n": 10} and found.ended == "all 5 of 5 settings"
