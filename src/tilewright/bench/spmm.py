"""SpMM, y = A x, beside cuSPARSE, torch and a hand-written kernel.

On CUDA a case is a graph, a width and a dtype. Every tile setting is timed in turns with the probe's
kernel at the same setting, feature tile and tile order; the best one in turns with the best cuSPARSE
algorithm; the public operator against torch's `A @ x` by the wall clock. Every output is checked.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, graphs, probes, spmm_cpu, spmm_report, subject, timing, vendor
from tilewright.bench.beside import beside
from tilewright.bench.graphs import Graph
from tilewright.bench.roof import roofs
from tilewright.bench.suite import (
    NEAR_ENTRIES,
    Measured,
    Run,
    Task,
    dtype_name,
    dtype_of,
    dtypes_of,
    seeded,
)
from tilewright.bench.tables import cell
from tilewright.formats import SparseTensor
from tilewright.formats.structure import Structure
from tilewright.ops.plans import complete
from tilewright.ops.spaces import near_lists
from tilewright.tune.search import NEAREST

GRAPHS = (*graphs.REAL, "arxiv-sized", "proteins-sized", "reddit-sized")
QUICK_GRAPHS = "cora tiny arxiv-sized".split()
WIDTHS, QUICK_WIDTHS = (32, 64, 128, 256, 512), (32, 128)
DTYPES = (torch.float32, torch.bfloat16)
QUICK_SETTINGS = 3
PROBED = 5  # the first settings are those that the probe names as its own
WARM_ROWS = 9000
PEER_SLACK = 4.0  # a peer may round more often


@dataclass
class Subject:
    """One graph in one dtype, with the probe's work lists, which depend on the setting alone."""

    graph: Graph
    a: SparseTensor
    a_torch: Tensor
    values: Tensor
    prepare_ms: float
    work: dict[tuple[int, ...], tuple[Any, ...]] = field(default_factory=dict)

    def work_list(self, probe: ModuleType, setting: dict[str, Any]) -> tuple[Any, ...]:
        key = setting["rows"], setting["long"], setting["chunk"]
        if key not in self.work:
            self.work[key] = probes.spmm_plan(probe, self.graph.indptr, setting)
        return self.work[key]


def measure(run: Run) -> Measured:
    if run.options.device == "cpu":
        return (yield from spmm_cpu.measure(run))
    torch.backends.cuda.matmul.allow_tf32 = False
    names, widths, settings = _names(run), _widths(run), _settings(run)
    loaded = {name: graphs.load(name, run.options.data, "cuda") for name in names}
    dtypes = dtypes_of(run, DTYPES)
    yield tasks(list(loaded.values()), widths, dtypes, settings)
    overhead: dict[str, float] = {}
    with run.part("call overhead"):
        overhead = call_overhead("cuda")
    probe = probes.load(run.options.probes, "spmm_units")
    for graph in loaded.values():
        work: dict[tuple[int, ...], tuple[Any, ...]] = {}
        for dtype in dtypes:
            with run.part(f"{graph.name} {dtype_name(dtype)}"):
                held = _subject(graph, dtype, work)
                for width, reduce in itertools.product(widths, run.options.reduces):
                    if not run.late:
                        _add_case(run, held, width, reduce, settings, probe)
    text, summary = spmm_report.cuda(run.rows, overhead)
    return run.finish(text, {**summary, "cusparse": vendor.version()})


def _names(run: Run) -> list[str]:
    usual = QUICK_GRAPHS if run.options.quick else GRAPHS
    return graphs.chosen(run.options.data, run.options.graphs, usual)


def _widths(run: Run) -> tuple[int, ...]:
    return run.options.widths or (QUICK_WIDTHS if run.options.quick else WIDTHS)


def _settings(run: Run) -> list[dict[str, Any]]:
    known = subject.settings("spmm")
    usual = QUICK_SETTINGS if run.options.quick else len(known)
    return known[: run.options.settings or usual]


