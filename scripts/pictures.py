"""The pictures of docs/results.md, made from benchmarks/results/*.json: python scripts/pictures.py

Needs matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "pictures"


def load(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return made


def break_even() -> Path:
    """Speed over the dense product by density: blocks, and pruned weights."""
    plt.switch_backend("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    rows = load("h200_bsr")["rows"]
    for block in sorted({r["block"] for r in rows}):
        mine = [r for r in rows if r["block"] == block and r["columns"] == 4096]
        left.plot(
            [r["density"] for r in mine],
            [r["over_dense"] for r in mine],
            "o-",
            label=f"{block} x {block}",
        )
    left.set_title("blocks, 4096 x 4096 x 4096 bf16")
    points = load("h200_pruned")["summary"]["points"]
    for n in sorted({p["columns"] for p in points}):
        mine = [p for p in points if p["columns"] == n]
        right.plot(
            [p["density"] for p in mine],
            [p["over_dense"] for p in mine],
            "o-",
            label=f"{n} columns",
        )
    right.set_title("pruned weights (single zeros), fp16")
    for axes in (left, right):
        at = {
            "x": (0.03, 0.05, 0.1, 0.2, 0.35, 0.55, 1),
            "y": (0.2, 0.35, 0.5, 0.7, 1, 1.5, 2, 3, 5),
        }
        axes.axhline(1.0, color="grey", linewidth=1)
        axes.set(
            xscale="log", yscale="log", xlabel="density", ylabel="times as fast as dense cuBLAS"
        )
        for name, ticks in at.items():
            axis = getattr(axes, f"{name}axis")
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axis.set_minor_locator(NullLocator())
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    made = PICTURES / "break_even.png"
    figure.savefig(made, dpi=110)
    return made


if __name__ == "__main__":
    print(break_even())
