"""The statements that operators run, with their data: every call is kept, and interpreted instead of compiled.

statements("spmm")["spmm_sum"][0].run()
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import torch
from semantics.axes import Case, bound
from semantics.operators import ON_GPU, OPERATORS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.ir.coord import Assign, Index, Listed, Nth
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.language.trace import Traced
from tilewright.ops.args import dense_arg
from tilewright.ops.backend import backend
from tilewright.ops.dtypes import TORCH
from tilewright.ops.entry import Entry
from tilewright.ops.step import Step

MOST = 3  # cases of one statement


class Recorder(TorchDispatchMode):
    """Statements by name, with their traced programs; what they give is computed by the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: defaultdict[str, list[Case]] = defaultdict(list)
        self.traced: dict[str, Traced] = {}
        self.programs: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.tilewright.run.default:
            return func(*args, **(kwargs or {}))
        return self.interpreted(*args)

    def interpreted(
        self, program: str, tensors: list[Tensor], ints: list[int], floats: Any = ()
    ) -> list[Tensor]:
        entry, pool, made = Entry(program, "c"), list(tensors), dict[str, Tensor]()
        self.programs.add(entry.template.traced.name)
        for step in entry.steps:
            several = len(entry.parts) > 1
            case = bound(step, pool, ints, entry.floats_of(step, floats) if several else floats)
            self.keep(step.traced, case)
            got = case.run(case.arrays | {n: t.numpy() for n, t in made.items()})
            for t in case.program.outputs:
                assert t.values is not None
                found = torch.from_numpy(got[t.values.name].copy()).to(TORCH[t.dtype])
                if t.name in made:  # an earlier statement began it
                    made[t.name].copy_(found)
                else:
                    made[t.name] = found
                    pool.append(found)
        return [made[n] for n in entry.template.traced.outputs]

    def keep(self, traced: Traced, case: Case) -> None:
        self.traced[traced.name] = traced
        if len(self.cases[traced.name]) < MOST:
            self.cases[traced.name].append(case)


@cache
def recorded(operator: str) -> Recorder:
    """All that an operator runs; on GPUs it may run other programs."""
    torch.manual_seed(0)
    made = Recorder()
    for name in ("c", "triton") if operator in ON_GPU else ("c",):
        with backend(name), made:
            OPERATORS[operator]()
    return made


@cache
def statements(operator: str) -> dict[str, list[Case]]:
    """The calls of each statement, by its name."""
    return {n: [c.split for c in cases] for n, cases in recorded(operator).cases.items()}


@cache
def dense(operator: str) -> dict[str, Case]:
    """Statements over dense operands of their own sizes, where no structure ties an axis. Those of lists, parts and
    whole numbers are left out."""
    found = recorded(operator)
    return {n: _dense(found.traced[n]).split for n, (c, *_) in found.cases.items() if _plain(c)}


def _plain(c: Case) -> bool:
    (s,) = c.program.body
    tied = any(isinstance(n, Listed | Nth) or (isinstance(n, Index) and n.within) for n in walk(s))
    loads = {n.buffer.name: n for n in walk(s) if isinstance(n, Load)}
    numbers = {
        m.buffer.name for n in loads.values() for m in walk(n.indices) if isinstance(m, Load)
    }
    floats = all(t.dtype == "f32" or t.name in numbers for t in c.program.tensors)
    return (
        isinstance(s, Assign)
        and not tied
        and floats
        and {*loads} == {t.name for t in c.program.tensors}
    )


def _dense(traced: Traced) -> Case:
    shapes, sizes = dict[str, list[int]](), dict[str, int]()
    loads = [n for n in walk(traced.body) if isinstance(n, Load)]
    for a in loads:
        axes = [next(n for n in walk(ix) if isinstance(n, Index)) for ix in a.indices]
        shapes[a.buffer.name] = [sizes.setdefault(n.name, 2 + len(sizes) % 2) for n in axes]
    numbers = {n.buffer.name for a in loads for n in walk(a.indices) if isinstance(n, Load)}
    given: dict[str, Tensor] = {}
    for n in traced.inputs:
        given[n] = torch.randperm(shapes[n][0]) if n in numbers else torch.randn(shapes[n])
    args = [dense_arg(n, t) for n, t in given.items()]
    step = Step(traced, args, list(given), "c")
    return bound(step, list(given.values()), [], list(np.full(len(traced.scalars), 0.5)))
