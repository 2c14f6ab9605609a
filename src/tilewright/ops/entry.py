"""A program string on real tensors: its steps forward, and its gradient backward.

In: the string of `args.program_text`, tensors, integers, scalars. Out: output tensors, or gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from torch import Tensor

from tilewright.ir.coord import Program
from tilewright.ir.coord import Tensor as Tensor_
from tilewright.ir.drive import root
from tilewright.language.trace import Traced
from tilewright.ops.args import Arg, read_program
from tilewright.ops.registry import Template, template
from tilewright.ops.step import Step
from tilewright.support.errors import error


class Entry:
    """All that is known of a program string."""

    def __init__(self, program: str, backend: str, device: int = -1) -> None:
        name, self.args = read_program(program)
        self.template: Template = template(name)
        self.backend, self.device = backend, device
        self.names = [n for a in self.args for n in a.names]
        self.int_names = [n for a in self.args for n in a.ints]

    @cached_property
    def parts(self) -> tuple[Traced, ...]:
        """What each launch computes: a statement, or on a GPU two over dense operands that share a kernel."""
        dense = all(a.kind == "dense" for a in self.args)
        return self.template.joined if self.backend == "triton" and dense else self.template.steps

    @cached_property
    def steps(self) -> list[Step]:
        """Each part, over the tensors given and those that earlier ones made."""
        made: list[Step] = []
        args, names = list(self.args), list(self.names)
        for t in self.parts:
            step = Step(t, args, names, self.backend, self.device, len(made))
            made.append(step)
            for out in step.bound.program.outputs:
                if out.name not in names:
                    names.append(out.name)
                    args.append(self.arg_of(out, step))
                self.check_form(step, out, next(a for a in args if a.name == out.name))
        return made

    def check_form(self, step: Step, out: Tensor_, first: Arg) -> None:
        """An output that several statements write is of one form."""
        kind = self.arg_of(out, step).kind
        if kind != first.kind:
            forms = {True: "dense", False: "on the structure of an operand"}
            got = f"{forms[first.kind == 'dense']}, then {forms[kind == 'dense']}"
            with step.locating():
                raise error("two-forms", name=out.name, got=got)

    def arg_of(self, out: Tensor_, made: Step) -> Arg:
        """The argument that an output is to later statements: on a structure when it has one."""
        lead = structure_of(out, made.bound.program, self.args)
        if lead is not None:
            return Arg(out.name, f"like:{lead.name}", out.dtype, len(out.shape), block=lead.block)
        return Arg(out.name, "dense", out.dtype, len(out.shape))

    @cached_property
    def made(self) -> dict[str, Arg]:
        """The outputs as arguments of what comes later."""
        each = ((t, s) for s in self.steps for t in s.bound.program.outputs)
        return {t.name: self.arg_of(t, s) for t, s in each}

    def forward(
        self, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
    ) -> list[Tensor]:
        if len(self.parts) == 1:
            return self.steps[0](tensors, ints, floats)
        pool = list(tensors)
        made: dict[str, Tensor] = {}
        for step in self.steps:
            begun = [made[n] for n in step.traced.outputs if n in made]  # by an earlier statement
            mine = self.floats_of(step, floats)
            outs = step(pool, ints, mine, begun) if begun else step(pool, ints, mine)
            for t, o in zip(step.bound.program.outputs, outs, strict=True):
                if t.name not in made:
                    pool.append(o)
                made[t.name] = o
        return [made[n] for n in self.template.traced.outputs]

    def floats_of(self, step: Step, floats: Sequence[float]) -> list[float]:
        all_names = [v.name for v in self.template.traced.scalars]
        return [floats[all_names.index(v.name)] for v in step.traced.scalars]

    def shapes(self, tensors: Sequence[Tensor], ints: Sequence[Any]) -> list[Tensor]:
        """Empty outputs, for torch.compile."""
        made: dict[str, Tensor] = {}
        pool = list(tensors)
        values = (t for t, n in zip(tensors, self.names, strict=True) if "." not in n)
        like = next(values, tensors[0])
        for step in self.steps:
            padded = [*pool, *(like for _ in step.missing)]
            sizes = [_size(step, n, padded, ints) for n in step.size_names]
            for t, o in zip(
                step.bound.program.outputs, step.outputs(sizes, like, True), strict=True
            ):
                if t.name not in made:
                    pool.append(o)
                made[t.name] = o
        return [made[n] for n in self.template.traced.outputs]


def _size(step: Step, name: str, pool: Sequence[Tensor], ints: Sequence[Any]) -> Any:
    """One size, read where a real tensor stands for it; a transposed view has the sizes of the matrix."""
    at = {n: k for k, n in enumerate(step.names)}
    for r in step.bound.rules:
        if r.size == name:
            source = step.source(r.array)
            if source in at:
                t = pool[at[source]]
                return t.stride(r.dim) if r.stride else t.shape[r.dim] + r.offset
    given = step.given
    if name in given:
        return ints[given[name]]
    stored = at.get(f"{name.removesuffix('_nnz')}.indices")
    return None if stored is None else pool[stored].shape[0]  # a size that no output has


@cache
def entry(program: str, backend: str, device: int = -1) -> Entry:
    """The entry of a program on a back end; kernels belong to one GPU, so each has its own."""
    return Entry(program, backend, device)


@cache
def saved_outputs(program: str) -> tuple[int, ...]:
    """The outputs that the gradient of a program reads."""
    return template(read_program(program)[0]).saved


def structure_of(out: Tensor_, program: Program, args: Sequence[Arg]) -> Arg | None:
    """The argument whose structure an output has, if it is sparse."""
    if not out.sparse:
        return None
    same = {t.name for t in program.inputs if t.sparse and root(t) is root(out)}
    held = {a.kind[5:] if a.kind.startswith("like:") else a.name for a in args if a.name in same}
    return next(a for a in args if a.name in held)
