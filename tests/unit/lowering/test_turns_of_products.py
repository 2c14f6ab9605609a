"""Loops of products: those over a whole dimension are asked first whether they have a turn."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tilewright.formats.bind import bind
from tilewright.formats.storage import Spec
from tilewright.ir import tile
from tilewright.ir.node import walk
from tilewright.language.trace import trace
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.pit.compact import compact
from tilewright.schedule.default_triton import schedule_triton

TILES = {"bm": 64, "bn": 64, "bk": 32}


def product(x: Any, w: Any, y: Any) -> None:
    i, n, k = tw.axes("i n k")
    y[i, n] = tw.sum(k, x[i, k] * w[n, k])


def total(x: Any, y: Any) -> None:
    i, k = tw.axes("i k")
    y[i] = tw.sum(k, x[i, k])


def lowered(t: Any, dtype: str) -> tile.Program:
    ranks = {"i_list": 1, "i_count": 1, "k_list": 2, "k_count": 1}
    specs = {n: Spec("dense", "i32" if n in ranks else dtype, ranks.get(n, 2)) for n in t.inputs}
    p = lower_to_flat(lower_to_position(bind(t, specs).program))
    return lower_to_tile(schedule_triton(p, TILES).program)


def asked(p: tile.Program) -> bool:
    """Whether a loop of products stands in a branch of its own, with what was moved out of it."""
    branches = [n.then for n in walk(p.body) if isinstance(n, tile.If)]
    alone = [b for b in branches if not any(isinstance(n, tile.Store) for n in walk(b))]
    made = [s for b in alone for s in b if isinstance(s, tile.For)]
    return any(isinstance(n, tile.Dot) for s in made for n in walk(s.body))


@pytest.mark.parametrize("axis", ["", "i"])
def test_whole_dimensions_are_asked(axis: str) -> None:
    made = compact(trace(product), axis, "x") if axis else trace(product)
    assert asked(lowered(made, "bf16"))


def test_lists_and_sums_without_products_are_not() -> None:
    assert not asked(lowered(compact(trace(product), "k", "x", 1, ("i", 64)), "bf16"))
    assert not asked(lowered(trace(total), "bf16"))
