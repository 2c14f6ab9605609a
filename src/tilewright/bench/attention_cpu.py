"""Block-sparse attention on the CPU, beside torch's dense attention, with and without the mask; float32.

A share of the blocks is kept at random, the diagonal always, the same blocks for all heads. Forward, and forward with
gradients of q, k and v; outputs and gradients are checked.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tilewright.bench import check, machine, subject, timing
from tilewright.bench.spmm_cpu import busy_note
from tilewright.bench.suite import Measured, Run, seeded
from tilewright.bench.tables import Cell, cell, geomean, least, ratio, table, verdict
from tilewright.formats import SparseTensor, block_mask

HEADS, TOKENS, QUICK_TOKENS = 8, 2048, 256
BLOCKS, QUICK_BLOCKS = (32, 64, 128), (64,)
DIMS, QUICK_DIMS = (64, 128), (64,)
KEPT = (0.05, 0.15, 0.5)
PEERS = ("dense", "masked")
Qkv = tuple[Tensor, Tensor, Tensor]


def measure(run: Run) -> Measured:
    quick = run.options.quick
    tokens = QUICK_TOKENS if quick else TOKENS
    yield []
    busy = machine.busy_cores()
    sizes = product(QUICK_DIMS, QUICK_BLOCKS) if quick else product(DIMS, BLOCKS)
    for (d, block), kept in product(list(sizes), KEPT):
        if run.late:
            break
        with run.part(f"d {d} blocks {block} {kept:.0%}"):
            run.add(_case(run, tokens, d, block, kept))
            row = run.rows[-1]
            run.say(f"{row['case']}: {cell(row['ours_ms'])} ms, dense {cell(row['dense_ms'])} ms")
    text, summary = report(run.rows)
    text += busy_note(run, busy)
    return run.finish(text, {**summary, "busy_cores": busy, "clock": run.clock})


def _case(run: Run, tokens: int, d: int, block: int, kept: float) -> dict[str, Any]:
    random = seeded("cpu", d)
    shape = (1, HEADS, tokens, d)
    q, k, v = (torch.randn(shape, generator=random).requires_grad_() for _ in range(3))
    qkv = q, k, v
    bits = torch.rand(tokens // block, tokens // block, generator=random) < kept
    bits |= torch.eye(bits.shape[0], dtype=torch.bool)
    mask = block_mask(bits, block=block)
    attention = subject.function("attention")
    calls: dict[str, timing.Fn] = {"ours": lambda: attention(*qkv, mask=mask)}
    whole = bits.repeat_interleave(block, 0).repeat_interleave(block, 1)
    calls |= {
        "dense": lambda: scaled_dot_product_attention(*qkv),
        "masked": lambda: scaled_dot_product_attention(*qkv, attn_mask=whole),
    }
    row: dict[str, Any] = {"case": f"d {d} blocks {block} {kept:.0%}", "d": d, "block": block}
    row |= {"kept": float(bits.float().mean()), "tokens": tokens, "dtype": "fp32", "device": "cpu"}
    row |= {"ok": _right(attention, qkv, mask, whole)}
    with torch.no_grad():
        row |= {f"{name}_ms": ms for name, ms in run.cpus_ms(calls).items()}
    trained = {name: _trained(call, qkv) for name, call in calls.items()}
    row |= {f"{name}_trained_ms": ms for name, ms in run.cpus_ms(trained).items()}
    for how in ("", "_trained"):
        best = least(row[f"{name}{how}_ms"] for name in PEERS)
        row[f"over_best{how}"] = ratio(best, row[f"ours{how}_ms"])
    flops = 4 * HEADS * int(bits.sum()) * block**2 * d
    return row | {"gflop_s": ratio(flops / 1e6, row["ours_ms"])}


def _trained(call: timing.Fn, qkv: Qkv) -> timing.Fn:
    def go() -> object:
        out = call()
        assert isinstance(out, Tensor)
        return torch.autograd.grad(out.sum(), qkv)

    return go


def _right(attention: Any, qkv: Qkv, mask: SparseTensor, whole: Tensor) -> bool:
    """Output and gradients, against float64."""
    q, k, v = wide = [t.detach().double().requires_grad_() for t in qkv]
    got, want = attention(*qkv, mask=mask), scaled_dot_product_attention(q, k, v, attn_mask=whole)
    weights = torch.linspace(-1, 1, got.numel()).view_as(got)
    grads = torch.autograd.grad((got * weights).sum(), qkv)
    judges = torch.autograd.grad((want * weights.double()).sum(), wide)
    pairs = zip((got, *grads), (want, *judges), strict=True)
    return all(check.compare(a.detach(), b.detach()).ok for a, b in pairs)


def report(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    head = ["case", "kept", "dense", "masked", "ours", "/best", "trained", "/best", "GFLOP/s"]
    names = (
        "case kept dense_ms masked_ms ours_ms over_best ours_trained_ms over_best_trained gflop_s"
    )
    lines: list[list[Cell]] = [[row.get(n) for n in names.split()] for row in rows]
    s: dict[str, Any] = {}
    for name in ("over_best", "over_best_trained"):
        s |= {name: geomean(r[name] for r in rows), f"{name}_least": least(r[name] for r in rows)}
    text = [
        "times in ms; dense, masked: torch's attention without the mask and with it; trained: with all gradients",
        table(head, lines),
        verdict("over the better of torch's, least", s["over_best_least"], 1.0),
        verdict("with gradients, least", s["over_best_trained_least"], 1.0),
    ]
    return "\n".join(text), s
