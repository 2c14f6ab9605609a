"""Machines as the cost model sees them: rates, sizes, and what the steps of generated kernels take.

In: a device. Out: its `Machine`. Nothing is measured here: GPUs that were measured stand in a table, others get
what their properties say and careful rates; the CPU counts threads.

    machine_of(torch.device("cpu")).cores      # threads
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """Bytes a second of memory, of gathers inside the last-level cache and beyond it; bytes of that cache;
    multiprocessors or threads; operations a second, plain and in 16-bit products; seconds of a launch.

    Of a program in a gather kernel, in seconds: start, step (one round of gathers), value (each value that a
    thread holds in it), join (the lanes of a cut row), combine (each piece of one). Instructions of a warp, and
    how many of them a core begins in a second: begin (a program), entry (one step of a lane), each (a value).
    """

    name: str
    memory: float
    gather: float
    far: float
    cache: float
    cores: int
    flops: float
    matrix: float
    launch: float
    start: float = 0.77e-6
    step: float = 0.39e-6
    value: float = 8.7e-9
    join: float = 0.40e-6
    combine: float = 0.081e-6
    begin: float = 109.0
    entry: float = 16.8
    each: float = 1.81
    issue: float = 4 * 1.755e9


# Rates are measured, operations are the data sheet's; the rest is fitted by scripts/fit_cost.py.
H200 = Machine("NVIDIA H200", 4.27e12, 8.8e12, 3.5e12, 60e6, 132, 67e12, 782e12, 5.2e-6)
CAREFUL = replace(
    H200, name="a GPU", memory=8e11, gather=1.6e12, far=6e11, cache=4e6, flops=1e13, matrix=6e13
)
CPU = Machine(
    "CPU", 1.5e10, 6e10, 1.2e10, 32e6, 2, 3e10, 3e10, 2e-6, start=0.07e-6, step=80e-9, value=0.0
)
MACHINES = {"H200": H200}


def machine_of(device: torch.device) -> Machine:
    """The record of a device."""
    if device.type != "cuda":
        return replace(CPU, name=cpu_name(), cores=torch.get_num_threads())
    found = torch.cuda.get_device_properties(device)
    for known, made in MACHINES.items():
        if known in found.name:
            return made
    cache_bytes = getattr(found, "L2_cache_size", 0) or CAREFUL.cache
    return replace(CAREFUL, name=found.name, cores=found.multi_processor_count, cache=cache_bytes)


def device_name(device: torch.device, backend: str) -> str:
    """The device as a database names it: a GPU by its model, a CPU by its model and threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    through = "" if backend == "c" else f", {backend}"
    return f"{cpu_name()}, {torch.get_num_threads()} threads{through}"


@cache
def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or f"CPU of {os.cpu_count()} cores"
