"""Tables of dynamic sparsity for docs/results.md, from what `tilewright bench dynamic` wrote. Used by tables.py.

page("h200_dynamic", held)      # lines of Markdown; held: the file as read
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
MISSES = {
    "h200_dynamic": """
Of the goals, the choice meets its own (regret under 1 % in the mean, 6 % at the 95th percentile where skipping pays),
and so do detection (13.3 to 14.6 us, where 15 were asked, and 21 for single elements, 30), the lists that a layer makes
in its epilogue (2.4 % of torch's layer; 3), and the choice with detection inside (2 us more than dense at most; 10).
Missed: 32x1 at 95 and 99 % is 2.7x and 4.4x over dense (goals 3.5x and 5.5x; 2.9x and 6.2x at k = 16384). Every list
reads its own rows of w through the second-level cache (215 MB at 95 %), and finding the lists is 14 of the 61 us
there. The product of 256 rows or more alone (goal: 90 % of cuBLAS's rate on the kept rows) is at 89 to 97 % where its
tiles fill the device in whole waves, or nearly so; at 79 to 91 % where a last tile of few rows is shared by programs
(1,036, 2,068 and 2,073 rows); at 77 to 83 % where one wave is not filled, or lasts no longer than a tile takes to begin
and to end (398, 772, 3,389 and 16,534 rows: tiles are powers of two, and do not overlap); and at 69 % of 523 rows in
1024 columns, which cuBLAS splits along k. In fp32, without tensor cores, at 84 to 90 %. Rows that are given are set to
0 first, which cuBLAS need not. The hand-written kernel is ahead of lists that name nearly all k's (0.79x), where dense
is chosen.
"""
}
TITLES = {
    "h200_dynamic": "Zeros found in each call, on the H200",
    "cpu_dynamic": "Zeros found in each call, on the CPU",
}
Row = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def page(name: str, held: dict[str, Any], machine: str) -> list[str]:
    rows = [r for r in held["rows"] if r["kind"] == "product"]
    found = [r for r in held["rows"] if r["kind"] == "detection"]
    picture = PICTURES / f"{name}.png"
    shown = [f"![times over density]({picture.parent.name}/{picture.name})", ""]
    return [
        f"## {TITLES[name]}",
        "",
        "`y = x @ w.T`; zeros of x come in micro-tiles of a granularity. Times have detection inside; each entry is",
        "milliseconds of the best family, over dense torch, and the family that was chosen without trying.",
        "",
        f"{machine}; {held['summary']['clock']}; tile costs {held['summary']['tiles']}",
        "",
        *(shown if picture.exists() else []),
        *MISSES.get(name, "").strip().splitlines(),
        "",
        *shapes(rows),
        "Density up to which dense is beaten, at the first shape:",
        "",
        *even(held["summary"]["break_even"]),
        "",
        "Detection alone, milliseconds, 5 % of micro-tiles hold something:",
        "",
        *detection(found),
        "",
        "The time of the chosen family over that of the best (dense among them), constants fitted without the shape:",
        "",
        *regret(held["summary"]["regret"]),
        "",
    ]


def shapes(rows: list[Row]) -> list[str]:
    """A table for each shape and dtype: granularities by sparsity."""
    made: list[str] = []
    for shape, dtype in dict.fromkeys((r["shape"], r["dtype"]) for r in rows):
        mine = [r for r in rows if (r["shape"], r["dtype"]) == (shape, dtype)]
        sparsities = sorted({r["sparsity"] for r in mine})
        at = {(r["granularity"], r["sparsity"]): r for r in mine}
        lines = [
            [g, *(cell(at.get((g, s))) for s in sparsities)]
            for g in dict.fromkeys(r["granularity"] for r in mine)
        ]
        dense = sorted(r["dense_ms"] for r in mine)[len(mine) // 2]
        head = [f"{shape} {dtype}, dense {dense:.3f}", *(f"{s:.0%} zeros" for s in sparsities)]
        made += [*table(head, lines), ""]
    return made


def cell(r: Row | None) -> str:
    if r is None:
        return "-"
    return f"{r['best_ms']:.3f}, {r['over_dense']:.2f}x, {r.get('auto', '-')}"


def even(found: dict[str, float | None]) -> list[str]:
    cells = ["never" if d is None else f"{d:.2f}" for d in found.values()]
    return table(list(found), [cells])


def detection(rows: list[Row]) -> list[str]:
    names = ("ordered_ms", "any_order_ms", "by_row_ms", "torch_ms")
    lines = [[r["granularity"], *(f"{r[n]:.4f}" if n in r else "-" for n in names)] for r in rows]
    return table(["micro-tile", "in order", "in any order", "a list for each row", "torch"], lines)


def regret(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        [name, str(s["cases"]), *("-" if s[k] is None else f"{s[k]:.2f}" for k in KEYS)]
        for name, s in found.items()
    ]
    return table(["best is", "cases", "right", "mean", "95th percentile", "worst"], lines)


KEYS = ("right", "mean", "p95", "worst")
