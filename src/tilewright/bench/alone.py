"""Products over what an index names, alone and with every tile, beside cuBLAS; part of the suite rows.

In: a case, which names rows of x, or k's for each 32 rows. How many there are is known on the device alone. Tiles are
timed in turns with cuBLAS: over a matrix of just these rows, or over the whole x. Of rows also with a lower last tile,
with the sums of the last wave in pieces, and by programs that take tile after tile. Last comes what the operator
chooses when it expects so many.

    measured(run, Case(4096, 4096, 4096, named=2068))["share"]     # cuBLAS's time over that of the choice
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.bench import check, subject, timing
from tilewright.bench.dynamic_cases import kept
from tilewright.bench.suite import DTYPES, Run, Task, fastest, seeded, spelled
from tilewright.bench.tables import Cell, least, ratio, table, verdict
from tilewright.ops.found import GROUP
from tilewright.ops.index import Index
from tilewright.ops.products import DEEP, FEW, LARGE, MIDDLE, SMALL, TIMED
from tilewright.schedule.options import Setting


@dataclass(frozen=True)
class Case:
    """x [m, k], w [n, k]. named: rows, else the share of micro-tiles of 32 x 1 that are 0."""

    m: int
    n: int
    k: int
    named: int = 0
    zeros: float = 0.0
    dtype: str = "bf16"

    @property
    def kind(self) -> str:
        return "rows alone" if self.named else "k alone"

    @property
    def name(self) -> str:
        said = f"{self.named} rows" if self.named else f"{self.zeros:.0%} zeros of {GROUP}x1"
        return f"{self.m}x{self.n}x{self.k}, {said}{f', {self.dtype}' * (self.dtype != 'bf16')}"


CASES = (
    *(
        Case(*sizes)
        for sizes in (
            (4096, 4096, 4096, 2068),  # halves, tenths and hundredths, drawn at random
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
    ),
    *(
        Case(*sizes, dtype="fp32")
        for sizes in ((4096, 4096, 4096, 2068), (4096, 4096, 4096, 384), (1024, 1024, 4096, 523))
    ),
    *(Case(4096, 4096, k, zeros=z) for k in (4096, 16384) for z in (0.95, 0.99)),
)
TAILS, PIECES = (32, 64), 8
COLUMNS, DEPTHS, WARPS, STAGES = (64, 128, 256), (32, 64), (2, 4, 8), (2, 3, 5)
SUMS = (8, 64)  # of a thread
GOAL = 0.9
DEVICE = "cuda"


def settings(case: Case) -> list[Setting]:
    if not case.named:
        return list(_for_k())
    made = list(_for_rows() if DTYPES[case.dtype].itemsize == 2 else _by_lanes())
    return [s for n, s in enumerate(made) if s not in made[:n]]


def _for_rows() -> Iterator[Setting]:
    """Tiles as the choice knows them, then what may suit an incomplete last wave, or few rows of many."""
    yield from (tile for tile, *_ in TIMED[2])
    yield LARGE
    yield from ({**tile, "tail": n} for tile in (MIDDLE, LARGE) for n in TAILS)
    yield from ({**tile, "pieces": PIECES} for tile in (MIDDLE, LARGE))
    yield from ({**tile, "pieces": PIECES, "stages": 4} for tile in (SMALL, FEW))
    yield from ({**tile, "pieces": 1} for tile in (FEW, DEEP))


def _by_lanes() -> Iterator[Setting]:
    """The same for numbers that tensor cores do not multiply."""
    for tile, *_ in TIMED[4]:
        yield from (
            {**tile, **more} for more in ({}, {"pieces": PIECES}, {"pieces": 1}, {"tail": 32})
        )


def _for_k() -> Iterator[Setting]:
    for bn, bk, warps, stages in product(COLUMNS, DEPTHS, WARPS, STAGES):
        if SUMS[0] <= bn // warps <= SUMS[1]:
            made = {"bm": GROUP, "bn": bn, "bk": bk, "group": 64}
            yield {**made, "warps": warps, "stages": stages}


def tasks() -> list[Task]:
    return [{"alone": asdict(c), "setting": s} for c in CASES for s in [*settings(c), None]]


def warm(task: Task) -> None:
    x, w, index = _operands(Case(**task["alone"]))
    _plan(x, w, index, task["setting"]).launch()


def measured(run: Run, case: Case) -> dict[str, Any]:
    x, w, index = _operands(case)
    rows = index.positions.flatten()[: case.named].long() if case.named else slice(None)
    held = x[rows]
    reference = held.double() @ w.double().t()
    tried = [*settings(case), None]
    plans = [_plan(x, w, index, s) for s in tried]
    for plan in plans:
        check.poison(plan.out)
        plan.launch()
    told = [check.compare(plan.out[rows], reference) for plan in plans]
    vendor = lambda: functional.linear(held, w)
    vendor_ms, *times = timing.graphs_ms([vendor, *(plan.launch for plan in plans)])
    row: dict[str, Any] = {"case": case.name, "kind": case.kind, **asdict(case)}
    row |= {"ok": all(said.ok for said in told)}
    row["settings"] = [
        {"setting": s, "ms": ms, "ok": said.ok}
        for s, ms, said in zip(tried[:-1], times, told, strict=False)
    ]
    best = fastest(row["settings"])
    row |= {"vendor_ms": vendor_ms, "ms": times[-1], "setting": plans[-1].setting}
    row |= {"best_ms": best["ms"], "best_setting": best["setting"]}
    return row | {
        n: ratio(vendor_ms, row[t]) for n, t in (("share", "ms"), ("best_share", "best_ms"))
    }


def _operands(case: Case) -> tuple[Tensor, Tensor, Index]:
    random = seeded(DEVICE, 3)
    x, w = (
        torch.randn(size, case.k, generator=random, device=DEVICE).to(DTYPES[case.dtype])
        for size in (case.m, case.n)
    )
    if not case.named:
        x = x * kept((case.m, case.k), (GROUP, 1), case.zeros, random)
        return x, w, Index.from_values(x, (GROUP, 1), grouped=True)
    there = torch.zeros(case.m, dtype=torch.bool, device=DEVICE)
    there[torch.randperm(case.m, generator=random, device=DEVICE)[: case.named]] = True
    return x, w, replace(Index.from_mask(there, (1, None)), expected=case.named)


def _plan(x: Tensor, w: Tensor, index: Index, setting: Setting | None) -> Any:
    return subject.op("linear").list_plan(x, w, index, setting)


def report(rows: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    head = ["case", "cuBLAS", "chosen", "best", "/chosen", "/best", "best setting"]
    names = ("case", "vendor_ms", "ms", "best_ms", "share", "best_share")
    lines: list[list[Cell]] = [
        [*(r.get(n) for n in names), spelled(r.get("best_setting"))] for r in rows
    ]
    mine = [r for r in rows if r["kind"] == "rows alone"]
    shares = {
        "alone_share": least(r["share"] for r in mine),
        "alone_best_share": least(r["best_share"] for r in mine),
    }
    text = [
        "over what an index names, alone; cuBLAS over just these rows, or over all of x",
        table(head, lines),
        verdict("rows alone, share of cuBLAS, least", shares["alone_share"], GOAL),
        verdict("the same, best tile, least", shares["alone_best_share"], GOAL),
    ]
    return text, shares
