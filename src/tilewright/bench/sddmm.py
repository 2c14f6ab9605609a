"""SDDMM, out[p] = sum_f x[i, f] z[j, f] for every entry p = (i, j), beside cuSPARSE and torch.

The pattern has no values, so that all compute the same. REFERENCE_US are times of a hand-written
kernel on an H200, cold L2, as (F = 32, F = 128): figures to read beside, not measured in this run.
"""

from __future__ import annotations

from functools import partial
from math import inf, isinf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, graphs, sddmm_cpu, subject, timing, vendor
from tilewright.bench.graphs import Graph
from tilewright.bench.roof import floor_line, roofs
from tilewright.bench.suite import (
    NEAR_ENTRIES,
    Measured,
    Run,
    dtype_name,
    dtype_of,
    dtypes_of,
    fastest,
    seeded,
    spelled,
)
from tilewright.bench.tables import cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor
from tilewright.tune.search import NEAREST

GRAPHS = (*graphs.REAL, "arxiv-sized", "proteins-sized", "reddit-sized")
GENERATED_GRAPHS = ["tiny", "arxiv-sized"]
WIDTHS, KNOWN_WIDTHS = (32, 64, 128, 256, 512), (32, 128)
DTYPES = (torch.float32, torch.bfloat16)
TILES = [
    {"edges": e, "width": w, "warps": n}
    for e, w, n in (
        *((32, 32, 2), (32, 32, 4), (64, 32, 4), (16, 32, 4), (16, 32, 1), (32, 32, 1)),
        *((16, 64, 4), (16, 64, 2), (64, 32, 2), (16, 128, 2), (32, 64, 2), (128, 32, 8)),
    )
]
QUICK_SETTINGS = 2
REFERENCE_US = {
    ("cora", "fp32"): (6.2, 7.2),
    ("pubmed", "fp32"): (8.7, 15.0),
    ("amazon_computers", "fp32"): (16.0, 35.4),
    ("musae_github", "fp32"): (18.8, 43.6),
    ("snap_ego_twitter", "fp32"): (59.6, 159.0),
    ("cora", "bf16"): (6.2, 6.4),
    ("pubmed", "bf16"): (6.9, 10.9),
    ("amazon_computers", "bf16"): (11.9, 25.1),
    ("musae_github", "bf16"): (13.3, 29.2),
    ("snap_ego_twitter", "bf16"): (39.6, 104.0),
}


def measure(run: Run) -> Measured:
    options = run.options
    device = options.device
    if device == "cpu":
        return (yield from sddmm_cpu.measure(run))
    usual = GRAPHS if options.data else GENERATED_GRAPHS
    names = graphs.chosen(options.data, options.graphs, usual)
    names = names[:2] if options.quick else names
    widths = options.widths or WIDTHS
    loaded = [graphs.load(name, options.data, device) for name in names]
    yield [
        {"width": width, "dtype": dtype_name(dtype), "setting": setting}
        for width in sorted(widths, reverse=True)
        for setting in [*_settings(run, width), None]
        for dtype in dtypes_of(run, DTYPES)
    ]
    for graph in loaded:
        for dtype in dtypes_of(run, DTYPES):
            for width in widths:
                case = f"{graph.name} {width} {dtype_name(dtype)}"
                if run.late:
                    continue
                with run.part(case):
                    run.add(_case(run, case, graph, width, dtype))
                    run.say(f"{case}: {cell(run.rows[-1].get('best_ms'))} ms")
    return run.finish(*_report(run.rows))


def _settings(run: Run, width: int) -> list[dict[str, Any]]:
    """Tiles of entries and parts of rows; none wider than the features."""
    known = [*TILES, *subject.settings("sddmm", "PARTS")]
    usual = QUICK_SETTINGS if run.options.quick else len(known)
    return [s for s in known if s["width"] <= width][: run.options.settings or usual]


