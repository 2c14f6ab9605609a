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
from itertools import pairwise

import numpy as np
from builders import (
    Case,
    at,
    attention,
    block_product,
    csr,
    dense,
    index,
    numbers,
    reduce,
    row_arrays,
    sddmm,
    size,
    spmm,
    to_dense,
)
from schedule.judge import stage_three

from tilewright.ir import coord, flat
from tilewright.ir.coord import Assign, Index, Reduce, Tensor
from tilewright.ir.expr import Buffer, Const, Load, Var, cast, ne, select, unary
from tilewright.ir.interp.common import evaluate
from tilewright.ir.monoid import monoids
from tilewright.ir.node import walk
from tilewright.schedule.edit import loops, uses
from tilewright.schedule.legal import carried, within
from tilewright.schedule.record import PRIMITIVES, Schedule, Scheduled, Word
from tilewright.support.errors import ScheduleError

ROWS = [[0, 2], [], [1, 1], [4, 0, 1, 3, 2, 2, 0], [3]]
WHOLE = (32,)  # no smaller than any extent: `lane` takes it on trust


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


def two_products(role: str) -> Case:
    """h[i, k] = sum(j, a[i, j] * x[j, k]); y[i, l] = sum(k, h[i, k] * w[k, l])"""
    a, x, w = csr("a", "ij"), dense("x", "jk"), dense("w", "kl")
    h, y = dense("h", "ik", role), dense("y", "il", "out")
    one = Assign((at(h, "ik"),), (reduce("sum", "j", at(a, "ij") * at(x, "jk")),))
    two = Assign((at(y, "il"),), (reduce("sum", "k", at(h, "ik") * at(w, "kl")),))
    p = coord.Program("both", (a, x, w, h, y), (), (one, two))
    arrays = row_arrays("a", ROWS)
    n = len(arrays["a_indices"])
    arrays |= {"a": numbers(1, n), "x": numbers(2, 6, 4), "w": numbers(3, 4, 3)}
    made = to_dense(ROWS, 6, arrays["a"]) @ arrays["x"]
    sizes = {"n_i": len(ROWS), "n_j": 6, "n_k": 4, "n_l": 3, "a_nnz": n}
    want = {"y": made @ arrays["w"]} | ({"h": made} if role == "out" else {})
    return Case(p, arrays, sizes, want=want)


def epilogue(role: str) -> Case:
    """h[i, f] = sum(j, a[i, j] * x[j, f]); y[i, f] = relu(h[i, f]) + b[f]"""
    case = spmm(ROWS, 6, 3)
    a, x, _ = case.program.tensors
    h, y, b = dense("h", "if", role), dense("y", "if", "out"), dense("b", "f")
    one = Assign((at(h, "if"),), case.program.body[0].values)  # type: ignore[attr-defined]
    two = Assign((at(y, "if"),), (unary("relu", at(h, "if")) + at(b, "f"),))
    p = coord.Program("epilogue", (a, x, b, h, y), (), (one, two))
    bias, made = numbers(5, 3), case.want["y"]
    want = {"y": np.maximum(made, 0) + bias} | ({"h": made} if role == "out" else {})
    return Case(p, {**case.arrays, "b": bias}, case.sizes, want=want)


def weighted_mean() -> Case:
    """y[i, f] = sum(j, a[i, j] * x[j, f]) / (sum(j, a[i, j]) + 1)"""
    case = spmm(ROWS, 6, 3)
    a, x, y = case.program.tensors
    (total,) = case.program.body[0].values  # type: ignore[attr-defined]
    value = total / (reduce("sum", "j", at(a, "ij") * at(a, "ij")) + 1.0)
    p = coord.Program("mean", (a, x, y), (), (Assign((at(y, "if"),), (value,)),))
    ends = case.arrays["a_indptr"]
    weight = [(case.arrays["a"][s:e] ** 2).sum() + 1 for s, e in pairwise(ends)]
    return Case(p, case.arrays, case.sizes, want={"y": case.want["y"] / np.array(weight)[:, None]})


def best() -> Case:
    """y[i, f] = argmax(j, a[i, j] * x[j, f])"""
    case = spmm(ROWS, 6, 3)
    a, x, _ = case.program.tensors
    y = dense("y", "if", "out", dtype="i64")
    found = reduce("argmax", "j", at(a, "ij") * at(x, "jf"), index("j"))
    p = coord.Program("best", (a, x, y), (), (Assign((at(y, "if"),), (found,)),))
    want = np.full((len(ROWS), 3), -1)
    for i, (lo, hi) in enumerate(pairwise(case.arrays["a_indptr"])):
        terms = {}
        for j, e in zip(case.arrays["a_indices"][lo:hi], case.arrays["a"][lo:hi], strict=True):
            terms.setdefault(j, []).append(e * case.arrays["x"][j])
        for f in range(3):
            most = [(-max(t[f] for t in ts), j) for j, ts in terms.items()]
            want[i, f] = min(most)[1] if most else -1
    return Case(p, case.arrays, case.sizes, want={"y": want})


