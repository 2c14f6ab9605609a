"""Calls of programs over dense operands that come again: what calls of a kind have in common is decided once.

In: a program's name, its operands by name, and how its setting is found. Out: its outputs, as `library.run`.

    (y,) = again("listed_linear_over_i", {"x": x, "w": w, "i_list": rows, "i_count": count}, lambda text, held: [])

A kind is a program, the dtypes, shapes and strides of its operands, and where they are. Its text, integers, kernels
and sizes are kept: a call of a known kind allocates and launches. Modes, transforms and torch.compile go the usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from tilewright.ops.args import dense_text
from tilewright.ops.backend import backend_of, cpu_backend, precision
from tilewright.ops.entry import entry
from tilewright.ops.library import eager, ordinary, run, run_with_grad, wants_grad
from tilewright.ops.step import Step

REMEMBERED = 4096
Ints = Callable[[str, list[Tensor]], list[int]]
_KINDS: dict[Any, Kind] = {}


def again(
    program: str,
    given: Mapping[str, Tensor],
    ints: Ints,
    floats: Sequence[float] = (),
    kind: tuple[int, ...] = (),
) -> list[Tensor]:
    """The outputs. ints: from the program's text and its tensors, asked when the kind is new. kind: what they depend on
    besides"""
    tensors = list(given.values())
    if not eager() or not ordinary(tensors):
        text = dense_text(program, given)
        return run(text, tensors, ints(text, tensors), floats)
    key = (program, kind, tensors[0].device, cpu_backend(), precision(), *map(_told, tensors))
    known = _KINDS.get(key)
    if known is None:
        if len(_KINDS) >= REMEMBERED:
            _KINDS.clear()
        text = dense_text(program, given)
        known = _KINDS[key] = Kind(text, ints(text, tensors))
    if wants_grad(tensors):
        return run_with_grad(known.text, tensors, known.ints, floats)
    return known(tensors, floats)


def _told(t: Tensor) -> tuple[Any, ...]:
    return t.dtype, t.shape, t.stride()


def forget() -> None:
    """All kinds are new again: settings may have changed."""
    _KINDS.clear()


class _Stage(NamedTuple):
    """A statement: what runs it, its sizes, its scalars among all, and outputs that earlier ones began."""

    run: Callable[..., list[Tensor]]
    sizes: Sequence[int]
    floats: Sequence[int]
    begun: Sequence[int]


class Kind:
    """A program with its integers; after the first call, its kernels and sizes."""

    def __init__(self, text: str, ints: list[int]) -> None:
        self.text, self.ints = text, ints
        self.stages: list[_Stage] = []
        self.outs: list[int] = []

    def __call__(self, tensors: list[Tensor], floats: Sequence[float]) -> list[Tensor]:
        if not self.stages:
            return self.first(tensors, floats)
        if len(self.stages) == 1:
            stage = self.stages[0]
            return stage.run(tensors, stage.sizes, self.ints, floats, None)
        pool = list(tensors)
        for stage in self.stages:
            self.advance(stage, pool, floats)
        return [pool[n] for n in self.outs]

    def advance(self, stage: _Stage, pool: list[Tensor], floats: Sequence[float]) -> None:
        """Run a statement; what it makes joins the pool."""
        mine = [floats[n] for n in stage.floats]
        begun = [pool[n] for n in stage.begun] if stage.begun else None
        outs = stage.run(pool, stage.sizes, self.ints, mine, begun)
        if begun is None:
            pool += outs

    def first(self, tensors: Sequence[Tensor], floats: Sequence[float]) -> list[Tensor]:
        """The first call, which finds the kernels and sizes of each statement."""
        made = entry(self.text, backend_of(tensors[0].device), tensors[0].get_device())
        scalars = [v.name for v in made.template.traced.scalars]
        pool, names, stages = list(tensors), list(made.names), []
        for step in made.steps:
            sizes = step.sizes(pool, self.ints)
            outs = [t.name for t in step.bound.program.outputs]
            begun = [names.index(n) for n in outs if n in names]
            mine = [scalars.index(v.name) for v in step.traced.scalars]
            stages.append(_Stage(self.runner(step, sizes), sizes, mine, begun))
            self.advance(stages[-1], pool, floats)
            names += [] if begun else outs
        self.outs = [names.index(n) for n in made.template.traced.outputs]
        self.stages = stages
        return [pool[n] for n in self.outs]

    def runner(self, step: Step, sizes: Sequence[int]) -> Callable[..., list[Tensor]]:
        """The kernel's own, where one kernel serves."""
        if step.vendor is None and not step.missing and len(step.pieces) == 1:
            return step.ready(self.ints, sizes).run
        return lambda tensors, _, ints, floats, outs: step(tensors, ints, floats, outs)
