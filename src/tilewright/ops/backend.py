"""Which back end serves a device: C on the CPU, Triton on CUDA.

with backend("triton"): ...     # CPU tensors through Triton's interpreter (TRITON_INTERPRET=1), for tests
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

_CPU = ["c"]


def backend_of(device: torch.device) -> str:
    """The back end of a device's tensors."""
    return _CPU[0] if device.type == "cpu" else "triton"


def cpu_backend() -> str:
    return _CPU[0]


@contextmanager
def backend(name: str) -> Iterator[None]:
    """CPU tensors go to another back end inside."""
    before, _CPU[0] = _CPU[0], name
    try:
        yield
    finally:
        _CPU[0] = before


def on_device(index: int) -> AbstractContextManager[object]:
    """The context of a GPU, where there are several; nothing elsewhere."""
    if index < 0 or torch.cuda.device_count() < 2:
        return nullcontext()
    return torch.cuda.device(index)


@cache
def cores(index: int) -> int:
    """The multiprocessors of a GPU."""
    made: int = torch.cuda.get_device_properties(index).multi_processor_count
    return made


def stream_of(device: torch.device) -> int:
    """The current stream, as a number; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    made: int = torch._C._cuda_getCurrentRawStream(device.index or 0)
    return made


def precision() -> str:
    """How 32-bit products are computed: torch's own switch decides."""
    return "tf32" if torch._C._get_cublas_allow_tf32() else "ieee"


def as_written(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast changes no dtype: programs say theirs."""
    kind = device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def any_order(device: torch.device) -> bool:
    """Whether a list may come in any order: on GPUs, where that is faster, unless torch wants the same sums again."""
    return backend_of(device) == "triton" and not torch.are_deterministic_algorithms_enabled()


def place_of(device: torch.device) -> object:
    """All that decides, beside the tensors, which kernel a call runs and where: a key."""
    if device.type != "cuda":
        return _CPU[0]
    return torch._C._cuda_getCurrentRawStream(device.index or 0), precision()