def micro_tiles(role: str, rows: int = 2, columns: int = 4) -> Case:
    """h[i, n] = sum(k, x[i, k] * w[n, k]); y[I, N] = max((p, q), h[p, q]), rows x columns of h for each of y"""
    x, w, h = dense("x", "ik"), dense("w", "nk"), dense("h", "in", role)
    I, N = index("I"), index("N")
    p, q = Index("p", within=(I, rows)), Index("q", within=(N, columns))
    shape = ((size("i") + (rows - 1)) // rows, (size("n") + (columns - 1)) // columns)
    y = Tensor("y", "f32", shape, "out", values=Buffer("y", "f32", shape, "out"))
    one = Assign((at(h, "in"),), (reduce("sum", "k", at(x, "ik") * at(w, "nk")),))
    top = Reduce(monoids("f32")["max"], (p, q), (Load(h, (p, q)),))
    program = coord.Program("tiles", (x, w, h, y), (), (one, Assign((Load(y, (I, N)),), (top,))))
    arrays = {"x": numbers(1, 7, 5), "w": numbers(2, 9, 5)}
    made = arrays["x"] @ arrays["w"].T
    best = [
        [made[i : i + rows, n : n + columns].max() for n in range(0, 9, columns)]
        for i in range(0, 7, rows)
    ]
    want = {"y": np.array(best)} | ({"h": made} if role == "out" else {})
    return Case(program, arrays, {"n_i": 7, "n_n": 9, "n_k": 5}, want=want)


def some(rows: int = 3, columns: int = 2, whole: bool = False) -> Case:
    """y[I, N] = 1 where any of rows x columns of x is not 0; -0.0 is 0, NaN is not. whole: what is left as integers."""
    x, I, N = dense("x", "in"), index("I"), index("N")
    p, q = Index("p", within=(I, rows)), Index("q", within=(N, columns))
    shape = ((size("i") + (rows - 1)) // rows, (size("n") + (columns - 1)) // columns)
    y = Tensor("y", "f32", shape, "out", values=Buffer("y", "f32", shape, "out"))
    value = cast("i32", Load(x, (p, q))) if whole else Load(x, (p, q))
    seen = Reduce(monoids("f32")["any"], (p, q), (ne(value, Const(0, "i64")),))
    program = coord.Program(
        "some", (x, y), (), (Assign((Load(y, (I, N)),), (select(seen, 1.0, 0.0),)),)
    )
    held = np.full((7, 9), -0.0, np.float32)
    held[[0, 4, 6, 6], [0, 3, 8, 7]] = (
        (1.0, -2.0, 0.5, 0.25) if whole else (1.0, -2.0, np.nan, 1e-40)
    )
    cut = np.trunc(held) if whole else held
    there = [
        [(cut[i : i + rows, n : n + columns] != 0).any() for n in range(0, 9, columns)]
        for i in range(0, 7, rows)
    ]
    return Case(program, {"x": held}, {"n_i": 7, "n_n": 9}, want={"y": np.array(there, np.float32)})


CASES: dict[str, Callable[[], Case]] = {
    **{f"spmm-{m}": lambda m=m: spmm(ROWS, 6, 3, m) for m in ("sum", "max", "mean")},
    "softmax": lambda: spmm(ROWS, 6, 3, "softmax_sum"),
    "sddmm": lambda: sddmm(ROWS, 6, 5),
    "rows-linear": rows_linear,
    "rows-min": lambda: rows_linear("min"),
    "two-products": lambda: two_products("work"),
    "two-outputs": lambda: two_products("out"),
    "epilogue": lambda: epilogue("work"),
    "epilogue-kept": lambda: epilogue("out"),
    "micro-tiles": lambda: micro_tiles("out"),
    "micro-tiles-kept": lambda: micro_tiles("work"),
    "micro-rows": lambda: micro_tiles("out", 1, 2),
    "weighted-mean": weighted_mean,
    "best": best,
    "some": some,
    "some-rows": lambda: some(8, 1),
    "some-whole": lambda: some(whole=True),
    "rows-wide": lambda: rows_linear(depth=17),
    "bsr": lambda: block_product([[0, 1], [], [1]], (5, 4), 2, 3),
    "attention": lambda: attention([[0, 1], [], [1]], (5, 3), (2, 2), 3, 3),
}

# Those that fill vectors take the interpreters too long to be drawn.
WIDE: dict[str, Callable[[], Case]] = {
    "attention-wide": lambda: attention([[0, 1], []], (20, 21), (16, 16), 16, 16),
}


@cache
def case_of(name: str) -> tuple[Case, flat.Program]:
    case = (CASES | WIDE)[name]()
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
        several = together(rng, made.program) if rng.random() < 0.15 else []
        alone = rng.choice(sorted(PRIMITIVES))
        for primitive, args in several or [(alone, arguments(rng, alone, made.program))]:
            if primitive == "lane" and not _holds(made.program, name, *args):
                continue  # a contract, which is the caller's
            try:
                made = made.then(primitive, *args)
            except ScheduleError as why:
                refused.append((f"{primitive}{args}", str(why)))
    return Drawn(name, made.steps, made.program, refused)


def _holds(p: flat.Program, name: str, loop: Word, size: Word) -> bool:
    """Whether so many lanes have room for all turns of a loop, as far as sizes tell."""
    sizes, x = case_of(name)[0].sizes, next((x for x in loops(p) if x.var.name == loop), None)
    if x is None or any(isinstance(v, Var) and v.name not in sizes for v in walk(x.hi)):
        return True
    return any(isinstance(n, Load) for n in walk(x.hi)) or evaluate(x.hi, sizes) <= int(size)


def together(rng: random.Random, p: flat.Program) -> list[tuple[str, tuple[Word, ...]]]:
    """Steps that are seldom legal but after each other: a loop in lanes, fewer of them in its last tile; features in
    lanes, then rows from a list; rows in the grid, then shared by their entries; two loops in the grid, then sums
    that programs share."""
    few = lambda *values: rng.choice(values)
    plain = [x.var.name for x in loops(p) if x.kind == "serial" and not carried(x)]
    if plain and rng.random() < 0.25:
        name, size = rng.choice(plain), few(4, 8)
        cut = [("split", (name, size)), ("kind", (f"{name}_i", "lane"))]
        within_it = [x for x in loops(p) if x.var.name == name for x in loops_in(x)]
        wide = [x.var.name for x in within_it if x.kind == "serial" and not carried(x)]
        if not wide or rng.random() < 0.5:
            return [*cut, ("tail", (f"{name}_i", size // few(2, 4)))]
        both = [
            ("kind", (f"{name}_o", "grid")),
            ("split", (wide[0], 4)),
            ("kind", (f"{wide[0]}_i", "lane")),
        ]
        shared: tuple[Word, ...] = (
            f"{name}_i",
            size // 2,
            f"{wide[0]}_i",
            few(1, 2),
            few(1, 2, 100),
        )
        return [*cut, *both, ("tail", shared)]
    pairs = [
        (x, s)
        for x in loops(p)
        for s in loops_in(x)
        if isinstance(s.lo, Load) and uses(s.lo, x.var)
    ]
    if pairs:
        rows, entries = rng.choice(pairs)
        spread = few("work_list", "segments", "pad", "balance", "visit")
        if spread == "visit":
            return [(spread, (rows.var.name, "a_indices"))]
        if spread == "balance" and isinstance(entries.lo, Load):
            return [("kind", (rows.var.name, "grid")), (spread, (entries.lo.buffer.name,))]
        across = (few(2, 4),) if spread == "segments" else ()
        others = [s for s in loops_in(rows) if s is not entries and s.kind == "serial"]
        names: tuple[Word, ...] = (rows.var.name, entries.var.name)
        made = (spread, (*names, few(2, 4, 8), *across, few(1, 2, 4, 8)))
        return [*(("lane", (s.var.name, 16)) for s in others), made]
    sums = [x for x in loops(p) if carried(x) and x.kind == "serial"]
    around = [x for x in loops(p) if sums and sums[0] in loops_in(x) and x.kind != "lane"]
    if len(around) < 2:
        return []
    names = (around[0].var.name, around[1].var.name)
    shared: tuple[Word, ...] = (
        *names,
        sums[0].var.name,
        few(1, 3, 6, 50),
        few(1, 2, 4, 8),
        few(1, 2, 8),
    )
    return [*(("kind", (n, "grid")) for n in names), ("share", shared)]


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
            written = [b.name for b in p.buffers if (b.role == "in") == (primitive == "cache")]
            made.append(rng.choice(written if rng.random() < 0.9 else [b.name for b in p.buffers]))
        elif w.name == "array":
            made.append(rng.choice([b.name for b in p.buffers if b.role == "index"] or ["x"]))
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
        "first": sum((x.lo, x.hi) == (o.lo, o.hi) for o in found) > 1,
        "second": any((x.lo, x.hi) == (o.lo, o.hi) for o in found if before == [o.var.name]),
        "rows": any(isinstance(s.lo, Load) and uses(s.lo, x.var) for s in loops_in(x)),
        "entries": isinstance(x.lo, Load),
        "name": {
            "persistent": x.kind == "grid",
            "rfactor": x.kind == "lane",
            "tail": x.kind == "lane",
            "at_once": x.kind == "lane" and bool(carried(x)),
            "tensorise": x.kind == "lane" and bool(carried(x)),
            "split_reduction": bool(carried(x)),
            "compute_at": any(isinstance(n, Load) and n.buffer.name == "h" for n in walk(x.body)),
        }.get(primitive, True),
    }.get(parameter, True)


def loops_in(x: flat.Loop) -> list[flat.Loop]:
    return [s for s in within(x.body) if isinstance(s, flat.Loop)]


WORDS: dict[str, tuple[str, ...]] = {
    "to": ("grid", "lane", "serial", "unroll"),
    "how": ("owned", "ordered", "atomic"),
}
