"""The demo's checks see mistakes; its clock and its peers."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tilewright import cli
from tilewright.view import clock, demo, plain
from tilewright.view.cases import RULES, case


@pytest.mark.parametrize("name", RULES)
def test_operator_agrees(name: str) -> None:
    row = demo.Row(name, case(name, 64, 4))
    assert demo.check(row, torch.randn(64, 7))


def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "relu_max", lambda a, x: a.to_dense() @ x)
    row = demo.Row("uniform", case("uniform", 64, 4))
    assert not demo.check(row, torch.randn(64, 7))
    assert "WRONG" in demo.tell_checks([row])


def test_infinities_must_stand_at_the_same_places() -> None:
    want = torch.tensor([1.0, -torch.inf], dtype=torch.float64)
    assert demo.difference(torch.tensor([1.0, 0.0]), want) == float("inf")
    assert demo.difference(torch.tensor([1.0, -torch.inf]), want) == 0


@pytest.mark.parametrize("name", RULES)
def test_plain_formulations_agree(name: str) -> None:
    a, x = case(name, 64, 4), torch.randn(64, 7)
    made = [fn(a.explicit_values(), x) for fn in plain.relu_max_peers(a).values()]
    for other in made[1:]:
        assert_close(other, made[0])


def test_gpu_text_is_there_without_a_gpu() -> None:
    told = demo.gpu_text(case("uniform", 64, 4), torch.randn(64, 16))
    assert "tile form" in told and "@triton.jit" in told


def test_times_take_turns_until_rounds_agree() -> None:
    calls: list[str] = []
    fns = {name: lambda name=name: calls.append(name) for name in ("f", "g")}  # type: ignore[misc]
    taken = clock.times(fns, seconds=0.0)
    a_round = clock.LEAST + 1
    assert calls[:2] == ["f", "g"]
    assert calls[2 : 2 + 2 * a_round] == ["f"] * a_round + ["g"] * a_round
    assert len(calls) - 2 == clock.ROUNDS * 2 * a_round  # no time left for more
    assert all(t.ms > 0 and t.spread >= 1 for t in taken.values())


def test_the_fastest_wins_the_race() -> None:
    def slow() -> None:
        torch.randn(300, 300) @ torch.randn(300, 300)

    assert clock.fastest({"slow": slow, "fast": lambda: None}) == "fast"
    assert clock.fastest({"only": slow}) == "only"


def test_mistakes_are_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["code", "spmm", "--beside", "flat", "nothing"]) == 2
    assert "hint:" in capsys.readouterr().err


def test_bench_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    assert "tilewright bench" in capsys.readouterr().out
