"""Memory of large outputs on the CPU: on large pages, and kept for the next output when its tensor is gone.

Fresh memory costs more than the kernel that writes it: the system clears every page when it is first touched. The
C library hands large arrays back at once, so a loop pays that in every turn; here a few are kept, as torch's own
allocator does on a GPU. At most `TILEWRIGHT_KEEP` megabytes lie idle (0: none, plain torch memory).

    empty((4096, 512), torch.float32)      # a tensor like any other; its storage cannot be resized
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilewright.support import knobs

PAGE = 2 << 20  # a large page
LEAST = 4 << 20  # the C library keeps what is smaller, and a tensor costs less from there
ROOM = 1.25  # a kept block may be so much larger than what is asked for

# torch.empty_strided in a third of its time, past the dispatcher: what torch.compile's code calls, where it is there
_past = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
_AS: dict[torch.dtype, Any] = {  # others have 16 bits
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_returned: deque[mmap.mmap] = deque()  # by tensors that are gone, from any thread
_idle: list[mmap.mmap] = []  # the oldest first
_lock = threading.RLock()


def _forked() -> None:
    """Nobody in a new process holds the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class _Lease(np.ndarray[Any, Any]):
    """A block as a tensor's storage holds it; it comes back when the storage is gone."""

    block: mmap.mmap | None = None

    def __del__(self) -> None:
        if self.block is not None:
            _returned.append(self.block)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor with any content."""
    size = math.prod(shape) * dtype.itemsize
    most = knobs.keep()
    if size < LEAST or not most or not sys.platform.startswith("linux"):
        return torch.empty(shape, dtype=dtype, device="cpu")
    block = _take(size, most)
    lease = _Lease(shape, _AS.get(dtype, np.int16), block)
    lease.block = block
    made = torch.from_numpy(lease)
    return made if dtype in _AS else made.view(dtype)


def alike(t: Tensor) -> Callable[[], Tensor]:
    """What makes tensors like this dense one, with any content."""
    shape, dtype = tuple(t.shape), t.dtype
    if _past is None or t.numel() * dtype.itemsize >= LEAST:
        return partial(empty, shape, dtype)
    return partial(_past, shape, t.stride(), dtype)


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros."""
    made = empty(shape, dtype)
    return made.zero_()


def _take(size: int, most: int) -> mmap.mmap:
    """The newest block that suits, since caches may hold it, or one from the system."""
    with _lock:
        settle(most)
        for k in range(len(_idle) - 1, -1, -1):
            if size <= len(_idle[k]) <= ROOM * size + PAGE:
                return _idle.pop(k)
    whole = -(-size // PAGE) * PAGE
    made = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a wish: kernels without large pages refuse it
        made.madvise(mmap.MADV_HUGEPAGE)
    return made


def settle(most: int | None = None) -> int:
    """Blocks that came back are idle, the oldest beyond the bound are given to the system; bytes that stay."""
    most = knobs.keep() if most is None else most
    with _lock:
        while _returned:
            _idle.append(_returned.popleft())
        while (idle := sum(map(len, _idle))) > most << 20:
            _idle.pop(0)
        return idle
