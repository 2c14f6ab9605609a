"""What the interpreters refuse: reads outside, double stores, wrong tile shapes, dirty counters, rounding."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Case, spmm, work_units
from sketches.words import (
    buffer,
    floats,
    fold,
    grid,
    init,
    ints,
    lane,
    let,
    load,
    program,
    publish,
    serial,
    store,
    where,
)

from tilewright.ir import stmt, tile
from tilewright.ir.expr import Bin, Buffer, Const, LaneReduce, LaneScan, Var, cast, const
from tilewright.ir.interp import evaluate, run_flat, run_loops, run_tile, to_bf16
from tilewright.ir.loops import For, Lookup
from tilewright.ir.loops import Program as LoopProgram
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.schedule.loop import kind, split
from tilewright.schedule.work import work_list

(N,) = ints("n")
X, Y = buffer("x", "f32", N), buffer("y", "f32", N, role="out")
I, J, S = ints("i j s")
(ACC,) = floats("acc")
DATA = {"x": np.arange(5, dtype=np.float32)}


def flat_y(*body: stmt.Stmt, n: int = 5, **more: object) -> np.ndarray:
    return run_flat(program("t", [X, Y], *body), {"x": np.arange(n)}, {"n": n}, **more)["y"]


# --- stage III ----------------------------------------------------------------------------------------


def test_a_read_outside_names_its_statement() -> None:
    with pytest.raises(IndexError, match=r"x\[5\] is outside 5 in: x\[i \+ 1\] of y\[i\] = "):
        flat_y(grid(I, N, store(Y, I, load(X, I + 1))))


def test_a_write_outside_raises() -> None:
    with pytest.raises(IndexError, match="y"):
        flat_y(lane(I, 8, where(I < N, let(ACC, load(X, I))), store(Y, I, ACC)))


def test_masked_lanes_read_zero_and_write_nothing() -> None:
    got = flat_y(lane(I, 8, where(I < 3, let(ACC, load(X, I) + 1.0), store(Y, I, ACC))))
    np.testing.assert_array_equal(got, [1, 2, 3, np.nan, np.nan])


def test_two_values_for_one_element_raise() -> None:
    with pytest.raises(ValueError, match="two values"):
        flat_y(lane(I, 4, store(Y, 0, load(X, I))))


def test_one_value_may_be_stored_by_many_lanes() -> None:
    assert flat_y(lane(I, 4, store(Y, 0, load(X, 2))))[0] == 2


def test_a_mask_over_other_lanes_does_not_widen_a_store() -> None:
    assert flat_y(lane(I, 4, where(I < 2, store(Y, 0, load(X, 2)))))[0] == 2


def test_lanes_opened_after_init_are_folded_in_order() -> None:
    got = flat_y(
        init("sum", ACC), lane(I, 4, where(I < 3, fold("sum", ACC, load(X, I)))), store(Y, 0, ACC)
    )
    assert got[0] == 3


def test_lanes_opened_before_init_are_kept() -> None:
    body = lane(
        I, 5, init("sum", ACC), serial(J, 0, 2, fold("sum", ACC, load(X, I))), store(Y, I, ACC)
    )
    np.testing.assert_array_equal(flat_y(body), [0, 2, 4, 6, 8])


def test_lane_reductions_and_scans() -> None:
    total = LaneReduce("sum", (I,), load(X, I))
    body = lane(I, 4, store(Y, I, LaneScan("sum", I, load(X, I)) + total))
    np.testing.assert_array_equal(flat_y(body)[:4], [6, 7, 9, 12])


def test_a_reduction_over_a_lane_the_value_lacks_counts_it() -> None:
    assert flat_y(lane(I, 4, store(Y, 0, LaneReduce("sum", (I,), load(X, 2)))))[0] == 8


def test_bounds_may_not_differ_from_lane_to_lane() -> None:
    with pytest.raises(ValueError, match="differs from lane to lane"):
        flat_y(lane(I, 4, serial(J, 0, I, store(Y, I, 0.0))))


def test_a_grid_loop_may_not_carry_a_state() -> None:
    with pytest.raises(ValueError, match="grid loop carries"):
        flat_y(init("sum", ACC), grid(I, N, fold("sum", ACC, load(X, I))))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_pieces_are_combined_in_index_order(order: str) -> None:
    """1e8 + 1 - 1e8 depends on the order in f32; the result must not."""
    x = np.float32([1e8, 1, -1e8, 0, 0])
    u = Var("u")
    body = grid(
        u,
        3,
        init("sum", ACC),
        fold("sum", ACC, load(X, u)),
        publish("sum", ACC, 0, u, 3, store(Y, 0, ACC)),
    )
    got = run_flat(program("t", [X, Y], body), {"x": x}, {"n": 5}, order=order, seed=3)
    assert got["y"][0] == np.float32(1e8) + np.float32(1) - np.float32(1e8)


def test_a_missing_piece_raises() -> None:
    u = Var("u")
    with pytest.raises(ValueError, match="2 of 3 pieces"):
        flat_y(grid(u, 2, init("sum", ACC), publish("sum", ACC, 0, u, 3, store(Y, 0, ACC))))


def test_a_dropped_guard_is_seen() -> None:
    """A split that forgets its guard reads past the end."""
    case = spmm([[0], [1]], 3, 5)
    position = lower_to_position(case.program)
    wrong = kind(split(lower_to_flat(position, {"n_f": 4}), "f", 4), "f_i", "lane")
    with pytest.raises((IndexError, ValueError)):
        run_flat(*case.at(wrong))


def test_a_wrong_work_list_is_seen() -> None:
    """A unit that is left out leaves its rows poisoned."""
    case = spmm([[0], [1], [2]], 3, 4)
    arrays, sizes = work_units(case.arrays["a_indptr"], 2, 8, 8)
    fewer = {name: array[:-1] for name, array in arrays.items()}
    short: Case = case.having(fewer, {**sizes, "n_units": 1})
    got = run_flat(
        *short.at(
            work_list(
                kind(lower_to_flat(lower_to_position(case.program)), "f", "grid"), "i", "p_j", 2
            )
        )
    )
    assert np.isnan(got["y"]).any()


# --- stage II -----------------------------------------------------------------------------------------


def test_lookup_misses_with_minus_one() -> None:
    keys = buffer("keys", "i32", N)
    out = buffer("y", "i64", N, role="out")
    found = Lookup(keys, const(0), N, I)
    p = LoopProgram(
        "t", (keys, out), (N,), (), (For(I, const(0), N, (stmt.Store(out, (I,), found),)),)
    )
    assert run_loops(p, {"keys": np.int32([1, 3, 4, 9])}, {"n": 4})["y"].tolist() == [-1, 0, -1, 1]


# --- tile form ----------------------------------------------------------------------------------------

V, W = floats("v w")
RANGE = tile.Arange("r")


def tiles(
    *body: tile.Stmt, dims: dict[str, int], types: dict[Var, tuple[str, ...]], n: int = 8
) -> np.ndarray:
    """y after one program over buffers x and y of n elements."""
    p = tile.Program(
        "t", (X, Y), (N,), (), tuple(dims.items()), tuple(types.items()), const(1), body
    )
    return run_tile(p, {"x": np.arange(n)}, {"n": n})["y"]


def tile_load(at: object, mask: object = None) -> tile.Load:
    return tile.Load(X, (at,), mask, Const(0.0, "f32"))  # type: ignore[arg-type]


def test_tiles_load_and_store() -> None:
    got = tiles(
        tile.Set(V, tile_load(RANGE)),
        tile.Store(Y, (RANGE,), Bin("*", V, V), Bin("<", RANGE, const(3))),
        dims={"r": 8},
        types={V: ("r",)},
    )
    np.testing.assert_array_equal(got, [0, 1, 4, *[np.nan] * 5])


def test_a_wrong_tile_shape_raises() -> None:
    with pytest.raises(ValueError, match=r"v is declared \('r', 'c'\) but has shape \(8,\)"):
        tiles(tile.Set(V, tile_load(RANGE)), dims={"r": 8, "c": 4}, types={V: ("r", "c")})


def test_a_variable_that_is_set_again_keeps_its_dtype() -> None:
    first, again = (tile.Full(Const(0.0, d), d, ("r",)) for d in ("f32", "f64"))
    with pytest.raises(ValueError, match="v is f32 and is set again to f64"):
        tiles(tile.Set(V, first), tile.Set(V, again), dims={"r": 8}, types={V: ("r",)})


def test_tiles_of_different_rank_do_not_meet() -> None:
    wide = tile.Full(Const(0.0, "f32"), "f32", ("c", "r"))
    with pytest.raises(ValueError, match="meet"):
        tiles(tile.Set(V, Bin("+", wide, tile_load(RANGE))), dims={"r": 8, "c": 4}, types={})


def test_dims_are_powers_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        tiles(dims={"r": 6}, types={})


def test_a_small_dot_raises() -> None:
    square = tile.Full(Const(1.0, "f32"), "f32", ("r", "c"))
    with pytest.raises(ValueError, match="a dot of"):
        tiles(tile.Set(V, tile.Dot(square, square, None, "f32")), dims={"r": 8, "c": 8}, types={})


def test_a_mask_larger_than_its_pointers_raises() -> None:
    with pytest.raises(ValueError, match="a mask of shape"):
        tiles(tile.Set(V, tile_load(const(0), Bin("<", RANGE, const(3)))), dims={"r": 8}, types={})


def test_what_a_loop_sets_first_is_gone_after_it() -> None:
    body = tile.For(I, const(0), const(2), (tile.Set(V, tile_load(I)),))
    with pytest.raises(KeyError, match="v is used before it is set"):
        tiles(body, tile.Store(Y, (const(0),), V, None), dims={}, types={})


def test_what_a_loop_carries_is_kept() -> None:
    body = tile.For(I, const(0), const(4), (tile.Set(V, Bin("+", V, tile_load(I))),))
    got = tiles(
        tile.Set(V, Const(0.0, "f32")),
        body,
        tile.Store(Y, (const(0),), V, None),
        dims={},
        types={V: ()},
    )
    assert got[0] == 6


def test_a_counter_left_over_raises() -> None:
    done = Buffer("done", "i32", (const(1),), "counter")
    body = (tile.Arrive(I, done, const(0)),)
    with pytest.raises(ValueError, match="done is not zero"):
        run_tile(tile.Program("t", (done,), (), (), (), (), const(2), body), {}, {})


def test_fetch_add_returns_what_was_there() -> None:
    count = Buffer("count", "i32", (const(1),), "out")
    out = Buffer("y", "i32", (const(3),), "out")
    body = (
        tile.FetchAdd(I, count, const(0), const(2)),
        tile.Store(out, (Bin("//", I, const(2)),), cast("i32", I), None),
    )
    p = tile.Program("t", (count, out), (), (), (), (), const(3), body)
    got = run_tile(p, {}, {}, zeroed=("count",))
    assert (got["count"].tolist(), got["y"].tolist()) == ([6], [0, 2, 4])


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_the_last_claim_leaves_the_count(order: str) -> None:
    came, count = (
        Buffer("came", "i64", (const(1),), "counter"),
        Buffer("count", "i32", (const(1),), "out"),
    )
    out = Buffer("y", "i32", (const(3),), "out")
    body = (
        tile.Claim(I, came, count, const(2)),
        tile.Store(out, (Bin("//", I, const(2)),), cast("i32", I), None),
    )
    p = tile.Program("t", (came, count, out), (), (), (), (), const(3), body)
    got = run_tile(p, {}, {}, order=order)
    assert (got["count"].tolist(), got["y"].tolist()) == ([6], [0, 2, 4])


# --- numbers ------------------------------------------------------------------------------------------


def test_bf16_rounds_to_nearest_even() -> None:
    one, step = 1.0, 2.0**-7
    given = np.float32([one + step / 2, one + 3 * step / 2, one + step * 0.51, -np.inf, 3.4e38])
    np.testing.assert_array_equal(
        to_bf16(given), np.float32([one, one + 2 * step, one + step, -np.inf, np.inf])
    )
    assert np.isnan(to_bf16(np.float32(np.nan)))


def test_stores_round_once() -> None:
    out = buffer("y", "bf16", N, role="out")
    p = program("t", [X, out], lane(I, 4, store(out, I, load(X, I) * 0.1)))
    got = run_flat(p, {"x": np.arange(4)}, {"n": 4})["y"]
    np.testing.assert_array_equal(got, to_bf16(np.arange(4, dtype=np.float32) * np.float32(0.1)))


def test_sizes_are_evaluated_by_name() -> None:
    assert evaluate((N + 127) // 128 * 3, {"n": 130}) == 6
