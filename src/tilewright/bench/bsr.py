"""Products of block-sparse matrices, y = A x, beside torch's BSR, dense cuBLAS and a hand-written kernel.

A case is a block size, a density and a number of columns: bf16 on CUDA, fp32 on the CPU. Every tile setting is
timed in turns with the probe's kernel at the same tiles. Where density meets the dense product is told by block.
"""

from __future__ import annotations

import itertools
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, probes, subject, timing
from tilewright.bench.beside import beside
from tilewright.bench.suite import Run, dtype_name, dtypes_of, seeded, spelled
from tilewright.bench.tables import Cell, cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor

SIZE, QUICK_SIZE = 4096, 512
BLOCKS = (16, 32, 64, 128)
DENSITIES = (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7)
QUICK_DENSITIES = (0.1, 0.5)
COLUMNS, QUICK_COLUMNS = (512, 4096), (128,)
GOALS = {16: 0.15, 32: 0.35, 64: 0.55, 128: 0.7}  # densities up to which dense is beaten
SLACK = 4.0  # torch rounds partial sums


def measure(run: Run) -> int:
    options, cuda = run.options, run.options.device == "cuda"
    size = QUICK_SIZE if options.quick or not cuda else SIZE
    densities = QUICK_DENSITIES if options.quick else DENSITIES
    columns = options.widths or (QUICK_COLUMNS if options.quick or not cuda else COLUMNS)
    (dtype, *_) = dtypes_of(run, (torch.bfloat16 if cuda else torch.float32,))
    warming = run.warm(
        [
            {"block": b, "columns": n, "setting": s}
            for b in BLOCKS
            for n in columns
            for s in _settings(run)
        ]
    )
    warming.wait()
    probe = probes.load(options.probes, "block_sparse") if cuda else None
    for block, n, density in itertools.product(BLOCKS, columns, densities):
        if run.late:
            continue
        with run.part(f"block {block} {density:g} x {n}"):
            run.add(_case(run, size, block, density, n, dtype, probe))
            row = run.rows[-1]
            run.say(f"{row['case']}: {cell(row['best_ms'])} ms, dense {cell(row['dense_ms'])} ms")
    return run.finish(*report(run.rows))


def _settings(run: Run) -> list[dict[str, Any]]:
    known = subject.settings("bsr_matmul")
    return known[: run.options.settings or (2 if run.options.quick else len(known))]


