"""Products of block-sparse matrices, y = A x, beside torch's BSR, dense cuBLAS and a hand-written kernel.

A case is a block size, a density and a number of columns: bf16 on CUDA, fp32 on the CPU. On CUDA every tile setting
is timed, on the blocks as given and with several rows of blocks in one (`tall`, made once; that time is a column),
what the operator chooses unmeasured, and the probe's kernel at its own tiles. Where density meets the dense product is
told by block.

Cases of dbsr have rows of blocks without any, taken at random: half of them, or an eighth where so many blocks need
more rows; their density is that of the whole.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import check, probes, subject, timing
from tilewright.bench.suite import Measured, Run, dtype_name, dtypes_of, seeded, spelled
from tilewright.bench.tables import Cell, cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor
from tilewright.formats.layout import name_of
from tilewright.ops.sparse import as_blocks
from tilewright.ops.tall import tall, values

SIZE, CPU_SIZE, QUICK_SIZE = 4096, 2048, 512
BLOCKS = (16, 32, 64, 128)
DENSITIES = (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.55, 0.7)
QUICK_DENSITIES = (0.1, 0.5)
HALF_DENSITIES = (0.05, 0.15, 0.25, 0.35, 0.55, 0.7)  # of dbsr
HALF, EIGHTH = (
    0.45,
    8,
)  # the density up to which half of its rows are empty; one of so many beyond it
QUICK_HALF_DENSITIES = (0.1,)
COLUMNS, CPU_COLUMNS, QUICK_COLUMNS = (512, 4096), (128, 512), (128,)
GOALS = {16: 0.15, 32: 0.35, 64: 0.55, 128: 0.7}  # densities up to which dense is beaten
SLACK = 4.0  # torch rounds partial sums
TALLEST = 128  # rows of a block that stands for several
PROBED = (
    (128, 4, 6),
    (256, 4, 3),
    (128, 8, 5),
    (128, 4, 3),
)  # width, warps, stages that suit the probe


def measure(run: Run) -> Measured:
    options, cuda = run.options, run.options.device == "cuda"
    usual = (SIZE, COLUMNS) if cuda else (CPU_SIZE, CPU_COLUMNS)
    size, usual_columns = (QUICK_SIZE, QUICK_COLUMNS) if options.quick else usual
    given = {"bsr": DENSITIES, "dbsr": HALF_DENSITIES}
    if options.quick:
        given = {"bsr": QUICK_DENSITIES, "dbsr": QUICK_HALF_DENSITIES}
    kinds = [(format, density) for format, densities in given.items() for density in densities]
    columns = options.widths or usual_columns
    (dtype, *_) = dtypes_of(run, (torch.bfloat16 if cuda else torch.float32,))
    yield [
        {"block": b, "group": g, "columns": n} for b in BLOCKS for n in columns for g in _groups(b)
    ]
    probe = probes.load(options.probes, "block_sparse") if cuda else None
    for block, n, (format, density) in itertools.product(BLOCKS, columns, kinds):
        if run.late:
            continue
        with run.part(f"{format} {block} {density:g} x {n}"):
            run.add(_case(run, size, format, block, density, n, dtype, probe))
            row = run.rows[-1]
            run.say(f"{row['case']}: {cell(row['best_ms'])} ms, dense {cell(row['dense_ms'])} ms")
    return run.finish(*report(run.rows))


def _groups(block: int) -> list[int]:
    """Rows of blocks that may be one: together not more than TALLEST."""
    return [g for g in (1, 2, 4) if g * block <= TALLEST]


def matrix(
    size: int,
    block: int,
    density: float,
    dtype: torch.dtype,
    device: str,
    format: str = "bsr",
) -> SparseTensor:
    """Blocks kept at random, as many as the density says, with normal values; of dbsr, not in all rows."""
    side, source = size // block, torch.Generator().manual_seed(block)
    rows = torch.arange(side)
    if format == "dbsr":
        full = side // 2 if density <= HALF else side - max(side // EIGHTH, 1)
        rows = torch.randperm(side, generator=source)[:full].sort().values
    kept = max(1, round(density * side * side))
    at = torch.randperm(len(rows) * side, generator=source)[:kept].sort().values
    counts = torch.bincount(at // side, minlength=len(rows))
    values = torch.randn(len(at), block, block, generator=seeded(device), device=device).to(dtype)
    cols = (at % side).int().to(device)
    if format == "bsr":
        starts, whole = _starts(counts).to(device), (size, size)
        made = SparseTensor.from_arrays(
            "bsr", whole, values, block=(block, block), indptr=starts, indices=cols
        )
        return made.prepare()
    there = counts > 0
    return SparseTensor.from_arrays(
        name_of("dbsr", block, block),
        (size, size),
        values,
        indices0=rows[there].int().to(device),
        indptr1=_starts(counts[there]).to(device),
        indices1=cols,
    )


def _starts(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


def _case(
    run: Run,
    size: int,
    format: str,
    block: int,
    density: float,
    columns: int,
    dtype: torch.dtype,
    probe: ModuleType | None,
) -> dict[str, Any]:
    device = run.options.device
    a = matrix(size, block, density, dtype, device, format)
    x = torch.randn(size, columns, generator=seeded(device, 2), device=device).to(dtype)
    w = a.to_dense()
    reference = w.double() @ x.double()
    row: dict[str, Any] = {"case": f"{format} {block} {density:g} x {columns}", "block": block}
    row |= {"format": format}
    row |= {"density": density, "columns": columns, "size": size, "dtype": dtype_name(dtype)}
    time_it = _on_cuda if device == "cuda" else _on_cpu
    time_it(run, row, a, w, x, reference, probe)
    row["over_dense"] = ratio(row["dense_ms"], row["best_ms"])
    row["over_torch"] = ratio(row.get("torch_ms"), row["best_ms"])
    assert a.values is not None
    row["tflop_s"] = 2 * a.values.numel() * columns / row["best_ms"] / 1e9
    return row


def _peers(a: SparseTensor, w: Tensor, x: Tensor) -> dict[str, timing.Fn]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "BSR support is in beta"
        theirs = as_blocks(a).to_torch()
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
        if check.compare(
            as_blocks(a).to_torch() @ x, reference, SLACK * check.TOLERANCE[x.dtype]
        ).ok:
            row["torch_ms"] = timing.eager_cold_ms(peers["torch"])
    right = lambda out: check.compare(out, reference).ok
    as_blocks(a).structure.prepare()
    row["settings"] = []
    for group in _groups(row["block"]):
        _grouped(run, row, a, x, group, right)
    row["ok"] = bool(row["settings"]) and all(m["ok"] for m in row["settings"])
    row["chosen_ms"] = next(m["ms"] for m in row["settings"] if m["chosen"])
    best = min(row["settings"], key=lambda m: m["ms"])
    row |= {"best_ms": best["ms"], "best_setting": best["setting"], "group": best["group"]}
    row["plain_ms"] = least(m["ms"] for m in row["settings"] if m["group"] == 1)
    if probe:
        row["probe_ms"] = _probed(run, row, a, x, probe, right)
        row["over_probe"] = ratio(row["probe_ms"], row["best_ms"])


def _grouped(
    run: Run,
    row: dict[str, Any],
    a: SparseTensor,
    x: Tensor,
    group: int,
    right: Callable[[Tensor], bool],
) -> None:
    """All settings with `group` rows of blocks in one; what would be chosen stands with those of 1."""
    if group > 1:
        began = time.perf_counter()
        made = tall(as_blocks(a).structure, group)
        assert made is not None and a.values is not None
        values(made, a.values)
        torch.cuda.synchronize()
        row[f"group{group}_ms"] = (time.perf_counter() - began) * 1e3
    for setting in _settings(run, a, x, group):
        with run.part(f"{row['case']} {group} {setting}"):
            plan = subject.op("bsr_matmul").plan(a, x, setting)
            check.poison(plan.out)
            plan.launch()
            many = plan.setting.get("tall", 1)
            told: dict[str, Any] = {"setting": plan.setting, "group": many, "ok": right(plan.out)}
            told |= {"chosen": setting is None, "ms": timing.graph_ms(plan.launch)}
            row["settings"].append(told)


def _settings(run: Run, a: SparseTensor, x: Tensor, group: int) -> list[dict[str, Any] | None]:
    """The operator's own choice (once), and those it was chosen from."""
    known = _known(a, x, group)
    known = known[: run.options.settings or (2 if run.options.quick else len(known))]
    full: list[dict[str, Any] | None] = [{**s, "tall": group} for s in known]
    return [None, *full] if group == 1 else full


