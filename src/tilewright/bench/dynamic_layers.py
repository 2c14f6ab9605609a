"""Layers with ReLU whose index is made in the product's epilogue, beside the layer alone and a detector after it.

A case is h = relu(x @ w.T + b), [m, n] from k inputs, and a micro-tile. Rows of x, and of w, come in groups that nearly
agree, so that micro-tiles of h are 0 as a whole in SPARSITY of all places, as far as that can be had.

    fused      tw.ops.linear_relu: h and the lists, one kernel
    apart      torch's linear and relu, then a detector over h
    torch      torch's linear and relu, no list
    network    fused, and the product over the lists after it, w2: [k, n] as such products read it, or dense where that
               is expected to be faster; network_dense: both by torch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.bench import check, timing
from tilewright.bench.suite import Run, dtype_of, seeded
from tilewright.bench.tables import Cell, ratio, table
from tilewright.ops import dynamic
from tilewright.ops.index import Index
from tilewright.ops.kept import multiplied
from tilewright.ops.linear_relu import linear_relu

SPARSITY, NOISE = 0.95, 0.05
TILES = ((32, 1), (32, 64))
LARGE = ((4096, 4096, 4096), (4096, 16384, 4096))  # a square, and the first half of a feed-forward
SMALL, QUICK = ((512, 2048, 512),), ((64, 128, 96),)  # on the CPU
REPLAYS, BUDGET_S = 20, 0.05
SETTLED = 3  # calls until the choice has seen numbers


@dataclass(frozen=True)
class Layer:
    """h[m, n] = relu(x[m, k] @ w[n, k].T + b[n]), and a list for each row of micro-tiles."""

    m: int
    n: int
    k: int
    dtype: str
    tile: tuple[int, int]

    @property
    def granularity(self) -> str:
        return f"{self.tile[0]}x{self.tile[1]}"

    @property
    def name(self) -> str:
        return f"layer {self.m}x{self.n}x{self.k} {self.dtype} {self.granularity}"

    def operands(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        random, dtype = seeded(device), dtype_of(self.dtype)
        x, w = (
            _alike(size, self.k, group, random)
            for size, group in zip((self.m, self.n), self.tile, strict=True)
        )
        beyond = 2.0**0.5 * torch.erfinv(torch.tensor(2 * SPARSITY - 1)).item()
        b = torch.full((self.n,), -beyond * self.k**0.5, device=device)
        return x.to(dtype), w.to(dtype), b.to(dtype)


def _alike(size: int, k: int, group: int, random: torch.Generator) -> Tensor:
    """Rows of which each `group` differ by little."""
    first = torch.randn(-(-size // group), k, generator=random, device=random.device)
    noise = torch.randn(size, k, generator=random, device=random.device)
    return first.repeat_interleave(group, 0)[:size] + NOISE * noise


def layers(device: str, quick: bool) -> list[Layer]:
    shapes = LARGE if device == "cuda" else QUICK if quick else SMALL
    dtype = "bf16" if device == "cuda" else "fp32"
    return [Layer(*shape, dtype, tile) for shape in shapes for tile in TILES]


def measured(run: Run, case: Layer) -> dict[str, Any]:
    """Times of a layer, after its values and lists were judged."""
    x, w, b = case.operands(run.options.device)
    w2 = torch.randn(case.k, case.n, device=x.device, dtype=x.dtype)
    read = multiplied(w2, "k" if case.tile[1] == 1 else "i")

    def alone() -> Tensor:
        return functional.linear(x, w, b).relu_()

    def apart() -> Index:
        return Index.from_values(alone(), case.tile, grouped=True, ordered=False)

    def network() -> Tensor:
        h, index = linear_relu(x, w, b, tile=case.tile)
        return dynamic.auto(h, read, index=index)

    dynamic.forget()
    for _ in range(SETTLED):
        network()
        if x.is_cuda:
            torch.cuda.synchronize()
    calls: dict[str, timing.Fn] = {
        "torch": alone,
        "apart": apart,
        "fused": lambda: linear_relu(x, w, b, tile=case.tile),
        "network_dense": lambda: functional.linear(alone(), w2),
        "network": network,
    }
    row: dict[str, Any] = {"case": case.name, "kind": "layer", "granularity": case.granularity}
    row |= {"m": case.m, "n": case.n, "k": case.k, "dtype": case.dtype}
    row |= _judged(x, w, b, case)
    if run.options.device == "cuda":
        times = timing.graphs_ms(list(calls.values()), REPLAYS, BUDGET_S)
    else:
        times = list(run.cpus_ms(calls).values())
    row |= {f"{name}_ms": ms for name, ms in zip(calls, times, strict=True)}
    row["over_apart"] = ratio(row["apart_ms"], row["fused_ms"])
    row["share"] = ratio(row["fused_ms"], row["torch_ms"])
    row["over_dense"] = ratio(row["network_dense_ms"], row["network_ms"])
    return row


def _judged(x: Tensor, w: Tensor, b: Tensor, case: Layer) -> dict[str, Any]:
    """Whether h is right and the lists name what is not 0 in it; how much they name."""
    h, index = linear_relu(x, w, b, tile=case.tile)
    right = check.compare(h, functional.linear(x.double(), w.double(), b.double()).relu_()).ok
    found = Index.from_values(h, case.tile, grouped=True).compact()
    lists = index.compact()
    same = [torch.equal(p.sort().values, q) for p, q in zip(lists, found, strict=True)]
    kept = sum(map(len, found)) / (index.grid[0] * index.grid[1])
    return {"ok": right and all(same), "kept": kept}


def layers_table(rows: list[dict[str, Any]]) -> str:
    header = "layer kept torch apart fused /apart fused/torch network dense /dense".split()
    names = "torch_ms apart_ms fused_ms over_apart share network_ms network_dense_ms over_dense"
    lines: list[list[Cell]] = [
        [r["case"].removeprefix("layer "), f"{r['kept']:.1%}", *(r.get(n) for n in names.split())]
        for r in rows
    ]
    return table(header, lines)
