"""A schedule judged: the scheduled program on every executor, against NumPy.

    judged(case, parse_steps("split(f, 4)\\nkind(f_i, lane)"))      # ["flat", "tile", "c", "triton"]: who ran it

Refused where a back end says why; a wrong result or any other exception fails. Outputs start poisoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from builders import Case, work_units, zeroed

from tilewright import driver
from tilewright.ir import flat, tile
from tilewright.ir.expr import Buffer
from tilewright.ir.interp import run_flat, run_tile
from tilewright.ir.interp.common import evaluate
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.ops.dtypes import TORCH
from tilewright.runtime.kernel import Kernel
from tilewright.schedule.record import Schedule, apply
from tilewright.support.errors import TilewrightError

LONG, CHUNK, SLOTS = 4, 6, 16
INTERPRETED = ("flat", "tile")
PLACES = (*INTERPRETED, "c", "triton")


def stage_three(case: Case) -> flat.Program:
    return lower_to_flat(lower_to_position(case.program))


def judged(
    case: Case, steps: Schedule, places: Sequence[str] = PLACES, p: flat.Program | None = None
) -> list[str]:
    """The places that took the schedule; their results are right."""
    p = p or stage_three(case)
    made = apply(p, steps)
    case = listed(case, made)
    ran = []
    for place in places:
        if _right(case, made, place):
            ran.append(place)
    return ran


def _right(case: Case, p: flat.Program, place: str) -> bool:
    try:
        got = run(case, p, place)
    except TilewrightError:
        assert place != "flat", "the interpreter of stage III refuses nothing"
        return False
    for name, want in case.want.items():
        said = f"{name} on {place}\n{p}"
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=said)
    return True


def run(case: Case, p: flat.Program, place: str) -> dict[str, np.ndarray]:
    """The outputs; in the interpreters, programs run in any order."""
    start = {*zeroed(case.program)}
    given = (case.arrays, case.sizes, case.scalars, start)
    if place == "flat":
        return run_flat(p, *given, order="random")
    if place == "tile":
        return run_tile(lower_to_tile(p), *given, order="random")
    kernel = _compiled(p, place)
    return launched(kernel, case, start)


def _compiled(p: flat.Program, place: str) -> Kernel:
    """The program as it stands: no step is added."""
    if place == "c":
        return driver.compile_c(p, {}, schedule=())
    return driver.compile_triton(p, {}, {}, schedule=())


def launched(kernel: Kernel, case: Case, start: Any) -> dict[str, np.ndarray]:
    tensors = {b.name: _tensor(b, case, start, kernel.starts) for b in kernel.buffers}
    sizes = [case.sizes[n] for n in kernel.sizes]
    scalars = [case.scalars[n] for n in kernel.scalars]
    held = list(tensors.values())
    kernel.call(held, [t.data_ptr() for t in held], sizes, scalars)
    assert not any(tensors[b.name].any() for b in kernel.buffers if b.role == "counter")
    return {b.name: tensors[b.name].numpy() for b in kernel.buffers if b.role == "out"}


def _tensor(b: Buffer, case: Case, start: Any, starts: Mapping[str, float]) -> torch.Tensor:
    if b.role not in ("out", "work", "counter"):
        return torch.from_numpy(np.ascontiguousarray(case.arrays[b.name])).to(TORCH[b.dtype])
    shape = [evaluate(n, case.sizes) for n in b.shape]
    zero = b.role == "counter" or b.name in start
    poison = float("nan") if b.dtype in ("f32", "f64") else -99
    begin = starts.get(b.name, 0 if zero else poison)
    return torch.full(shape, begin, dtype=TORCH[b.dtype])


def visits(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows backwards, as `schedule.visit` asks for them."""
    name = next(n for n in arrays if n.endswith("indptr"))
    indptr, indices = arrays[name], arrays[name.removesuffix("indptr") + "indices"]
    rows = np.arange(len(indptr) - 1)[::-1]
    begin = np.concatenate([[0], np.cumsum(np.diff(indptr)[rows])])
    at = np.concatenate([np.arange(indptr[i], indptr[i + 1]) for i in rows] or [rows]).astype(int)
    made = {
        "rows": rows,
        "shift": indptr[rows] - begin[:-1],
        "begin": begin,
        "columns": indices[at],
    }
    return {f"visit_{n}": np.ascontiguousarray(a, indptr.dtype) for n, a in made.items()}


def listed(case: Case, p: flat.Program | tile.Program) -> Case:
    """The case with the units that a work list asks for, rows in another order, and room for published pieces."""
    case = case.having({}, {"n_slots": SLOTS})
    if any(b.name == "visit_rows" for b in p.buffers):
        case = case.having(visits(case.arrays), {})
    segs = next((b for b in p.buffers if b.name == "segs"), None)
    if segs is None:
        return case
    lanes = evaluate(segs.shape[2], {})
    arrays: Mapping[str, np.ndarray] = case.arrays
    pointers = next(a for n, a in arrays.items() if n.endswith("indptr"))
    return case.having(*work_units(pointers, lanes, LONG, CHUNK))
