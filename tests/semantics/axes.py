"""What axis rules are held against: a program of stage I with its data, an axis of it in another order, parts left out.

    c = bound(step, tensors, ints); check_any_order(c.split, "k")

The judge is the interpreter of stage I.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from semantics.stages import arrays_of

from tilewright.analysis.invariance import AxisRule, Rules, rules_of
from tilewright.ir.coord import Index, Program
from tilewright.ir.expr import Buffer, Load, Var
from tilewright.ir.interp import run_coord
from tilewright.ir.node import transform, walk
from tilewright.language.trace import trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.entry import Entry
from tilewright.ops.registry import TEMPLATES, register
from tilewright.ops.step import Step


class Case:
    """A program of stage I with its data; `split`: operands that are read in two ways are two operands there."""

    def __init__(
        self,
        program: Program,
        arrays: dict[str, Any],
        sizes: dict[str, int],
        scalars: dict[str, float],
    ) -> None:
        self.program, self.arrays, self.sizes, self.scalars = program, arrays, sizes, scalars

    @cached_property
    def rules(self) -> Rules:
        return rules_of(self.program)

    @cached_property
    def split(self) -> Case:
        return Case(*apart(self.program, dict(self.arrays), dict(self.sizes)), self.scalars)

    def run(
        self, arrays: dict[str, Any] | None = None, sizes: dict[str, int] | None = None
    ) -> dict[str, np.ndarray]:
        return run_coord(self.program, arrays or self.arrays, sizes or self.sizes, self.scalars)

    @cached_property
    def given(self) -> dict[str, np.ndarray]:
        """The outputs of its own data."""
        return self.run()

    def axis(self, name: str) -> AxisRule:
        return self.rules.axis(name)


def bound(
    step: Step, tensors: list[torch.Tensor], ints: list[int], floats: list[float] | None = None
) -> Case:
    held = [*tensors, *step.derive(tensors, ints)] if step.missing else list(tensors)
    arrays = arrays_of(step, held)
    sizes = dict(zip(step.size_names, step.sizes(held, ints), strict=True))
    for r in step.bound.rules:
        if not r.stride:
            sizes.setdefault(r.size, arrays[r.array].shape[r.dim] + r.offset)
    scalars = {v.name: f for v, f in zip(step.traced.scalars, floats or [], strict=True)}
    return Case(step.bound.program, arrays, sizes, scalars)


def apart(
    p: Program, arrays: dict[str, Any], sizes: dict[str, int]
) -> tuple[Program, dict[str, Any], dict[str, int]]:
    """An axis is compacted access by access: operands that are read in two ways become two operands."""
    seen: dict[str, list[Load]] = {}
    table: dict[Load, Load] = {}
    for a in walk(p.body):
        if not isinstance(a, Load) or a.buffer.sparse or a in seen.setdefault(a.buffer.name, []):
            continue
        seen[a.buffer.name].append(a)
        if len(seen[a.buffer.name]) > 1 and a.buffer.role == "in":
            name = f"{a.buffer.name}_{len(seen[a.buffer.name])}"
            plain = [isinstance(ix, Index) for ix in a.indices]
            named = [Var(f"n_{ix.name}") for ix in a.indices if isinstance(ix, Index)]
            shape = tuple(named) if all(plain) else a.buffer.shape
            t = replace(a.buffer, name=name, shape=shape, values=Buffer(name, "f32", shape))
            table[a] = Load(t, a.indices)
            arrays[name] = arrays[a.buffer.name].copy()
            sizes |= {
                v.name: n for v, n in zip(named, arrays[name].shape, strict=False) if all(plain)
            }
    body = transform(p.body, lambda n: table.get(n) if isinstance(n, Load) else None)
    return (
        replace(p, tensors=(*p.tensors, *(a.buffer for a in table.values())), body=body),
        arrays,
        sizes,
    )


def entry_of(fn: Any, given: dict[str, torch.Tensor]) -> Entry:
    traced = fn if not callable(fn) else trace(fn)
    known = TEMPLATES.get(traced.name)
    if known is None or known.traced is not traced:  # an operator's has a gradient of its own
        register(traced)
    args = tuple(dense_arg(n, t) for n, t in given.items())
    return Entry(program_text(traced.name, args), "c")


def moved(rule: AxisRule, c: Case, order: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs with an axis in another order."""
    made = dict(c.arrays)
    for t in rule.travels:
        if not t.written:
            taken = made[t.tensor].take(order, axis=axis_of(c, t.tensor, t.dim))
            made[t.tensor] = laid(taken, c.arrays[t.tensor])
    return made


def laid(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The same values, lying as another array does: strides are sizes of a program."""
    given = torch.from_numpy(values)
    strides = [n // like.itemsize for n in like.strides]
    return torch.empty_strided(like.shape, strides, dtype=given.dtype).copy_(given).numpy()


def axis_of(c: Case, tensor: str, dim: int) -> int:
    """The dimension of the array: those of a sparse tensor's values end like its shape."""
    t = next(t for t in c.program.tensors if t.name == tensor)
    return dim - len(t.shape)


def extent(rule: AxisRule, c: Case) -> int:
    t = rule.travels[-1]
    if not t.written:
        return int(c.arrays[t.tensor].shape[axis_of(c, t.tensor, t.dim)])
    return int(c.run()[t.tensor].shape[t.dim])


def check_any_order(c: Case, axis: str) -> None:
    rule = c.axis(axis)
    order = np.random.default_rng(1).permutation(extent(rule, c))
    want, got = c.run(), c.run(moved(rule, c, order))
    for t in c.program.outputs:
        written = [v for v in rule.travels if v.written and v.tensor == t.name]
        expected = want[t.name]
        for v in written:
            expected = expected.take(order, axis=axis_of(c, t.name, v.dim))
        np.testing.assert_allclose(got[t.name], expected, rtol=1e-5, atol=1e-6)


def holding(
    rule: AxisRule, c: Case, operand: str, gone: np.ndarray, value: float
) -> dict[str, np.ndarray]:
    """The inputs with a value in some slices of an operand."""
    arrays = {k: laid(v, v) for k, v in c.arrays.items()}
    for t in rule.travels:
        if t.tensor == operand:
            np.moveaxis(arrays[operand], axis_of(c, operand, t.dim), 0)[gone] = value
    return arrays


def without(
    rule: AxisRule, c: Case, arrays: dict[str, Any], gone: np.ndarray
) -> dict[str, np.ndarray]:
    """The outputs where some slices of an axis are not there."""
    less = dict(arrays)
    for t in rule.travels:
        less[t.tensor] = arrays[t.tensor].compress(~gone, axis=axis_of(c, t.tensor, t.dim))
    return c.run(less, {**c.sizes, f"n_{rule.axis}": int((~gone).sum())})


def skipped(
    rule: AxisRule, c: Case, got: dict[str, np.ndarray], gone: np.ndarray
) -> Iterator[np.ndarray]:
    """Of each output along an axis, some slices."""
    for t in (t for t in rule.travels if t.written):
        yield np.moveaxis(got[t.tensor], axis_of(c, t.tensor, t.dim), 0)[gone]
