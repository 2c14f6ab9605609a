"""Random schedules on real programs: each step is refused with a reason, or the result does not change.

    told = draw(random.Random(7));  told.case, told.steps, told.refused

The numbers of the random source alone decide everything, so that hypothesis can shrink a draw and `make fuzz`
can repeat one.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from builders import (
    Case,
    at,
    attention,
    block_product,
    dense,
    index,
    numbers,
    reduce,
    sddmm,
    spmm,
)
from schedule.judge import stage_three

from tilewright.ir import coord, flat
from tilewright.ir.coord import Assign
from tilewright.ir.expr import Load
from tilewright.schedule.edit import loops, uses
from tilewright.schedule.legal import within
from tilewright.schedule.record import PRIMITIVES, Schedule, Scheduled, Word
from tilewright.support.errors import ScheduleError

ROWS = [[0, 2], [], [1, 1], [4, 0, 1, 3, 2, 2, 0], [3]]
WHOLE = (16, 32)  # no smaller than any extent: `lane` takes it on trust


def rows_linear(monoid: str = "sum", depth: int = 5) -> Case:
    """y[r, o] = sum(d, x[rows[r], d] * w[o, d])"""
    x, w, y = dense("x", "id"), dense("w", "od"), dense("y", "ro", "out")
    rows = dense("rows", "r", dtype="i32")
    term = Load(x, (at(rows, "r"), index("d"))) * at(w, "od")
    p = coord.Program(
        "linear", (x, w, rows, y), (), (Assign((at(y, "ro"),), (reduce(monoid, "d", term),)),)
    )
    rows_ = np.array([3, 0, 6], np.int32)
    arrays = {"x": numbers(1, 7, depth), "w": numbers(2, 3, depth), "rows": rows_}
    sizes = {"n_i": 7, "n_d": depth, "n_o": 3, "n_r": 3}
    terms = arrays["x"][rows_][:, None].astype(np.float64) * arrays["w"]
    empty = {"sum": 0.0, "max": -np.inf, "min": np.inf}[monoid]
    return Case(p, arrays, sizes, want={"y": getattr(np, monoid)(terms, axis=2, initial=empty)})


CASES: dict[str, Callable[[], Case]] = {
    **{f"spmm-{m}": lambda m=m: spmm(ROWS, 6, 3, m) for m in ("sum", "max", "mean")},
    "softmax": lambda: spmm(ROWS, 6, 3, "softmax_sum"),
    "sddmm": lambda: sddmm(ROWS, 6, 5),
    "rows-linear": rows_linear,
    "rows-min": lambda: rows_linear("min"),
    "bsr": lambda: block_product([[0, 1], [], [1]], (5, 4), 2, 3),
    "attention": lambda: attention([[0, 1], [], [1]], (5, 3), (2, 2), 3, 3),
}


@cache
def case_of(name: str) -> tuple[Case, flat.Program]:
    case = CASES[name]()
    return case, stage_three(case)


@dataclass
class Drawn:
    """steps: those that were taken; refused: the others, with their reasons."""

    name: str
    steps: Schedule
    program: flat.Program
    refused: list[tuple[str, str]] = field(default_factory=list)


def draw(rng: random.Random, most: int = 6) -> Drawn:
    """A program and a random sequence of steps, each taken or refused."""
    name = rng.choice(sorted(CASES))
    _, p = case_of(name)
    made = Scheduled(p)
    refused = []
    for _ in range(rng.randint(1, most)):
        primitive = rng.choice(sorted(PRIMITIVES))
        args = arguments(rng, primitive, made.program)
        try:
            made = made.then(primitive, *args)
        except ScheduleError as why:
            refused.append((f"{primitive}{args}", str(why)))
    return Drawn(name, made.steps, made.program, refused)


def arguments(rng: random.Random, primitive: str, p: flat.Program) -> tuple[Word, ...]:
    """Loops of the program, words and numbers for the parameters of a primitive; mostly plausible ones."""
    found = list(loops(p))
    made: list[Word] = []
    for w in list(inspect.signature(PRIMITIVES[primitive]).parameters.values())[1:]:
        likely = [x.var.name for x in found if _likely(primitive, w.name, x, made, found)]
        names = likely if likely and rng.random() < 0.9 else [x.var.name for x in found]
        if w.kind is w.VAR_POSITIONAL:
            grids = [x.var.name for x in found if x.kind == "grid"]
            made += rng.sample(grids, len(grids))
        elif w.name in WORDS:
            made.append(rng.choice(WORDS[w.name]))
        elif w.name == "buffer":
            made.append(rng.choice([b.name for b in p.buffers]))
        elif w.annotation == "int":
            made.append(rng.choice(WHOLE if primitive == "lane" else (1, 2, 3, 4, 8)))
        else:
            made.append(rng.choice(names or ["i"]))
    return tuple(made)


def _likely(
    primitive: str, parameter: str, x: flat.Loop, before: list[Word], found: list[flat.Loop]
) -> bool:
    """Whether a loop is a promising argument."""
    alone = len(x.body) == 1 and isinstance(x.body[0], flat.Loop)
    inside = [s.var.name for o in found if before[:1] == [o.var.name] for s in loops_in(o)]
    return {
        "outer": alone,
        "inner": inside[:1] == [x.var.name],
        "rows": any(isinstance(s.lo, Load) and uses(s.lo, x.var) for s in loops_in(x)),
        "entries": isinstance(x.lo, Load),
        "name": {"persistent": x.kind == "grid", "rfactor": x.kind == "lane"}.get(primitive, True),
    }.get(parameter, True)


def loops_in(x: flat.Loop) -> list[flat.Loop]:
    return [s for s in within(x.body) if isinstance(s, flat.Loop)]


WORDS: dict[str, tuple[str, ...]] = {
    "to": ("grid", "lane", "serial", "unroll"),
    "how": ("owned", "ordered", "atomic"),
}
