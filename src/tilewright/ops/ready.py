"""A statement with its kernel: outputs, workspaces, addresses, launch. The hot path of every operator.

In: tensors, sizes and integers of a `Step`. Out: the outputs, written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tilewright.analysis.domain import beyond, covers
from tilewright.ir.expr import Expr, Var
from tilewright.ir.node import walk
from tilewright.ir.text import text
from tilewright.ops.backend import on_device
from tilewright.ops.dtypes import TORCH
from tilewright.ops.zeros import counted
from tilewright.runtime import pages
from tilewright.runtime.kernel import CFunction, Kernel

_WATCHERS: list[list[Kernel]] = []


@contextmanager
def served() -> Iterator[list[Kernel]]:
    """The kernels that run inside, in order, each once."""
    made: list[Kernel] = []
    _WATCHERS.append(made)
    try:
        yield made
    finally:
        _WATCHERS.remove(made)


def note(kernel: Kernel) -> None:
    """Tell those who watch that a kernel runs."""
    for made in _WATCHERS:
        if all(k is not kernel for k in made):
            made.append(kernel)


class Ready:
    """A step with its kernel: where every argument of the kernel comes from."""

    def __init__(self, step: Any, kernel: Kernel, aligned: bool = False) -> None:
        self.step, self.kernel, self.call = step, kernel, kernel.call
        self.aligned = aligned and kernel.backend == "triton"
        self.several = step.device >= 0 and torch.cuda.device_count() > 1
        names = [*step.names, *step.missing]
        at = {n: k for k, n in enumerate(names)}
        self.take: list[int] = []
        outs = [t.name for t in step.bound.program.outputs]
        self.spaces: list[tuple[Callable[..., int], torch.dtype, bool]] = []
        size_names = list(kernel.sizes)
        prefix, lists = step.lists if step.lists is not None else ("", ())
        listed = dict(zip(("units", "segs", "done", "work"), lists, strict=False))
        works = [b for b in kernel.buffers if b.role == "work"]
        if len(works) == 1 and works[0].dtype == "f32" and "work" in listed:
            listed[works[0].name] = listed["work"]
        for b in kernel.buffers:
            known = step.visits if b.role == "plan" else {}
            source = listed.get(b.name) or known.get(b.name) or step.source(b.name)
            if b.role in ("work", "counter") and b.name not in listed:
                self.take.append(len(names) + len(outs) + len(self.spaces))
                size = size_lambda(b.shape[0], size_names)
                self.spaces.append((size, TORCH[b.dtype], b.role == "counter"))
            elif b.name in outs:
                self.take.append(len(names) + outs.index(b.name))
            else:
                self.take.append(at[source])
        self.given = [
            (at[listed[b.name]], size_lambda(b.shape[0], size_names), TORCH[b.dtype])
            for b in kernel.buffers
            if b.role in ("work", "counter") and b.name in listed
        ]
        self.wide = [k for k, b in enumerate(kernel.buffers) if b.name not in kernel.loose]
        self.sizes = self.size_function(step, at, prefix, listed)
        self.alloc = self.allocator(step)
        last = step.traced.inputs[-1]
        self.like = at.get(last, 0)
        floats = [v.name for v in step.traced.scalars]
        self.floats = [floats.index(n) for n in kernel.scalars]

    def size_function(
        self, step: Any, at: dict[str, int], prefix: str, listed: dict[str, str]
    ) -> Callable[..., tuple[int, ...]]:
        """The kernel's sizes from the step's, the work list's lengths and the integers."""
        where = {n: f"s[{k}]" for k, n in enumerate(step.size_names)}
        if listed:
            where["n_units"] = f"t[{at[listed['units']]}].shape[0]"
            where["n_slots"] = f"ints[{step.int_names.index(f'{prefix}slots')}]"
        parts = "".join(f"{where[n]}, " for n in self.kernel.sizes)
        made: Callable[..., tuple[int, ...]] = eval(f"lambda s, t, ints: ({parts})")
        return made

    def allocator(self, step: Any) -> Callable[..., list[Tensor]]:
        """The outputs, as one generated function of an input and the sizes."""
        parts: list[str] = []
        whole: list[str] = []  # when kernels write all of the outputs
        space: dict[str, Any] = {"pages": pages}
        names = ", ".join(step.size_names)
        last = step.traced.inputs[-1]
        for k, t in enumerate(step.bound.program.outputs):
            assert t.values is not None
            fits = [f"({text(e)}) % {side} == 0" for e, side in beyond(t)]
            whole.append(
                " and ".join(fits or ["True"])
                if covers(step.bound.program, t, step.traced.unique)
                else self.claimed(t.name, step.size_names)
            )
            space[f"d{k}"] = TORCH[t.dtype]
            shape = "".join(f"{text(e)}, " for e in t.values.shape)
            alike = t.dtype == step.args[last].dtype and last in step.names
            made = f"like.new_HOW(({shape}){'' if alike else f', dtype=d{k}'})"
            if self.kernel.backend == "c":
                size = " * ".join([f"d{k}.itemsize", *(f"({text(e)})" for e in t.values.shape)])
                made = f"{made} if {size} < {pages.LEAST} else pages.HOW(({shape}), d{k})"
            empty, zeros = (made.replace("HOW", how) for how in ("empty", "zeros"))
            parts.append(
                {"True": empty, "False": zeros}.get(
                    whole[-1], f"({empty}) if {whole[-1]} else {zeros}"
                )
            )
        self.covered = eval(f"lambda {names}: {' and '.join(whole)}")
        return eval(f"lambda like, {names}: [{', '.join(parts)}]", space)

    def claimed(self, name: str, known: Sequence[str]) -> str:
        """When the last program writes an output: where there is one."""
        programs = self.kernel.claimed.get(name)
        if programs is None or any(
            v.name not in known for v in walk(programs) if isinstance(v, Var)
        ):
            return "False"
        return f"({text(programs)}) > 0"

    def run(
        self,
        tensors: Sequence[Tensor],
        sizes: Sequence[int],
        ints: Sequence[int],
        floats: Sequence[float],
        outs: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """Into new outputs, or into those that an earlier piece of the statement began."""
        if outs is None:
            outs = self.alloc(tensors[self.like], *sizes)
        self.into(tensors, outs, sizes, ints, floats)
        return outs

    def into(
        self,
        tensors: Sequence[Tensor],
        outs: Sequence[Tensor],
        sizes: Sequence[int],
        ints: Sequence[int],
        floats: Sequence[float],
    ) -> None:
        """Run into given outputs."""
        mine = self.sizes(sizes, tensors, ints)
        pool = [*tensors, *outs]
        if self.spaces or self.given:
            self.workspaces(pool, mine)
        held = [pool[k] for k in self.take]
        where = [t.data_ptr() for t in held]
        if self.aligned:
            for k in self.wide:
                if where[k] & 15:
                    self.step.ready(ints, sizes, False).into(tensors, outs, sizes, ints, floats)
                    return
        if _WATCHERS:
            note(self.kernel)
        scalars = [floats[k] for k in self.floats] if self.floats else ()
        if self.several:
            with on_device(self.step.device):
                self.call(held, where, mine, scalars)
        else:
            self.call(held, where, mine, scalars)

    def judge(self, tensors: Sequence[Tensor]) -> None:
        """Lists of ours have the dtypes that the kernel was made for: it would read others as something else."""
        for b, k in zip(self.kernel.buffers, self.take, strict=True):
            if b.role == "plan" and k < len(tensors):
                assert tensors[k].dtype == TORCH[b.dtype], f"{b.name}: {tensors[k].dtype}"

    def workspaces(self, pool: list[Tensor], sizes: tuple[int, ...]) -> None:
        """Room that did not come along, or is too small for this program (counters start at zero)."""
        like = pool[self.like]
        for nth, (size, dtype, counts) in enumerate(self.spaces):
            if counts:
                pool.append(counted(size(*sizes), dtype, like.device, nth))
            else:
                pool.append(torch.empty(size(*sizes), dtype=dtype, device=like.device))
        for at, size, dtype in self.given:
            need = size(*sizes)
            if pool[at].numel() < need:
                pool[at] = torch.zeros(need, dtype=dtype, device=like.device)


class Fixed:
    """A step with all but its last tensors given once: sizes, kernel and addresses are known."""

    def __init__(
        self, step: Any, tensors: Sequence[Tensor], moving: Sequence[Tensor], ints: Sequence[int]
    ) -> None:
        every = [*tensors, *moving]
        self.step, self.tensors, self.ints = step, tensors, ints
        self.whole = len(step.pieces) == 1 and not step.missing
        if not self.whole:
            return
        self.sizes = step.sizes(every, ints)
        self.ready = made = step.ready(ints, self.sizes)
        made.judge(every)
        self.mine = made.sizes(self.sizes, every, ints)
        given = all(every[k].numel() >= size(*self.mine) for k, size, _ in made.given)
        self.whole = given and not made.spaces and not made.several
        at = len(tensors)
        self.changing = {n: k - at for n, k in enumerate(made.take) if k >= at}
        self.wide = [n for n in self.changing if n in made.wide]
        self.where = [0 if k >= at else every[k].data_ptr() for k in made.take]
        self.launch: Callable[..., list[Tensor]] | None = None
        if self.whole and isinstance(made.call, CFunction) and made.covered(*self.sizes):
            outs = made.alloc(every[made.like], *self.sizes)
            held = [[*every, *outs][k] for k in made.take]
            self.launch = made.call.bind(held, self.changing, self.mine, outs)

    def __call__(self, moving: Sequence[Tensor]) -> list[Tensor]:
        """The outputs; what cannot be fixed goes the usual way."""
        if not self.whole:
            return self.step([*self.tensors, *moving], self.ints, ())
        if self.launch is None:
            return self.placed(moving)
        if _WATCHERS:
            note(self.ready.kernel)
        return self.launch(*moving)

    def placed(self, moving: Sequence[Tensor]) -> list[Tensor]:
        """The same for kernels that look at their tensors and addresses."""
        made = self.ready
        pool = [*self.tensors, *moving]
        outs = made.alloc(pool[made.like], *self.sizes)
        new = [*moving, *outs]
        where = self.where.copy()
        for n, k in self.changing.items():
            where[n] = new[k].data_ptr()
        if made.aligned:
            for n in self.wide:
                if where[n] & 15:
                    return self.step(pool, self.ints, ())
        pool += outs
        if _WATCHERS:
            note(made.kernel)
        made.call([pool[k] for k in made.take], where, self.mine, ())
        return outs


def size_lambda(e: Expr, names: Sequence[str]) -> Callable[..., int]:
    """A size expression as a Python function of sizes."""
    return eval(f"lambda {', '.join(names)}: {text(e)}")
