"""One program through all stages: the four interpreters agree with each other and with NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import (
    Case,
    attention,
    block_product,
    ragged_sums,
    sddmm,
    spmm,
    work_units,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir import flat, tile
from tilewright.ir.interp import run_coord, run_flat, run_loops, run_tile
from tilewright.ir.node import walk
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.schedule.loop import kind, lane, order, split, swizzle
from tilewright.schedule.reduce import rfactor
from tilewright.schedule.work import pad, work_list

Schedule = Callable[[flat.Program], flat.Program]
LANES, LONG, CHUNK = 4, 8, 12
ROWS = [[0, 2], [], [1, 1, 5], [3], [j % 7 for j in range(40)], [], [4, 0]]
MONOIDS = ["sum", "max", "mean", "softmax_sum", "logsumexp"]


def agree(got: dict[str, np.ndarray], case: Case) -> None:
    for name, want in case.want.items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def flat_of(case: Case) -> flat.Program:
    return lower_to_flat(lower_to_position(case.program))


def check_scalar(case: Case) -> None:
    """Stages I, II and III without a schedule."""
    position = lower_to_position(case.program)
    agree(run_coord(*case.args), case)
    agree(run_loops(*case.at(position)), case)
    agree(run_flat(*case.at(lower_to_flat(position))), case)


def check_scheduled(case: Case, schedule: Schedule) -> tile.Program:
    """Stage III with a schedule and tile form, programs in several orders."""
    made = schedule(flat_of(case))
    tiles = lower_to_tile(made)
    for how in ("forward", "random"):
        agree(run_flat(*case.at(made), order=how), case)
        agree(run_tile(*case.at(tiles), order=how), case)
    return tiles


def units(case: Case, lanes: int = LANES) -> Case:
    return case.having(*work_units(case.arrays["a_indptr"], lanes, LONG, CHUNK))


def feature_tiles(p: flat.Program, width: int) -> flat.Program:
    return kind(kind(split(p, "f", width), "f_o", "grid"), "f_i", "lane")


def by_row(p: flat.Program) -> flat.Program:
    return kind(feature_tiles(p, 32), "i", "grid")


def by_entry_lanes(p: flat.Program) -> flat.Program:
    made = kind(split(feature_tiles(p, 16), "p_j", 8), "p_j_i", "lane")
    return kind(made, "i", "grid")


def padded(p: flat.Program) -> flat.Program:
    return pad(feature_tiles(p, 32), "i", "p_j", LANES, 2)


def listed(p: flat.Program) -> flat.Program:
    return work_list(feature_tiles(p, 16), "i", "p_j", LANES, 2)


@pytest.mark.parametrize("monoid", MONOIDS)
def test_product_unscheduled(monoid: str) -> None:
    check_scalar(spmm(ROWS, 9, 5, monoid))


@pytest.mark.parametrize("monoid", MONOIDS)
@pytest.mark.parametrize("schedule", [by_row, by_entry_lanes, padded], ids=lambda s: s.__name__)
def test_product(schedule: Schedule, monoid: str) -> None:
    check_scheduled(spmm(ROWS, 9, 33, monoid), schedule)


@pytest.mark.parametrize("monoid", ["sum", "max", "mean"])
@pytest.mark.parametrize("lanes", [1, 4, 6])
def test_product_by_units(lanes: int, monoid: str) -> None:
    case = units(spmm(ROWS, 9, 33, monoid), lanes)
    check_scheduled(case, lambda p: work_list(feature_tiles(p, 16), "i", "p_j", lanes, 2))


@pytest.mark.parametrize("monoid", ["softmax_sum", "logsumexp"])
def test_dependent_states_by_units_in_stage_three(monoid: str) -> None:
    case = units(spmm(ROWS, 9, 33, monoid))
    agree(run_flat(*case.at(listed(flat_of(case))), order="random"), case)


@pytest.mark.parametrize("monoid", ["sum", "max", "mean"])
def test_product_with_lanes_joined_once(monoid: str) -> None:
    check_scheduled(spmm(ROWS, 9, 33, monoid), lambda p: rfactor(by_entry_lanes(p), "p_j_i"))


def test_grid_order_and_swizzle() -> None:
    case = units(spmm(ROWS, 9, 33))
    check_scheduled(case, lambda p: order(listed(p), "f_o", "u"))
    check_scheduled(case, lambda p: swizzle(kind(feature_tiles(p, 8), "i", "grid"), 3))


@pytest.mark.parametrize("width", [1, 33, 48])
@pytest.mark.parametrize("lanes", [48, 64])
def test_lanes_wider_than_the_extent(width: int, lanes: int) -> None:
    check_scheduled(spmm(ROWS, 9, width), lambda p: kind(lane(p, "f", lanes), "i", "grid"))


def entries_and_depth(p: flat.Program) -> flat.Program:
    p = kind(kind(split(p, "p_i", 8), "p_i_o", "grid"), "p_i_i", "lane")
    return kind(split(p, "k", 16), "k_i", "lane")


def test_sampled_product() -> None:
    check_scalar(sddmm(ROWS, 9, 5))
    case = sddmm(ROWS, 9, 33)
    check_scheduled(case, entries_and_depth)
    check_scheduled(case, lambda p: rfactor(entries_and_depth(p), "k_i"))


def block_lanes(p: flat.Program) -> flat.Program:
    p = kind(feature_tiles(p, 32), "I", "grid")
    return kind(kind(p, "ii", "lane"), "kk", "lane")


@pytest.mark.parametrize("shape", [(48, 32), (40, 40)])
def test_block_product_is_a_dot(shape: tuple[int, int]) -> None:
    made = check_scheduled(block_product([[0, 1], [], [1]], shape, 16, 33), block_lanes)
    assert any(isinstance(n, tile.Dot) for n in walk(made.body))


def test_small_block_product() -> None:
    case = block_product([[0, 1], [], [1]], (11, 7), 4, 3)
    check_scalar(case)
    made = check_scheduled(case, block_lanes)
    assert not any(isinstance(n, tile.Dot) for n in walk(made.body))


def test_ragged_rows() -> None:
    case = ragged_sums([3, 0, 20, 1, 0, 7])
    check_scalar(case)
    check_scheduled(case, lambda p: pad(p, "i", "p_j", LANES, 2))
    check_scheduled(units(case), lambda p: work_list(p, "i", "p_j", LANES, 2))


def attention_lanes(p: flat.Program) -> flat.Program:
    p = kind(kind(kind(p, "I", "grid"), "ii", "lane"), "jj", "lane")
    return lane(lane(p, "e", 32), "d", 32)


def test_attention() -> None:
    check_scalar(attention([[0, 1], [], [1]], (10, 7), (4, 4), 3, 2))
    made = check_scheduled(
        attention([[0, 1], [], [1]], (40, 40), (16, 16), 24, 20), attention_lanes
    )
    assert sum(isinstance(n, tile.Dot) for n in walk(made.body)) == 2


@st.composite
def structures(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Rows with duplicates and empty ones, at times none at all, at times one giant."""
    columns = draw(st.integers(1, 9))
    cell = st.integers(0, columns - 1)
    rows = draw(st.lists(st.lists(cell, max_size=5), min_size=1, max_size=9))
    if draw(st.booleans()):
        rows[draw(st.integers(0, len(rows) - 1))] = draw(st.lists(cell, min_size=25, max_size=60))
    return rows, columns


@settings(max_examples=25)
@given(structures(), st.sampled_from([1, 33, 48]), st.sampled_from(["sum", "max", "mean"]))
def test_any_structure(drawn: tuple[list[list[int]], int], width: int, monoid: str) -> None:
    case = units(spmm(*drawn, width, monoid))
    check_scheduled(case, listed)
    check_scheduled(case, padded)


@settings(max_examples=10)
@given(structures(), st.sampled_from(MONOIDS))
def test_any_structure_unscheduled(drawn: tuple[list[list[int]], int], monoid: str) -> None:
    check_scalar(spmm(*drawn, 3, monoid))


@settings(max_examples=15)
@given(structures(), st.sampled_from([1, 33, 48]))
def test_any_sampled_product(drawn: tuple[list[list[int]], int], depth: int) -> None:
    check_scheduled(sddmm(*drawn, depth), lambda p: rfactor(entries_and_depth(p), "k_i"))
