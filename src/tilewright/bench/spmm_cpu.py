"""SpMM on the CPU, beside torch CSR, SciPy and a hand-written C kernel; float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, graphs, machine, probes, spmm_report, subject, timing
from tilewright.bench.graphs import Graph
from tilewright.bench.suite import Run, seeded
from tilewright.bench.tables import cell
from tilewright.formats import SparseTensor

GRAPHS = "cora pubmed amazon_computers arxiv-sized".split()
QUICK_GRAPHS = "cora tiny".split()
WIDTHS, QUICK_WIDTHS = (32, 128, 512), (32, 128)
BUSY = 0.2  # cores that others may use


def measure(run: Run) -> int:
    options = run.options
    usual = QUICK_GRAPHS if options.quick else GRAPHS
    names = graphs.chosen(options.data, options.graphs, usual)
    widths = options.widths or (QUICK_WIDTHS if options.quick else WIDTHS)
    busy = machine.busy_cores()
    libraries = {width: probes.compile_spmm_c(options.probes, width) for width in widths}
    for name in names:
        graph = graphs.load(name, options.data, "cpu")
        for width in widths:
            if run.late:
                break
            with run.part(f"{name} {width}"):
                row = _case(run, graph, width, libraries[width])
                run.add(row)
                run.say(
                    f"{row['case']}: {cell(row['call_ms'])} ms, torch {cell(row['torch_ms'])} ms"
                )
    overhead: dict[str, float] = {}
    with run.part("call overhead"):
        overhead = call_overhead()
    text, summary = spmm_report.cpu(run.rows, overhead)
    if busy is not None and busy > BUSY:
        text += f"\nNOTE other processes kept {busy:.1f} cores busy: do not trust these times"
    return run.finish(text, {**summary, "busy_cores": busy})


def _case(run: Run, graph: Graph, width: int, library: Any) -> dict[str, Any]:
    values = torch.randn(graph.nnz, generator=seeded("cpu"))
    x = torch.randn(graph.cols, width, generator=seeded("cpu", width))
    reference = check.spmm_reference(graph.indptr, graph.indices, values, x)
    row: dict[str, Any] = {"case": f"{graph.name} {width}", "graph": graph.name, "width": width}
    row |= {"rows": graph.rows, "nnz": graph.nnz, "dtype": "fp32"}
    calls = _peers(run, graph, values, x, library)
    calls |= _ours(run, row, graph.torch_csr(values), x, reference)
    for name, ms in timing.cpus_ms(calls, 0.1 if run.options.quick else 0.3).items():
        row[f"{name}_ms"] = ms
    return row | spmm_report.cpu_derived(row)


def _peers(run: Run, graph: Graph, values: Tensor, x: Tensor, library: Any) -> dict[str, timing.Fn]:
    a_torch = graph.torch_csr(values)
    calls: dict[str, timing.Fn] = {"torch": lambda: a_torch @ x}
    arrays = values.numpy(), graph.indices.numpy(), graph.indptr.numpy()
    try:
        import scipy.sparse
    except ImportError:
        run.say("SciPy is not there")
    else:
        a_scipy = scipy.sparse.csr_array(arrays, shape=(graph.rows, graph.cols))
        dense = x.numpy()
        calls["scipy"] = lambda: a_scipy @ dense
    if library is not None:
        calls["probe"], _ = probes.spmm_c(library, graph.indptr, graph.indices, values, x)
    return calls


def _ours(
    run: Run, row: dict[str, Any], a_torch: Tensor, x: Tensor, reference: Tensor
) -> dict[str, timing.Fn]:
    """The public operator, checked, and its bound launch where it has one."""
    a, spmm = SparseTensor.from_torch(a_torch), subject.function("spmm")
    a.prepare()
    told = check.compare(spmm(a, x), reference)
    row |= {"error": told.error, "ok": told.ok}
    calls: dict[str, timing.Fn] = {"call": lambda: spmm(a, x)}
    with run.part(f"{row['case']} plan"):
        plan = subject.op("spmm").plan(a, x, setting=None)
        check.poison(plan.out)
        plan.launch()
        row["ok"] = told.ok and check.compare(plan.out, reference).ok
        calls["launch"] = plan.launch
    return calls


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
