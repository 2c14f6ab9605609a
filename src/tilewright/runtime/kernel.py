"""The kernel object: one compiled loop nest with every stage's text, and how to launch it.

In: parameters in the order of its buffers, sizes and scalars. Out: the outputs are written.

    kernel.stages["flat"]; print(kernel); kernel.launch(tensors, sizes, scalars)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.ir.expr import Buffer, Expr
from tilewright.ir.text import text

C_TYPES: dict[str, Any] = {"f32": ctypes.c_float, "f64": ctypes.c_double}
SMALL = 1 << 13


@dataclass
class Kernel:
    """One launch. `buffers` are (name, role); `sizes` and `scalars` are names."""

    name: str
    backend: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    scalars: tuple[str, ...]
    stages: dict[str, str]
    call: Callable[..., None]
    setting: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    compiled: Any = None

    @property
    def text(self) -> str:
        """The generated code."""
        return self.stages["triton" if self.backend == "triton" else "c"]

    def __str__(self) -> str:
        head = f"kernel {self.name} ({self.backend}), {self.setting}"
        return f"{head}\n\n{self.stages['flat']}\n\n{self.text}"


def python_of(e: Expr, names: Sequence[str]) -> Callable[..., int]:
    """A size expression as a Python function of sizes."""
    return eval(f"lambda {', '.join(names)}: {text(e)}")


def c_caller(
    fn: Any, buffers: int, sizes: int, scalars: Sequence[str]
) -> Callable[[Sequence[torch.Tensor], Sequence[int], Sequence[float]], None]:
    """call(tensors, sizes, scalars) for a C function."""
    fn.restype = None
    fn.argtypes = (
        [ctypes.c_void_p] * buffers
        + [ctypes.c_int64] * sizes
        + [C_TYPES[d] for d in scalars]
        + [ctypes.c_int]
    )
    threads = torch.get_num_threads

    def call(tensors: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[float]) -> None:
        many = 1
        for t in tensors:
            if t.numel() > SMALL:
                many = threads()
                break
        fn(*[t.data_ptr() for t in tensors], *sizes, *scalars, many)

    return call


def triton_caller(compiled: Any, grid: Callable[..., int]) -> Callable[..., None]:
    """call(tensors, sizes, scalars) for a compiled Triton kernel, past Triton's own dispatch."""
    run = compiled.run
    function, packed = compiled.function, compiled.packed_metadata
    stream_of = torch._C._cuda_getCurrentRawStream

    def call(tensors: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[float]) -> None:
        programs = grid(*sizes)
        if programs:
            # plain addresses: Triton would ask the driver about every tensor
            where = [t.data_ptr() for t in tensors]
            stream = stream_of(tensors[0].get_device())
            run(programs, 1, 1, stream, function, packed, None, None, None, *where, *sizes, *scalars)

    return call


def interpreted_caller(fn: Any, grid: Callable[..., int]) -> Callable[..., None]:
    """call(tensors, sizes, scalars) in Triton's interpreter, on CPU tensors."""

    def call(tensors: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[float]) -> None:
        programs = grid(*sizes)
        if programs:
            fn[(programs,)](*tensors, *sizes, *scalars)

    return call
