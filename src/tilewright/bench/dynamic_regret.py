"""How far the choice between families is from the best of them, over the cases of `tilewright bench dynamic`.

In: rows of the suite, with a time for dense and for each family and what each family's index held. Out: for every case
the time of the family that the model chooses over the best time (1: the best itself), by constants fitted without the
cases of its shape.

    summary = regret(rows, lambda dtype: costs)      # {"all": {"cases", "right", "mean", "p95", "worst"}, "dense": ...}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil
from typing import Any

from tilewright.bench.suite import dtype_of
from tilewright.bench.tables import Cell, geomean, table
from tilewright.ops.dtypes import name_of
from tilewright.pit.choice import FAMILIES, Seen, Site, decide, estimates
from tilewright.pit.tiles import Costs

Rows = list[dict[str, Any]]
CostsOf = Callable[[str], Costs]


def short(row: dict[str, Any]) -> str:
    """The dtype as the compiler names it."""
    return name_of(dtype_of(row["dtype"]))


def site_of(row: dict[str, Any]) -> Site:
    return Site("linear", row["m"], row["n"], row["k"], short(row), "")


def seen_of(row: dict[str, Any]) -> dict[str, Seen]:
    return {name: Seen(**found) for name, found in row["found"].items()}


def times_of(row: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of each candidate, detection inside."""
    return {f: row[f"{f}_ms"] for f in FAMILIES if row.get(f"{f}_ms") is not None}


def fit(rows: Rows, costs_of: CostsOf) -> dict[str, dict[str, float]]:
    """For each dtype, what was measured of a family over its estimate, in the geometric mean."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        costs = replace(costs_of(short(row)), scale={})
        took = times_of(row)
        for e in estimates(site_of(row), seen_of(row), costs):
            if e.family in took and e.total > 0:
                found.setdefault((short(row), e.family), []).append(took[e.family] * 1e3 / e.total)
    made: dict[str, dict[str, float]] = {}
    for (dtype, family), ratios in found.items():
        made.setdefault(dtype, {})[family] = geomean(ratios) or 1.0
    return made


def regret(rows: Rows, costs_of: CostsOf) -> dict[str, dict[str, float | int | None]]:
    """Distances from the best: of all cases, of those whose best is dense, and of the others."""
    judged: list[tuple[str, bool, float]] = []
    for shape in dict.fromkeys(r["shape"] for r in rows):
        others = [r for r in rows if r["shape"] != shape]
        scales = fit(others, costs_of)
        for row in (r for r in rows if r["shape"] == shape):
            costs = replace(costs_of(short(row)), scale=scales.get(short(row), {}))
            chosen = decide(site_of(row), seen_of(row), costs).family
            took = times_of(row)
            best = min(took, key=lambda f: took[f])
            judged.append((best, chosen == best, took[chosen] / took[best]))
    return {
        "all": _told(judged),
        "dense": _told(j for j in judged if j[0] == "dense"),
        "skipping": _told(j for j in judged if j[0] != "dense"),
    }


def _told(judged: Iterable[tuple[str, bool, float]]) -> dict[str, float | int | None]:
    some = list(judged)
    if not some:
        return {"cases": 0, "right": None, "mean": None, "p95": None, "worst": None}
    far = sorted(ratio for _, _, ratio in some)
    return {
        "cases": len(far),
        "right": sum(right for _, right, _ in some) / len(far),
        "mean": geomean(far),
        "p95": far[ceil(0.95 * len(far)) - 1],
        "worst": far[-1],
    }


def regret_table(summary: dict[str, dict[str, float | int | None]]) -> str:
    lines: list[list[Cell]] = [
        [f"best is {n}" if n != "all" else n, *s.values()] for n, s in summary.items()
    ]
    return table(["cases", "number", "right", "mean", "95th", "worst"], lines)
