"""Counters: zeros that kernels leave as they found them, so that no launch has to set them.

In: how many, of which dtype, where, and which of a kernel's. Out: a tensor of as many zeros, or more. A stream has its
own, for all calls: its kernels run one after the other. A call that a CUDA graph captures has its own for good, since
graphs may be replayed side by side (none runs beside itself); where the room for these is used up, or was never made,
the graph sets them.

    counted(1, torch.int64, x.device)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.ops.backend import stream_of
from tilewright.ops.settings import ceil_pow2

ROOM = 1 << 20  # bytes on a device for what graphs capture
ALIGNED = 16  # bytes, of which each begins at a multiple


@dataclass
class _Room:
    held: Tensor
    taken: int = 0


_STREAMS: dict[tuple[int, int | None, int, torch.dtype, int], Tensor] = {}
_GRAPHS: dict[int | None, _Room] = {}


def counted(size: int, dtype: torch.dtype, device: torch.device, nth: int = 0) -> Tensor:
    """Zeros, which the next kernel has to leave. Lengths are powers of two, so that a stream has few."""
    size = ceil_pow2(size)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _captured(size, dtype, device)
    key = (stream_of(device), device.index, size, dtype, nth)
    made = _STREAMS.get(key)
    if made is None:
        made = _STREAMS[key] = _lasting(size, dtype, device)
        if device.type == "cuda" and device.index not in _GRAPHS:
            _GRAPHS[device.index] = _Room(_lasting(ROOM, torch.uint8, device))
    return made


def _lasting(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that stay. On a GPU another thread makes them: what this one allocates may be a graph's private memory, as
    torch.compile has it while it warms up, where nothing may stay."""
    if device.type != "cuda":
        return torch.zeros(size, dtype=dtype, device=device)
    with ThreadPoolExecutor(1) as other:
        made = other.submit(lambda: torch.zeros(size, dtype=dtype, device=device)).result()
    torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
    return made


def _captured(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    room, need = _GRAPHS.get(device.index), size * dtype.itemsize
    if room is None or room.taken + need > ROOM:
        return torch.zeros(size, dtype=dtype, device=device)
    at = room.taken
    room.taken = -(-(at + need) // ALIGNED) * ALIGNED
    return room.held[at : at + need].view(dtype)