def _pattern(graph: Graph) -> SparseTensor:
    ones = torch.ones(graph.nnz, device=graph.indptr.device)
    a = SparseTensor.from_torch(graph.torch_csr(ones)).with_values(None)
    return a.prepare()


def _case(
    run: Run,
    case: str,
    graph: Graph,
    width: int,
    dtype: torch.dtype,
) -> dict[str, Any]:
    device = run.options.device
    x = torch.randn(graph.rows, width, generator=seeded(device, 1), device=device).to(dtype)
    z = torch.randn(graph.cols, width, generator=seeded(device, 2), device=device).to(dtype)
    reference = check.sddmm_reference(graph.indptr, graph.indices, x, z)
    row: dict[str, Any] = {"case": case, "graph": graph.name, "nnz": graph.nnz, "width": width}
    row |= {"dtype": dtype_name(dtype), "ok": True, "settings": [], "device": device}
    row |= {"rows": graph.rows, "cols": graph.cols}
    known = REFERENCE_US.get((graph.name, row["dtype"])) if width in KNOWN_WIDTHS else None
    row["reference_us"] = known[KNOWN_WIDTHS.index(width)] if known else None
    _torch(run, row, graph, x, z)
    a = _pattern(graph)
    _vendor(run, row, graph, x, z, reference)
    _settings_of(run, row, a, x, z, reference)
    _public(run, row, a, x, z, reference)
    peers = [ms for ms in (row.get("vendor_ms"), row.get("torch_device_ms")) if ms]
    row["best_ms"] = least([s["ms"] for s in row["settings"]]) or row.get("eager_ms")
    row["over_peer"] = ratio(min(peers, default=None), row["best_ms"])
    row["over_torch_eager"] = ratio(row.get("torch_eager_ms"), row.get("eager_ms"))
    us = row["best_ms"] * 1e3 if row["best_ms"] else None
    row["over_reference"] = ratio(row["reference_us"], us)
    return row | roofs(row, row["best_ms"])


def _torch(run: Run, row: dict[str, Any], graph: Graph, x: Tensor, z: Tensor) -> None:
    """torch.sparse.sampled_addmm, with the pattern's values ignored (beta = 0)."""
    if x.dtype != torch.float32:
        return  # torch has none
    with run.peer(f"{row['case']} torch"):
        a = graph.torch_csr(torch.zeros(graph.nnz, dtype=x.dtype, device=x.device))
        zt = z.t()
        call = lambda: torch.sparse.sampled_addmm(a, x, zt, beta=0.0)
        row["torch_eager_ms"] = timing.eager_ms(call)
        row["torch_device_ms"] = timing.eager_cold_ms(call)


def _vendor(
    run: Run, row: dict[str, Any], graph: Graph, x: Tensor, z: Tensor, reference: Tensor
) -> None:
    try:
        call = vendor.sddmm(graph.indptr, graph.indices, x, z)
        told = check.compare(call.out, reference)
        row["vendor_ok"] = told.ok
        if told.ok:
            row["vendor_ms"] = timing.graph_ms(call.run)
    except RuntimeError as why:
        torch.cuda.synchronize()
        run.say(f"{row['case']}: cuSPARSE: {why}")


def _settings_of(
    run: Run,
    row: dict[str, Any],
    a: SparseTensor,
    x: Tensor,
    z: Tensor,
    reference: Tensor,
) -> None:
    """Known settings, and lists like the fastest ones, as `tw.tune` tries them, for the kernels that are there."""
    time = partial(_setting, run, row, a, x, z, reference)
    known = _settings(run, x.shape[1])
    tried = [(time(s), s) for s in known]
    chosen = time(None)
    row |= {} if isinf(chosen) else {"chosen_ms": chosen}
    ranked = sorted((t for t in tried if "chunk" in t[1]), key=lambda t: t[0])
    near, large = subject.function("sddmm").subject(a, x, z).near, row["nnz"] > NEAR_ENTRIES
    for _, s in ranked[: 1 if large else NEAREST]:
        for setting in (n for n in near(s) if n not in known):
            if not (large and setting.get("alike")):  # an order of so many rows takes seconds
                known.append(setting)
                time(setting)
    row["ok"] = bool(row["settings"]) and all(s["ok"] for s in row["settings"])
    row["best_setting"] = fastest(row["settings"]).get("setting")


