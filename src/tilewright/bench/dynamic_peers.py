"""What runs beside products over dynamic zeros: torch's ways to skip them, and hand-written kernels.

In: a case with its operands. Out: calls by name, each twice where that makes sense: with the index built inside, and
with the index given. `waits` says that a call asks the device for a number, so that it cannot be a graph.

    select       rows (or columns) that are not 0: index_select, cuBLAS, index_copy
    grouped      the same rows in front, as one group of torch._grouped_mm; the host knows no number
    csr          cuSPARSE over a CSR tensor made from x
    bsr          torch's BSR product, blocks of 32
    probe        gather_matmul of --probes: rows_matmul, or k_matmul over the k's of each 64 rows
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.bench import probes
from tilewright.bench.dynamic_cases import Case
from tilewright.bench.suite import Run
from tilewright.bench.timing import Fn

BLOCK = (32, 32)
CONVERTED = (
    0.9  # from this sparsity on cuSPARSE is timed; below, it takes many times as long as dense
)
TILES = {"bm": 128, "bn": 256, "bk": 64, "group": 8, "warps": 8, "stages": 4}
FEW = {"bm": 64, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 4}
K_TILES = {"bm": 64, "bn": 128, "bk": 32, "warps": 4, "stages": 3}


@dataclass(frozen=True)
class Peer:
    """A call that returns y. given: nothing is looked for inside. rows: it writes these alone."""

    name: str
    call: Fn
    given: bool = False
    waits: bool = False
    rows: Tensor | None = None


def peers(run: Run, case: Case, x: Tensor, w: Tensor, probe: ModuleType | None) -> list[Peer]:
    """Those that can serve a case; one that cannot be made is told and left out."""
    made: list[Peer] = []
    for name, serves, make in TABLE:
        if serves(case) and (not name.startswith("probe") or probe is not None):
            with run.peer(f"{case.name} {name}"):
                made += make(x, w, probe)
    return made


def _rows(x: Tensor, w: Tensor, _: Any) -> list[Peer]:
    found = x.ne(0).any(1).nonzero()[:, 0]

    def select(rows: Tensor | None = None) -> Tensor:
        at = x.ne(0).any(1).nonzero()[:, 0] if rows is None else rows
        part = functional.linear(x.index_select(0, at), w)
        return x.new_zeros(x.shape[0], w.shape[0]).index_copy_(0, at, part)

    inside = Peer("select", select, waits=True)
    return [inside, Peer("select", lambda: select(found), given=True)]


def _grouped_rows(x: Tensor, w: Tensor, _: Any) -> list[Peer]:
    return [Peer("grouped", lambda: _grouped(x, w))]


def _rows_probe(x: Tensor, w: Tensor, probe: Any) -> list[Peer]:
    found = x.ne(0).any(1).nonzero()[:, 0]
    tiles = TILES if found.numel() >= 1024 else FEW
    launch, out = probes.rows_matmul(probe, x, w.t().contiguous(), found.int(), tiles)
    return [Peer("probe", _into(launch, out), given=True, rows=found)] if found.numel() else []


def _grouped(x: Tensor, w: Tensor) -> Tensor:
    """Rows that are there in front; the rest of the product is left out by the group's end."""
    there = x.ne(0).any(1)
    order = there.logical_not().byte().argsort(stable=True)
    end = there.sum(dtype=torch.int32)[None]
    part = torch._grouped_mm(x.index_select(0, order), w.t()[None], offs=end)
    part = torch.where(there.index_select(0, order)[:, None], part, 0)
    return torch.empty_like(part).index_copy_(0, order, part)


def _columns(x: Tensor, w: Tensor, _: Any) -> list[Peer]:
    found = x.ne(0).any(0).nonzero()[:, 0]

    def select(columns: Tensor | None = None) -> Tensor:
        at = x.ne(0).any(0).nonzero()[:, 0] if columns is None else columns
        return functional.linear(x.index_select(1, at), w.index_select(1, at))

    inside = Peer("select", select, waits=True)
    return [inside, Peer("select", lambda: select(found), given=True)]


def _csr(x: Tensor, w: Tensor, _: Any) -> list[Peer]:
    with _quiet():
        held = x.to_sparse_csr()
    inside = Peer("csr", lambda: x.to_sparse_csr() @ w.t(), waits=True)
    return [inside, Peer("csr", lambda: held @ w.t(), given=True, waits=True)]


def _bsr(x: Tensor, w: Tensor, _: Any) -> list[Peer]:
    with _quiet():
        held = x.to_sparse_bsr(BLOCK)
    inside = Peer("bsr", lambda: x.to_sparse_bsr(BLOCK) @ w.t(), waits=True)
    return [inside, Peer("bsr", lambda: held @ w.t(), given=True, waits=True)]


def _k_probe(x: Tensor, w: Tensor, probe: Any) -> list[Peer]:
    """x written k-major, and the lists of each 64 rows, are given."""
    rows = K_TILES["bm"]
    there = x.view(-1, rows, x.shape[1]).ne(0).any(1)
    ends = functional.pad(there.sum(1).cumsum(0), (1, 0)).int()
    columns = there.nonzero()[:, 1].int()
    launch, out = probes.k_matmul(
        probe, x.t().contiguous(), ends, columns, w.t().contiguous(), K_TILES
    )
    return [Peer("probe", _into(launch, out), given=True)]


def _into(launch: Fn, out: Tensor) -> Fn:
    def call() -> Tensor:
        launch()
        return out

    return call


@contextmanager
def _quiet() -> Iterator[None]:
    """Without "CSR support is in beta"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _whole(case: Case) -> bool:
    """Whether probes, which mask nothing, take the sizes."""
    return case.dtype == "bf16" and case.m % 64 == 0 and case.n % 256 == 0 and case.k % 64 == 0


# name, which cases it serves, what makes its calls
TABLE: tuple[
    tuple[str, Callable[[Case], bool], Callable[[Tensor, Tensor, Any], list[Peer]]], ...
] = (
    ("select", lambda c: c.granularity == "row", _rows),
    ("grouped", lambda c: c.granularity == "row" and c.dtype == "bf16", _grouped_rows),
    ("select", lambda c: c.granularity == "column", _columns),
    ("bsr", lambda c: c.granularity == "32x64" and c.sparsity >= 0.5, _bsr),
    ("csr", lambda c: c.granularity in ("1x1", "32x1") and c.sparsity >= CONVERTED, _csr),
    ("probe rows", lambda c: c.granularity == "row" and _whole(c), _rows_probe),
    ("probe k", lambda c: c.granularity in ("8x1", "16x1", "32x1") and _whole(c), _k_probe),
)