def _subject(graph: Graph, dtype: torch.dtype, work: dict[tuple[int, ...], Any]) -> Subject:
    device = str(graph.indptr.device.type)
    values = torch.randn(graph.nnz, generator=seeded(device), device=device).to(dtype)
    a_torch = graph.torch_csr(values)
    torch.cuda.synchronize()
    began = time.perf_counter()
    a = SparseTensor.from_torch(a_torch)
    a.prepare()
    torch.cuda.synchronize()
    return Subject(graph, a, a_torch, values, (time.perf_counter() - began) * 1e3, work)


def _add_case(
    run: Run,
    held: Subject,
    width: int,
    reduce: str,
    settings: list[dict[str, Any]],
    probe: ModuleType | None,
) -> None:
    """Reductions but sum have neither a vendor's algorithm nor a probe."""
    case = f"{held.graph.name} {width} {dtype_name(held.values.dtype)}"
    case += "" if reduce == "sum" else f" {reduce}"
    with run.part(case):
        row = _case(run, case, held, width, reduce, settings, probe if reduce == "sum" else None)
        run.add(row)
        run.say(
            f"{case}: best {cell(row.get('best_ms'))} ms, vendor {cell(row.get('vendor_ms'))} ms"
        )


def _case(
    run: Run,
    case: str,
    held: Subject,
    width: int,
    reduce: str,
    settings: list[dict[str, Any]],
    probe: ModuleType | None,
) -> dict[str, Any]:
    graph, dtype = held.graph, held.values.dtype
    x = torch.randn(graph.cols, width, generator=seeded("cuda", width), device="cuda").to(dtype)
    reference = check.reduce_reference(graph.indptr, graph.indices, held.values, x, reduce)
    row: dict[str, Any] = {"case": case, "graph": graph.name, "rows": graph.rows, "ok": True}
    row |= {"reduce": reduce, "cols": graph.cols, "device": "cuda"}
    row |= {"nnz": graph.nnz, "width": width, "dtype": dtype_name(dtype)}
    row |= {"longest_row": graph.longest, "prepare_ms": held.prepare_ms}
    vendor_call = _vendor(run, row, held, x, reference) if reduce == "sum" else None
    plans = _all_settings(run, row, held, x, reference, settings, probe)
    plans += _near_settings(run, row, held, x, reference)
    _public(run, row, held, x, reference)
    tried = [*row["settings"], *row["near"]]
    best = min(tried, key=lambda s: s["ms"], default=None)
    if best:
        row |= {"best_ms": best["ms"], "best_setting": best["setting"]}
        launch = plans[tried.index(best)].launch
        if vendor_call:  # side by side: these two figures make the claim
            with run.peer(f"{case} vendor in turns"):
                row["best_ms"], row["vendor_ms"] = timing.graphs_ms([launch, vendor_call.run])
    if "cold_ms" in row and best:
        least = min(row["best_ms"], row["cold_ms"], row["chosen_ms"])
        row |= {"cold": row["cold_ms"] / least, "tuned": row["chosen_ms"] / least}
    row |= spmm_report.derived(row)
    return row | roofs(row, row.get("best_ms"))


def _vendor(
    run: Run, row: dict[str, Any], held: Subject, x: Tensor, reference: Tensor
) -> vendor.Call | None:
    """Times of all algorithms whose output is nearly right, and of those as right as ours must be; the fastest call."""
    g, times, errors, best = held.graph, {}, {}, None
    own, right = check.TOLERANCE[x.dtype], []
    allowed = PEER_SLACK * own
    for name, make in vendor.spmm_calls(g.indptr, g.indices, held.values, x).items():
        try:
            call = make()
            check.poison(call.out)
            call.run()
            told = check.compare(call.out, reference, allowed)
            errors[name] = told.error
            if not told.ok:
                run.say(f"{row['case']}: cuSPARSE {name} is outside the tolerance")
                continue
            times[name] = _vendor_ms(call)
            right += [times[name]] if told.within(own) else []
        except vendor.VendorError as why:
            run.say(f"{row['case']}: cuSPARSE {name}: {why}")
            continue
        if times[name] == min(times.values()):
            best = call
    row |= {"vendor": times, "vendor_error": errors, "vendor_right_ms": min(right, default=None)}
    row["vendor_ms"] = min(times.values(), default=None)
    row["vendor_algorithm"] = min(times, key=lambda n: times[n], default=None)
    return best


