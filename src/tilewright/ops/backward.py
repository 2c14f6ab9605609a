"""Gradients of a program string: its statements in reverse, of each the intermediates, then a program for each input.

In: what the forward call had, and the gradients of its outputs. Out: one gradient (or None) for each tensor.

    h[i, f] = sum(j, a[i, j] * x[j, f])        d_h of what reads h, and what came for h itself
    y[i, f] = relu(h[i, f])                    d_h[i, f] = d_y[i, f] * where(h[i, f] > 0, 1, 0); then d_a, d_x
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tilewright.ir.coord import Assign
from tilewright.ir.expr import FLOATS
from tilewright.language.grad import (
    Gradient,
    d_of,
    programs_of,
    remaining,
    whole,
)
from tilewright.language.grad_programs import Added
from tilewright.language.grad_rules import outside
from tilewright.language.trace import Traced, source_of
from tilewright.ops.adding import added
from tilewright.ops.args import Arg, dense_arg, program_text
from tilewright.ops.backend import backend_of
from tilewright.ops.dtypes import name_of
from tilewright.ops.entry import Entry, entry
from tilewright.ops.registry import TEMPLATES, register
from tilewright.ops.step import Step
from tilewright.support.errors import LanguageError, TilewrightError, error
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
    try:
        work = _Work(run, made, tensors, ints, floats)
        for k, t in zip(made.template.saved, saved, strict=True):
            work.add_like(traced.outputs[k], traced.outputs[k], t)
        wanted = {n for n, need in zip(made.names, needs, strict=True) if need}
        came = {n: g for n, g in zip(traced.outputs, grads, strict=True) if g is not None}
        found = _gradients(work, made, came, wanted)
    except TilewrightError as why:
        if why.vague:
            why.where = f"the gradient of {plain(traced.name)}"
        raise
    return [found.get(n) if n in wanted else None for n in made.names]


def _gradients(
    work: _Work, made: Entry, came: dict[str, Tensor], wanted: set[str]
) -> dict[str, Tensor]:
    """came: the gradients of outputs. Those of intermediates join them, and in the end those of inputs."""
    template, traced = made.template, made.template.traced
    if template.own is not None:
        return _own(work, made, came, wanted)
    asked = _reached(made, wanted)
    for nth in reversed(range(len(traced.body))):
        s = traced.body[nth]
        if not isinstance(s, Assign) or came.keys().isdisjoint(template.writes[nth]):
            continue
        with locating(source_of(s), s):
            if template.early[nth]:
                raise work.refuse(f"{template.early[nth]} is read before it is written to the end")
            found: dict[str, Tensor] = {}
            for part, target in enumerate(s.targets):
                name = target.buffer.name
                if name in came and template.reads[nth] & asked:
                    work.add_like(d_of(traced, name), name, came[name])
                    add_up(found, work.gradients(template.reverse(nth, part), asked))
                if name in came:
                    _leave(work, came, nth, part)
            add_up(came, found)
    return came


def _own(work: _Work, made: Entry, came: dict[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """By a gradient that the program brings: of its first output."""
    traced, s = made.template.traced, made.template.traced.body[0]
    first = traced.outputs[0]
    with locating(source_of(s), s):
        for name in came:
            if name != first:
                got = f"output {name} has none"
                raise error("no-gradient", name=plain(traced.name), got=got)
        if first not in came:
            return {}
        work.add_like(d_of(traced, first), first, came[first])
        return work.gradients(made.template.reverse(), wanted)


def add_up(total: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, g in more.items():
        total[name] = total[name] + g if name in total else g


def _reached(made: Entry, wanted: set[str]) -> set[str]:
    """What gradients are asked of: inputs, and the numbers that statements make of them."""
    asked, t = set(wanted), made.template
    for s, read, written in zip(t.traced.body, t.reads, t.writes, strict=True):
        if isinstance(s, Assign) and read & asked:
            asked |= {n for n in written if made.made[n].dtype in FLOATS}
    return asked


def _leave(work: _Work, came: dict[str, Tensor], nth: int, part: int) -> None:
    """What a statement leaves of the gradient of its target to those that wrote it before."""
    template, t = work.entry.template, work.entry.template.traced
    s = t.body[nth]
    target = s.targets[part]
    name = target.buffer.name
    if not any(name in written for written in template.writes[:nth]):
        del came[name]
        return
    sparse = [a for a in outside(s.values[part]) if work.args[a.buffer.name].kind != "dense"]
    if sparse and work.entry.made[name].kind == "dense":
        raise work.refuse(f"it writes into {name} where {sparse[0]} has entries")
    if whole(s, target):
        del came[name]
        return
    work.add_like(d_of(t, name), name, came[name])
    came[name] = work.result(remaining(t, nth, part))


@functools.cache
def later_steps(program: str, backend: str, device: int, wanted: tuple[str, ...]) -> list[Step]:
    """The statements that the gradients of some inputs will run, as far as that is known beforehand."""
    made = entry(program, backend, device)
    if not wanted:
        return []
    asked = _reached(made, set(wanted))
    args = {a.name: a for a in made.args} | made.made
    seeds = {n: d_of(made.template.traced, n) for n in made.made}
    args |= {d: replace(args[n], name=d) for n, d in seeds.items()}
    steps: list[Step] = []
    try:
        for gradient in _reverses(made, asked):
            for t in gradient.programs(asked):
                if t.name not in TEMPLATES:
                    register(t)
                text = program_text(t.name, tuple(args[n] for n in with_structures(t, args)))
                more = entry(text, backend, device)
                steps += more.steps
                args |= more.made
    except TilewrightError:
        return []
    return steps


def _reverses(made: Entry, asked: set[str]) -> Iterator[Gradient]:
    """The gradients of all statements that are asked for one, the last one first."""
    if made.template.own is not None:
        yield made.template.own
        return
    for nth, s in reversed(list(enumerate(made.template.traced.body))):
        for part, target in enumerate(s.targets if isinstance(s, Assign) else ()):
            if target.buffer.name in asked:
                yield made.template.reverse(nth, part)


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

    def add_like(self, name: str, out: str, t: Tensor) -> None:
        """An output, or its gradient: on a structure when the output is."""
        made = self.entry.made[out]
        if made.kind == "dense":
            self.add(name, t.contiguous())
            return
        self.args[name] = replace(made, name=name, dtype=name_of(t.dtype))
        self.tensors[name] = t.contiguous()

    def add(self, name: str, t: Tensor) -> None:
        self.args[name] = dense_arg(name, t)
        self.tensors[name] = t

    def gradients(self, gradient: Gradient, asked: set[str]) -> dict[str, Tensor]:
        """Intermediates, then the gradients of what is asked for; one whose program is refused is none."""
        for n in sorted(asked & gradient.refused.keys()):
            raise self.refuse(gradient.refused[n])
        try:
            return self.made(gradient, asked)
        except LanguageError as why:
            needed, got = why.names.get("name", why), why.names.get("got", "it is refused")
            raise self.refuse(f"it needs {needed}: {got}") from why

    def made(self, gradient: Gradient, asked: set[str]) -> dict[str, Tensor]:
        wanted = {n: ps for n, ps in gradient.of.items() if n in asked}
        for t in gradient.needed(p for ps in wanted.values() for of in ps for p in programs_of(of)):
            self.keep(t)
        return {n: functools.reduce(operator.add, map(self.part, ps)) for n, ps in wanted.items()}

    def keep(self, t: Traced) -> None:
        """An intermediate: on a structure when its program makes it so."""
        name, made = t.outputs[0], self.result(t)
        self.add(name, made)
        told = entry(self.text(t), backend_of(made.device), made.get_device()).made[name]
        if told.kind != "dense":
            self.args[name] = told

    def part(self, p: Traced | Added) -> Tensor:
        """One of the parts of a gradient."""
        if isinstance(p, Traced):
            return self.result(p)
        name, read = p.load.buffer.name, {n for t in p.programs for n in t.inputs}
        if self.args[name].kind != "dense":
            raise self.refuse(f"{p.load} is sparse, and read through an index array")
        homes = {self.home(n) for n in read if self.args[n].kind != "dense"}
        if len(homes) > 1 and homes & {self.home(n) for n in p.arrays}:
            raise self.refuse(f"{p.load} is read through what is stored apart from other operands")
        values, *at = (self.result(t) for t in p.programs)
        if any(t.shape != values.shape[: t.dim()] for t in at):
            raise self.refuse(f"{p.load} is read through what has another structure")
        return added(self.tensors[name], values, at, p.dims)

    def home(self, name: str) -> str:
        """The argument whose structure an argument has."""
        return self.args[name].kind.removeprefix("like:") if ":" in self.args[name].kind else name

    def refuse(self, got: str) -> Exception:
        return error("no-gradient", name=plain(self.entry.template.traced.name), got=got)

    def text(self, t: Traced) -> str:
        if t.name not in TEMPLATES:
            register(t)
        return program_text(t.name, self.inputs(t))

    def inputs(self, t: Traced) -> tuple[Arg, ...]:
        return tuple(self.args[n] for n in with_structures(t, self.args))

    def result(self, t: Traced) -> Tensor:
        text, args = self.text(t), self.inputs(t)
        tensors = [self.tensors[n] for a in args for n in a.names]
        ints = [self.ints[n] for a in args for n in a.ints]
        names = [v.name for v in self.entry.template.traced.scalars]
        floats = [self.floats[names.index(v.name)] for v in t.scalars]
        return self.run(text, tensors, ints, floats)[0]
