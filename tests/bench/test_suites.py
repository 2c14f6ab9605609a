"""Several suites in one command, kernels compiled ahead, and rows that an index names beside the vendor."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.places import INTERPRETER

from tilewright.bench import ahead, alone, attention_cpu, command, machine, main, timing
from tilewright.bench.suite import Measured, Options, Run, Task
from tilewright.ops.backend import backend
from tilewright.support.errors import FormatError


def test_several_suites_have_a_file_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--device", "cpu", "--quick", "--busy", "--graphs", "tiny", "--widths", "32"]
    assert main(["sddmm", "spmm", "sddmm", *asked, "--json", str(tmp_path / "results")]) == 0
    made = {p.stem: machine.read(p) for p in sorted((tmp_path / "results").iterdir())}
    assert {name: held["suite"] for name, held in made.items()} == {
        "sddmm": "sddmm",
        "spmm": "spmm",
    }
    assert all(held["summary"]["complete"] and held["rows"] for held in made.values())
    told = capsys.readouterr().out
    assert told.index("sddmm on cpu:") < told.index("spmm on cpu:")


def test_attention_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention_cpu, "QUICK_TOKENS", 128)
    monkeypatch.setattr(attention_cpu, "KEPT", (0.5,))
    path = tmp_path / "cpu_attention.json"
    asked = ["--device", "cpu", "--quick", "--busy", "--json", str(path)]
    assert main(["attention", *asked]) == 0
    (row,) = machine.read(path)["rows"]
    assert row["ok"] and row["over_best"] == min(row["dense_ms"], row["masked_ms"]) / row["ours_ms"]
    assert 0.5 <= row["kept"] <= 1 and row["ours_trained_ms"] > 0
    assert "with gradients, least" in capsys.readouterr().out


def test_a_file_for_several_suites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a folder, of several suites"):
        main(["spmm", "bsr", "--device", "cpu", "--json", str(tmp_path / "r.json")])


def test_all_is_compiled_before_the_first_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    def suite(run: Run) -> Measured:
        yield [{"of": run.suite}]
        said.append(run.suite)
        return run.suite == "bsr"

    def compiled(tasks: dict[str, list[Task]], *_: object) -> None:
        said.append({name: list(some) for name, some in tasks.items()})

    monkeypatch.setattr(command, "compiled", compiled)
    for name in ("spmm", "bsr", "rows"):
        monkeypatch.setitem(command.SUITES, name, suite)
    runs = [Run(name, Options(device="cuda")) for name in ("spmm", "bsr", "rows")]
    assert command.measured(runs) == 1
    tasks = {name: [{"of": name}] for name in ("spmm", "bsr", "rows")}
    assert said == [tasks, "spmm", "bsr", "rows"]


def test_what_is_not_compiled_ahead_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 8)
    said: list[str] = []
    ahead.compiled({"regret": [{"n": 1}], "formats": [{"n": 2}]}, 4, None, said.append)
    assert said[0] == "compiling ahead: 2 tasks in 2 processes" and said[-1] == "compiled ahead"
    assert {line.split(": ")[1] for line in said[1:-1]} == {"regret {'n'", "formats {'n'"}


@INTERPRETER
@pytest.mark.parametrize(
    "case",  # the interpreter multiplies the bits of bf16
    [
        alone.Case(300, 40, 32, 150, dtype="fp16"),
        alone.Case(90, 40, 32, 70, dtype="fp32"),
        alone.Case(64, 40, 96, zeros=0.9, dtype="fp16"),
    ],
)
def test_what_an_index_names_is_held_against_the_vendor(
    case: alone.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tiles are right, with a lower last tile and with sums in pieces, too."""
    monkeypatch.setattr(alone, "DEVICE", "cpu")
    monkeypatch.setattr(alone, "COLUMNS", (64,))
    clock = lambda fns: [float(2 + n) for n, fn in enumerate(fns) if fn() is not False]
    monkeypatch.setattr(timing, "graphs_ms", clock)
    with backend("triton"):
        row = alone.measured(Run("rows", Options()), case)
    tried = alone.settings(case)
    assert row["ok"] and [s["setting"] for s in row["settings"]] == tried
    assert (row["vendor_ms"], row["best_ms"], row["ms"]) == (2.0, 3.0, 3.0 + len(tried))
    assert len({str(s) for s in tried}) == len(tried)
    text, shares = alone.report([row, row | {"kind": "rows alone"}])
    assert shares["alone_best_share"] == pytest.approx(2 / 3) and "MISS" in text[-1]
