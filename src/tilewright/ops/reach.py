"""Numbers that a caller gives as places: whether they stay inside what they number.

In: a program's inputs by name. Out: nothing, or the error that names the first place outside. On a CPU eager calls
are asked, since a kernel would write beside its arrays; on a GPU only with TILEWRIGHT_CHECK=1, since that waits.

    y[rows[m], n] = sum(k, x[rows[m], k] * w[n, k])      rows: 0 <= rows[m] < x.shape[0]
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ir.coord import Assign, Index
from tilewright.ir.expr import Bin, Const, Expr, Load
from tilewright.ir.node import walk
from tilewright.ops.backend import backend_of
from tilewright.ops.library import eager, ordinary
from tilewright.ops.registry import TEMPLATES
from tilewright.support import knobs
from tilewright.support.errors import error


class Reach(NamedTuple):
    """A table, what it numbers, and along which dimension; plus: what is added to its entries; below: how many of them
    count, if not all do, at which place (-1: one for each group)."""

    table: str
    of: str
    dim: int
    tile: int = 1
    plus: int = 0
    below: str | None = None
    nth: int = -1


def check_reach(program: str, given: Mapping[str, Any], where: str) -> None:
    """Every table of a program that is among its inputs, and every number that stands for an index."""
    for name, dim, n in _numbers(program):
        shape = given[name].shape
        if dim < len(shape) and not 0 <= n < shape[dim]:
            expected = f"an index of dimension {dim}, from 0 to {shape[dim] - 1}"
            raise error("argument", where=where, name=f"index of {name}", got=n, expected=expected)
    for r in _reaches(program):
        table, of = given.get(r.table), given.get(r.of)
        table = table.values if isinstance(table, SparseTensor) else table
        if isinstance(table, Tensor) and isinstance(of, Tensor) and r.dim < of.dim():
            below = None if r.below is None else given.get(r.below)
            if below is not None and r.nth >= 0:
                below = below[r.nth : r.nth + 1]
            size = -(-of.shape[r.dim] // r.tile)
            check_places(table, size, r.table, where, below, r.plus)


def check_places(
    table: Tensor, size: int, name: str, where: str, below: Tensor | None = None, plus: int = 0
) -> None:
    """The entries of a table that count, and what is added to them, are numbers from 0 to size - 1."""
    if not _asked(table):
        return
    if below is not None:
        if not below.numel():
            return
        counted = torch.arange(table.shape[-1], device=table.device) < below[..., None]
        table = table[counted.reshape(table.shape)]
    if table.numel():
        low, high = (int(n) + plus for n in table.aminmax())
        if low < 0 or high >= size:
            got = low if low < 0 else high
            raise error("index-range", where=where, name=name, got=got, expected=size - 1)


def check_distinct(table: Tensor, size: int, name: str, where: str) -> None:
    """The entries of a table, which are inside, name nothing twice."""
    if not _asked(table):
        return
    seen = torch.zeros(size, dtype=torch.bool, device=table.device).index_fill_(
        0, table.long(), True
    )
    if int(seen.sum()) != table.numel():
        expected = "distinct numbers: one that comes twice would count twice in gradients"
        raise error("argument", where=where, name=name, got="a number twice", expected=expected)


def _asked(table: Tensor) -> bool:
    """Whether a table that a caller gave is looked at."""
    if not eager() or not ordinary((table,)) or table.numel() == 0:
        return False
    return backend_of(table.device) == "c" or knobs.check()


@functools.cache
def _numbers(program: str) -> tuple[tuple[str, int, int], ...]:
    """Inputs that are read at a number: x[i, 0]."""
    traced = TEMPLATES[program].traced
    loads = (n for n in walk(traced.body) if isinstance(n, Load))
    return tuple(
        {
            (a.buffer.name, dim, int(ix.value)): None
            for a in loads
            if a.buffer.name in traced.inputs
            for dim, ix in enumerate(a.indices)
            if isinstance(ix, Const)
        }
    )


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
                at, plus = _table(ix)
                if at is not None and at.buffer.name in traced.inputs:
                    found[Reach(at.buffer.name, a.buffer.name, dim, plus=plus)] = None
                elif isinstance(ix, Index) and ix in lists:
                    n = lists[ix]
                    below, nth = None, -1
                    if n.below is not None:
                        below, which = n.below.buffer.name, n.below.indices[0]
                        nth = int(which.value) if isinstance(which, Const) else -1
                    found[Reach(n.at.buffer.name, a.buffer.name, dim, n.tile, 0, below, nth)] = None
    return tuple(found)


def _table(e: Expr) -> tuple[Load | None, int]:
    """idx[m] -> idx[m], 0;  idx[m] + 3 -> idx[m], 3;  all else -> None"""
    match e:
        case Load():
            return e, 0
        case Bin("+" | "-" as op, Load() as at, Const(value)):
            return at, int(value) if op == "+" else -int(value)
    return None, 0
