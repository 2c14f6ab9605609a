"""How far plans are from the best: the cold plan (nothing measured) and the tuned one, against every setting timed.

Of spmm, float32. On the CPU the whole space of C options and formats is timed; on a GPU, whose space has thousands of
points, the settings that the cost model chooses from, in all formats. A distance of 1 is the best setting itself.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, graphs, machine
from tilewright.bench.graphs import Graph
from tilewright.bench.suite import Measured, Run, seeded
from tilewright.bench.tables import Cell, geomean, table
from tilewright.formats import SparseTensor
from tilewright.ops import spmm
from tilewright.ops.choice import Subject
from tilewright.ops.spaces import SETTINGS
from tilewright.ops.tuning import find, is_cold, subject_of_op
from tilewright.schedule.options import Setting
from tilewright.tune import measure

GRAPHS = "tiny cora pubmed amazon_computers".split()
QUICK_GRAPHS = ["tiny"]
WIDTHS, QUICK_WIDTHS = (32, 128), (32,)
SMALL = 200  # points that can all be timed
ROUND_S, REPEATS = 0.15, (5, 200)
PLANS = ("cold", "tuned")


def measured(run: Run) -> Measured:
    options = run.options
    names = graphs.chosen(options.data, options.graphs, QUICK_GRAPHS if options.quick else GRAPHS)
    widths = options.widths or (QUICK_WIDTHS if options.quick else WIDTHS)
    budget = 1.0 if options.quick else 10.0
    yield []
    busy = machine.busy_cores()
    for name in names:
        graph = graphs.load(name, options.data, options.device)
        for width in widths:
            if not run.late:
                with run.part(f"{name} {width}"):
                    row = _case(graph, width, budget)
                    run.add(row)
                    run.say(f"{row['case']}: cold {row['cold']:.2f}, tuned {row['tuned']:.2f}")
    means = {f"{p}_mean": geomean(r[p] for r in run.rows) for p in PLANS}
    worst = {f"{p}_worst": max((r[p] for r in run.rows), default=None) for p in PLANS}
    return run.finish(_text(run.rows, means), {**means, **worst, "busy_cores": busy})


def _case(graph: Graph, width: int, budget_s: float) -> dict[str, Any]:
    device = graph.indptr.device
    values = torch.randn(graph.nnz, generator=seeded(device.type), device=device)
    x = torch.randn(graph.cols, width, generator=seeded(device.type, width), device=device)
    a = SparseTensor.from_torch(graph.torch_csr(values)).prepare()
    reference = check.spmm_reference(graph.indptr, graph.indices, values, x)
    row: dict[str, Any] = {"case": f"{graph.name} {width}", "graph": graph.name, "width": width}
    row |= {"rows": graph.rows, "nnz": graph.nnz}
    return row | distances(subject_of_op(spmm, (a, x), {}), budget_s, reference)


def distances(subject: Subject, budget_s: float, reference: Tensor) -> dict[str, Any]:
    """Tuned within a budget, then every setting in turns: how far cold and tuned plan are from the best."""
    began = time.perf_counter()
    tuned = find(subject, budget_s)
    tune_s = time.perf_counter() - began
    plans = {"cold": subject.first, "tuned": tuned.best.setting}
    points = _points(subject, list(plans.values()))
    calls = [subject.make(p) for p in points]
    ok = all([check.compare(call()[0], reference).ok for call in calls])
    took = _times(subject, calls)
    best = min(took)
    row: dict[str, Any] = {"ok": ok, "points": len(points), "tune_s": tune_s}
    row |= {"best_ms": best * 1e3, "best_setting": points[took.index(best)]}
    row |= {"tried": len(tuned.trials), "worst": max(took) / best}
    for name, setting in plans.items():
        row |= {name: took[points.index(setting)] / best, f"{name}_setting": setting}
    return row


def _points(subject: Subject, plans: list[Setting]) -> list[Setting]:
    """The whole space, or what has served elsewhere; the plans that are judged among them."""
    whole = subject.space.size <= SMALL
    known = map(subject.complete, subject.shown or SETTINGS)
    found = list(subject.space.points()) if whole else list(known)
    return [*(p for n, p in enumerate(plans) if p not in (*found, *plans[:n])), *found]


def _times(subject: Subject, calls: list[measure.Fn]) -> list[float]:
    """The shortest time of each, all in turns."""
    device, cold = subject.case.device, is_cold(subject, None)
    once = min(t[0] for t in measure.seconds(calls, 1, device, cold))
    repeats = max(REPEATS[0], min(REPEATS[1], int(ROUND_S / once)))
    return [min(t) for t in measure.seconds(calls, repeats, device, cold)]


def _text(rows: list[dict[str, Any]], means: dict[str, Any]) -> str:
    head = ["case", "points", "best ms", "cold", "tuned", "tried", "tune s", "worst"]
    keys = ("case", "points", "best_ms", "cold", "tuned", "tried", "tune_s", "worst")
    body: list[list[Cell]] = [[r[k] for k in keys] for r in rows]
    body.append(
        ["geometric mean", None, None, means["cold_mean"], means["tuned_mean"], *[None] * 3]
    )
    return table(head, body)
