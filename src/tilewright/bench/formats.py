"""Conversion of formats: a generated csr matrix to every other one, and coordinates to trees.

Owns: this suite. In: --nnz, --device. Out: milliseconds a conversion, the index arrays and values
of the result included, and on a CPU how time grows from a quarter of the entries to all of them (4
is linear; one thread and the fastest call, so that what others do there does not look like growth).
Every result is checked by the product with a vector. Most matrices are random, about 16 entries in
a row, int32 indices; dia, two_four and bitmap have one that suits them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilewright.bench import timing
from tilewright.bench.suite import Run, seeded
from tilewright.bench.tables import cell, least, ratio, table, verdict
from tilewright.formats import SparseTensor, Structure, buckets

ENTRIES = {"cpu": 1_000_000, "cuda": 10_000_000}
IN_A_ROW = 16
SECONDS = 0.5
GOAL_MS, GOAL_NNZ = 40.0, 10_000_000
LINEAR = 1 / 3  # 4 / growth: caches hold a quarter and not the whole; quadratic would be 1 / 4


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


def measure(run: Run) -> int:
    device = run.options.device
    nnz = run.options.nnz or ENTRIES[device]
    threads = torch.get_num_threads()
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
    row["ms"] = _time(run, lambda: source(case))
    if run.options.device == "cpu":
        quarter = _source(case.source, nnz // 4, "cpu")
        row["quarter_ms"] = _time(run, lambda: quarter(case))
        row["growth"] = ratio(row["ms"], row["quarter_ms"])
    return row


def _time(run: Run, call: Callable[[], object]) -> float:
    if run.options.device == "cuda":
        return timing.eager_ms(call, n=20)
    call()
    return min(timing.calls_s(call, SECONDS, 5)) * 1e3


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


def _report(rows: list[dict[str, Any]], device: str, nnz: int) -> tuple[str, dict[str, Any]]:
    header = "format from ms quarter growth Mentries/s MB".split()
    lines = [
        [
            *(row["case"], row["from"], row["ms"], row.get("quarter_ms"), row.get("growth")),
            *(nnz / row["ms"] / 1e3, row["bytes"] / 1e6),
        ]
        for row in rows
    ]
    slowest = max((row["ms"] for row in rows if row["judged"]), default=None)
    s: dict[str, Any] = {"nnz": nnz, "slowest_judged_ms": slowest}
    s["linear_least"] = least(ratio(4.0, row.get("growth")) for row in rows)
    text = [f"conversion of {nnz} entries, times in ms", table(header, lines)]
    if device == "cuda" and nnz == GOAL_NNZ:
        label = "40 ms over the slowest of csc, bsr, dcsr, ell, padded, srbcrs"
        text.append(verdict(label, ratio(GOAL_MS, slowest), 1.0))
    if device == "cpu":
        text.append(verdict("linear: 4 over the growth, least", s["linear_least"], LINEAR))
    return "\n".join(text), s