def _setting(
    run: Run,
    row: dict[str, Any],
    a: SparseTensor,
    x: Tensor,
    z: Tensor,
    reference: Tensor,
    setting: dict[str, Any] | None,
) -> float:
    """Milliseconds, also kept in row["settings"]; infinity where it breaks."""
    ms = inf
    with run.part(f"{row['case']} {setting}"):
        plan = subject.op("sddmm").plan(a, x, z, setting=setting)
        check.poison(plan.out)
        plan.launch()
        told = check.compare(plan.out, reference)
        ms = timing.graph_ms(plan.launch)
        made = {"setting": plan.setting, "ms": ms, "error": told.error, "ok": told.ok}
        row["settings"].append(made)
    return ms


def _public(
    run: Run, row: dict[str, Any], a: SparseTensor, x: Tensor, z: Tensor, reference: Tensor
) -> None:
    sddmm = subject.function("sddmm")
    with run.part(f"{row['case']} operator"):
        made = sddmm(a, x, z)
        out = made.explicit_values() if isinstance(made, SparseTensor) else made
        told = check.compare(out, reference)
        row |= {"error": told.error, "ok": row["ok"] and told.ok}
        row["eager_ms"] = timing.eager_ms(lambda: sddmm(a, x, z))


def _report(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    header = "graph F dtype vendor torch/dev torch eager best ref_us /peer /ref /torch setting"
    names = "graph width dtype vendor_ms torch_device_ms torch_eager_ms eager_ms best_ms"
    names += " reference_us over_peer over_reference over_torch_eager"
    lines = [
        [*(row.get(n) for n in names.split()), spelled(row.get("best_setting"))] for row in rows
    ]
    fp32 = [row["over_peer"] for row in rows if row["dtype"] == "fp32"]
    s: dict[str, Any] = {
        "over_peer_fp32": geomean(fp32),
        "over_peer_least": least(row["over_peer"] for row in rows),
        "over_reference": geomean(row["over_reference"] for row in rows),
        "over_reference_least": least(row["over_reference"] for row in rows),
        "over_torch_eager": geomean(row["over_torch_eager"] for row in rows),
        "over_torch_eager_least": least(row["over_torch_eager"] for row in rows),
    }
    for dtype in ("fp32", "bf16"):
        of = [row["over_reference"] for row in rows if row["dtype"] == dtype]
        s[f"over_reference_{dtype}"] = geomean(of)
    text = [
        "times in ms (torch, eager: wall clock a call; the rest device time, cold L2)",
        table(header.split(), lines),
        verdict("over the best of cuSPARSE and torch, fp32", s["over_peer_fp32"], 5.0),
        floor_line(rows, "fp32", "over_peer"),
        verdict("over the best of cuSPARSE and torch, least", s["over_peer_least"], 1.0),
        verdict("over the reference figures, fp32", s["over_reference_fp32"], 1.2),
        verdict("over the reference figures, bf16", s["over_reference_bf16"], 0.95),
        verdict("over the reference figures, least", s["over_reference_least"], 0.9),
        verdict("operator over torch, wall clock, least", s["over_torch_eager_least"], 1.0),
    ]
    return "\n".join(text), s


def warm(task: dict[str, Any], folder: Path | None) -> None:
    graph, dtype = graphs.few_entries(4000, "cuda"), dtype_of(task["dtype"])
    x = torch.ones(graph.rows, task["width"], dtype=dtype, device="cuda")
    plan = subject.op("sddmm").plan(_pattern(graph), x, x.clone(), setting=task["setting"])
    plan.launch()
    torch.cuda.synchronize()
