"""Conversion of formats: a generated csr matrix to every other one, and coordinates to trees.

Owns: this suite. In: --nnz, --device. Out: milliseconds a conversion, the index arrays and values
of the result included. On a CPU also how the time of one entry grows from a quarter of the entries
to all of them, both beyond the last-level cache (1 is linear), beside the machine's own yardstick: a
gather and a scatter by a random permutation of as many floats, timed in turn with the conversion, on
one thread, the fastest of each, so that what others do there does not look like growth. Freed memory stays with
the process: new pages would cost more than the conversions, and large arrays alone would get them.
Every result is checked by the product with a vector. Most matrices are random, about 16 entries in
a row, int32 indices; dia, two_four and bitmap have one that suits them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import timing
from tilewright.bench.suite import Measured, Run, seeded
from tilewright.bench.tables import cell, ratio, table, verdict
from tilewright.formats import SparseTensor, Structure, buckets

ENTRIES = {"cpu": 16_000_000, "cuda": 10_000_000}
IN_A_ROW = 16
SECONDS = 0.5
GOAL_MS, GOAL_NNZ = 40.0, 10_000_000
LINEAR = 1.3  # growth of an entry's time; n * log(n) would be 1.1, quadratic 4
CALLS = 6
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


@dataclass(frozen=True)
class Case:
    """A target format, and the kind of matrix it is made from."""

    name: str
    source: str = "random"
    block: tuple[int, int] | None = None
    judged: bool = False

    @property
    def label(self) -> str:
        return self.name + "".join(f".{b}" for b in self.block or ())


CASES = (
    Case("csc", judged=True),
    Case("coo"),
    Case("bsr", block=(4, 4), judged=True),
    Case("dcsr", judged=True),
    Case("dbsr.4.4"),
    Case("ell", judged=True),
    Case("padded.8", judged=True),
    Case("srbcrs.8.4", judged=True),
    Case("dia", "banded"),
    Case("two_four", "half"),
    Case("bitmap", "half"),
    Case("csf.2"),
    Case("csf.3", "cube"),
    Case("csf.3.dense", "cube"),
    Case("bucket.8", "cube"),
    Case("buckets", "cube"),
)
CUBE = 64  # relations


def measure(run: Run) -> Measured:
    device = run.options.device
    nnz = run.options.nnz or ENTRIES[device]
    threads = torch.get_num_threads()
    yield []
    keep_memory()
    try:
        torch.set_num_threads(1)
        for case in CASES[:6] if run.options.quick else CASES:
            if run.late:
                continue
            with run.part(case.label):
                run.add(_case(run, case, nnz))
                run.say(f"{case.label}: {cell(run.rows[-1]['ms'])} ms")
    finally:
        torch.set_num_threads(threads)
    return run.finish(*_report(run.rows, device, nnz))


def _case(run: Run, case: Case, nnz: int) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case.label, "from": case.source, "judged": case.judged}
    source = _source(case.source, nnz, run.options.device)
    made = source(case)
    row["nnz"], row["ok"] = nnz, _right(source, case, made)
    row["format"] = made[0].format
    row["bytes"] = sum(_bytes(part) for part in made)
    del made
    if run.options.device == "cuda":
        row["ms"] = timing.eager_ms(lambda: source(case), n=20)
        return row
    row["ms"], row["yardstick_ms"] = _in_turn(lambda: source(case), nnz)
    quarter = _source(case.source, nnz // 4, "cpu")
    row["quarter_ms"], row["yardstick_quarter_ms"] = _in_turn(lambda: quarter(case), nnz // 4)
    row["growth"] = _grown(row["ms"], row["quarter_ms"])
    row["yardstick_growth"] = _grown(row["yardstick_ms"], row["yardstick_quarter_ms"])
    return row


def keep_memory() -> None:
    """Freed memory stays with this process, whatever its size (glibc; elsewhere nothing happens)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)


def _grown(whole: float, quarter: float) -> float:
    return whole / quarter / 4


def _in_turn(call: Callable[[], object], nnz: int) -> tuple[float, float]:
    """Milliseconds of a call and of the yardstick."""
    order = torch.randperm(nnz, generator=seeded("cpu"))
    values, made = torch.ones(nnz), torch.empty(nnz)
    moved = lambda: made.scatter_(0, order, values.index_select(0, order))
    taken: tuple[list[float], list[float]] = ([], [])
    stop = time.perf_counter() + SECONDS
    while len(taken[0]) < CALLS or time.perf_counter() < stop:
        for fn, into in zip((call, moved), taken, strict=True):
            into += timing.calls_s(fn, 0.0, 1)
    return min(taken[0]) * 1e3, min(taken[1]) * 1e3


@dataclass(frozen=True)
class Source:
    """Arrays of a matrix or coordinates; each call converts them anew, with nothing remembered."""

    shape: tuple[int, ...]
    arrays: tuple[Tensor, ...]
    values: Tensor

    def __call__(self, case: Case) -> list[SparseTensor]:
        if len(self.shape) == 2:
            return [SparseTensor(self.csr(), self.values).to_format(case.name, case.block)]
        name = "csf.3.dense" if case.name == "buckets" else case.name
        coords = torch.stack(self.arrays)
        made = SparseTensor.from_coords(coords, self.values, self.shape, name, check=False)
        return buckets(made) if case.name == "buckets" else [made]

    def csr(self) -> Structure:
        return Structure("csr", self.shape, *self.arrays, check=False)

    def coords(self) -> tuple[tuple[Tensor, ...], Tensor]:
        if len(self.shape) == 3:
            return self.arrays, self.values
        csr = self.csr()
        return (csr.parents(), self.arrays[1]), self.values


