"""Clocks for tuning: seconds of a call, on the device that it runs on.

In: functions without arguments. Out: seconds of each of so many calls, in turns, so that drift meets all alike.

    seconds([a, b], 5, torch.device("cpu"))            # [[...5], [...5]]
    seconds([a], 5, torch.device("cuda"), cold=True)   # the second-level cache full of something else each time
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

Fn = Callable[[], Any]
FLUSH_BYTES = 256 << 20
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-10}


@cache
def _flush_buffers(device: int) -> tuple[Tensor, Tensor]:
    at = torch.device("cuda", device)
    l2 = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    size = max(FLUSH_BYTES, 2 * l2) // 4
    return torch.zeros(size, device=at), torch.zeros((), device=at)


def flush(device: int | None = None) -> None:
    """Fill L2 with something else that was read, not written: no call pays for writing back another's bytes.

    It also keeps the GPU busy while launches queue up.
    """
    read, total = _flush_buffers(torch.cuda.current_device() if device is None else device)
    torch.sum(read, 0, out=total)


def seconds(
    fns: Sequence[Fn], repeats: int, device: torch.device, cold: bool = False
) -> list[list[float]]:
    """Seconds of `repeats` calls of each function, the functions taking turns."""
    if device.type != "cuda":
        return [
            list(column) for column in zip(*(_clocked(fns) for _ in range(repeats)), strict=True)
        ]
    rounds = [_events(fns, device, cold) for _ in range(repeats)]
    torch.cuda.synchronize(device)
    columns = zip(*rounds, strict=True)
    return [[a.elapsed_time(b) * 1e-3 for a, b in column] for column in columns]


def _clocked(fns: Sequence[Fn]) -> list[float]:
    """One call of each, after one that is not timed: calls that come again find what they left in the caches.

    A single thread is timed by its own clock, which stands still while others have the core.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    taken = []
    for fn in fns:
        fn()
        began = clock()
        fn()
        taken.append(clock() - began)
    return taken


def _events(
    fns: Sequence[Fn], device: torch.device, cold: bool
) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    pairs = []
    for fn in fns:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        if cold:
            flush(device.index)
        begin.record()
        fn()
        end.record()
        pairs.append((begin, end))
    return pairs


def differs(made: Sequence[Tensor], first: Sequence[Tensor]) -> str | None:
    """Why two results are not the same but for rounding, or None."""
    for n, (a, b) in enumerate(zip(made, first, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {n} is {a.dtype} {tuple(a.shape)}"
        if not a.dtype.is_floating_point:
            if not torch.equal(a, b):
                return f"output {n} has other integers"
            continue
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        scale = b[b.isfinite()].abs().amax() if bool(b.isfinite().any()) else 1.0
        near = (a - b).abs() <= TOLERANCE[made[n].dtype] * scale
        if not bool((same | near).all()):
            return f"output {n} differs by {float((a - b).abs().nan_to_num(torch.inf).max()):.2e}"
    return None
