"""How near a time is to what the machine could do: compulsory bytes at the speed of a copy, and gathers.

In: a row with rows, cols, nnz, width, dtype and a time. Out: figures for its columns.

    roofs(row, row["call_ms"])     # {"roof": 0.41, "gather_gb_s": 35.0}
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.view.rates import rates_of

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "float64": 8}


def roofs(row: dict[str, Any], ms: float | None, busy: bool = False) -> dict[str, Any]:
    """roof: the share of the time in which each byte could have been moved once, at a copy's speed.

    gather_gb_s: the rate at which rows of the dense operand came in, counted for every entry. busy: a copy's
    speed cannot be told, since it is timed by the wall clock.
    """
    if not ms:
        return {"roof": None, "gather_gb_s": None}
    size = BYTES[row["dtype"]]
    gathered = row["nnz"] * row["width"] * size
    made: dict[str, Any] = {"roof": None, "gather_gb_s": gathered / ms / 1e6}
    if not busy:
        sides = (row["rows"] + row["cols"]) * row["width"] * size
        once = sides + row["nnz"] * (4 + size) + 4 * row["rows"]
        made["roof"] = once / rates_of(torch.device(row["device"])).memory * 1e3 / ms
    return made