def _vendor_ms(call: vendor.Call) -> float:
    try:
        return timing.graph_ms(call.run, replays=20)
    except RuntimeError:  # an algorithm that cannot be captured
        torch.cuda.synchronize()
        return timing.eager_cold_ms(call.run, replays=20)


def _all_settings(
    run: Run,
    row: dict[str, Any],
    held: Subject,
    x: Tensor,
    reference: Tensor,
    settings: list[dict[str, Any]],
    probe: ModuleType | None,
) -> list[Any]:
    """Fills row["settings"]; the plans in the same order."""
    plans: list[Any] = []
    row["settings"] = []
    for n, setting in enumerate(settings):
        with run.part(f"{row['case']} {setting}"):
            beside_it = probe if n < PROBED else None
            plan, made = _setting(run, row, held, x, reference, setting, beside_it)
            row["settings"].append(made)
            plans.append(plan)
    row["ok"] = bool(plans) and all(s["ok"] for s in row["settings"])
    return plans


def _setting(
    run: Run,
    row: dict[str, Any],
    held: Subject,
    x: Tensor,
    reference: Tensor,
    setting: dict[str, Any],
    probe: ModuleType | None,
) -> tuple[Any, dict[str, Any]]:
    plan = subject.op("spmm").plan(held.a, x, setting=setting, reduce=row["reduce"])
    full = {**setting, **plan.setting}
    return plan, _one(run, row["case"], held, x, reference, plan, full, probe)


def _near_settings(
    run: Run, row: dict[str, Any], held: Subject, x: Tensor, reference: Tensor
) -> list[Any]:
    """Fills row["near"]: work lists like the three fastest, as `tw.tune` tries them, for the kernels that are there.

    Not on the largest graphs, which are too long for it; the plans in the same order.
    """
    plans: list[Any] = []
    row["near"] = []
    fastest = sorted(row["settings"], key=lambda s: float(s["ms"]))[:NEAREST]
    known = [s["setting"] for s in row["settings"]]
    for setting in (n for s in fastest for n in near_lists(s["setting"]) if n not in known):
        if held.graph.nnz > NEAR_ENTRIES:
            break
        known.append(setting)
        with run.part(f"{row['case']} {setting}"):
            plan, made = _setting(run, row, held, x, reference, setting, None)
            row["near"].append(made)
            plans.append(plan)
    row["ok"] = row["ok"] and all(s["ok"] for s in row["near"])
    return plans


def _one(
    run: Run,
    case: str,
    held: Subject,
    x: Tensor,
    reference: Tensor,
    plan: Any,
    setting: dict[str, Any],
    probe: ModuleType | None,
) -> dict[str, Any]:
    """One setting: checked, and timed in turns with the probe."""
    check.poison(plan.out)
    plan.launch()
    told = check.compare(plan.out, reference)
    made: dict[str, Any] = {"setting": setting, "error": told.error, "ok": told.ok}
    peer = partial(_probe, probe, held, x, setting) if probe else None
    right = lambda out: check.compare(out, reference).ok
    return made | beside(run, case, plan.launch, peer, right)


def _probe(
    probe: ModuleType, held: Subject, x: Tensor, setting: dict[str, Any]
) -> tuple[probes.Launch, Tensor]:
    g, work = held.graph, held.work_list(probe, setting)
    return probes.spmm_units(probe, work, g.indices, held.values, x, g.rows, setting)


