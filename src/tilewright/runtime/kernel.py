"""The kernel object: one compiled loop nest with every stage's text, and how to launch it.

In: parameters in the order of its buffers, sizes and scalars. Out: the outputs are written.

    kernel.stages["flat"]; print(kernel); kernel.launch(tensors, sizes, scalars)
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.ir import loops
from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.interp import run_loops
from tilewright.ir.text import text
from tilewright.runtime import pages
from tilewright.schedule.record import Schedule

C_TYPES: dict[str, Any] = {"f32": ctypes.c_float, "f64": ctypes.c_double}
SMALL = 1 << 13


@dataclass(repr=False)
class Kernel:
    """One launch. `buffers` are (name, role); `sizes` and `scalars` are names; `schedule` replays on stage III;
    `starts`: what outputs must hold before a launch; `loose`: buffers whose addresses need not be multiples of 16;
    `claimed`: outputs that the last program writes, with how many programs there are."""

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
    schedule: Schedule = ()
    starts: dict[str, float] = field(default_factory=dict)
    loose: tuple[str, ...] = ()
    claimed: dict[str, Expr] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The generated code."""
        return self.stages["triton" if self.backend == "triton" else "c"]

    def __repr__(self) -> str:
        return f"Kernel({self.name}, {self.backend}, {self.setting})"

    def __str__(self) -> str:
        head = f"kernel {self.name} ({self.backend}), {self.setting}"
        first = self.stages.get("flat") or next(iter(self.stages.values()))
        return f"{head}\n\n{first}\n\n{self.text}"


def python_of(e: Expr, names: Sequence[str]) -> Callable[..., int]:
    """A size expression as a Python function of sizes."""
    return eval(f"lambda {', '.join(names)}: {text(e)}")


Call = Callable[[Sequence[torch.Tensor], Sequence[int], Sequence[int], Sequence[float]], None]


class CFunction:
    """call(tensors, addresses, sizes, scalars) for a C function; `bind` for calls that have most of it in common."""

    def __init__(self, fn: Any, buffers: int, sizes: int, scalars: Sequence[str]) -> None:
        fn.restype = None
        fn.argtypes = (
            [ctypes.c_void_p] * buffers
            + [ctypes.c_int64] * sizes
            + [C_TYPES[d] for d in scalars]
            + [ctypes.c_int]
        )
        self.fn = fn

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        where: Sequence[int],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> None:
        many = 1
        for t in tensors:
            if t.numel() > SMALL:
                many = torch.get_num_threads()
                break
        self.fn(*where, *sizes, *scalars, many)

    def bind(
        self,
        tensors: Sequence[torch.Tensor],
        given: dict[int, int],
        sizes: Sequence[int],
        outs: Sequence[torch.Tensor],
    ) -> Callable[..., list[torch.Tensor]]:
        """A launch into new outputs, on tensors of which some are others in each call: one generated function of those.

        given: from a buffer's place to that of its tensor among the others, of which outputs like `outs` are the last.
        All else stays where it is, and must be kept. Numbers are converted for C once.
        """
        space: dict[str, Any] = {"fn": self.fn, "threads": torch.get_num_threads}
        parts: list[str] = []
        for k, t in enumerate(tensors):
            if k not in given:
                space[f"p{k}"] = ctypes.c_void_p(t.data_ptr())
            parts.append(f"t{given[k]}.data_ptr()" if k in given else f"p{k}")
        for k, size in enumerate(sizes):
            space[f"s{k}"] = ctypes.c_int64(size)
            parts.append(f"s{k}")
        space["one"] = ctypes.c_int(1)
        parts.append("threads()" if any(t.numel() > SMALL for t in tensors) else "one")
        names = [f"t{k}" for k in range(max(given.values()) + 1)]
        news, made = names[: -len(outs)], []
        for name, t in zip(names[-len(outs) :], outs, strict=True):
            space[f"new_{name}"] = pages.alike(t)
            made.append(f"{name} := new_{name}()")
        launch = f"lambda {', '.join(news)}: ([{', '.join(made)}], fn({', '.join(parts)}))[0]"
        bound: Callable[..., list[torch.Tensor]] = eval(launch, space)
        return bound


def triton_caller(compiled: Any, grid: Callable[..., int]) -> Call:
    """The same for a compiled Triton kernel, past Triton's own dispatch.

    Addresses go in as plain integers: Triton would ask the driver about every tensor. A kernel that takes no tensors
    writes nothing, and is not launched.
    """
    run = compiled.run
    function, packed = compiled.function, compiled.packed_metadata
    stream_of = torch._C._cuda_getCurrentRawStream

    def call(
        tensors: Sequence[torch.Tensor],
        where: Sequence[int],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> None:
        programs = grid(*sizes)
        if programs and tensors:
            stream = stream_of(tensors[0].get_device())
            run(
                programs, 1, 1, stream, function, packed, None, None, None, *where, *sizes, *scalars
            )

    return call


def interpreted_caller(fn: Any, grid: Callable[..., int]) -> Call:
    """The same in Triton's interpreter, on CPU tensors."""

    def call(
        tensors: Sequence[torch.Tensor],
        where: Sequence[int],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> None:
        programs = grid(*sizes)
        if programs:
            fn[(programs,)](*tensors, *sizes, *scalars)

    return call


def slow_caller(p: loops.Program) -> Call:
    """The same by the interpreter of stage II, with one warning: right, and very slow."""
    warnings.warn(
        "tilewright: no C compiler found; CPU tensors use a very slow interpreter. "
        "Install one (Debian/Ubuntu: apt install gcc), or set TILEWRIGHT_FALLBACK=0 to make this an error.",
        stacklevel=2,
    )
    outs = [b.name for b in p.buffers if b.role == "out"]

    def call(
        tensors: Sequence[torch.Tensor],
        where: Sequence[int],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> None:
        given = dict(zip((b.name for b in p.buffers), tensors, strict=True))
        arrays = {
            n: _array(t) for n, t in given.items()
        }  # outputs too: an earlier launch may have begun them
        named = _lengths(p, given) | dict(zip((v.name for v in p.sizes), sizes, strict=True))
        floats = dict(zip((v.name for v in p.scalars), scalars, strict=True))
        made = run_loops(p, arrays, named, floats)
        for n in outs:
            given[n].copy_(torch.from_numpy(made[n]).reshape(given[n].shape))

    return call


def _lengths(p: loops.Program, given: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The lengths of arrays that no kernel asks for, and only an interpreter checks."""
    ends = [(b.shape[0], given[b.name]) for b in p.buffers if len(b.shape) == 1]
    return {e.name: t.numel() for e, t in ends if isinstance(e, Var)}


def _array(t: torch.Tensor) -> Any:
    half = t.dtype in (torch.float16, torch.bfloat16)
    return (t.detach().float() if half else t.detach()).numpy()
