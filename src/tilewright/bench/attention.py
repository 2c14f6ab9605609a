"""Block-sparse attention, 16 heads of 16384 tokens, bf16, beside the probe, dense SDPA and flex_attention.

A share of the 128 x 128 blocks is kept at random, the same for all heads.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import attention_cpu, check, probes, subject, timing
from tilewright.bench.beside import beside
from tilewright.bench.suite import Measured, Run, fastest, seeded, spelled
from tilewright.bench.tables import cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor, block_mask

HEADS, TOKENS, QUICK_TOKENS, BLOCK = 16, 16384, 4096, 128
DIMS = (64, 128)
KEPT = (0.1, 0.25)
TILES = {
    64: {"bm": 64, "bn": 128, "warps": 4, "stages": 3},
    128: {"bm": 128, "bn": 128, "warps": 8, "stages": 3},
}
TOLERANCE = 1e-2  # the weights are rounded to bf16 before the second product


def measure(run: Run) -> Measured:
    if run.options.device == "cpu":
        return (yield from attention_cpu.measure(run))
    torch.backends.cuda.matmul.allow_tf32 = False
    tokens = QUICK_TOKENS if run.options.quick else TOKENS
    yield [{"d": d, "setting": s} for d in DIMS for s in _settings(run, d)]
    probe = probes.load(run.options.probes, "block_sparse")
    for d in DIMS:
        qkv = _operands(tokens, d)
        dense_ms = None
        with run.peer(f"d {d} SDPA"):
            dense_ms = timing.graph_ms(partial(_sdpa, *qkv), replays=10)
        for kept in KEPT:
            with run.part(f"d {d} {kept:.0%}"):
                row = _case(run, qkv, kept, _settings(run, d), probe)
                run.add(row | {"dense_ms": dense_ms})
                run.say(f"{row['case']}: {cell(row.get('best_ms'))} ms")
    return run.finish(*_report(run.rows))


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _settings(run: Run, d: int) -> list[dict[str, Any]]:
    """The probe's, then the operator's own."""
    own = subject.settings("attention")[: run.options.settings]
    return [dict(TILES[d])] + [s for s in own if s != TILES[d]]


def _operands(tokens: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    random = seeded("cuda", d)
    shape = (1, HEADS, tokens, d)
    q, k, v = (torch.randn(shape, generator=random, device="cuda").bfloat16() for _ in range(3))
    return q, k, v


def _bits(tokens: int, kept: float) -> Tensor:
    """Which blocks are kept; at least one in a row."""
    n = tokens // BLOCK
    bits = torch.rand(n, n, generator=seeded("cuda", 7), device="cuda") < kept
    bits[~bits.any(1), 0] = True
    return bits


def _block_rows(bits: Tensor) -> tuple[Tensor, Tensor]:
    begins = torch.nn.functional.pad(bits.sum(1).cumsum(0), (1, 0))
    return begins.int(), bits.nonzero()[:, 1].int().contiguous()


def reference(qkv: tuple[Tensor, Tensor, Tensor], bits: Tensor, scale: float) -> Tensor:
    """Dense softmax in float32, a head at a time."""
    mask = bits.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    heads = []
    for h in range(qkv[0].shape[1]):
        q, k, v = (t[0, h].float() for t in qkv)
        scores = (q @ k.t()).mul_(scale).masked_fill_(~mask, float("-inf"))
        heads.append(torch.softmax(scores, -1) @ v)
    return torch.stack(heads)[None]


def _case(
    run: Run,
    qkv: tuple[Tensor, Tensor, Tensor],
    kept: float,
    settings: list[dict[str, Any]],
    probe: ModuleType | None,
) -> dict[str, Any]:
    _, heads, tokens, d = qkv[0].shape
    bits, scale = _bits(tokens, kept), d**-0.5
    mask, expected = block_mask(bits, block=BLOCK), reference(qkv, bits, scale)
    row: dict[str, Any] = {"case": f"d {d} {kept:.0%}", "d": d, "kept": kept, "tokens": tokens}
    row |= {"dtype": "bf16", "blocks": int(bits.sum()), "settings": []}
    for setting in settings:
        with run.part(f"{row['case']} {setting}"):
            row["settings"].append(_one(run, qkv, bits, mask, scale, expected, setting, probe))
    row["ok"] = bool(row["settings"]) and all(s["ok"] for s in row["settings"])
    best = fastest(row["settings"])
    row |= {"best_ms": best.get("ms"), "best_setting": best.get("setting")}
    same = [s for s in row["settings"] if s.get("probe_ms")]
    row["probe_ms"] = least(s["probe_ms"] for s in same)
    row["over_probe"] = geomean(s["probe_ms"] / s["ms"] for s in same)
    row["over_probe_best"] = ratio(row["probe_ms"], row["best_ms"])
    if run.options.flex:
        with run.peer(f"{row['case']} flex"):
            row["flex_ms"] = _flex_ms(qkv, bits)
    row["over_flex"] = ratio(row.get("flex_ms"), row["best_ms"])
    flops = 4 * heads * row["blocks"] * BLOCK * BLOCK * d
    row["tflop_s"] = ratio(flops / 1e9, row["best_ms"])
    return row


def _one(
    run: Run,
    qkv: tuple[Tensor, Tensor, Tensor],
    bits: Tensor,
    mask: SparseTensor,
    scale: float,
    expected: Tensor,
    setting: dict[str, Any],
    probe: ModuleType | None,
) -> dict[str, Any]:
    plan = subject.op("attention").plan(*qkv, mask, scale, setting=setting)
    check.poison(plan.out)
    plan.launch()
    told = check.compare(plan.out.reshape(expected.shape), expected, TOLERANCE)
    made: dict[str, Any] = {"setting": setting, "error": told.error, "ok": told.ok}
    peer = None
    if probe is not None and setting == TILES[qkv[0].shape[-1]]:
        peer = partial(probes.attention, probe, qkv, _block_rows(bits), scale, BLOCK, setting)
    right = lambda out: check.compare(out, expected, TOLERANCE).ok
    return made | beside(run, str(setting), plan.launch, peer, right)


def _flex_ms(qkv: tuple[Tensor, Tensor, Tensor], bits: Tensor) -> float:
    """flex_attention, compiled, with a ready block mask of full blocks."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    n = bits.shape[0]
    counts = bits.sum(1).int()[None, None]
    order = bits.int().argsort(dim=1, descending=True, stable=True).int()[None, None]
    none = torch.zeros(1, 1, n, dtype=torch.int32, device="cuda")
    blocks = flex.BlockMask.from_kv_blocks(none, torch.zeros_like(order), counts, order, BLOCK)
    call = torch.compile(flex.flex_attention)
    return timing.graph_ms(lambda: call(*qkv, block_mask=blocks), replays=20)


