"""Gradients of a program string: intermediates first, then one program for each input that wants one.

In: what the forward call had, and the gradients of its outputs. Out: one gradient (or None) for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from tilewright.language.grad import d_of
from tilewright.language.trace import Traced, source_of
from tilewright.ops.args import Arg, dense_arg, program_text
from tilewright.ops.backend import backend_of
from tilewright.ops.entry import Entry, entry, like_arg, structure_of
from tilewright.ops.registry import TEMPLATES, register
from tilewright.ops.step import Step
from tilewright.support.errors import TilewrightError, error
from tilewright.support.names import plain
from tilewright.support.places import locating


def backward(
    run: Callable[..., list[Tensor]],
    program: str,
    tensors: Sequence[Tensor],
    ints: Sequence[Any],
    floats: Sequence[float],
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
    saved: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """saved: the outputs that `Template.saved` names."""
    made = entry(program, backend_of(tensors[0].device), tensors[0].get_device())
    traced = made.template.traced
    s = traced.body[0]
    try:
        with locating(source_of(s), s):
            work = _Work(run, made, tensors, ints, floats)
            for k, t in zip(made.template.saved, saved, strict=True):
                work.add(traced.outputs[k], t)
            return _gradients(work, made, grads, needs)
    except TilewrightError as why:
        if why.vague:
            why.where = f"the gradient of {plain(traced.name)}"
        raise


def _gradients(
    work: _Work, made: Entry, grads: Sequence[Tensor | None], needs: Sequence[bool]
) -> list[Tensor | None]:
    outs = made.template.traced.outputs
    for k, g in enumerate(grads[1:], 1):
        if g is not None:
            raise error(
                "no-gradient",
                name=plain(made.template.traced.name),
                got=f"output {outs[k]} has none",
            )
    if grads[0] is None:
        return [None] * len(needs)
    work.add_gradient(d_of(made.template.traced, outs[0]), grads[0])
    wanted = [n for n, need in zip(made.names, needs, strict=True) if need]
    gradient = made.template.grad
    for t in _needed(gradient.first, [p for n in wanted for p in gradient.of.get(n, ())]):
        work.add_result(t)
    found = {n: work.total(gradient.of[n]) for n in wanted if n in gradient.of}
    return [found.get(n) if need else None for n, need in zip(made.names, needs, strict=True)]


def _needed(first: Sequence[Traced], programs: Sequence[Traced]) -> list[Traced]:
    """The intermediates that are read, in order."""
    read = {n for p in programs for n in p.inputs}
    kept: list[Traced] = []
    for t in reversed(first):
        if t.outputs[0] in read:
            kept.insert(0, t)
            read |= set(t.inputs)
    return kept


@cache
def later_steps(program: str, backend: str, device: int, wanted: tuple[str, ...]) -> list[Step]:
    """The statements that the gradients of some inputs will run, as far as that is known beforehand."""
    made = entry(program, backend, device)
    if not wanted:
        return []
    try:
        gradient = made.template.grad
        first = made.template.traced.outputs[0]
        written = [(s, t) for s in made.steps for t in s.bound.program.outputs]
        last, out = next((s, t) for s, t in written if t.name == first)
        args = {a.name: a for a in made.args}
        for s in made.steps:
            args |= {t.name: made.arg_of(t, s) for t in s.bound.program.outputs}
        seed = d_of(made.template.traced, out.name)
        args[seed] = replace(made.arg_of(out, last), name=seed)
        programs = [p for n in wanted for p in gradient.of.get(n, ())]
        steps: list[Step] = []
        for t in (*_needed(gradient.first, programs), *programs):
            if t.name not in TEMPLATES:
                register(t)
            text = program_text(t.name, tuple(args[n] for n in with_structures(t, args)))
            steps += entry(text, backend, device).steps
            result = steps[-1].bound.program.outputs[0]
            args[result.name] = Arg(result.name, "dense", result.dtype, len(result.shape))
    except TilewrightError:
        return []
    return steps


def with_structures(t: Traced, args: Mapping[str, Arg]) -> list[str]:
    """The inputs; values on a structure bring the argument that holds it."""
    made = list(t.inputs)
    for n in t.inputs:
        kind = args[n].kind
        if kind.startswith("like:") and kind[5:] not in made:
            made.append(kind[5:])
    return made


class _Work:
    """Tensors by name, growing as intermediates are made."""

    def __init__(
        self,
        run: Any,
        made: Any,
        tensors: Sequence[Tensor],
        ints: Sequence[Any],
        floats: Sequence[float],
    ) -> None:
        self.run, self.entry, self.floats = run, made, floats
        self.args: dict[str, Arg] = {a.name: a for a in made.args}
        self.tensors = dict(zip(made.names, tensors, strict=True))
        self.ints = dict(zip(made.int_names, ints, strict=False))

    def add_gradient(self, name: str, g: Tensor) -> None:
        """The gradient of an output: on a structure when the output was."""
        program = self.entry.steps[-1].bound.program
        lead = structure_of(program.outputs[0], program, self.entry.args)
        g = g.contiguous()
        self.args[name] = (
            dense_arg(name, g) if lead is None else like_arg(name, g, lead.name, lead.block)
        )
        self.tensors[name] = g

    def add(self, name: str, t: Tensor) -> None:
        self.args[name] = dense_arg(name, t)
        self.tensors[name] = t

    def add_result(self, t: Traced) -> None:
        self.add(t.outputs[0], self.result(t))

    def result(self, t: Traced) -> Tensor:
        if t.name not in TEMPLATES:
            register(t)
        args = tuple(self.args[n] for n in with_structures(t, self.args))
        tensors = [self.tensors[n] for a in args for n in a.names]
        ints = [self.ints[n] for a in args for n in a.ints]
        names = [v.name for v in self.entry.template.traced.scalars]
        floats = [self.floats[names.index(v.name)] for v in t.scalars]
        return self.run(program_text(t.name, args), tensors, ints, floats)[0]

    def total(self, programs: Sequence[Traced]) -> Tensor:
        made = self.result(programs[0])
        for t in programs[1:]:
            made = made + self.result(t)
        return made