def _source(kind: str, nnz: int, device: str) -> Source:
    make = seeded(device)
    values = torch.randint(1, 9, (nnz,), generator=make, device=device).float()
    if kind == "cube":
        rows = max(nnz // (CUBE * 4), 1)
        sizes = (CUBE, rows, rows)
        drawn = [torch.randint(n, (nnz,), generator=make, device=device).int() for n in sizes]
        return Source(sizes, tuple(drawn), values)
    if kind == "half":
        return _half(nnz, make, device, values)
    n = max(nnz // IN_A_ROW // 8, 1) * 8
    if kind == "banded":
        place = torch.arange(nnz, device=device)
        row = (place // IN_A_ROW).clamp_(max=n - 1)
        column = (row + place % IN_A_ROW - IN_A_ROW // 2).clamp_(0, n - 1)
        return _csr(n, n, row, column, values)
    row = torch.randint(n, (nnz,), generator=make, device=device).sort().values
    return _csr(n, n, row, torch.randint(n, (nnz,), generator=make, device=device), values)


def _half(nnz: int, make: torch.Generator, device: str, values: Tensor) -> Source:
    """Two of every four columns, 1024 columns in all."""
    groups = nnz // 2
    first = torch.randint(2, (groups, 1), generator=make, device=device)
    inside = torch.cat((first, first + 2), 1) + torch.arange(groups, device=device)[:, None] * 4
    at = inside.reshape(-1)
    n = -(-int(at.shape[0]) // 512)
    return _csr(n, 1024, at // 1024, at % 1024, values[: at.shape[0]])


def _csr(n: int, m: int, rows: Tensor, cols: Tensor, values: Tensor) -> Source:
    lengths = torch.zeros(n + 1, dtype=torch.int32, device=rows.device)
    lengths[1:].index_add_(0, rows, torch.ones_like(rows, dtype=torch.int32))
    return Source((n, m), (lengths.cumsum(0, dtype=torch.int32), cols.int()), values)


def _right(source: Source, case: Case, made: list[SparseTensor]) -> bool:
    """The sum over all but the first dimension, with weights, is that of the source."""
    coords, values = source.coords()
    expected = _weighed(coords, values, source.shape)
    got = torch.zeros_like(expected)
    for part in made:
        at, perm = part.structure.as_coordinates()
        held = part.explicit_values().reshape(-1)
        held = held if perm is None else held.index_select(0, perm)
        got += _weighed(tuple(at), held, source.shape)
    return bool(torch.allclose(got, expected, rtol=1e-9, atol=1e-9))


def _weighed(coords: tuple[Tensor, ...], values: Tensor, shape: tuple[int, ...]) -> Tensor:
    weight = values.double()
    for dim, crd in enumerate(coords[1:], 1):
        weight = weight * torch.cos(crd.double() * dim)
    rows = torch.zeros(shape[0], dtype=torch.float64, device=values.device)
    return rows.index_add_(0, coords[0].long(), weight)


def _bytes(a: SparseTensor) -> int:
    s = a.structure
    arrays = getattr(s, "arrays", {"indptr": s.indptr, "indices": s.indices, "rows": s.rows})
    held = [*arrays.values(), s.perm, s.slots, a.values]
    return sum(t.numel() * t.element_size() for t in held if t is not None)


def _cause(row: dict[str, Any]) -> str:
    """Why the time of an entry grows: memory, if gathers and scatters grow as well."""
    mine, yard = row["growth"], row["yardstick_growth"]
    why = (
        "memory: as gather and scatter" if mine <= LINEAR * yard else "more than gather and scatter"
    )
    return f"{cell(mine)} ({why}: {cell(yard)})"


def _report(rows: list[dict[str, Any]], device: str, nnz: int) -> tuple[str, dict[str, Any]]:
    header = "format from ms Mentries/s MB ns/entry growth yardstick yardstick-growth".split()
    lines = [
        [
            *(row["case"], row["from"], row["ms"], nnz / row["ms"] / 1e3, row["bytes"] / 1e6),
            *(row["ms"] / nnz * 1e6, row.get("growth")),
            *(ratio(row.get("yardstick_ms"), nnz / 1e6), row.get("yardstick_growth")),
        ]
        for row in rows
    ]
    slowest = max((row["ms"] for row in rows if row["judged"]), default=None)
    s: dict[str, Any] = {"nnz": nnz, "slowest_judged_ms": slowest}
    s["growth_most"] = max((row["growth"] for row in rows if "growth" in row), default=None)
    beside = [ratio(row.get("growth"), row.get("yardstick_growth")) for row in rows]
    s["growth_beside_most"] = max((g for g in beside if g is not None), default=None)
    s["grown"] = {row["case"]: _cause(row) for row in rows if row.get("growth", 0.0) > LINEAR}
    text = [f"conversion of {nnz} entries, times in ms", table(header, lines)]
    if device == "cuda" and nnz == GOAL_NNZ:
        label = "40 ms over the slowest of csc, bsr, dcsr, ell, padded, srbcrs"
        text.append(verdict(label, ratio(GOAL_MS, slowest), 1.0))
    if device == "cpu":
        text.append(verdict("1.3 over the growth", ratio(LINEAR, s["growth_most"]), 1.0))
        label = "1.3 over the growth beside the yardstick's"
        text.append(verdict(label, ratio(LINEAR, s["growth_beside_most"]), 1.0))
        text += [f"  {name}: {why}" for name, why in s["grown"].items()]
    return "\n".join(text), s
