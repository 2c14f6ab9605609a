"""Every family of Triton kernels builds for sm_90 without a GPU; registers, spills and wgmma stand in a golden file.

Built in one subprocess (tests/codegen/build_all.py), because this process has Triton's interpreter in force.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from codegen.build_all import CASES

HERE = Path(__file__).parent
SHARED = 227 << 10  # bytes that a program of sm_90 may have
GOLDEN = HERE.parent / "golden" / "sm90.json"
NEAR = 0.15
HALF = re.compile(r"(bf16|f16|attention)")


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What build_all prints; built once, whichever worker comes first."""
    kept = Path(os.environ["TILEWRIGHT_CACHE"]) / "sm90.json"
    with open(kept.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(build())
        made: dict[str, Any] = json.loads(kept.read_text())
    if request.config.getoption("--accept"):
        kept_cases = {k: v for k, v in made["cases"].items() if "error" not in v}
        golden = {"triton": made["triton"], "cases": kept_cases}
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    return made


def build() -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    got = subprocess.run(
        [sys.executable, str(HERE / "build_all.py")],
        env={**environment, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    assert got.returncode == 0, got.stderr
    return got.stdout.splitlines()[-1]


def kernels(made: dict[str, Any], case: str) -> dict[str, Any]:
    found = {k: v for k, v in made["cases"].items() if k.partition("/")[0] == case}
    assert found, f"{case} built nothing"
    return found


@pytest.mark.parametrize("case", CASES)
def test_builds(case: str, built: dict[str, Any], request: pytest.FixtureRequest) -> None:
    failed = {k: v["error"] for k, v in kernels(built, case).items() if "error" in v}
    assert not failed, "\n".join(failed.values())


@pytest.mark.parametrize("case", CASES)
def test_nothing_spills_and_operands_in_flight_fit(case: str, built: dict[str, Any]) -> None:
    found = kernels(built, case)
    assert not {k: v["spills"] for k, v in found.items() if v.get("spills")}
    assert all(v.get("shared", 0) <= SHARED for v in found.values())


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, built: dict[str, Any]) -> None:
    """Registers within 15 % (of the same Triton), wgmma exactly."""
    golden = json.loads(GOLDEN.read_text())
    for name, got in kernels(built, case).items():
        if "error" in got:
            continue  # test_builds says so
        assert name in golden["cases"], f"{name} is new: look at it, then refresh with --accept"
        want = golden["cases"][name]
        assert got["wgmma"] == want.get("wgmma"), name
        if golden["triton"] == built["triton"]:
            assert abs(got["registers"] - want["registers"]) <= NEAR * want["registers"], name


def test_golden_has_nothing_old(built: dict[str, Any]) -> None:
    golden = json.loads(GOLDEN.read_text())
    built_now = {k for k, v in built["cases"].items() if "error" not in v}
    assert set(golden["cases"]) == built_now


def test_half_products_use_wgmma(built: dict[str, Any]) -> None:
    """16-bit products in tiles of at least 64 x 64 x 32 on 4 or 8 warps."""
    slow, seen = [], 0
    for name, got in built["cases"].items():
        setting = dict(re.findall(r"(\w+)=(\d+)", got.get("setting", "")))
        tile = [int(setting.get(k, 0)) for k in ("bm", "bn", "bk")]
        if (
            not HALF.search(name)
            or "rows" not in name
            or tile[0] < 64
            or tile[1] < 64
            or tile[2] < 32
        ):
            continue
        if setting["warps"] in ("4", "8"):
            seen += 1
            slow += [] if got["wgmma"] else [name]
    assert seen >= 5 and not slow


def test_products_do_not_wait_for_each_other(built: dict[str, Any]) -> None:
    """But for attention over 64 features: with fewer registers more programs run at once, which is faster (H200)."""
    waiting = {k for k, v in built["cases"].items() if v.get("waits")}
    assert {k.partition("/")[0] for k in waiting} <= {"attention-64", "attention-64-backward"}
    assert sum("waits" in v for v in built["cases"].values()) >= 50


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("buckets-2-")])
def test_merged_parts_need_few_registers_more(case: str, built: dict[str, Any]) -> None:
    """Ranges of columns in one launch: at most 1.25 of what whole rows need at the same tiles."""
    rows = case.replace("buckets-2-", "buckets-1-")
    (got,), (want,) = (kernels(built, c).values() for c in (case, rows))
    assert got["registers"] <= 1.25 * want["registers"]


@pytest.mark.parametrize(
    "case", ["attention-64", "attention-128", "attention-80", "blocks-64-bf16"]
)
def test_blocks_use_wgmma(case: str, built: dict[str, Any]) -> None:
    assert all(v["wgmma"] for v in kernels(built, case).values())