def _known(a: SparseTensor, x: Tensor, group: int) -> list[dict[str, Any]]:
    s = as_blocks(a).structure
    made = tall(s, group) if group > 1 else None
    of = s if made is None else made.structure
    found: list[dict[str, Any]] = subject.op("block_tiles").settings(of, x.shape[1], x.dtype)
    return found


def _probed(
    run: Run,
    row: dict[str, Any],
    a: SparseTensor,
    x: Tensor,
    probe: ModuleType,
    right: Callable[[Tensor], bool],
) -> float | None:
    """The probe at its own tiles, the best of them."""
    s, took = as_blocks(a).structure, []
    assert s.indptr is not None and s.indices is not None and a.values is not None
    for width, warps, stages in PROBED:
        if x.shape[1] % width:
            continue
        with run.peer(f"{row['case']} probe"):
            tiles = {"width": width, "warps": warps, "stages": stages}
            launch, out = probes.bsr_matmul(probe, (s.indptr, s.indices, a.values), x, tiles)
            check.poison(out)
            launch()
            if right(out):
                took.append(timing.graph_ms(launch))
    return min(took, default=None)


def break_even(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """For each block and number of columns of bsr, the largest density up to which dense is beaten all the way."""
    made: dict[str, float | None] = {}
    rows = [r for r in rows if r.get("format", "bsr") == "bsr"]
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
    header = (
        "case dtype dense torch probe chosen plain best rows /dense /torch /probe TFLOP/s setting"
    )
    names = "case dtype dense_ms torch_ms probe_ms chosen_ms plain_ms best_ms group"
    names += " over_dense over_torch over_probe tflop_s"
    lines: list[list[Cell]] = [
        [*(row.get(n) for n in names.split()), spelled(row.get("best_setting"))] for row in rows
    ]
    s: dict[str, Any] = {"break_even": break_even(rows)}
    for name in ("over_torch", "over_dense", "over_probe"):
        of = [row.get(name) for row in rows]
        s |= {name: geomean(of), f"{name}_least": least(of)}
    text = ["times in ms", table(header.split(), lines)]
    text += [verdict("over torch BSR, geometric mean", s["over_torch"], 5.0)]
    half = [row.get("over_torch") for row in rows if row.get("format") == "dbsr"]
    s["dbsr_over_torch"] = geomean(half)
    text += [verdict("over torch BSR, dbsr alone", s["dbsr_over_torch"], 5.0)]
    text += [verdict("over the probe, least", s["over_probe_least"], 1.0)]
    told = [ratio(row["chosen_ms"], row["best_ms"]) for row in rows if "chosen_ms" in row]
    s["chosen_over_best"] = geomean(told)
    text += [f"     chosen without measuring, over the best: {cell(s['chosen_over_best'])}"]
    for key, density in s["break_even"].items():
        goal = GOALS.get(int(key.split()[0]), 0.0)
        text.append(
            verdict(f"density up to which dense is beaten, block {key}", density or 0.0, goal)
        )
    return "\n".join(text), s


def warm(task: dict[str, Any], folder: Path | None) -> None:
    block, group = task["block"], task["group"]
    x = torch.ones(512, task["columns"], dtype=torch.bfloat16, device="cuda")
    for format in ("bsr", "dbsr"):
        a = matrix(512, block, 0.1, torch.bfloat16, "cuda", format)
        for setting in _known(a, x, group):
            subject.op("bsr_matmul").plan(a, x, {**setting, "tall": group}).launch()
    torch.cuda.synchronize()
