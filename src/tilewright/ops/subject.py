"""Any call as something to tune: its case, its space, its model, and the call at each setting.

In: a function that gives the registered operator's arguments at a setting (None: at the one it would choose).
Out: a `Subject`. Operators and users' programs all come through here.

    subject_of("spmm(A, x)", structure, lambda setting: (text, tensors, ints, floats))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.structure import Structure
from tilewright.ir.text import text as text_of
from tilewright.ops import again, spaces
from tilewright.ops.args import read_program
from tilewright.ops.backend import backend_of
from tilewright.ops.choice import Case, Choice, Subject, decide, program_key
from tilewright.ops.entry import entry
from tilewright.ops.formats import alternatives, possible, ranges, worth_cutting
from tilewright.ops.library import run
from tilewright.ops.plans import choose, complete
from tilewright.ops.settings import unpack
from tilewright.ops.step import Step
from tilewright.schedule.options import COptions, Setting
from tilewright.schedule.shape import block_product, strip_product
from tilewright.support.errors import error
from tilewright.tune import cost
from tilewright.tune.cost import Model
from tilewright.tune.machine import machine_of
from tilewright.tune.space import Space
from tilewright.tune.statistics import statistics_of

Call = tuple[str, Sequence[Tensor], Sequence[int], Sequence[float]]
Arguments = Callable[[Setting | None], Call]
REMEMBERED = 4096
DENSE: dict[Any, Choice] = {}  # the home of calls without a structure


def case_of(text: str, tensors: Sequence[Tensor], structure: Structure | None) -> Case:
    """The case of a call, from the registered operator's arguments."""
    name, args = read_program(text)
    step = first_step(text, tensors)
    named = dict(zip(step.names, tensors, strict=False))
    dense = tuple(tuple(named[a.name].shape) for a in args if a.kind == "dense")
    return Case(program_key(name, args), step.kind, dense, structure, tensors[0].device)


def first_step(text: str, tensors: Sequence[Tensor]) -> Step:
    """The first statement; of one in parts, the piece that has a work list."""
    step = entry(text, backend_of(tensors[0].device), tensors[0].get_device()).steps[0]
    found: Step = next((p for p in step.pieces if p.lists is not None), step)
    return found


def chosen(
    home: dict[Any, Choice],
    key: Any,
    text: str,
    tensors: Sequence[Tensor],
    structure: Structure | None,
    usual: Setting,
) -> Choice:
    """The choice of calls without a work list, kept at `home` under `key`: measured for such, or the usual."""
    if len(home) >= REMEMBERED:
        home.clear()
    case = case_of(text, tensors, structure)
    made = home[key] = possible(decide(case, lambda: Choice(usual, "default")), structure)
    return made


def forget(subject: Subject) -> None:
    """Calls on a structure, and those of programs without one, choose again."""
    DENSE.clear()
    again.forget()
    for s in (subject.case.structure, *subject.homes):
        if s is not None:
            for key in [k for k in s.plans if k == "bundle" or k[0] == "chosen"]:
                del s.plans[key]


def subject_of(
    title: str, structure: Structure | None, call: Arguments, alike: bool = False
) -> Subject:
    """alike: another order of rows may be tried."""
    text, tensors, ints, _ = call(None)
    step = first_step(text, tensors)
    every = [*tensors, *(step.derive(tensors, ints) if step.missing else ())]
    sizes = dict(zip(step.size_names, step.sizes(every, ints), strict=True))
    many = len(entry(text, step.backend, tensors[0].get_device()).steps)
    if not step.kind or (many > 1 and step.backend != "c"):
        got = "several statements" if many > 1 else "nothing that a setting could change"
        expected = "an operator, or a program of one statement with a reduction"
        raise error("argument", where=f"tune({title})", name="op", got=got, expected=expected)
    case, space = case_of(text, tensors, structure), space_of(step, sizes, structure, alike)
    now = unpack(step.packed(ints))
    if step.kind == "c":
        first = COptions.of(now).setting | ({"alike": int(bool(step.visits))} if alike else {})
    elif step.kind == "lists" and structure is not None:
        first = choose(
            structure, step.span(sizes), tensors[-1].dtype, case.program, lambda: case
        ).setting
    else:
        full = step.setting(now, sizes)
        first = {p.name: full[p.name] for p in space.params if p.name in full}

    def make(setting: Setting) -> Callable[[], list[Tensor]]:
        arguments = call(setting)
        return lambda: run(*arguments)

    return Subject(
        title,
        case,
        space,
        first,
        make,
        model_of(step, sizes, structure, case),
        _completion(step, sizes, structure, tensors),
        _shown(step, sizes, structure, tensors[-1].dtype, first),
        spaces.near_lists if step.kind == "lists" else (lambda setting: []),
    )


