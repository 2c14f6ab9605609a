"""A bound launch: everything decided, outputs in place; what benchmarks capture and users may replay.

plan = spmm.plan(A, x); plan.launch(); plan.out
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tilewright.ir.coord import Assign
from tilewright.ops.backend import backend_of
from tilewright.ops.choice import Choice
from tilewright.ops.entry import entry
from tilewright.ops.settings import unpack
from tilewright.runtime.kernel import Kernel
from tilewright.schedule.options import Setting


class Launch:
    """One kernel (or one for each part) on given tensors, into `out`. `launch()` enqueues it and nothing else."""

    def __init__(
        self,
        program: str,
        tensors: Sequence[Tensor],
        ints: Sequence[int],
        floats: Sequence[float] = (),
        choice: Choice | None = None,
    ) -> None:
        self.choice = choice
        device = next(t.device for t in tensors)
        step = self.step = entry(program, backend_of(device), tensors[0].get_device()).steps[0]
        self.tensors, self.ints, self.floats = list(tensors), list(ints), list(floats)
        if step.missing:
            self.tensors += step.derive(self.tensors, self.ints)
        sizes = [piece.sizes(self.tensors, self.ints) for piece in step.pieces]
        self.pieces = [
            (piece.ready(self.ints, n), n) for piece, n in zip(step.pieces, sizes, strict=True)
        ]
        for ready, _ in self.pieces:
            ready.judge(self.tensors)
        self.ready, self.sizes = self.pieces[0]
        self.outs = self.ready.alloc(self.tensors[self.ready.like], *self.sizes)
        first = step.pieces[0].bound.program.body[0]
        self.adds = isinstance(first, Assign) and first.adds
        self.packed: Setting = unpack(step.packed(self.ints))
        self.chosen = choice.setting if choice is not None else {}

    @property
    def out(self) -> Tensor:
        return self.outs[0]

    @property
    def kernel(self) -> Kernel:
        return self.ready.kernel

    @property
    def setting(self) -> Setting:
        return {**self.kernel.setting, **self.packed, **self.chosen}

    def launch(self) -> None:
        if self.adds:
            self.out.zero_()
        for ready, sizes in self.pieces:
            ready.into(self.tensors, self.outs, sizes, self.ints, self.floats)

    def __str__(self) -> str:
        return f"launch of {self.kernel.name} with {self.setting}"
