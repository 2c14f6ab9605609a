"""A schedule as data: steps that can be written down, stored, printed, read back and replayed.

In: a program of stage III (or I) and steps, each the name of a primitive with the names of loops and small integers.
Out: the program that the steps make. `Scheduled` keeps both while a schedule grows; the default schedulers
use it, so that every kernel has its schedule as a record.

    steps = parse_steps("split(f, 32)\\nkind(f_i, lane)\\nkind(f_o, grid)")
    apply(program, steps)                          # stage III, scheduled
    print(show_steps(steps))                       # the same text: one step a line
    Scheduled(program).then("split", "f", 32).steps
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.ir import coord, flat
from tilewright.schedule import coord as stage_one
from tilewright.schedule import loop, memory, reduce, together, work
from tilewright.schedule.append import carry, scan
from tilewright.schedule.at_once import at_once
from tilewright.schedule.attach import attach
from tilewright.schedule.balance import balance
from tilewright.schedule.bits import bits
from tilewright.schedule.by_length import by_length
from tilewright.schedule.clamp import clamp
from tilewright.schedule.edit import illegal
from tilewright.schedule.follow import follow
from tilewright.schedule.jam import jam
from tilewright.schedule.share import share
from tilewright.schedule.tail import tail
from tilewright.schedule.trim import trim
from tilewright.schedule.visit import visit
from tilewright.support.errors import ScheduleError

Word = str | int
P = TypeVar("P", coord.Program, flat.Program)

COORD: dict[str, Callable[..., coord.Program]] = {
    "fuse": stage_one.fuse,
    "reorder": stage_one.reorder,
}
_SHAPES = (loop.split, loop.fuse, loop.unroll, jam, trim, by_length)
_LOOPS = (*_SHAPES, loop.kind, loop.lane, loop.reorder)
_GRID = (loop.order, loop.swizzle, loop.persistent, share, tail, balance)
_STATEMENTS = (together.compute_at, together.inline, together.merge, attach)
_REDUCTIONS = (reduce.rfactor, at_once, reduce.split_reduction, reduce.tensorise, bits, clamp)
_READS = (memory.prefetch, memory.stream, memory.cache, follow)
_ROWS = (visit, work.pad, work.work_list, work.segments, carry, scan)
PRIMITIVES: dict[str, Callable[..., flat.Program]] = {
    fn.__name__: fn for fn in (*_LOOPS, *_GRID, *_STATEMENTS, *_REDUCTIONS, *_READS, *_ROWS)
}
FORM = "name(loop, number, ...), one step a line; # begins a remark"


@dataclass(frozen=True)
class Step:
    """One primitive with its arguments: names of loops, words, integers."""

    name: str
    args: tuple[Word, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


Schedule = tuple[Step, ...]


@dataclass(frozen=True)
class Scheduled:
    """A program and the steps that made it."""

    program: flat.Program
    steps: Schedule = ()

    def then(self, name: str, *args: Word) -> Scheduled:
        """The program after one more step."""
        step = Step(name, args)
        return Scheduled(take(self.program, step), (*self.steps, step))

    def tried(self, name: str, *args: Word) -> Scheduled:
        """The program after one more step, if it is legal; else itself."""
        try:
            return self.then(name, *args)
        except ScheduleError:
            return self


def apply(p: P, steps: Sequence[Step]) -> P:
    """The program, of stage I or III, after all steps: each of them legal or a ScheduleError."""
    for step in steps:
        p = take(p, step)
    return p


def take(p: P, step: Step) -> P:
    """The program after one step."""
    table: Mapping[str, Callable[..., P]] = COORD if isinstance(p, coord.Program) else PRIMITIVES
    fn = table.get(step.name)
    if fn is None:
        raise illegal(str(step), "there is no such primitive", f"use {', '.join(table)}")
    wants = list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
    if not _fits(step.args, wants):
        said = ", ".join(("*" if w.kind is w.VAR_POSITIONAL else "") + w.name for w in wants)
        raise illegal(str(step), f"it takes {step.name}({said})", "give names and integers")
    return fn(p, *step.args)


def _fits(args: Sequence[Word], wants: Sequence[inspect.Parameter]) -> bool:
    """Whether arguments are as many as a primitive takes, words and integers in their places."""
    if wants and wants[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        return all(isinstance(a, wants[-1].annotation) for a in args)
    least = sum(w.default is inspect.Parameter.empty for w in wants)
    right = all(isinstance(a, w.annotation) for a, w in zip(args, wants, strict=False))
    return least <= len(args) <= len(wants) and right


def show_steps(steps: Sequence[Step]) -> str:
    """One step a line; `parse_steps` reads it."""
    return "\n".join(map(str, steps))


def parse_steps(source: str) -> Schedule:
    """The schedule of a text."""
    try:
        tree = ast.parse(source)
    except SyntaxError as why:
        raise _unread(why.lineno or 1, why.text or source) from None
    lines = source.splitlines()
    return tuple(_step(s, lines[s.lineno - 1]) for s in tree.body)


def _step(s: ast.stmt, line: str) -> Step:
    match s:
        case ast.Expr(ast.Call(ast.Name(name), args, [])):
            made = tuple(map(_word, args))
            if None not in made:
                return Step(name, made)  # type: ignore[arg-type]
    raise _unread(s.lineno, line)


def _word(a: ast.expr) -> Word | None:
    match a:
        case ast.Name(name):
            return name
        case ast.Constant(int(n)) if not isinstance(n, bool):
            return n
    return None


def _unread(at: int, line: str) -> ScheduleError:
    return illegal(f"line {at}, `{line.strip()}`,", "it is not a step", f"write {FORM}")
