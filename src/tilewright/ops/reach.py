"""Numbers that a caller gives as places: whether they stay inside what they number.

In: a program's inputs by name. Out: nothing, or the error that names the first place outside. On a CPU every call is
asked, since a kernel would write beside its arrays; on a GPU only with TILEWRIGHT_CHECK=1, since that waits.

    y[rows[m], n] = sum(k, x[rows[m], k] * w[n, k])      rows: 0 <= rows[m] < x.shape[0]
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilewright.ir.coord import Assign, Index
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.ops.backend import backend_of
from tilewright.ops.library import eager, ordinary
from tilewright.ops.registry import TEMPLATES
from tilewright.support import knobs
from tilewright.support.errors import error


class Reach(NamedTuple):
    """A table, what it numbers, and along which dimension; below: how many of its entries count, if not all do."""

    table: str
    of: str
    dim: int
    tile: int = 1
    below: str | None = None


def check_reach(program: str, given: Mapping[str, Any], where: str) -> None:
    """Every table of a program that is among its inputs."""
    for r in _reaches(program):
        table, of = given.get(r.table), given.get(r.of)
        if isinstance(table, Tensor) and isinstance(of, Tensor) and r.dim < of.dim():
            below = None if r.below is None else given.get(r.below)
            check_places(table, -(-of.shape[r.dim] // r.tile), r.table, where, below)


def check_places(
    table: Tensor, size: int, name: str, where: str, below: Tensor | None = None
) -> None:
    """The entries of a table that count are numbers from 0 to size - 1."""
    if not eager() or not ordinary((table,)):
        return
    if table.numel() == 0 or not (backend_of(table.device) == "c" or knobs.check()):
        return
    if below is not None:
        counted = torch.arange(table.shape[-1], device=table.device) < below[..., None]
        table = table[counted.reshape(table.shape)]
    if table.numel():
        low, high = (int(n) for n in table.aminmax())
        if low < 0 or high >= size:
            got = low if low < 0 else high
            raise error("index-range", where=where, name=name, got=got, expected=size - 1)


@functools.cache
def _reaches(program: str) -> tuple[Reach, ...]:
    traced = TEMPLATES[program].traced
    found: dict[Reach, None] = {}
    for s in traced.body:
        if not isinstance(s, Assign):
            continue
        lists = {n.index: n for n in s.listed}
        for a in (n for n in walk((s.targets, s.values)) if isinstance(n, Load)):
            if a.buffer.name not in traced.inputs:
                continue
            for dim, ix in enumerate(a.indices):
                if isinstance(ix, Load) and ix.buffer.name in traced.inputs:
                    found[Reach(ix.buffer.name, a.buffer.name, dim)] = None
                elif isinstance(ix, Index) and ix in lists:
                    n = lists[ix]
                    below = None if n.below is None else n.below.buffer.name
                    found[Reach(n.at.buffer.name, a.buffer.name, dim, n.tile, below)] = None
    return tuple(found)
