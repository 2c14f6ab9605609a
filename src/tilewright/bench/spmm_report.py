"""SpMM's figures: what follows from a row's times, the table, the verdicts."""

from __future__ import annotations

from typing import Any

from tilewright.bench.roof import floor_line, gathered
from tilewright.bench.suite import spelled
from tilewright.bench.tables import Cell, geomean, least, ratio, table, verdict

Row = dict[str, Any]
Report = tuple[str, dict[str, Any]]


def derived(row: Row) -> Row:
    """Ratios (above 1: faster than the peer) and the gather rate of the best setting."""
    pairs = [(s["probe_ms"] / s["ms"], s["probe_ms"]) for s in row["settings"] if "probe_ms" in s]
    best = row.get("best_ms")
    return {
        "over_probe": geomean(r for r, _ in pairs),
        "over_probe_worst": least(r for r, _ in pairs),
        "over_probe_best": min(pairs, key=lambda p: p[1])[0] if pairs else None,
        "probe_ms": least(p for _, p in pairs),
        "over_vendor": ratio(row.get("vendor_ms"), best),
        "over_vendor_right": ratio(row.get("vendor_right_ms"), best),
        "over_torch_eager": ratio(row.get("torch_eager_ms"), row.get("eager_ms")),
        "chosen_over_best": ratio(best, row.get("chosen_ms")),
        "gather_tb_s": ratio(gathered(row) / 1e9, best),
    }


def cuda(rows: list[Row], overhead: dict[str, float]) -> Report:
    header = "graph F dtype vendor torch eager probe best setting /probe worst /vendor /torch TB/s"
    lines = [
        [
            *(row["graph"], row["width"], row["dtype"], row.get("vendor_ms")),
            *(row.get("torch_eager_ms"), row.get("eager_ms"), row["probe_ms"], row.get("best_ms")),
            short(row.get("best_setting")),
            *(row["over_probe"], row["over_probe_worst"], row["over_vendor"]),
            *(row["over_torch_eager"], row["gather_tb_s"]),
        ]
        for row in rows
    ]
    summary = _cuda_summary(rows) | {"call_overhead_us": overhead}
    summary |= reduces_over_sum(rows, "best_ms") | distances(rows)
    text = [
        "times in ms (vendor, probe, best: graph replay, cold L2; torch, eager: wall clock a call)",
        table(header.split(), lines),
        _overhead_line(overhead),
        *_cuda_verdicts(summary),
        *(floor_line(rows, dtype, "over_vendor") for dtype in ("fp32", "bf16")),
        *_extra(rows, summary, "best_ms"),
    ]
    return "\n".join(text), summary


def _cuda_summary(rows: list[Row]) -> dict[str, Any]:
    pairs = [s["probe_ms"] / s["ms"] for row in rows for s in row["settings"] if "probe_ms" in s]
    summary: dict[str, Any] = {
        "over_probe": geomean(pairs),
        "over_probe_worst": least(pairs),
        "over_probe_best": geomean(row["over_probe_best"] for row in rows),
        "over_torch_eager": geomean(row["over_torch_eager"] for row in rows),
        "over_torch_eager_least": least(row["over_torch_eager"] for row in rows),
        "chosen_over_best": geomean(row["chosen_over_best"] for row in rows),
        "over_vendor_least": least(row["over_vendor"] for row in rows),
    }
    for dtype in ("fp32", "bf16"):
        of = [row["over_vendor"] for row in rows if row["dtype"] == dtype]
        summary |= {f"over_vendor_{dtype}": geomean(of), f"over_vendor_{dtype}_least": least(of)}
        right = [row.get("over_vendor_right") for row in rows if row["dtype"] == dtype]
        summary |= {f"over_vendor_right_{dtype}": geomean(right)}
    return summary


def _cuda_verdicts(s: dict[str, Any]) -> list[str]:
    return [
        verdict("generated over probe, geometric mean of its settings", s["over_probe"], 0.95),
        verdict("generated over probe, at the probe's best", s["over_probe_best"], 0.95),
        verdict("generated over probe, worst setting", s["over_probe_worst"], 0.95),
        verdict("best setting over vendor, fp32", s["over_vendor_fp32"], 1.5),
        verdict("best setting over vendor, bf16", s["over_vendor_bf16"], 2.5),
        f"     of its algorithms that are as right as ours, bf16  {_two(s['over_vendor_right_bf16'])}",
        verdict("best setting over vendor, least", s["over_vendor_least"], 1.0),
        verdict("operator over torch, wall clock, least", s["over_torch_eager_least"], 1.0),
        f"     chosen without measuring over best setting  {_two(s['chosen_over_best'])}",
    ]


