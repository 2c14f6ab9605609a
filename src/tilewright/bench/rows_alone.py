"""Products of the rows that an index names, beside cuBLAS over a matrix of just these rows; part of the suite rows.

How many there are is known on the device alone. Each tile is timed in turns with cuBLAS: as it is, with a lower last
tile, with the sums of its last wave in pieces, by programs that take tile after tile; and what the operator chooses
when it expects so many rows.

    measured(run, (4096, 4096, 4096, 2068))["share"]     # cuBLAS's time over that of the choice
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from tilewright.bench import check, subject, timing
from tilewright.bench.suite import Run, Task, dtype_name, fastest, seeded, spelled
from tilewright.bench.tables import Cell, least, ratio, table, verdict
from tilewright.ops.index import Index
from tilewright.ops.products import DEEP, FEW, LARGE, MIDDLE, TIMED
from tilewright.schedule.options import Setting

Counted = tuple[int, int, int, int]
# rows of x, columns, k's, rows that are named: halves, tenths and hundredths drawn at random
COUNTED: tuple[Counted, ...] = (
    (4096, 4096, 4096, 2068),
    (4096, 4096, 4096, 384),
    (2048, 8192, 2048, 1036),
    (8192, 4096, 4096, 772),
    (4096, 8192, 8192, 2073),
    (4096, 8192, 8192, 398),
    (4096, 4096, 16384, 430),
    (1024, 1024, 4096, 523),
    (32768, 1024, 1024, 16534),
    (32768, 1024, 1024, 3389),
    (32768, 1024, 1024, 341),
)
TAILS, PIECES = (32, 64), 8
GOAL = 0.9
DEVICE, DTYPE = "cuda", torch.bfloat16


def settings() -> list[Setting]:
    """Tiles as the choice knows them, then what may suit an incomplete last wave."""
    plain = [tile for tile, *_ in TIMED[2]]
    lower = [{**tile, "tail": n} for tile in (MIDDLE, LARGE) for n in TAILS]
    pieces = [{**tile, "pieces": PIECES} for tile in (MIDDLE, LARGE)]
    return [*plain, *lower, *pieces, *({**tile, "pieces": 1} for tile in (FEW, DEEP))]


def tasks() -> list[Task]:
    return [{"counted": c, "setting": s} for c in COUNTED for s in [*settings(), None]]


def warm(task: Task) -> None:
    x, w, index = _operands(tuple(task["counted"]))
    _plan(x, w, index, task["setting"]).launch()


def measured(run: Run, counted: Counted) -> dict[str, Any]:
    m, n, k, named = counted
    x, w, index = _operands(counted)
    rows = index.positions.flatten()[:named].long()
    held = x[rows]
    reference = held.double() @ w.double().t()
    row: dict[str, Any] = {"case": f"{m}x{n}x{k}, {named} rows", "kind": "alone", "rows": named}
    row |= {"dtype": dtype_name(DTYPE), "settings": []}
    tried = [*settings(), None]
    plans = [_plan(x, w, index, s) for s in tried]
    for plan in plans:
        check.poison(plan.out)
        plan.launch()
    told = [check.compare(plan.out[rows], reference) for plan in plans]
    kept = lambda: functional.linear(held, w)
    row["kept_ms"], *times = timing.graphs_ms([kept, *(plan.launch for plan in plans)])
    for setting, ms, said in zip(tried, times, told, strict=True):
        if setting is not None:
            row["settings"].append({"setting": setting, "ms": ms, "ok": said.ok})
    best = fastest(row["settings"])
    row |= {"ok": all(said.ok for said in told), "ms": times[-1], "setting": plans[-1].setting}
    row |= {"best_ms": best["ms"], "best_setting": best["setting"]}
    row["share"] = ratio(row["kept_ms"], row["ms"])
    return row | {"best_share": ratio(row["kept_ms"], row["best_ms"])}


def _operands(counted: Counted) -> tuple[torch.Tensor, torch.Tensor, Index]:
    m, n, k, named = counted
    x, w = (
        torch.randn(size, k, generator=seeded(DEVICE, size), device=DEVICE).to(DTYPE)
        for size in (m, n)
    )
    there = torch.zeros(m, dtype=torch.bool, device=DEVICE)
    there[torch.randperm(m, generator=seeded(DEVICE, 3), device=DEVICE)[:named]] = True
    return x, w, replace(Index.from_mask(there, (1, None)), expected=named)


def _plan(x: torch.Tensor, w: torch.Tensor, index: Index, setting: Setting | None) -> Any:
    return subject.op("linear").list_plan(x, w, index, setting)


def report(rows: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    head = ["case", "cuBLAS", "chosen", "best", "share", "share of best", "best setting"]
    names = ("case", "kept_ms", "ms", "best_ms", "share", "best_share")
    lines: list[list[Cell]] = [
        [*(r.get(n) for n in names), spelled(r.get("best_setting"))] for r in rows
    ]
    shares = {
        "alone_share": least(r["share"] for r in rows),
        "alone_best_share": least(r["best_share"] for r in rows),
    }
    text = [
        "rows that an index names, alone, beside cuBLAS over a matrix of these rows",
        table(head, lines),
        verdict("rows alone, share of cuBLAS, least", shares["alone_share"], GOAL),
        verdict("the same, best tile, least", shares["alone_best_share"], GOAL),
    ]
    return text, shares
