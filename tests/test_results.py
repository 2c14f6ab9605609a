"""Tables in the docs are made from the result files, and every file tells machine and commit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_tables_are_up_to_date() -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "tables.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + "run python scripts/tables.py"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_results_are_whole(path: Path) -> None:
    held = json.loads(path.read_text())
    assert held["machine"]["commit"] and held["machine"]["torch"] and held["date"]
    assert held["summary"]["complete"] and not held["summary"]["wrong"]
    assert all(r["ok"] for r in held["rows"])
