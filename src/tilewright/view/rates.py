"""How fast machines are: bytes and operations in a second, for estimates.

In: a device. Out: `Rates`. GPUs we measured stand in a table; any other device is timed once with a copy.

    rates_of(torch.device("cpu")).memory       # bytes a second of a large copy, here
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import torch

from tilewright.analysis.cost import Cost
from tilewright.tune import machine

COPY = 1 << 26
REPEAT = 3


@dataclass(frozen=True)
class Rates:
    """memory, gather: bytes a second from memory and, through an index, from the cache of `cache` bytes;
    flops, matrix: operations a second, plain and in 16-bit products; launch: seconds. None: not counted."""

    name: str
    memory: float
    gather: float
    cache: float = 0.0
    flops: float | None = None
    matrix: float | None = None
    launch: float | None = None


MACHINES = {
    name: Rates(m.name, m.memory, m.gather, m.cache, m.flops, m.matrix, m.launch)
    for name, m in machine.MACHINES.items()
}


def rates_of(device: torch.device) -> Rates:
    """The table's row of a device, or what a copy takes on it."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, made in MACHINES.items():
            if known in name:
                return made
        return measured(str(device), name)
    return measured(device.type, f"this {device.type.upper()}, timed with a copy")


@cache
def measured(device: str, name: str) -> Rates:
    a = torch.ones(COPY // 4, device=device)
    b = torch.empty_like(a)
    best = min(_once(a, b) for _ in range(REPEAT))
    rate = 2 * COPY / best
    return Rates(name, rate, rate)


def _once(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.is_cuda:
        torch.cuda.synchronize(a.device)
    began = time.perf_counter()
    b.copy_(a)
    if a.is_cuda:
        torch.cuda.synchronize(a.device)
    return max(time.perf_counter() - began, 1e-9)


def seconds_of(cost: Cost, rates: Rates, matrix: bool = False) -> float:
    """The time of the slowest of memory, gathers and operations, and a launch."""
    moved = cost.compulsory / rates.memory
    gathers = sum(
        t.gathered / (rates.gather if t.held <= rates.cache else rates.memory)
        for t in cost.traffic.values()
    )
    peak = rates.matrix if matrix else rates.flops
    computed = cost.flops / peak if peak else 0.0
    return max(moved, gathers, computed) + (rates.launch or 0.0)
