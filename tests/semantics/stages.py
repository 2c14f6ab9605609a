"""A call of the registered operator, interpreted at any stage of its compilation.

    run_stage("tile", *case.call)      # the first output as NumPy computed it, at the schedule that would be compiled

What would be compiled is caught where the operator hands it to the driver, so settings are the real ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tilewright import driver
from tilewright.analysis.domain import covers
from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const, Var
from tilewright.ir.interp import run_coord, run_flat, run_loops, run_tile
from tilewright.ir.monoid import fold_constants
from tilewright.ir.node import substitute, transform
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.ops.entry import Entry
from tilewright.ops.step import Step
from tilewright.schedule.default_c import schedule_c
from tilewright.schedule.default_triton import schedule_triton
from tilewright.schedule.options import COptions

STAGES = ("coord", "loops", "flat", "for-c", "for-triton", "tile")


class Caught(Exception):
    """What the driver was asked to compile."""

    def __init__(self, *asked: Any) -> None:
        self.asked = asked


def catch(*asked: Any, **_: Any) -> None:
    raise Caught(*asked)


def run_stage(
    stage: str,
    program: str,
    tensors: Sequence[Tensor],
    ints: Sequence[int],
    floats: Sequence[float],
) -> np.ndarray:
    step = Entry(program, "c" if stage == "for-c" else "triton").steps[0]
    return run_step(stage, step, tensors, ints, floats)[step.bound.program.outputs[0].name]


def run_step(
    stage: str, step: Step, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
) -> dict[str, np.ndarray]:
    """The outputs of one statement by name; the step must be a new one, without kernels.

    As it is scheduled, a tensor in parts makes several programs of it, which run into the same outputs.
    """
    if stage in ("coord", "loops", "flat") or len(step.pieces) == 1:
        return run_piece(stage, step, tensors, ints, floats, {})
    made: dict[str, np.ndarray] = {}
    for piece in step.pieces:
        fresh = copy.copy(piece)
        fresh.kernels, fresh.quick, fresh.pieces = {}, {}, [fresh]
        made = run_piece(stage, fresh, tensors, ints, floats, made)
    return made


def run_piece(
    stage: str,
    step: Step,
    tensors: Sequence[Tensor],
    ints: Sequence[int],
    floats: Sequence[float],
    begun: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    held = [*tensors, *step.derive(tensors, ints)] if step.missing else list(tensors)
    sizes = step.sizes(held, ints)
    arrays = arrays_of(step, held) | begun
    table = dict(zip(step.size_names, sizes, strict=True))
    for (
        r
    ) in step.bound.rules:  # lengths of arrays, which kernels need not know but interpreters check
        if not r.stride:
            table.setdefault(r.size, arrays[r.array].shape[r.dim] + r.offset)
    scalars = {v.name: f for v, f in zip(step.traced.scalars, floats, strict=True)}
    if step.lists is not None:
        table |= list_sizes(step, held, ints)
    p = step.bound.program
    zeroed = [t.values.name for t in p.outputs if t.values is not None and not covers(p, t)]
    made = made_at(stage, step, tensors, ints, floats)
    if stage == "coord":
        got = run_coord(made, arrays, table, scalars)
    else:
        run = {"loops": run_loops, "tile": run_tile}.get(stage, run_flat)
        got = run(made, arrays, table, scalars, zeroed)
    return got


def made_at(
    stage: str, step: Step, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
) -> Any:
    """The program at a stage. The step is a new one, so that calling it must compile."""
    p = step.bound.program
    if stage == "coord":
        return p
    if stage in ("loops", "flat"):
        position = lower_to_position(p)
        return position if stage == "loops" else lower_to_flat(position)
    with (
        mock.patch.object(driver, "compile_triton", catch),
        mock.patch.object(driver, "compile_c", catch),
    ):
        try:
            step(tensors, ints, floats)
        except Caught as caught:
            asked = caught.asked
    log = driver._Log(p.name)
    if stage == "for-c":
        known = {n: Const(v, "i64") for n, v in asked[1].items()}
        lowered = driver.lower(asked[0], log, {}, known)
        return without_hints(schedule_c(lowered, COptions()).program)
    narrow = {n: v for n, v in asked[3].items() if isinstance(v, Var)}
    made = schedule_triton(driver.lower(asked[0], log, asked[2], narrow), asked[1]).program
    exact = {v: asked[3][v.name] for v in made.sizes if isinstance(asked[3].get(v.name), Const)}
    made = replace(made, body=fold_constants(substitute(made.body, exact)))
    return made if stage == "for-triton" else lower_to_tile(made)


def without_hints(p: flat.Program) -> flat.Program:
    """Prefetches mean nothing, and the interpreter of stage III does not know them."""
    nothing = stmt.Let(Var("hint"), Const(0, "i64"))
    rule = lambda n: nothing if isinstance(n, stmt.Prefetch) else None
    return replace(p, body=transform(p.body, rule))


def arrays_of(step: Step, tensors: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Arrays by the names of the bound program's buffers."""
    names = [*step.names, *step.missing]
    at = {n: numpy_of(t) for n, t in zip(names, tensors, strict=True)}
    made = {b: at[step.source(b)] for b in step.bound.arrays}
    if step.lists is not None:
        made |= {n: at[source] for n, source in zip(("units", "segs"), step.lists[1], strict=False)}
    return made


def numpy_of(t: Tensor) -> np.ndarray:
    """bf16 arrays are f32 arrays that hold bf16 numbers."""
    t = t.detach().cpu()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy()


def list_sizes(step: Step, tensors: Sequence[Tensor], ints: Sequence[int]) -> dict[str, int]:
    assert step.lists is not None
    at = dict(zip(step.names, tensors, strict=False))
    prefix, (units, *_) = step.lists
    slots = ints[step.int_names.index(f"{prefix}slots")]
    return {"n_units": len(at[units]), "n_slots": slots}
