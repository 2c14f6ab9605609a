"""How near a time is to what the machine could do: compulsory bytes at the speed of a copy, and gathers.

In: rows with rows, cols, nnz, width, dtype and a time. Out: figures for their columns, and how far all of them are
from a floor: a launch, and then the bytes of each.

    roofs(row, row["call_ms"])     # {"roof": 0.41, "gather_gb_s": 35.0}
    floors(rows, rates)            # Floor(overhead_ms=0.0055, share=0.92, over_peer=4.05)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilewright.bench.tables import cell, geomean
from tilewright.view.rates import Rates, rates_of

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "float64": 8}
Row = dict[str, Any]


def roofs(row: Row, ms: float | None, busy: bool = False) -> dict[str, Any]:
    """roof: the share of the time in which each byte could have been moved once, at a copy's speed.

    gather_gb_s: the rate at which rows of the dense operand came in, counted for every entry. busy: a copy's
    speed cannot be told, since it is timed by the wall clock.
    """
    if not ms:
        return {"roof": None, "gather_gb_s": None}
    made: dict[str, Any] = {"roof": None, "gather_gb_s": gathered(row) / ms / 1e6}
    if not busy:
        made["roof"] = once(row) / rates_of(torch.device(row["device"])).memory * 1e3 / ms
    return made


def once(row: Row) -> int:
    """Bytes of all operands and results, each of them once."""
    size = BYTES[row["dtype"]]
    sides: int = (row["rows"] + row["cols"]) * row["width"] * size
    return sides + row["nnz"] * (4 + size) + 4 * row["rows"]


def gathered(row: Row) -> int:
    """Bytes of a row of the dense operand for every entry."""
    made: int = row["nnz"] * row["width"] * BYTES[row["dtype"]]
    return made


@dataclass(frozen=True)
class Floor:
    """overhead_ms: what the fastest case takes beyond its bytes: a launch, and memory that is waited for. In the
    geometric mean: share, of the floor in the times; over_peer, how much faster than peers cases at it would be."""

    overhead_ms: float
    share: float | None
    over_peer: float | None


def floor_line(rows: list[Row], dtype: str, peer: str) -> str:
    """A line of a report: how near the cases of a dtype are to their floor, and what it would give."""
    mine = [r for r in rows if r["dtype"] == dtype and r.get("best_ms")]
    if not mine:
        return f"     at the floor, {dtype}  -"
    made = floors(mine, rates_of(torch.device(mine[0]["device"])), peer)
    return (
        f"     at the floor ({made.overhead_ms * 1e3:.1f} us and the bytes), {dtype}  {cell(made.over_peer)}; "
        f"times reach {cell(made.share)} of it"
    )


def floors(rows: list[Row], rates: Rates, peer: str = "over_peer") -> Floor:
    """Times are `best_ms`; peer: the column that tells how much faster than its peer a case is."""
    moved = [max(once(r) / rates.memory, gathered(r) / rates.gather) * 1e3 for r in rows]
    took = [float(r["best_ms"]) for r in rows]
    first = took.index(min(took))
    overhead = max(took[first] - moved[first], 0.0)
    shares = [(overhead + m) / ms for ms, m in zip(took, moved, strict=True)]
    over = [r[peer] / s for r, s in zip(rows, shares, strict=True) if r.get(peer)]
    return Floor(overhead, geomean(shares), geomean(over))