def _report(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    header = "case dense flex probe best TFLOP/s /probe /flex setting"
    names = "case dense_ms flex_ms probe_ms best_ms tflop_s over_probe over_flex".split()
    lines = [[*(row.get(n) for n in names), spelled(row.get("best_setting"))] for row in rows]
    s: dict[str, Any] = {
        "over_probe": geomean(row["over_probe"] for row in rows),
        "over_probe_best": geomean(row["over_probe_best"] for row in rows),
        "over_probe_best_least": least(row["over_probe_best"] for row in rows),
        "over_flex": geomean(row["over_flex"] for row in rows),
        "over_flex_least": least(row["over_flex"] for row in rows),
    }
    text = [
        "bf16, times in ms (graph replay, cold L2)",
        table(header.split(), lines),
        verdict("generated over probe, same tiles", s["over_probe"], 0.95),
        verdict("best over probe's best, least", s["over_probe_best_least"], 0.95),
        verdict("over flex_attention, least", s["over_flex_least"], 1.0),
    ]
    return "\n".join(text), s


def warm(task: dict[str, Any], folder: Path | None) -> None:
    probe, setting, d = probes.load(folder, "block_sparse"), task["setting"], task["d"]
    qkv, bits = _operands(2048, d), _bits(2048, 0.5)
    subject.op("attention").plan(*qkv, block_mask(bits, BLOCK), d**-0.5, setting=setting).launch()
    if probe and setting == TILES[d]:
        probes.attention(probe, qkv, _block_rows(bits), d**-0.5, BLOCK, setting)[0]()
    torch.cuda.synchronize()
