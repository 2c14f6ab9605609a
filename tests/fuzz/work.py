"""One drawn program on several drawn inputs: run, judged, told.

    for told in plan(seed=0, number=7): print(told.kind, told.words)

kind: ok; refused (the language says no, in its own words); wrong; broken (any other exception).
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fuzz.grammar import Program, draw_program
from fuzz.inputs import Inputs, draw_inputs, draw_widths, spoiled
from fuzz.judge import Judge, Judged

import tilewright as tw
from tilewright.ops.backend import backend
from tilewright.support.errors import BackendError, TilewrightError

DRAWS = 10
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 3e-3,
    torch.bfloat16: 2e-2,
}
FAILED = ("wrong", "broken", "crashed")


@dataclass(frozen=True)
class Told:
    kind: str
    where: str
    plan: int
    draw: int
    why: str = ""
    words: str = ""


def compiled(p: Program, name: str) -> Any:
    """The program as the user would have written it."""
    space: dict[str, Any] = {"tw": tw}
    linecache.cache[name] = (len(p.source), None, p.source.splitlines(True), name)
    exec(compile(p.source, name, "exec"), space)
    return tw.program(space["drawn"])


def plan(
    seed: int, number: int, draws: int = DRAWS, share: float = 0.1, only: int | None = None
) -> Iterator[Told]:
    """All draws of one program. The numbers alone decide everything."""
    rng = np.random.default_rng([seed, number])
    p = draw_program(rng)
    w = draw_widths(rng, p)
    run = compiled(p, f"<drawn {seed}.{number}>")
    for draw in range(draws):
        if only is not None and draw != only:
            continue
        own = np.random.default_rng([seed, number, draw])
        triton = own.random() < share
        where = "triton" if triton else "c"
        yield Told("begun", where, number, draw)
        made = draw_inputs(own, p, w, triton)
        kind, why = judged(p, run, made, where, own.random() < 0.5)
        words = "" if kind == "ok" else f"{p.source.splitlines()[-1].strip()}\n  {made.words}"
        yield Told(kind, where, number, draw, why, words)


def judged(p: Program, run: Any, made: Inputs, where: str, spoil: bool) -> tuple[str, str]:
    with np.errstate(all="ignore"):
        want = Judge(p, made.arrays, made.sizes, made.scalars).run()
    if want.written_twice:
        return "refused", "two writers of one element"
    if spoil:
        spoiled(made, want.seen)
    given = [*made.tensors.values(), *made.scalars.values()]
    try:
        with backend(where):
            got = run(*given)
    except BackendError as why:
        return "broken", first_line(why)
    except TilewrightError as why:
        return "refused", first_line(why)
    except Exception as why:
        return "broken", f"{type(why).__name__}: {first_line(why)}"
    try:
        return compared(got, want)
    except RuntimeError as why:
        return "broken", f"{type(why).__name__}: {first_line(why)}"


def compared(got: Any, want: Judged) -> tuple[str, str]:
    if isinstance(got, tw.SparseTensor) != (want.sparse is not None):
        return "wrong", f"a {type(got).__name__}, expected it on {want.sparse}"
    if isinstance(got, tw.SparseTensor):
        stored = tuple(got.structure.values_shape)
        if tuple(got.values.shape[: len(stored)]) != stored:
            return "wrong", f"values {tuple(got.values.shape)} on a structure of {stored}"
    limit = TOLERANCE[got.dtype]
    dense = got.to_dense() if isinstance(got, tw.SparseTensor) else got
    found = dense.double().numpy()
    if found.shape != want.dense.shape:
        return "wrong", f"shape {found.shape}, expected {want.dense.shape}"
    finite = np.isfinite(want.dense)
    room = limit * (1 + (np.abs(want.dense[finite]).max() if finite.any() else 0))
    if got.dtype == torch.float16 and room > limit * 30_000:
        return "ok", ""
    with np.errstate(invalid="ignore"):
        same = (found == want.dense) | (np.isnan(found) & np.isnan(want.dense))
        bad = ~((np.abs(found - want.dense) <= room) | same)
    if not bad.any():
        return "ok", ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return (
        "wrong",
        f"{int(bad.sum())} of {bad.size} elements, at {at}: {found[at]}, expected {want.dense[at]}",
    )


def first_line(why: BaseException) -> str:
    """The message without what differs from one build to the next."""
    return " ".join(str(why).split())[:300]
