"""Plain text: aligned tables, geometric means, verdicts.

print(table(["graph", "ms"], [["cora", 0.0093], ["pubmed", None]]))
print(verdict("fp32 over vendor", 1.41, 1.35))     # PASS fp32 over vendor  1.41 (goal 1.35)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Cell = str | int | float | None


def geomean(values: Iterable[float | None]) -> float | None:
    """Of those that are there; None of none."""
    logs = [math.log(v) for v in values if v is not None and v > 0 and math.isfinite(v)]
    return math.exp(sum(logs) / len(logs)) if logs else None


def least(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None and not math.isnan(v)), default=None)


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def cell(value: Cell) -> str:
    """Three figures for floats, - for what is not there."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "nan"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 5)}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns of numbers to the right, of words to the left."""
    texts = [list(header), *([cell(c) for c in row] for row in rows)]
    widths = [max(len(row[k]) for row in texts) for k in range(len(header))]
    words = [any(isinstance(row[k], str) for row in rows) for k in range(len(header))]
    lines = []
    for row in texts:
        aligned = [
            t.ljust(w) if left else t.rjust(w)
            for t, w, left in zip(row, widths, words, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def verdict(label: str, value: float | None, goal: float) -> str:
    """PASS, MISS, or ---- for what was not measured."""
    mark = "----" if value is None else "PASS" if value >= goal else "MISS"
    return f"{mark} {label}  {cell(value)} (goal {goal:g})"
