"""What a call costs beside its kernels' own time: launches, and the host's part of it.

    python tests/ops/calls.py [case ...]     # a table: our kernels, torch's launches, microseconds of the host

Calls are warm and small, and go to the Triton back end on CPU tensors; our launches do nothing while they are timed.
Launches of torch are the operations that its profiler saw which neither allocate nor only look at memory otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from torch.autograd.profiler import profile

import tilewright as tw
from tilewright import driver
from tilewright.ops.backend import backend
from tilewright.ops.families import FAMILIES
from tilewright.ops.ready import Fixed, Ready
from tilewright.pit import watch

# Operations of torch that only look at memory or allocate, and those that are made of others.
FREE = set(
    "alias as_strided contiguous detach empty empty_like empty_strided expand lift_fresh narrow "
    "new_empty permute resolve_conj resolve_neg scalar_tensor select slice split squeeze t "
    "transpose unbind unsqueeze view view_as _reshape_alias _unsafe_view".split()
)
MADE = set(
    "linear matmul einsum contiguous clone to _to_copy reshape zeros new_zeros zeros_like ones "
    "full square flatten".split()
)


class Launches(NamedTuple):
    """What a call launches: kernels of ours, operations of torch."""

    ours: list[str]
    torch: list[str]


def launches(call: Callable[[], Any]) -> Launches:
    """The launches of one call, in order. Ours do nothing: what a call launches depends on shapes alone."""
    ours: list[str] = []
    into, fixed = Ready.into, Fixed.__call__

    def noted(ready: Ready, run: Callable[[], Any]) -> Any:
        with mock.patch.object(ready, "call", lambda *_: ours.append(ready.kernel.name)):
            return run()

    def noted_fixed(self: Fixed, moving: Any) -> Any:
        run = lambda: fixed(self, moving)
        return noted(self.ready, run) if self.whole else run()

    with (
        mock.patch.object(Ready, "into", lambda self, *how: noted(self, lambda: into(self, *how))),
        mock.patch.object(Fixed, "__call__", noted_fixed),
        profile() as seen,
    ):
        call()
    top = [e for e in seen.function_events if e.cpu_parent is None]
    return Launches(ours, [n for e in top for n in _of(e)])


def _of(e: Any) -> list[str]:
    """The launches that an event of the profiler stands for."""
    name = e.name.removeprefix("aten::")
    if name != e.name and name not in FREE | MADE:
        return [name]
    return [n for c in e.cpu_children for n in _of(c)]


def host_us(call: Callable[[], Any], rounds: int = 7, each: int = 100) -> float:
    """Microseconds of a warm call, the least of some rounds."""
    for _ in range(3):
        call()
    found = []
    for _ in range(rounds):
        begin = perf_counter()
        for _ in range(each):
            call()
        found.append((perf_counter() - begin) / each)
    return min(found) * 1e6


# --- cases ------------------------------------------------------------------------------------------

M, N, K, EXPERTS = 128, 64, 96, 4


def operands(grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*s, generator=g) for s in ((M, K), (N, K), (N,)))
    return x.requires_grad_(grad), w.requires_grad_(grad), b.requires_grad_(grad)


def linear(make: Callable[[Tensor], Any], biased: bool = True) -> Callable[[], Callable[[], Any]]:
    def ready() -> Callable[[], Any]:
        x, w, b = operands()
        sparse = make(x)
        return lambda: tw.linear(x, w, b if biased else None, sparse=sparse)

    return ready


def lengths() -> Callable[[], Any]:
    x, w, b = operands()
    batch, size = x.reshape(4, M // 4, K), torch.tensor([3, 0, 32, 7])
    return lambda: tw.linear(batch, w, b, sparse=size)


def family(name: str) -> Callable[[], Callable[[], Any]]:
    def ready() -> Callable[[], Any]:
        x, w, _ = operands()
        f = FAMILIES[name]
        return lambda: f.run(x, w, f.detect(x))

    return ready


def matmul(sparse: str) -> Callable[[], Callable[[], Any]]:
    def ready() -> Callable[[], Any]:
        x, w, _ = operands()
        wt = w.t().contiguous()
        return lambda: tw.ops.matmul(x, wt, sparse=sparse)

    return ready


def masked(block: int) -> Callable[[], Callable[[], Any]]:
    def ready() -> Callable[[], Any]:
        x, w, b = operands()
        mask = torch.ones(N // block, K // block, dtype=torch.bool)
        return lambda: tw.ops.masked_linear(x, w, mask, b)

    return ready


def grouped(slots: int, back: bool = False) -> Callable[[], Callable[[], Any]]:
    def ready() -> Callable[[], Any]:
        x = operands(back)[0]
        w = torch.randn(EXPERTS, K, N, requires_grad=back)
        index = tw.Index.from_choices(torch.arange(M * slots).reshape(M, slots) % EXPERTS, EXPERTS)
        if not back:
            return lambda: tw.ops.grouped_matmul(x, w, index)
        dy = torch.ones(M, slots, N)
        return lambda: torch.autograd.grad(tw.ops.grouped_matmul(x, w, index), (x, w), dy)

    return ready


def values(*tile: Any, **how: Any) -> Callable[[], Callable[[], Any]]:
    def ready() -> Callable[[], Any]:
        x = operands()[0]
        return lambda: tw.Index.from_values(x, tile, **how)

    return ready


def from_mask() -> Callable[[], Any]:
    mask = operands()[0][:, 0] > 0
    return lambda: tw.Index.from_mask(mask, (1, None))


def from_lengths() -> Callable[[], Any]:
    size = torch.tensor([3, 0, 32, 7])
    return lambda: tw.Index.from_lengths(size, 32)


def from_choices() -> Callable[[], Any]:
    ids = torch.arange(M * 2).reshape(M, 2) % EXPERTS
    return lambda: tw.Index.from_choices(ids, EXPERTS)


def dense() -> Callable[[], Any]:
    x, w, b = operands()
    return lambda: torch.nn.functional.linear(x, w, b)


def auto() -> Callable[[], Any]:
    """A call that stays dense: all families are looked for in the first one only."""
    x, w, b = operands()
    watch.EVERY = 1 << 30
    return lambda: tw.linear(x, w, b, sparse="auto")


ORDER: dict[str, dict[str, bool]] = {
    "ordered": {},
    "grouped": {"grouped": True},
    "any order": {"ordered": False},
}
CASES: dict[str, Callable[[], Callable[[], Any]]] = {
    "F.linear": dense,
    "linear rows": linear(lambda x: "rows"),
    "linear rows, no b": linear(lambda x: "rows", False),
    "linear k": linear(lambda x: "k"),
    "linear k, no b": linear(lambda x: "k", False),
    "linear auto": auto,
    "linear mask": linear(lambda x: x[:, 0] > 0),
    "linear lengths": lengths,
    "linear numbers": linear(lambda x: torch.arange(0, M, 2)),
    "linear Index (1, None)": linear(lambda x: tw.Index.from_values(x, (1, None))),
    "linear Index 32x1": linear(lambda x: tw.Index.from_values(x, (32, 1), grouped=True)),
    **{f"family {n}": family(n) for n in FAMILIES},
    **{f"matmul {n}": matmul(n) for n in ("rows", "k", "columns")},
    **{f"masked_linear {n}x{n}": masked(n) for n in (1, 16)},
    **{f"grouped_matmul, {n} slots": grouped(n) for n in (1, 2)},
    "grouped_matmul, 2 slots, and gradients": grouped(2, True),
    **{
        f"from_values {t}, {name}": values(*t, **how)
        for t in ((1, 1), (8, 1), (32, 1), (32, 64), (1, None), (None, 1))
        for name, how in ORDER.items()
        if None not in t or name != "grouped"
    },
    "from_mask": from_mask,
    "from_lengths": from_lengths,
    "from_choices": from_choices,
}


def main(names: list[str]) -> None:
    real = driver.compile_triton

    def idle(*args: Any, **how: Any) -> Any:
        made = real(*args, **how)
        launch = made.call
        made.call = lambda *given: launch(*given) if live else None
        return made

    live = [True]
    driver.compile_triton = idle
    torch.set_num_threads(1)
    print(f"{'call':40} {'ours':>4} {'torch':>5} {'host us':>8}   what torch launches")
    with backend("triton"):
        for name, ready in CASES.items():
            if names and not any(n in name for n in names):
                continue
            call = ready()
            call()
            call()
            made = launches(call)
            live.clear()
            us = host_us(call)
            live.append(True)
            told = " ".join(made.torch)
            print(
                f"{name:40} {len(made.ours):4} {len(made.torch):5} {us:8.1f}   {told}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
