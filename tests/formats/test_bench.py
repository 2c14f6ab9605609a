"""The suite that times conversions, on a small matrix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.bench import main
from tilewright.bench.formats import CASES, Source, _right, _source


def test_every_conversion_is_timed_and_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.bench.formats.SECONDS", 0.0)
    file = tmp_path / "formats.json"
    assert main(["formats", "--device", "cpu", "--nnz", "4000", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["case"] for row in rows] == [case.label for case in CASES]
    assert all(row["ok"] and row["ms"] > 0 and row["growth"] > 0 for row in rows)
    assert "conversion of 4000 entries" in capsys.readouterr().out


def test_a_wrong_result_is_told() -> None:
    source, case = _source("random", 1000, "cpu"), CASES[0]
    other = Source(source.shape, source.arrays, source.values + 1)
    assert _right(source, case, source(case)) and not _right(source, case, other(case))
