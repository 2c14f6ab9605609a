"""SDDMM on the CPU, beside torch.sparse.sampled_addmm, Numba and a plain loop; float32."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, graphs, machine, peers, subject, timing
from tilewright.bench.graphs import Graph
from tilewright.bench.roof import roofs
from tilewright.bench.spmm_cpu import busy_note
from tilewright.bench.suite import Measured, Run, seeded
from tilewright.bench.tables import Cell, cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor

GRAPHS = (*graphs.REAL, "arxiv-sized")
QUICK_GRAPHS = "cora tiny".split()
SLACK = 4.0  # a plain loop adds up in order
WIDTHS, QUICK_WIDTHS = (32, 64, 128, 256, 512), (32, 128)


def measure(run: Run) -> Measured:
    options = run.options
    usual = QUICK_GRAPHS if options.quick else GRAPHS
    yield []
    busy = machine.busy_cores()
    for name in graphs.chosen(options.data, options.graphs, usual):
        graph = graphs.load(name, options.data, "cpu")
        for width in options.widths or (QUICK_WIDTHS if options.quick else WIDTHS):
            if run.late:
                break
            with run.part(f"{name} {width}"):
                row = _case(run, graph, width)
                run.add(row)
                run.say(f"{row['case']}: {cell(row['call_ms'])} ms, {cell(row['over_best'])}x")
    text, summary = _report(run.rows)
    text += busy_note(run, busy)
    return run.finish(text, {**summary, "busy_cores": busy, "clock": run.clock})


def _case(run: Run, graph: Graph, width: int) -> dict[str, Any]:
    x = torch.randn(graph.rows, width, generator=seeded("cpu", 1))
    z = torch.randn(graph.cols, width, generator=seeded("cpu", 2))
    reference = check.sddmm_reference(graph.indptr, graph.indices, x, z)
    row: dict[str, Any] = {"case": f"{graph.name} {width}", "graph": graph.name, "width": width}
    row |= {"rows": graph.rows, "cols": graph.cols, "nnz": graph.nnz}
    row |= {"dtype": "fp32", "device": "cpu"}
    calls = peers.sddmm_peers(run, graph, x, z) | _ours(run, row, graph, x, z, reference)
    for name, ms in run.cpus_ms(calls).items():
        row[f"{name}_ms"] = ms
    best = least(row.get(f"{name}_ms") for name in ("torch", "numba"))
    row["over_best"] = ratio(best, row["call_ms"])
    row["over_torch"] = ratio(row["torch_ms"], row["call_ms"])
    row["over_plain"] = ratio(row.get("plain_ms"), row.get("launch_ms"))
    return row | roofs(row, row["call_ms"], run.options.busy)


def _ours(
    run: Run, row: dict[str, Any], graph: Graph, x: Tensor, z: Tensor, reference: Tensor
) -> dict[str, timing.Fn]:
    """The public operator, checked, its bound launch, and the same statement unscheduled."""
    sddmm = subject.function("sddmm")
    began = time.perf_counter()
    a = SparseTensor.from_torch(graph.torch_csr(torch.ones(graph.nnz))).with_values(None).prepare()
    row["convert_ms"] = (time.perf_counter() - began) * 1e3
    began = time.perf_counter()
    told = check.compare(sddmm(a, x, z).explicit_values(), reference)
    row |= {"error": told.error, "ok": told.ok, "first_ms": (time.perf_counter() - began) * 1e3}
    calls: dict[str, timing.Fn] = {"call": lambda: sddmm(a, x, z)}
    with run.part(f"{row['case']} plan"):
        plan = subject.op("sddmm").plan(a, x, z)
        check.poison(plan.out)
        plan.launch()
        row["ok"] = told.ok and check.compare(plan.out, reference).ok
        row["compile_s"] = plan.kernel.seconds
        calls["launch"] = plan.launch
        with run.peer("plain loop"):
            loop, out = peers.plain(plan)
            loop()
            if check.compare(out, reference, SLACK * check.TOLERANCE[x.dtype]).ok:
                calls["plain"] = loop
    return calls


def _report(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    header = "graph F torch numba plain launch call /best /torch /plain roof GB/s"
    names = "graph width torch_ms numba_ms plain_ms launch_ms call_ms"
    names += " over_best over_torch over_plain roof gather_gb_s"
    lines: list[list[Cell]] = [[row.get(n) for n in names.split()] for row in rows]
    s: dict[str, Any] = {}
    for name in ("over_best", "over_torch", "over_plain"):
        s |= {name: geomean(r[name] for r in rows), f"{name}_least": least(r[name] for r in rows)}
    text = [
        "times in ms; launch: the bound kernel, call: the public operator; plain: the same statement, unscheduled;",
        "/best: over the better of torch and Numba; roof: share of a copy's speed, each byte counted once",
        table(header.split(), lines),
        verdict("operator over the best peer, geometric mean", s["over_best"], 2.0),
        verdict("operator over the best peer, least", s["over_best_least"], 1.0),
    ]
    return "\n".join(text), s