def _shown(
    step: Step, sizes: dict[str, int], s: Structure | None, dtype: torch.dtype, first: Setting
) -> tuple[Setting, ...]:
    """Settings of lists that have served elsewhere, and the first one with columns cut, where that may help."""
    if step.kind != "lists" or s is None:
        return ()
    span = step.span(sizes)
    known = (
        spaces.list_settings(s.shape[0], span, dtype.itemsize) if span % spaces.VECTOR == 0 else []
    )
    kept = {k: v for k, v in first.items() if k not in ("width", "outer")}
    return (*known, *alternatives([kept], "columns", worth_cutting(s, span, dtype)))


def _completion(
    step: Step, sizes: dict[str, int], s: Structure | None, tensors: Sequence[Tensor]
) -> Callable[[Setting], Setting]:
    """What a setting leaves open: the feature tile of a work list, the usual options of C."""
    if step.kind == "c":
        return lambda setting: {**COptions().setting, **setting}
    if step.kind != "lists" or s is None:
        return lambda setting: setting
    return lambda setting: complete(setting, s, step.span(sizes), tensors[-1].dtype)


def space_of(
    step: Step, sizes: dict[str, int], s: Structure | None = None, alike: bool = False
) -> Space:
    """The space of a statement's nest at its sizes."""
    match step.kind:
        case "c":
            return spaces.c(_wide(step, sizes), alike)
        case "lists":
            span = step.span(sizes)
            return spaces.lists(span, step.half, (1,) if s is None else ranges(s, span))
        case "padded":
            return spaces.padded(step.span(sizes), step.half)
        case "entries":
            return spaces.entries(_summed(step, sizes))
        case "product":
            return spaces.product(2 if step.half else 4)
    rows, cols = next((a.blocks for a in step.args.values() if a.block != "1x1"), (128, 128))
    if step.half and strip_product(step.nest) is not None:
        return spaces.strips(step.span(sizes))
    if block_product(step.nest) is not None:
        return spaces.block_products(rows, cols, step.span(sizes), 2 if step.half else 4)
    return spaces.blocks(rows, cols)


def model_of(step: Step, sizes: dict[str, int], s: Structure | None, case: Case) -> Model | None:
    """The cost model of a statement's nest; None where there is none (blocks, C without a structure)."""
    machine, itemsize = machine_of(case.device), 2 if step.half else 4
    if step.product is not None and step.kind == "product":
        rows, cols, inner = (_extent(loop, sizes) for loop in step.product)
        return cost.product(rows, cols, inner, itemsize, machine)
    if s is None or step.kind == "blocks":
        return None
    told = statistics_of(s)
    if step.kind == "c":
        return cost.native(told, _wide(step, sizes), itemsize, machine)
    if step.kind == "entries":
        return cost.entries(told, _summed(step, sizes), itemsize, machine)
    if not told.counts:
        return None
    made = cost.lists if step.kind == "lists" else cost.padded
    return made(told, step.span(sizes), itemsize, machine)


def _extent(loop: Any, sizes: dict[str, int]) -> int:
    bound = text_of(getattr(loop, "loop", loop).hi)
    return sizes.get(bound, int(bound) if bound.isdecimal() else 64)


def _wide(step: Step, sizes: dict[str, int]) -> int:
    """The widest dense side."""
    return max((sizes[n] for n in step.widths), default=1)


def _summed(step: Step, sizes: dict[str, int]) -> int:
    """The extent of the dense reduction at an entry."""
    dense = [r for r in step.nest.reductions if not (r.variable or r.constant or r.depth)]
    return _extent(dense[0], sizes) if dense else 1
