"""The tables of `tilewright bench dynamic`: cases, goals, where dense begins to win, PIT's micro-benchmarks.

In: rows of the suite. Out: text and a summary.

    text, summary = report(rows); summary["break_even"]["32x1"]     # the density up to which dense is beaten
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.bench.dynamic_layers import layers_table
from tilewright.bench.dynamic_regret import CostsOf, regret, regret_table
from tilewright.bench.tables import Cell, geomean, least, ratio, table, verdict

Rows = list[dict[str, Any]]
SQUARE = "4096x4096x4096"
MICRO = ("32x1", "1x64", "32x64")
ENOUGH = 256  # rows from which a product can fill the machine
DETECTION_US = {"1x1": 30.0}
USUAL_DETECTION_US = 15.0
OVER_DENSE_US = 10.0
EXTRA = 3.0  # %


def report(rows: Rows, costs_of: CostsOf) -> tuple[str, dict[str, Any]]:
    products = [r for r in rows if r["kind"] == "product"]
    detected = [r for r in rows if r["kind"] == "detection"]
    layers = [r for r in rows if r["kind"] == "layer"]
    summary = {**goals(products, detected), "break_even": break_even(products)}
    summary["layer_extra"] = most(100 * (r["share"] - 1) for r in layers)
    summary["layer_over_apart"] = geomean(r["over_apart"] for r in layers)
    summary["regret"] = regret(products, costs_of)
    text = [
        "times in ms, detection inside unless given; floor: operations left at dense's rate, bytes at a copy's",
        cases_table(products),
        "",
        "detection alone, 5 % of micro-tiles hold something",
        detection_table(detected),
        "",
        "a layer with ReLU: torch's alone, a detector after it, the list in its epilogue; then the layer after it too",
        layers_table(layers),
        "",
        "micro-benchmarks of PIT: detection inside; what thin micro-tiles cost the kernel over k's (index given)",
        micro_table(products),
        "",
        "the choice over the best of all candidates; constants fitted without the cases of the shape",
        regret_table(summary["regret"]),
        "",
        *verdicts(summary),
    ]
    return "\n".join(text), summary


def cases_table(rows: Rows) -> str:
    header = "case dense peer best given auto /dense /peer floor best chosen".split()
    names = "case dense_ms peer_ms best_ms best_given_ms auto_ms over_dense over_peer floor_share best auto"
    return table(header, [[r.get(n) for n in names.split()] for r in rows])


def detection_table(rows: Rows) -> str:
    header = ["micro-tile", "in order", "any order", "by row", "torch", "/torch"]
    lines: list[list[Cell]] = [
        [
            r["granularity"],
            r["ordered_ms"],
            r["any_order_ms"],
            r.get("by_row_ms"),
            r["torch_ms"],
            ratio(r["torch_ms"], _least(r)),
        ]
        for r in rows
    ]
    return table(header, lines)


def micro_table(rows: Rows) -> str:
    """32x1, 1x64 and 32x64 at 4096^3. /32x64: the kernel over each group's k's, index given, over its time there."""
    found = {(r["granularity"], r["sparsity"]): r for r in _square(rows)}
    lines: list[list[Cell]] = []
    for (granularity, sparsity), r in found.items():
        if granularity in MICRO:
            blocks = found.get(("32x64", sparsity), {})
            cost = ratio(r.get("k_given_ms"), blocks.get("k_given_ms"))
            cells = (r["dense_ms"], r.get("peer_ms"), r["best_ms"], r["over_dense"], cost)
            lines.append([granularity, f"{sparsity:.0%}", *cells])
    return table("micro-tile sparsity dense peer best /dense /32x64".split(), lines)


def _square(rows: Rows) -> Rows:
    """bf16 at 4096^3; of a small run, the shape that it has."""
    some = [r for r in rows if r["shape"] == SQUARE and r["dtype"] == "bf16"]
    return some or [r for r in rows if r["shape"] == rows[0]["shape"]]


def break_even(rows: Rows) -> dict[str, float | None]:
    """For each granularity, the density from which dense wins: times in between two densities lie on a line.

    None: dense wins everywhere; 1: nowhere.
    """
    made: dict[str, float | None] = {}
    some = _square(rows)
    for name in dict.fromkeys(r["granularity"] for r in some):
        mine = [r for r in some if r["granularity"] == name]
        made[name] = crossing((1 - r["sparsity"], r["best_ms"], r["dense_ms"]) for r in mine)
    return made


def crossing(points: Iterable[tuple[float, float, float]]) -> float | None:
    """Where ours first takes longer than dense, over (density, ours, dense)."""
    before: tuple[float, float] | None = None
    for density, ours, dense in sorted(points):
        over = ours - dense
        if over > 0:
            if before is None:
                return None
            at, under = before
            return round(at + (density - at) * under / (under - over), 3)
        before = density, over
    return None if before is None else round(before[0], 3)


def goals(rows: Rows, detected: Rows) -> dict[str, Any]:
    """What the goals speak of. Extra microseconds are those of the choice, where there is one."""
    some = [r for r in rows if r["granularity"] == "row"]
    made: dict[str, Any] = {
        "over_dense": geomean(r["over_dense"] for r in rows),
        "over_peer": geomean(r.get("over_peer") for r in rows),
        "over_probe": geomean(r.get("over_probe") for r in rows),
        "over_probe_least": least(r.get("over_probe") for r in rows),
        "rows_share": least(r.get("kept_share") for r in some if r.get("rows_kept", 0) >= ENOUGH),
        "rows_extra_us": most(
            (r["auto_ms"] - r["dense_ms"]) * 1e3 for r in some if r.get("auto_ms")
        ),
        "detection_us": {r["granularity"]: 1e3 * _least(r) for r in detected},
        "on_gpu": any(r["dtype"] == "bf16" for r in detected),
    }
    for name, sparsity in (("row", 0.5), ("32x64", 0.9)):
        named = [r for r in rows if (r["granularity"], r["sparsity"]) == (name, sparsity)]
        made[f"{name}_over_dense_{sparsity:.0%}"] = geomean(r["over_dense"] for r in named)
    for sparsity in (0.95, 0.99):
        named = [
            r for r in _square(rows) if (r["granularity"], r["sparsity"]) == ("32x1", sparsity)
        ]
        made[f"k_over_dense_{sparsity:.0%}"] = geomean(r["over_dense"] for r in named)
    return made


def _least(row: dict[str, Any]) -> float:
    return min(float(row[n]) for n in ("ordered_ms", "any_order_ms", "by_row_ms") if n in row)


def most(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def verdicts(s: dict[str, Any]) -> list[str]:
    made = _on_gpu(s) if s["on_gpu"] else _on_cpu(s)
    for name, density in s["break_even"].items():
        told = "never" if density is None else f"up to density {density:g}"
        made.append(f"     dense is beaten {told}: {name}")
    return made


def _on_gpu(s: dict[str, Any]) -> list[str]:
    share = "rows, index given, share of cuBLAS's rate on the kept rows, least"
    extra = "rows, choice and detection inside, us more than dense, most"
    made = [
        verdict(share, s["rows_share"], 0.9),
        verdict("generated over hand-written, index given", s["over_probe"], 1.0),
        verdict("generated over hand-written, index given, least", s["over_probe_least"], 1.0),
        below(extra, s["rows_extra_us"], OVER_DENSE_US),
        verdict("32x1 at 95 %, 4096^3 bf16, over dense", s["k_over_dense_95%"], 3.5),
        verdict("32x1 at 99 %, 4096^3 bf16, over dense", s["k_over_dense_99%"], 5.5),
        below("a layer with its list, % more than torch's alone, most", s["layer_extra"], EXTRA),
    ]
    for name, us in s["detection_us"].items():
        goal = DETECTION_US.get(name, USUAL_DETECTION_US)
        made.append(below(f"detection of {name}, us", us, goal))
    return made


def _on_cpu(s: dict[str, Any]) -> list[str]:
    return [
        verdict("rows at 50 %, over dense", s["row_over_dense_50%"], 1.0),
        verdict("32x64 at 90 %, over dense", s["32x64_over_dense_90%"], 1.0),
    ]


def below(label: str, value: float | None, goal: float) -> str:
    """A goal that is an upper bound."""
    mark = "----" if value is None else "PASS" if value <= goal else "MISS"
    return f"{mark} {label}  {'-' if value is None else f'{value:.1f}'} (goal at most {goal:g})"
