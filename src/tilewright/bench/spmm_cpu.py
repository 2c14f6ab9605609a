"""SpMM on the CPU, beside torch CSR (MKL), SciPy, Numba, a plain loop and a hand-written C kernel; float32."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import (
    check,
    graphs,
    machine,
    peers,
    probes,
    regret,
    spmm_report,
    subject,
    timing,
)
from tilewright.bench.graphs import Graph
from tilewright.bench.roof import roofs
from tilewright.bench.suite import Measured, Run, seeded
from tilewright.bench.tables import cell
from tilewright.formats import SparseTensor

GRAPHS = (*graphs.REAL, "arxiv-sized")
QUICK_GRAPHS = "cora tiny".split()
WIDTHS, QUICK_WIDTHS = (32, 64, 128, 256, 512), (32, 128)
BUSY = 0.2  # cores that others may use


def measure(run: Run) -> Measured:
    options = run.options
    usual = QUICK_GRAPHS if options.quick else GRAPHS
    names = graphs.chosen(options.data, options.graphs, usual)
    widths = options.widths or (QUICK_WIDTHS if options.quick else WIDTHS)
    yield []
    busy = machine.busy_cores()
    libraries = {width: probes.compile_spmm_c(options.probes, width) for width in widths}
    for name in names:
        graph = graphs.load(name, options.data, "cpu")
        for width in widths:
            for reduce in options.reduces:
                if run.late:
                    break
                with run.part(f"{name} {width} {reduce}"):
                    row = _case(run, graph, width, reduce, libraries[width])
                    run.add(row)
                    run.say(f"{row['case']}: {cell(row['call_ms'])} ms, {cell(row['over_best'])}x")
    overhead: dict[str, float] = {}
    with run.part("call overhead"):
        overhead = call_overhead()
    text, summary = spmm_report.cpu(run.rows, overhead)
    text += busy_note(run, busy)
    return run.finish(text, {**summary, "busy_cores": busy, "clock": run.clock})


def busy_note(run: Run, busy: float | None) -> str:
    if busy is None or busy <= BUSY:
        return ""
    advice = run.clock if run.options.busy else "do not trust these times (or use --busy)"
    return f"\nNOTE other processes kept {busy:.1f} cores busy: {advice}"


def _case(run: Run, graph: Graph, width: int, reduce: str, library: Any) -> dict[str, Any]:
    values = torch.randn(graph.nnz, generator=seeded("cpu"))
    x = torch.randn(graph.cols, width, generator=seeded("cpu", width))
    reference = check.reduce_reference(graph.indptr, graph.indices, values, x, reduce)
    row: dict[str, Any] = {"case": f"{graph.name} {width} {reduce}", "graph": graph.name}
    row |= {"width": width, "reduce": reduce, "rows": graph.rows, "cols": graph.cols}
    row |= {"nnz": graph.nnz, "dtype": "fp32", "device": "cpu", "longest_row": graph.longest}
    calls = peers.spmm_peers(run, graph, values, x, reduce)
    if library is not None and reduce == "sum":
        calls["probe"], _ = probes.spmm_c(library, graph.indptr, graph.indices, values, x)
    calls |= _ours(run, row, graph.torch_csr(values), x, reference, reduce)
    for name, ms in run.cpus_ms(calls).items():
        row[f"{name}_ms"] = ms
    row |= spmm_report.cpu_derived(row)
    return row | roofs(row, row["call_ms"], run.options.busy)


def _ours(
    run: Run, row: dict[str, Any], a_torch: Tensor, x: Tensor, reference: Tensor, reduce: str
) -> dict[str, timing.Fn]:
    """The public operator, checked, its bound launch, and the same statement unscheduled."""
    spmm = subject.function("spmm")
    right = lambda out: check.compare(out, reference)
    began = time.perf_counter()
    a = SparseTensor.from_torch(a_torch)
    a.prepare()
    row["convert_ms"] = (time.perf_counter() - began) * 1e3
    began = time.perf_counter()
    if run.options.tune:
        _tune(run, row, a, x, reference, reduce)
    began = time.perf_counter()
    told = right(spmm(a, x, reduce=reduce))
    row |= {"error": told.error, "ok": told.ok, "first_ms": (time.perf_counter() - began) * 1e3}
    calls: dict[str, timing.Fn] = {"call": lambda: spmm(a, x, reduce=reduce)}
    with run.part(f"{row['case']} plan"):
        plan = subject.op("spmm").plan(a, x, setting=None, reduce=reduce)
        check.poison(plan.out)
        plan.launch()
        row["ok"] = told.ok and right(plan.out).ok
        row["compile_s"] = plan.kernel.seconds
        calls["launch"] = plan.launch
        with run.peer("plain loop"):
            loop, out = peers.plain(plan)
            loop()
            if right(out).ok:
                calls["plain"] = loop
    return calls


def _tune(
    run: Run, row: dict[str, Any], a: SparseTensor, x: Tensor, reference: Tensor, reduce: str
) -> None:
    """Tuned, for the calls of this process; how far that and the cold plan are from the best of all settings."""
    op, tuning = subject.function("spmm"), subject.op("tuning")
    budget = 1.0 if run.options.quick else 10.0
    made = regret.distances(tuning.subject_of_op(op, (a, x), {"reduce": reduce}), budget, reference)
    row |= {k: v for k, v in made.items() if k != "ok"}
    setting = made["tuned_setting"]
    tuning.tune(op, a, x, settings=[setting], budget_s=0, save=False, reduce=reduce)


def call_overhead() -> dict[str, float]:
    """Microseconds a call on a matrix of one entry."""
    graph = Graph("one", torch.tensor([0, 1]).int(), torch.tensor([0]).int(), 1)
    a_torch, x = graph.torch_csr(torch.ones(1)), torch.ones(1, 1)
    a, spmm = SparseTensor.from_torch(a_torch), subject.function("spmm")
    a.prepare()
    calls: dict[str, timing.Fn] = {
        "spmm": lambda: spmm(a, x),
        "torch": lambda: a_torch @ x,
        "add": lambda: x + x,
    }
    return {name: ms * 1e3 for name, ms in timing.cpus_ms(calls, 0.1).items()}