def matrix(size: int, block: int, density: float, dtype: torch.dtype, device: str) -> SparseTensor:
    """Blocks kept at random, as many as the density says, with normal values."""
    side = size // block
    kept = max(1, round(density * side * side))
    order = torch.randperm(side * side, generator=torch.Generator().manual_seed(block))[:kept]
    at = order.sort().values
    indptr = torch.zeros(side + 1, dtype=torch.int32)
    indptr[1:] = torch.bincount(at // side, minlength=side).cumsum(0)
    values = torch.randn(kept, block, block, generator=seeded(device), device=device).to(dtype)
    made = SparseTensor.from_arrays(
        "bsr",
        (size, size),
        values,
        block=(block, block),
        indptr=indptr.to(device),
        indices=(at % side).int().to(device),
    )
    return made.prepare()


def _case(
    run: Run,
    size: int,
    block: int,
    density: float,
    columns: int,
    dtype: torch.dtype,
    probe: ModuleType | None,
) -> dict[str, Any]:
    device = run.options.device
    a = matrix(size, block, density, dtype, device)
    x = torch.randn(size, columns, generator=seeded(device, 2), device=device).to(dtype)
    w = a.to_dense()
    reference = w.double() @ x.double()
    row: dict[str, Any] = {"case": f"block {block} {density:g} x {columns}", "block": block}
    row |= {"density": density, "columns": columns, "size": size, "dtype": dtype_name(dtype)}
    time_it = _on_cuda if device == "cuda" else _on_cpu
    time_it(run, row, a, w, x, reference, probe)
    row["over_dense"] = ratio(row["dense_ms"], row["best_ms"])
    row["over_torch"] = ratio(row.get("torch_ms"), row["best_ms"])
    row["tflop_s"] = 2 * a.nnz * block * block * columns / row["best_ms"] / 1e9
    return row


def _peers(a: SparseTensor, w: Tensor, x: Tensor) -> dict[str, timing.Fn]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "BSR support is in beta"
        theirs = a.to_torch()
    return {"dense": lambda: w @ x, "torch": lambda: theirs @ x}


def _on_cpu(
    run: Run,
    row: dict[str, Any],
    a: SparseTensor,
    w: Tensor,
    x: Tensor,
    reference: Tensor,
    _: object,
) -> None:
    product = subject.function("bsr_matmul")
    told = check.compare(product(a, x), reference)
    row |= {"ok": told.ok, "error": told.error}
    calls = _peers(a, w, x) | {"best": lambda: product(a, x)}
    for name, ms in run.cpus_ms(calls).items():
        row[f"{name}_ms"] = ms


def _on_cuda(
    run: Run,
    row: dict[str, Any],
    a: SparseTensor,
    w: Tensor,
    x: Tensor,
    reference: Tensor,
    probe: ModuleType | None,
) -> None:
    peers = _peers(a, w, x)
    row["dense_ms"] = timing.graph_ms(peers["dense"])
    with run.peer(f"{row['case']} torch BSR"):
        if check.compare(a.to_torch() @ x, reference, SLACK * check.TOLERANCE[x.dtype]).ok:
            row["torch_ms"] = timing.eager_cold_ms(peers["torch"])
    row["settings"] = []
    right = lambda out: check.compare(out, reference).ok
    s = a.structure
    for setting in [*_settings(run), None]:
        with run.part(f"{row['case']} {setting}"):
            plan = subject.op("bsr_matmul").plan(a, x, setting)
            check.poison(plan.out)
            plan.launch()
            made: dict[str, Any] = {"setting": plan.setting, "ok": right(plan.out)}
            whole = x.shape[1] % plan.setting["width"] == 0
            assert s.indptr is not None and s.indices is not None and a.values is not None
            blocks = (s.indptr, s.indices, a.values)
            peer = (
                partial(probes.bsr_matmul, probe, blocks, x, plan.setting)
                if probe and whole
                else None
            )
            made |= beside(run, row["case"], plan.launch, peer, right)
            row["settings"].append(made)
            if setting is None:
                row["chosen_ms"] = made["ms"]
    row["ok"] = bool(row["settings"]) and all(m["ok"] for m in row["settings"])
    best = min(row["settings"], key=lambda m: m["ms"])
    row |= {"best_ms": best["ms"], "best_setting": best["setting"]}
    row["probe_ms"] = least(m.get("probe_ms") for m in row["settings"])
    row["over_probe"] = ratio(row["probe_ms"], row["best_ms"])


def break_even(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """For each block and number of columns, the largest density up to which dense is beaten all the way."""
    made: dict[str, float | None] = {}
    for block, n in sorted({(r["block"], r["columns"]) for r in rows}):
        mine = sorted(
            (r["density"], r["over_dense"])
            for r in rows
            if (r["block"], r["columns"]) == (block, n)
        )
        won = [d for d, _ in itertools.takewhile(lambda p: p[1] is not None and p[1] >= 1, mine)]
        made[f"{block} x {n}"] = won[-1] if won else None
    return made


def report(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    header = "case dtype dense torch probe chosen best /dense /torch /probe TFLOP/s setting"
    names = "case dtype dense_ms torch_ms probe_ms chosen_ms best_ms over_dense over_torch over_probe tflop_s"
    lines: list[list[Cell]] = [
        [*(row.get(n) for n in names.split()), spelled(row.get("best_setting"))] for row in rows
    ]
    s: dict[str, Any] = {"break_even": break_even(rows)}
    for name in ("over_torch", "over_dense", "over_probe"):
        of = [row.get(name) for row in rows]
        s |= {name: geomean(of), f"{name}_least": least(of)}
    text = ["times in ms", table(header.split(), lines)]
    text += [verdict("over torch BSR, geometric mean", s["over_torch"], 5.0)]
    for key, density in s["break_even"].items():
        goal = GOALS.get(int(key.split()[0]), 0.0)
        text.append(
            verdict(f"density up to which dense is beaten, block {key}", density or 0.0, goal)
        )
    return "\n".join(text), s


def warm(task: dict[str, Any], folder: Path | None) -> None:
    a = matrix(512, task["block"], 0.1, torch.bfloat16, "cuda")
    x = torch.ones(512, task["columns"], dtype=torch.bfloat16, device="cuda")
    subject.op("bsr_matmul").plan(a, x, task["setting"]).launch()
    torch.cuda.synchronize()
