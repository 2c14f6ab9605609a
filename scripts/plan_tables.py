"""Tables of reductions and of plans beside the best, for docs/results.md. Used by tables.py.

lines(load, machine)      # lines of Markdown; load: a results file by name; machine: where it was made, as a line
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamic_tables import table

Held = dict[str, Any]
REDUCES = ("sum", "max", "min", "mean")
PLANS = ("cold", "tuned")


def lines(load: Callable[[str], Held], machine: Callable[[str], str]) -> list[str]:
    return [
        "Reductions but a sum, fp32, best of six settings:",
        "",
        machine("h200_reduces"),
        "",
        *reduces(load("h200_reduces")),
        "",
        "Plans beside every point of what the cost model chooses from (`tilewright bench regret`):",
        "",
        machine("h200_regret"),
        "",
        *regret(load("h200_regret")),
    ]


def reduces(held: Held) -> list[str]:
    found = {(r["graph"], r["width"], r["reduce"]): r["best_ms"] for r in held["rows"]}
    cases = dict.fromkeys((graph, width) for graph, width, _ in found)
    rows = [[g, str(f), *(f"{1e3 * found[g, f, n]:.1f}" for n in REDUCES)] for g, f in cases]
    means = [f"{held['summary'][f'{n}_over_sum']:.2f}x" for n in REDUCES[1:]]
    head = ["graph", "F", *(f"{n} us" for n in REDUCES)]
    return table(head, [*rows, ["over a sum", "", "", *means]])


def regret(held: Held) -> list[str]:
    """Distances of plans from the best point."""
    rows = [
        [r["case"], str(r["points"]), f"{1e3 * r['best_ms']:.1f}", *(f"{r[p]:.2f}x" for p in PLANS)]
        for r in held["rows"]
    ]
    s = held["summary"]
    means = [f"{s[f'{p}_mean']:.2f}x ({s[f'{p}_worst']:.2f}x)" for p in PLANS]
    head = ["case", "points", "best us", "cold plan", "tuned"]
    return table(head, [*rows, ["geometric mean (worst)", "", "", *means]])