def cpu(rows: list[Row], overhead: dict[str, float]) -> Report:
    header = (
        "graph F reduce torch scipy numba plain probe launch call /best /torch /probe roof GB/s"
    )
    names = "graph width reduce torch_ms scipy_ms numba_ms plain_ms probe_ms launch_ms call_ms"
    names += " over_best over_torch over_probe roof gather_gb_s"
    lines: list[list[Cell]] = [[row.get(n) for n in names.split()] for row in rows]
    summary: dict[str, Any] = {"call_overhead_us": overhead}
    for name in ("over_best", "over_probe", "over_torch", "over_scipy", "over_numba", "over_plain"):
        summary |= {name: geomean(r[name] for r in rows)}
        summary |= {f"{name}_least": least(r[name] for r in rows)}
    summary |= reduces_over_sum(rows, "call_ms") | distances(rows)
    text = [
        "times in ms; launch: the bound kernel, call: the public operator; plain: the same statement, unscheduled;",
        "/best: over the best of torch, SciPy and Numba; roof: share of a copy's speed, each byte counted once;",
        "GB/s: rows of x that came in, counted for every entry",
        table(header.split(), lines),
        _overhead_line(overhead),
        verdict("launch over C probe, geometric mean", summary["over_probe"], 0.95),
        verdict("launch over C probe, least", summary["over_probe_least"], 0.95),
        verdict("operator over torch CSR, geometric mean", summary["over_torch"], 2.0),
        verdict("operator over the best peer, geometric mean", summary["over_best"], 2.5),
        verdict("operator over the best peer, least", summary["over_best_least"], 1.0),
        *_extra(rows, summary, "call_ms"),
    ]
    return "\n".join(text), summary


def reduces_over_sum(rows: list[Row], key: str) -> dict[str, Any]:
    """What each reduction takes over a sum on the same graph, width and dtype, in geometric mean."""
    sums = {_place(r): r.get(key) for r in rows if _reduce(r) == "sum"}
    made: dict[str, Any] = {}
    for how in dict.fromkeys(map(_reduce, rows)):
        mine = [r for r in rows if _reduce(r) == how != "sum" and _place(r) in sums]
        if mine:
            made[f"{how}_over_sum"] = geomean(ratio(r.get(key), sums[_place(r)]) for r in mine)
    return made


def distances(rows: list[Row]) -> dict[str, Any]:
    """How far the cold and the tuned plan are from the best, where they were tuned."""
    told = [r for r in rows if "tuned" in r]
    return {f"{p}_over_best": geomean(r[p] for r in told) for p in ("cold", "tuned") if told}


def _reduce(row: Row) -> str:
    return str(row.get("reduce", "sum"))


def _place(row: Row) -> tuple[Any, ...]:
    return row["graph"], row["width"], row["dtype"]


def _extra(rows: list[Row], summary: Row, key: str) -> list[str]:
    """Reductions side by side, and plans beside the best, if they were asked for."""
    text: list[str] = []
    found = list(dict.fromkeys(map(_reduce, rows)))
    if len(found) > 1:
        places = dict.fromkeys(map(_place, rows))
        took = {(_place(r), _reduce(r)): r.get(key) for r in rows}
        lines = [[*p, *(took.get((p, reduce)) for reduce in found)] for p in places]
        means = [summary.get(f"{reduce}_over_sum") for reduce in found]
        text = ["reductions, in ms; last: over a sum, in geometric mean"]
        text += [table(["graph", "F", "dtype", *found], [*lines, ["all", None, None, *means]])]
    told = [r for r in rows if "tuned" in r]
    if told:
        lines = [
            [r["case"], r["cold"], r["tuned"], r["tune_s"], spelled(r["tuned_setting"])]
            for r in told
        ]
        ends = [summary["cold_over_best"], summary["tuned_over_best"], None, None]
        text += ["plans, over the best setting (1: the best itself)"]
        text += [table("case cold tuned tune_s setting".split(), [*lines, ["all", *ends]])]
    return text


def cpu_derived(row: Row) -> Row:
    bound = row.get("launch_ms") or row.get("call_ms")
    best = least(row.get(f"{name}_ms") for name in ("torch", "scipy", "numba"))
    return {
        "over_best": ratio(best, row.get("call_ms")),
        "over_probe": ratio(row.get("probe_ms"), bound),
        "over_plain": ratio(row.get("plain_ms"), bound),
        "over_torch": ratio(row.get("torch_ms"), row.get("call_ms")),
        "over_scipy": ratio(row.get("scipy_ms"), row.get("call_ms")),
        "over_numba": ratio(row.get("numba_ms"), row.get("call_ms")),
    }


def short(setting: dict[str, Any] | None) -> str:
    """A setting as numbers: rows,unroll,long,chunk,warps then feature tile, o: tiles outermost."""
    if not setting:
        return "-"
    keys = ("rows", "unroll", "long", "chunk", "warps")
    order = "o" if setting.get("outer") else ""
    return ",".join(str(setting.get(k, "?")) for k in keys) + f"/{setting.get('width', '?')}{order}"


def _overhead_line(overhead: dict[str, float]) -> str:
    told = ", ".join(f"{name} {_two(us)}" for name, us in overhead.items())
    return f"     us a call on one entry: {told or '-'}"


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
