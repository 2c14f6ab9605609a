"""A linear layer over some of its rows, out[r] = x[r] w^T for the rows r kept, beside cuBLAS.

Rows are given by their numbers here; those that an index names are in bench/alone.py.

w: [out features, in features]. Peers: gather, cuBLAS and scatter in torch; dense cuBLAS over all rows;
the probe, with the gather in the load and the scatter in the store.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import alone, check, probes, subject, timing
from tilewright.bench.beside import beside
from tilewright.bench.suite import Measured, Run, fastest, seeded, spelled
from tilewright.bench.tables import cell, geomean, least, ratio, table, verdict

SIZE, QUICK_SIZE = 4096, 2048
KEPT = (1.0, 0.5, 0.25, 0.1)
TILES = (
    {"bm": 128, "bn": 256, "bk": 64, "group": 8, "warps": 8, "stages": 4},
    {"bm": 64, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 4},
)


def measure(run: Run) -> Measured:
    settings = _settings(run)
    size = QUICK_SIZE if run.options.quick else SIZE
    named = () if run.options.quick else alone.CASES
    yield [
        *({"size": size, "kept": k, "setting": s} for s in settings for k in (KEPT[0], KEPT[-1])),
        *(alone.tasks() if named else ()),
    ]
    probe = probes.load(run.options.probes, "gather_matmul")
    x, w = _operands(size)
    dense_ms = timing.graph_ms(lambda: torch.nn.functional.linear(x, w))
    for kept in KEPT:
        with run.part(f"{kept:.0%}"):
            run.add(_case(run, x, w, kept, settings, probe, dense_ms))
            run.say(f"{run.rows[-1]['case']}: {cell(run.rows[-1].get('best_ms'))} ms")
    for case in named:
        if run.late:
            break
        with run.part(case.name):
            run.add(alone.measured(run, case))
            row = run.rows[-1]
            run.say(f"{row['case']}: {cell(row['ms'])} ms, cuBLAS {cell(row['vendor_ms'])} ms")
    return run.finish(*_report(run.rows))


def _settings(run: Run) -> list[dict[str, Any]]:
    """The probe's two, then the operator's own."""
    own = subject.settings("linear", "ROWS_SETTINGS")[: run.options.settings]
    return [dict(t) for t in TILES] + [s for s in own if s not in TILES]


def _operands(size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, size, generator=seeded("cuda", 1), device="cuda").bfloat16()
    w = torch.randn(size, size, generator=seeded("cuda", 2), device="cuda").bfloat16()
    return x, w


def _kept_rows(size: int, kept: float) -> Tensor:
    order = torch.randperm(size, generator=seeded("cuda", 3), device="cuda")
    return order[: round(size * kept)].sort().values.int()


def _case(
    run: Run,
    x: Tensor,
    w: Tensor,
    kept: float,
    settings: list[dict[str, Any]],
    probe: ModuleType | None,
    dense_ms: float,
) -> dict[str, Any]:
    rows = _kept_rows(x.shape[0], kept)
    at = rows.long()
    reference = x[at].double() @ w.double().t()
    row: dict[str, Any] = {"case": f"{x.shape[0]} {kept:.0%}", "kept": kept, "rows": rows.numel()}
    row |= {"dtype": "bf16", "dense_ms": dense_ms, "settings": []}
    out = torch.zeros(x.shape[0], w.shape[0], dtype=x.dtype, device="cuda")
    call = lambda: out.index_copy_(0, at, torch.nn.functional.linear(x[at], w))
    row["torch_ms"] = timing.graph_ms(call)
    weight_t = w.t().contiguous()
    for setting in settings:
        with run.part(f"{row['case']} {setting}"):
            row["settings"].append(_one(run, x, w, weight_t, rows, reference, setting, probe))
    row["ok"] = bool(row["settings"]) and all(s["ok"] for s in row["settings"])
    best = fastest(row["settings"])
    row |= {"best_ms": best.get("ms"), "best_setting": best.get("setting")}
    same = [s for s in row["settings"] if s.get("probe_ms")]
    row["probe_ms"] = least(s["probe_ms"] for s in same)
    row["over_probe"] = geomean(s["probe_ms"] / s["ms"] for s in same)
    row["over_probe_best"] = ratio(row["probe_ms"], row["best_ms"])
    row["over_torch"] = ratio(row["torch_ms"], row["best_ms"])
    flops = 2 * rows.numel() * x.shape[1] * w.shape[0]
    row["tflop_s"] = ratio(flops / 1e9, row["best_ms"])
    return row


def _one(
    run: Run,
    x: Tensor,
    w: Tensor,
    weight_t: Tensor,
    rows: Tensor,
    reference: Tensor,
    setting: dict[str, Any],
    probe: ModuleType | None,
) -> dict[str, Any]:
    plan = subject.op("linear").rows_plan(x, w, rows, setting=setting)
    check.poison(plan.out)
    plan.launch()
    told = check.compare(_kept(plan.out, rows), reference)
    made: dict[str, Any] = {"setting": setting, "error": told.error, "ok": told.ok}
    peer = None
    if probe is not None and setting in TILES:
        peer = partial(probes.rows_matmul, probe, x, weight_t, rows, setting)
    right = lambda out: check.compare(_kept(out, rows), reference).ok
    return made | beside(run, str(setting), plan.launch, peer, right)


def _kept(out: Tensor, rows: Tensor) -> Tensor:
    return out if out.shape[0] == rows.numel() else out[rows.long()]


def _report(every: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    named = [row for row in every if row.get("kind")]
    rows = [row for row in every if row not in named]
    header = "case dense torch probe best TFLOP/s /probe /torch setting"
    names = "case dense_ms torch_ms probe_ms best_ms tflop_s over_probe over_torch".split()
    lines = [[*(row.get(n) for n in names), spelled(row.get("best_setting"))] for row in rows]
    s: dict[str, Any] = {
        "over_probe": geomean(row["over_probe"] for row in rows),
        "over_probe_best": geomean(row["over_probe_best"] for row in rows),
        "over_probe_best_least": least(row["over_probe_best"] for row in rows),
        "over_torch": geomean(row["over_torch"] for row in rows),
        "over_torch_least": least(row["over_torch"] for row in rows),
    }
    text = [
        "bf16, times in ms (graph replay, cold L2); torch: index, cuBLAS, index_copy",
        table(header.split(), lines),
        verdict("generated over probe, same tiles", s["over_probe"], 0.95),
        verdict("best over probe's best", s["over_probe_best"], 0.95),
        verdict("best over probe's best, least", s["over_probe_best_least"], 0.95),
        verdict("over gather, cuBLAS, scatter, least", s["over_torch_least"], 1.0),
    ]
    if named:
        more, shares = alone.report(named)
        text, s = [*text, "", *more], s | shares
    return "\n".join(text), s


def warm(task: dict[str, Any], folder: Path | None) -> None:
    """Real sizes: the compiler looks at what divides them."""
    if "alone" in task:
        alone.warm(task)
        return
    probe = probes.load(folder, "gather_matmul")
    x, w = _operands(task["size"])
    rows = _kept_rows(task["size"], task["kept"])
    subject.op("linear").rows_plan(x, w, rows, setting=task["setting"]).launch()
    if probe and task["setting"] in TILES:
        probes.rows_matmul(probe, x, w, rows, task["setting"])[0]()
    torch.cuda.synchronize()
