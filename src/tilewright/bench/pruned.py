"""Pruned weights, y = W x, on every mask of --data (dlmc_*, gunrock_*): ours, dense and the vendor's.

A case is a mask and a number of columns: fp16 on CUDA (peers cuBLAS and cuSPARSE), fp32 on the CPU (peers the
dense product and torch CSR). Which of ours and dense is chosen, how often, and at which density they meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilewright.bench import check, spmm, subject, timing, vendor
from tilewright.bench.graphs import Graph
from tilewright.bench.roof import BYTES
from tilewright.bench.suite import Measured, Run, dtype_name, dtypes_of, seeded
from tilewright.bench.tables import Cell, cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor

FILES = ("dlmc_*.npz", "gunrock_*.npz")
COLUMNS, QUICK_COLUMNS = (128, 512, 2048), (128,)
QUICK_SETTINGS = 1
SLACK = 4.0
SPARSEST, GAIN = 0.051, 1.2
GATHER = 8.8e12  # bytes a second that rows are gathered at from an H200's second-level cache
BINS = (0.03, 0.07, 0.15, 0.25, 0.4, 1.0)  # upper ends of density, for the points of break-even


def measure(run: Run) -> Measured:
    options, cuda = run.options, run.options.device == "cuda"
    if options.data is None:
        yield []
        return run.finish("the pruned suite needs --data: a folder with masks", {})
    (dtype, *_) = dtypes_of(run, (torch.float16 if cuda else torch.float32,))
    columns = options.widths or (QUICK_COLUMNS if options.quick else COLUMNS)
    every = list(masks(options.data, options.graphs, options.device))
    yield spmm.tasks(every, columns, (dtype,), _used(run)) if cuda else []
    for mask in every:
        for n in columns:
            if run.late:
                continue
            with run.part(f"{mask.name} {n}"):
                run.add(_case(run, mask, n, dtype))
                row = run.rows[-1]
                run.say(
                    f"{row['case']}: {cell(row['ours_ms'])} ms, dense {cell(row['dense_ms'])} ms"
                )
    return run.finish(*report(run.rows))


def masks(data: Path, asked: tuple[str, ...], device: str) -> Iterator[Graph]:
    """Every mask of every file, or of the files asked for, named file/matrix."""
    found = sorted(p for pattern in FILES for p in data.glob(pattern))
    for path in found:
        if asked and path.stem not in asked:
            continue
        with np.load(path) as stored:
            for name in stored["names"]:
                indptr, indices = (
                    torch.from_numpy(stored[f"{name}.{k}"].astype(np.int32)).to(device)
                    for k in ("indptr", "indices")
                )
                yield Graph(f"{path.stem}/{name}", indptr, indices, int(stored[f"{name}.shape"][1]))


def _case(run: Run, mask: Graph, columns: int, dtype: torch.dtype) -> dict[str, Any]:
    device = run.options.device
    values = torch.randn(mask.nnz, generator=seeded(device), device=device).to(dtype)
    x = torch.randn(mask.cols, columns, generator=seeded(device, 2), device=device).to(dtype)
    a_torch = mask.torch_csr(values)
    a, w = SparseTensor.from_torch(a_torch).prepare(), a_torch.to_dense()
    reference = w.double() @ x.double()
    density = mask.nnz / (mask.rows * mask.cols)
    row: dict[str, Any] = {"case": f"{mask.name} {columns}", "mask": mask.name, "columns": columns}
    row |= {"shape": f"{mask.rows}x{mask.cols}", "density": density, "dtype": dtype_name(dtype)}
    told = check.compare(subject.function("spmm")(a, x), reference)
    row |= {"ok": told.ok, "error": told.error}
    if device == "cuda":
        _on_cuda(run, row, mask, a, w, values, x, reference)
    else:
        product = subject.function("spmm")
        calls = {
            "ours": lambda: product(a, x),
            "dense": lambda: w @ x,
            "vendor": lambda: a_torch @ x,
        }
        for name, ms in run.cpus_ms(calls).items():
            row[f"{name}_ms"] = ms
    best = least(row.get(f"{n}_ms") for n in ("dense", "vendor"))
    row["choice"] = "ours" if row["ours_ms"] < row["dense_ms"] else "dense"
    row["over_dense"] = ratio(row["dense_ms"], row["ours_ms"])
    row["over_vendor"] = ratio(row.get("vendor_ms"), row["ours_ms"])
    row["chosen_over_best"] = ratio(best, min(row["ours_ms"], row["dense_ms"]))
    return row


def _used(run: Run) -> list[dict[str, Any]]:
    known = [*subject.settings("spmm"), *subject.settings("spmm", "WIDE_SETTINGS")]
    usual = QUICK_SETTINGS if run.options.quick else len(known)
    return known[: run.options.settings or usual]


def warm(task: dict[str, Any], folder: Path | None) -> None:
    """Compile one setting, as the suite of SpMM does."""
    spmm.warm(task, None)


def _on_cuda(
    run: Run,
    row: dict[str, Any],
    mask: Graph,
    a: SparseTensor,
    w: Tensor,
    values: Tensor,
    x: Tensor,
    reference: Tensor,
) -> None:
    """Graph replays: the best of a few settings, cuBLAS, the best algorithm of cuSPARSE."""
    plans = [subject.op("spmm").plan(a, x, setting=s) for s in [*_used(run), None]]
    for plan in plans:
        check.poison(plan.out)
        plan.launch()
        row["ok"] = row["ok"] and check.compare(plan.out, reference).ok
    *ours, row["dense_ms"] = timing.graphs_ms([*(p.launch for p in plans), lambda: w @ x])
    row |= {"ours_ms": min(ours), "default_ms": ours[-1]}
    row["setting"] = plans[ours.index(min(ours))].setting
    times = []
    allowed = SLACK * check.TOLERANCE[x.dtype]
    for name, make in vendor.spmm_calls(mask.indptr, mask.indices, values, x).items():
        with run.peer(f"{row['case']} cuSPARSE {name}"):
            call = make()
            if check.compare(call.out, reference, allowed).ok:
                times.append(timing.graph_ms(call.run, replays=20))
    row["vendor_ms"] = min(times, default=None)


def points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Break-even as data for a plot: over dense by density and columns."""
    made = []
    for n in sorted({r["columns"] for r in rows}):
        low = 0.0
        for high in BINS:
            of = [r["over_dense"] for r in rows if r["columns"] == n and low < r["density"] <= high]
            if of:
                made.append(
                    {"columns": n, "density": high, "over_dense": geomean(of), "masks": len(of)}
                )
            low = high
    return made


