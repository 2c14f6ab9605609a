"""Tables in the docs are made from the result files, and every file tells machine and commit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.bench.dynamic_regret import seen_of, short, site_of, times_of
from tilewright.pit import tiles
from tilewright.pit.choice import decide

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


def test_the_choice_is_never_far_behind_dense() -> None:
    """By the tile costs that come with the package, over all cases that were measured: 10 us more at most."""
    costs = {c.dtype: c for c in tiles.read(tiles.SHIPPED / "h200.json")}
    held = json.loads((ROOT / "benchmarks" / "results" / "h200_dynamic.json").read_text())
    late = {}
    for row in (r for r in held["rows"] if r["kind"] == "product"):
        took = times_of(row)
        chosen = decide(site_of(row), seen_of(row), costs[short(row)]).family
        late[row["case"]] = (took[chosen] - took["dense"]) * 1e3
    assert len(late) > 150 and max(late.values()) <= 10
