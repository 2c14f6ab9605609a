"""tw.explain: what a kernel, a program, a launch or a sparse tensor is, and why it costs what it costs.

In: a Kernel, a Launch, a program or an operator with inputs, a SparseTensor, a traced program.
Out: an `Explanation`: its text fits the terminal. `show()` prints it, in colour where `rich` is installed.

    print(tw.explain(relu_max, A, x))
    tw.explain(tw.spmm, A, x)                # at a prompt this shows
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.formats.tensor import SparseTensor
from tilewright.language.trace import Traced, source_of
from tilewright.ops import einsum
from tilewright.ops.bound import Launch
from tilewright.ops.program import Program
from tilewright.runtime.kernel import Kernel
from tilewright.support.errors import error
from tilewright.support.names import plain
from tilewright.support.places import public
from tilewright.view import parts
from tilewright.view.choices import choice_words
from tilewright.view.columns import fold, heading, side_by_side, terminal_width
from tilewright.view.parts import Part
from tilewright.view.stages import TITLES, readable
from tilewright.view.words import compiled_words, schedule_words

CODE = ("triton", "c")
HANDLED = (
    "a kernel, a launch, a SparseTensor, a traced program, or a program or operator with its inputs"
)


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: a text, or columns by title. code: its language."""

    title: str
    body: str | Mapping[str, str]
    code: str = ""

    def text(self, width: int) -> str:
        return f"{heading(self.title, width)}\n{self.inner(width)}"

    def inner(self, width: int) -> str:
        if isinstance(self.body, str):
            return self.body if self.code else "\n".join(fold(self.body, width))
        return side_by_side(self.body, width)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Sections under a title. `str` fits the terminal; `text(width)` fits any width; `show()` prints."""

    title: str
    sections: tuple[Section, ...]

    def text(self, width: int | None = None) -> str:
        wide = terminal_width(width)
        return "\n\n".join([self.title, *(s.text(wide) for s in self.sections)])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def __getitem__(self, title: str) -> Section:
        """A section by its title."""
        return next(s for s in self.sections if s.title == title)

    def show(self) -> None:
        """Print; in colour on a terminal, where `rich` is installed."""
        if not sys.stdout.isatty() or not _show_rich(self):
            print(self)


@public
def explain(thing: Any, *inputs: Any, **options: Any) -> Explanation:
    """Stages, code, formats, schedule, compiled facts and cost of a thing; options: those of an operator.

    >>> print(explain(spmm, A, x, reduce="mean"))
    """
    plan = getattr(thing, "plan", None) or getattr(thing, "rows_plan", None)
    _check_options(plan, options)
    match thing:
        case Kernel():
            return of_kernel(thing)
        case Launch():
            made = of_parts(str(thing), parts.of_launch(thing))
            if thing.choice is None:
                return made
            why = Section("plan", "\n".join(choice_words(thing.choice)), "text")
            return replace(made, sections=(why, *made.sections))
        case SparseTensor():
            return Explanation(repr(thing), (Section("format", str(thing)),))
        case Traced():
            return of_traced(thing)
        case Program():
            return of_program(thing, inputs) if inputs else of_traced(_any_trace(thing))
    if thing is einsum and inputs:
        return of_parts(f"einsum {inputs[0]}", parts.of_einsum(*inputs))
    if plan is None or not inputs:
        got = f"{type(thing).__name__} with {len(inputs)} inputs"
        raise error("argument", where="explain(thing)", name="thing", got=got, expected=HANDLED)
    return explain(plan(*inputs, **options))


def _check_options(plan: Any, options: Mapping[str, Any]) -> None:
    known = () if plan is None else tuple(inspect.signature(plan).parameters)
    for name, value in options.items():
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "no keyword arguments"
            raise error(
                "argument", where="explain(thing)", name=name, got=repr(value), expected=expected
            )


def of_kernel(kernel: Kernel) -> Explanation:
    return Explanation(repr(kernel), kernel_sections(kernel))


def kernel_sections(kernel: Kernel) -> tuple[Section, ...]:
    stages = {TITLES.get(k, k): v for k, v in kernel.stages.items() if k not in CODE}
    language = "python" if kernel.backend == "triton" else "c"
    return (
        Section("stages", stages),
        Section("schedule", "\n".join(schedule_words(kernel))),
        Section("generated code", readable(kernel.backend, kernel.text), language),
        Section("compiled", "\n".join(compiled_words(kernel))),
    )


def of_program(program: Program, inputs: Sequence[Any]) -> Explanation:
    name, tensors, floats = program.inputs(*inputs)
    traced = program.trace(tuple(floats))
    title = str(replace(traced, name=plain(traced.name)))
    return of_parts(title, parts.of_call(name, tensors, floats))


def _any_trace(program: Program) -> Traced:
    """A trace that was made for inputs, which tells scalars; else one that takes all for tensors."""
    return next(iter(program.traced.values()), None) or program.trace()


def of_parts(title: str, found: Sequence[Part]) -> Explanation:
    made: list[Section] = []
    for n, part in enumerate(found, 1):
        label = f" of statement {n}" if len(found) > 1 else ""
        sections = (
            Section("arguments", "\n".join(parts.argument_lines(part))),
            *kernel_sections(part.kernel),
            Section("cost", "\n".join(parts.cost_lines(part))),
        )
        made += [Section(s.title + label, s.body, s.code) for s in sections]
    return Explanation(title, tuple(made))


def of_traced(traced: Traced) -> Explanation:
    lines = []
    for s in traced.body:
        at = source_of(s)
        lines.append(f"{s}" + (f"    at {at}" if at else ""))
    names = (
        f"inputs {', '.join(traced.inputs)}",
        *([f"scalars {', '.join(v.name for v in traced.scalars)}"] if traced.scalars else []),
        f"outputs {', '.join(traced.outputs)}",
    )
    title = f"program {plain(traced.name)}({', '.join(traced.params)})"
    return Explanation(
        title, (Section("parameters", "\n".join(names)), Section("statements", "\n".join(lines)))
    )


def _show_rich(told: Explanation) -> bool:
    try:
        from rich.console import Console
        from rich.rule import Rule
        from rich.syntax import Syntax
        from rich.text import Text
    except ImportError:
        return False
    console = Console()
    console.print(Text(told.title, style="bold"))
    for s in told.sections:
        console.print(Rule(s.title, align="left"))
        said = s.inner(console.width)
        shown = Syntax(said, s.code, background_color="default") if s.code else Text(said)
        console.print(shown)
    return True
