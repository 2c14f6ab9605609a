"""Counters that are zero, for CUDA graphs: those that a graph makes itself are set to zero in each replay, by a launch.

In: how many, of which dtype, while a graph is captured. Out: memory that nothing else uses while the process lives, as
nobody tells when a graph is gone. Graphs beyond the first ROOM counters of a device make their own.

    ready(device)                       # outside of captures
    zero(1, torch.int64, device)        # inside
"""

from __future__ import annotations

import torch
from torch import Tensor

ROOM, MOST = 1 << 14, 64  # counters of 64 bits for a device, and at once
_ALL: dict[torch.device, Tensor] = {}
_LEFT: dict[torch.device, Tensor] = {}  # what was not given away


def ready(device: torch.device) -> None:
    """See to it that there are some. Waits for the device once: graphs run on any stream."""
    if device not in _ALL:
        made = torch.zeros(ROOM, dtype=torch.int64, device=device)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        _ALL[device] = _LEFT[device] = made


def zero(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Counters for one graph."""
    left = _LEFT.get(device)
    room = -(-size * dtype.itemsize // 8)
    if left is None or not 0 < room <= min(MOST, len(left)):
        return torch.zeros(size, dtype=dtype, device=device)
    _LEFT[device] = left[room:]
    return left[:room].view(dtype)[:size]