def sparsest(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Masks of 95 % zeros, at 512 columns and more: how many are GAIN times as fast as dense, how many cannot be.

    Not less than this is possible: the fastest product of the whole run (a launch, and operands that are not in the
    caches), and the gathered rows of x at the rate of the second-level cache.
    """
    floor = min((min(r["ours_ms"], r["dense_ms"]) for r in rows), default=0.0)
    made = {"reached": 0, "forbidden": 0, "missed": 0}
    for r in rows:
        if r["density"] > SPARSEST or r["columns"] < 512:
            continue
        height, width = (int(n) for n in r["shape"].split("x"))
        gathered = r["density"] * height * width * r["columns"] * BYTES[r["dtype"]]
        roof = floor + gathered / GATHER * 1e3
        reached = r["over_dense"] >= GAIN
        made[
            "reached" if reached else "forbidden" if r["dense_ms"] < GAIN * roof else "missed"
        ] += 1
    return made


def report(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    header = "mask N shape density dense vendor ours choice /dense /vendor"
    names = "mask columns shape density dense_ms vendor_ms ours_ms choice over_dense over_vendor"
    lines: list[list[Cell]] = [[row.get(n) for n in names.split()] for row in rows]
    counts = Counter(row["choice"] for row in rows)
    s: dict[str, Any] = {"chosen": dict(counts), "points": points(rows), "sparsest": sparsest(rows)}
    for name in ("over_dense", "over_vendor", "chosen_over_best"):
        of = [row.get(name) for row in rows]
        s |= {name: geomean(of), f"{name}_least": least(of)}
    met = [[p["columns"], p["density"], p["masks"], p["over_dense"]] for p in s["points"]]
    text = [
        "times in ms; vendor: cuSPARSE, on the CPU torch CSR; choice: the faster of ours and dense",
        table(header.split(), lines),
        table(["N", "density", "masks", "/dense"], met),
        f"     chosen: {', '.join(f'{k} {v}' for k, v in counts.items())}",
        f"     {GAIN}x over dense at 95 % zeros, 512 columns and more: "
        + ", ".join(f"{k} {v}" for k, v in s["sparsest"].items()),
        verdict(
            "chosen over the better of dense and vendor, least", s["chosen_over_best_least"], 1.0
        ),
    ]
    return "\n".join(text), s