def _public(run: Run, row: dict[str, Any], held: Subject, x: Tensor, reference: Tensor) -> None:
    """The operator as a user calls it, and its own choice of setting."""
    spmm = subject.function("spmm")
    with run.part(f"{row['case']} operator"):
        how = row["reduce"]
        if run.options.tune:
            cold = subject.op("spmm").plan(held.a, x, setting=None, reduce=how)
            row |= {"cold_ms": timing.graph_ms(cold.launch), "cold_setting": cold.setting}
            began = time.perf_counter()
            row["tuned_setting"] = subject.tune("spmm", held.a, x, reduce=how)
            row["tune_s"] = time.perf_counter() - began
        told = check.compare(spmm(held.a, x, reduce=how), reference)
        row |= {"error": told.error, "ok": row["ok"] and told.ok}
        calls: list[timing.Fn] = [lambda: spmm(held.a, x, reduce=how)]
        calls += [lambda: held.a_torch @ x] if how == "sum" else []
        took = [*timing.eagers_ms(calls), None]
        row["eager_ms"], row["torch_eager_ms"] = took[:2]
        chosen = subject.op("spmm").plan(held.a, x, setting=None, reduce=how)
        row |= {"chosen_ms": timing.graph_ms(chosen.launch), "chosen_setting": chosen.setting}


def call_overhead(device: str) -> dict[str, float]:
    """Microseconds a call on a matrix of one entry: the operator, torch, torch's addition."""
    one = torch.zeros(1, dtype=torch.int32, device=device)
    graph = Graph("one", torch.tensor([0, 1], dtype=torch.int32, device=device), one, 1)
    a_torch = graph.torch_csr(torch.ones(1, device=device))
    a, x = SparseTensor.from_torch(a_torch), torch.ones(1, 1, device=device)
    a.prepare()
    spmm = subject.function("spmm")
    calls = {"spmm": lambda: spmm(a, x), "torch": lambda: a_torch @ x, "add": lambda: x + x}
    took = timing.eagers_ms(list(calls.values()), n=500)
    return {name: ms * 1e3 for name, ms in zip(calls, took, strict=True)}


def tasks(
    loaded: list[Graph],
    widths: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
    settings: list[dict[str, Any]],
) -> list[Task]:
    """A task for each kernel: settings as they are completed for some graph. Wide ones first: they take longest."""
    made: dict[str, Task] = {}
    known = [Structure("csr", (g.rows, g.cols), g.indptr, g.indices, check=False) for g in loaded]
    for width, dtype in itertools.product(sorted(widths, reverse=True), dtypes):
        for n, s in itertools.product(range(len(settings)), known):
            full = {**complete(settings[n], s, width, dtype), "long": 32, "chunk": 512}
            task = {"width": width, "dtype": dtype_name(dtype), "setting": full}
            made.setdefault(str(task), {**task, "probed": n < PROBED})
    return list(made.values())


def warm(task: dict[str, Any], folder: Path | None) -> None:
    """Compile one setting."""
    dtype, setting, rows = dtype_of(task["dtype"]), task["setting"], WARM_ROWS
    graph = graphs.few_entries(rows, "cuda")
    values = torch.ones(graph.nnz, dtype=dtype, device="cuda")
    x = torch.ones(rows, task["width"], dtype=dtype, device="cuda")
    a = SparseTensor.from_torch(graph.torch_csr(values))
    subject.op("spmm").plan(a, x, setting=setting).launch()
    probe = probes.load(folder, "spmm_units") if task["probed"] else None
    if probe:
        work = probes.spmm_plan(probe, graph.indptr, setting)
        launch, _ = probes.spmm_units(
            probe, work, graph.indices, values, x, rows, setting, warm=True
        )
        launch()
    torch.cuda.synchronize()
