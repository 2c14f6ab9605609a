"""Each primitive on small programs: every executor that takes it agrees with NumPy; what is illegal says why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import numbers
from ops.places import INTERPRETER
from schedule.draws import case_of, rows_linear
from schedule.judge import PLACES, judged

from tilewright import driver
from tilewright.codegen.c import emit_c
from tilewright.ir import flat, stmt
from tilewright.ir.interp import run_flat
from tilewright.ir.node import substitute
from tilewright.ir.parse import parse
from tilewright.lowering.tiles import lower_to_tile
from tilewright.schedule.edit import edit, find
from tilewright.schedule.record import Schedule, apply, parse_steps
from tilewright.support.errors import ScheduleError

ALL = frozenset(PLACES)
TILE = {"tile", "triton"}
TILED = (
    "split(i, 4); kind(i_i, lane); kind(i_o, grid); split(n, 8); kind(n_i, lane); kind(n_o, grid)"
)
HALVES = (
    "split(r, 2); kind(r_i, lane); kind(r_o, grid); split(o, 2); kind(o_i, lane); kind(o_o, grid)"
)
LANES = "lane(k, 16); lane(l, 16); lane(k1, 16)"
QUERY = "lane(ii, 16); lane(e, 16); lane(jj, 16); lane(d, 16)"
WIDE = "lane(d, 16); lane(e, 16); kind(jj, lane); kind(ii, lane)"
TAKEN = [
    # program, steps, executors
    ("spmm-sum", "fuse(i, f); kind(i_f, grid)", ALL),
    ("spmm-max", "fuse(i, f); split(i_f, 4); kind(i_f_o, grid)", ALL),
    ("bsr", "fuse(I, ii); kind(I_ii, grid)", ALL),
    ("rows-linear", "fuse(r, o); split(r_o, 8); kind(r_o_i, lane); kind(r_o_o, grid)", ALL),
    ("spmm-sum", "unroll(p_j, 2); kind(i, grid); lane(f, 16)", ALL),
    ("spmm-mean", "unroll(f, 2); unroll(p_j, 3)", ALL),
    ("sddmm", "jam(p_i, 2)", ALL),
    ("sddmm", "lane(k, 16); jam(p_i, 4)", ALL),
    ("spmm-max", "jam(i, 3)", ALL),
    ("rows-linear", "jam(r, 2); jam(o, 4)", ALL),
    ("spmm-sum", "kind(i, grid); jam(f, 2)", ALL),
    ("softmax", "kind(i, grid); jam(f, 2)", ALL),
    ("bsr", "unroll(kk, 2); kind(I, grid); kind(ii, lane)", ALL),
    ("bsr", "kind(ii, grid); lane(f, 16); lane(kk, 16); pad(I, p_K, 4, 2)", ALL - {"c"}),
    ("bsr", "trim(ii); trim(kk); jam(ii, 2); kind(I, grid); lane(f, 16)", ALL),
    ("micro-tiles", "trim(p_in); trim(q_in)", {"flat", "c"}),
    ("softmax", "unroll(p_j, 4); kind(i, grid)", ALL),
    ("spmm-sum", "kind(i, grid); persistent(i, 2); lane(f, 16)", ALL),
    ("spmm-sum", "kind(i, grid); persistent(i, 64)", ALL),
    ("spmm-sum", "kind(i, grid); balance(a_indptr)", ALL - TILE),
    (
        "spmm-max",
        "split(f, 2); kind(f_i, lane); kind(i, grid); kind(f_o, grid); balance(a_indptr)",
        ALL - TILE,
    ),
    ("two-outputs", "kind(i, grid); kind(i1, grid); balance(a_indptr)", ALL - TILE),
    ("spmm-sum", "visit(i, a_indices)", ALL),
    ("spmm-max", "visit(i, a_indices); kind(i_v, grid); lane(f, 16)", ALL),
    ("softmax", "kind(i, grid); visit(i, a_indices); split(f, 2); kind(f_i, lane)", ALL),
    ("spmm-mean", "visit(i, a_indices); kind(i_v, grid); balance(visit_begin)", ALL - TILE),
    ("spmm-sum", "visit(i, a_indices); prefetch(p_j_v, 2); lane(f, 16)", ALL - TILE),
    ("spmm-sum", "lane(f, 16); visit(i, a_indices); pad(i_v, p_j_v, 4, 2)", ALL - {"c"}),
    ("two-products", "visit(i, a_indices); kind(i_v, grid)", ALL - TILE),
    ("spmm-sum", "prefetch(p_j, 2); kind(i, grid); lane(f, 16)", ALL - TILE),
    ("sddmm", "prefetch(p_i, 3); split(k, 4); kind(k_i, lane)", ALL - TILE),
    ("spmm-sum", "jam(f, 3); prefetch(p_j, 2)", ALL - TILE),
    ("sddmm", "split(p_i, 4); kind(p_i_i, lane); kind(p_i_o, grid); persistent(p_i_o, 2)", ALL),
    ("spmm-max", "fuse(i, f); kind(i_f, grid); persistent(i_f, 3)", ALL),
    ("spmm-sum", "lane(f, 16); work_list(i, p_j, 4, 1); persistent(u, 2)", ALL - {"c"}),
    ("spmm-max", "lane(f, 16); work_list(i, p_j, 4, 2, 1)", ALL - {"c"}),
    ("spmm-mean", "lane(f, 16); work_list(i, p_j, 2, 4)", ALL - {"c"}),
    ("spmm-sum", "lane(f, 16); work_list(i, p_j, 4, 8, 1)", ALL - {"c"}),
    ("rows-linear", "split(d, 2); split_reduction(d_o, atomic)", ALL),
    ("rows-linear", "split(d, 2); split_reduction(d_o, atomic); kind(r, grid); lane(o, 16)", ALL),
    ("rows-linear", "split_reduction(d, atomic); lane(r, 16); lane(o, 16)", ALL),
    ("rows-min", "split_reduction(d, atomic); kind(r, grid)", {"flat", "c"}),
    ("sddmm", "kind(p_i, grid); split(k, 2); split_reduction(k_o, ordered)", ALL - {"c"}),
    (
        "rows-min",
        "kind(r, grid); lane(o, 16); split(d, 2); split_reduction(d_o, ordered)",
        ALL - {"c"},
    ),
    ("bsr", "kind(I, grid); kind(ii, lane); lane(f, 16); split_reduction(p_K, owned)", ALL),
    ("rows-linear", "kind(r, grid); kind(o, grid); share(r, o, d, 4, 8, 1)", ALL - {"c"}),
    ("rows-linear", "kind(r, grid); kind(o, grid); share(r, o, d, 100, 3, 8)", ALL - {"c"}),
    ("rows-min", "kind(r, grid); kind(o, grid); share(r, o, d, 6, 4, 2)", ALL - {"c"}),
    ("rows-min", "kind(r, grid); kind(o, grid); share(r, o, d, 6, 1, 2)", ALL),
    ("rows-linear", "kind(r, grid); kind(o, grid); share(r, o, d, 1000, 1, 1)", ALL),
    (
        "rows-wide",
        f"{HALVES}; split(d, 2); kind(d_i, lane); share(r_o, o_o, d_o, 3, 1, 2); tail(r_i, 1)",
        ALL,
    ),
    (
        "rows-wide",
        f"{HALVES}; split(d, 2); kind(d_i, lane); share(r_o, o_o, d_o, 3, 3, 2)",
        ALL - {"c"},
    ),
    ("rows-linear", "split(r, 4); kind(r_i, lane); tail(r_i, 2)", ALL),
    (
        "rows-linear",
        "split(r, 8); kind(r_i, lane); kind(o, grid); tail(r_i, 4); kind(r_o, grid)",
        ALL,
    ),
    ("rows-linear", "split(r, 8); kind(r_i, lane); tail(r_i, 4); tail(r_i_few, 2)", ALL),
    ("rows-wide", f"{HALVES}; split(d, 2); kind(d_i, lane); tail(r_i, 1); tail(o_i, 1)", ALL),
    ("spmm-sum", "split(f, 4); kind(f_i, lane); kind(i, grid); tail(f_i, 1)", ALL),
    ("rows-wide", f"{HALVES}; split(d, 2); kind(d_i, lane); tail(r_i, 1, o_i, 1, 1)", ALL),
    ("rows-wide", f"{HALVES}; swizzle(2); tail(r_i, 1, o_i, 1, 3)", ALL - {"c"}),
    ("rows-wide", f"{HALVES}; tail(r_i, 1, o_i, 1, 4)", ALL),
    (
        "rows-linear",
        "split(r, 4); kind(r_i, lane); kind(r_o, grid); split(o, 4); kind(o_i, lane); tail(r_i, 3, o_i, 2, 9)",
        ALL,
    ),
    ("two-products", "compute_at(h, k1); kind(i1, grid)", ALL),
    ("two-products", "compute_at(h, k1); kind(i1, grid); lane(k1, 16); lane(l, 16)", ALL),
    (
        "two-products",
        "compute_at(h, k1); pad(i1, p_j1, 4, 1); lane(k1, 16); lane(l, 16)",
        ALL - {"c"},
    ),
    ("two-products", "merge(i, i1); kind(i, grid)", ALL),
    ("two-products", "merge(i, i1); kind(i, grid); lane(k, 16); lane(k1, 16); lane(l, 16)", ALL),
    ("two-products", "kind(i, grid); kind(i1, grid); lane(l, 16); merge(i, i1)", ALL),
    ("two-outputs", "compute_at(h, k1); kind(i, grid); kind(i1, grid)", {"flat", "c"}),
    ("epilogue", "inline(h); kind(i, grid); lane(f, 16)", ALL),
    ("epilogue", "compute_at(h, f1); kind(i1, grid); lane(f1, 16)", ALL),
    ("epilogue-kept", "inline(h); kind(i, grid); lane(f, 16)", ALL),
    ("micro-tiles", f"{TILED}; attach(h)", ALL - {"c"}),
    ("micro-tiles-kept", f"{TILED}; attach(h)", ALL - {"c"}),
    ("micro-rows", f"{TILED}; attach(h); split(k, 2); kind(k_i, lane)", ALL - {"c"}),
    ("some", "bits(p_in)", ALL),
    ("some", "bits(p_in); kind(I, grid); kind(q_in, lane)", ALL),
    ("some", "bits(p_in); kind(I, grid); kind(q_in, lane); rfactor(q_in)", ALL),
    ("some", "bits(p_in); kind(p_in, lane); kind(q_in, lane); split(N, 4); kind(N_i, lane)", ALL),
    ("some", "clamp(p_in); clamp(q_in)", ALL),
    ("some-whole", "clamp(p_in); kind(I, grid); kind(q_in, lane)", ALL),
    ("some", "bits(p_in); clamp(p_in); unroll(p_in, 3); kind(q_in, lane); kind(I, grid)", ALL),
    ("micro-tiles", "clamp(p_in); clamp(q_in)", {"flat", "c"}),
    ("sddmm", "split(p_i, 4); clamp(p_i_i); kind(p_i_i, lane); kind(p_i_o, grid)", ALL),
    ("sddmm", "split(p_i, 3); clamp(p_i_i); unroll(p_i_i, 2)", ALL),
    ("some-rows", "bits(p_in); unroll(p_in, 4); split(N, 4); kind(N_i, lane)", ALL),
    ("weighted-mean", "merge(p_j, p_j1); kind(i, grid); lane(f, 16)", ALL),
    ("weighted-mean", "merge(p_j, p_j1); unroll(p_j, 2)", ALL),
    (
        "rows-wide",
        "lane(r, 16); lane(o, 16); split(d, 16); kind(d_i, lane); tensorise(d_i)",
        ALL - {"c"},
    ),
    (
        "two-products",
        "compute_at(h, k1); pad(i1, p_j1, 16, 1); lane(k1, 16); lane(l, 16); tensorise(k1)",
        ALL - {"c"},
    ),
    ("rows-linear", "kind(r, grid); lane(d, 16); cache(x, o)", ALL),
    ("rows-linear", "lane(r, 16); lane(d, 16); cache(x, o)", ALL),
    ("attention", "lane(e, 16); kind(ii, lane); lane(d, 16); cache(q, p_J)", ALL),
    ("attention", "kind(I, grid); lane(d, 16); cache(q, e)", ALL),
    ("attention", f"{QUERY}; at_once(jj)", ALL),
    ("attention", "kind(I, grid); kind(jj, lane); at_once(jj)", ALL),
    ("attention-wide", "kind(jj, lane); kind(ii, lane); at_once(jj)", ALL),
    ("attention-wide", f"{WIDE}; at_once(jj)", ALL),
    ("attention-wide", f"{WIDE}; cache(q, p_J); at_once(jj); kind(I, grid)", ALL),
    ("softmax", "split(p_j, 4); kind(p_j_i, lane); at_once(p_j_i)", ALL),
    (
        "softmax",
        "kind(i, grid); lane(f, 16); split(p_j, 2); kind(p_j_i, lane); at_once(p_j_i)",
        ALL,
    ),
    ("spmm-sum", "by_length(p_j, 2); split(p_j_long, 2)", ALL),
    ("spmm-max", "kind(i, grid); lane(f, 16); by_length(p_j, 3)", ALL),
    ("sddmm", "by_length(p_i, 4); jam(p_i_long, 2)", ALL),
    (
        "softmax",
        "by_length(p_j, 3); split(p_j_long, 4); kind(p_j_long_i, lane); at_once(p_j_long_i)",
        ALL,
    ),
    ("best", "split(p_j, 4); kind(p_j_i, lane); at_once(p_j_i)", ALL),
    ("attention", "fuse(I, ii); kind(I_ii, grid); persistent(I_ii, 2); kind(jj, lane)", ALL),
]


def steps_of(said: str) -> Schedule:
    return parse_steps(said.replace("; ", "\n"))


@INTERPRETER
@pytest.mark.parametrize(("name", "said", "places"), TAKEN)
def test_taken(name: str, said: str, places: frozenset[str]) -> None:
    case, p = case_of(name)
    assert set(judged(case, steps_of(said), p=p)) == places


REFUSED = [
    ("spmm-sum", "split(f, 0)", "0 is less than 1"),
    ("spmm-sum", "split(f, 2); split(f_o, 2); split(f_o_i, 2); split(p_j, 2); split(p_j, 2)", "no such loop"),
    ("spmm-sum", "fuse(f, p_j)", "p_j is not alone inside f"),
    ("spmm-sum", "fuse(f, i)", "i is not alone inside f"),
    ("spmm-sum", "kind(i, grid); fuse(i, f)", "they are grid and serial"),
    ("sddmm", "fuse(p_i, k)", "k is not alone inside p_i"),
    ("spmm-sum", "kind(i, grid); unroll(i, 2)", "it is a grid loop"),
    ("rows-wide", "split_reduction(d, atomic); jam(o, 4)", "d is a grid loop, and would stand in two"),
    ("spmm-sum", "unroll(p_j, 0)", "0 is less than 1"),
    ("spmm-sum", "jam(p_j, 2)", "it carries the reduction acc"),
    ("spmm-sum", "jam(f, 1)", "1 is less than 2"),
    ("spmm-sum", "kind(i, grid); jam(i, 2)", "it is a grid loop"),
    ("spmm-sum", "kind(p_j, unroll)", "is not a constant"),
    ("spmm-sum", "persistent(i, 2)", "it is not a grid loop"),
    ("spmm-sum", "kind(i, grid); persistent(i, 0)", "0 is less than 1"),
    ("spmm-sum", "balance(a_indptr)", "no outermost grid loop has a turn for each of its rows"),
    ("spmm-sum", "kind(i, grid); balance(a_indices)", "no outermost grid loop has a turn for each"),
    ("spmm-sum", "kind(i, grid); balance(x)", "no such array of rows; there are a_indptr, a_indices"),
    ("spmm-sum", "split(f, 2); reorder(i, f_o); kind(f_o, grid); kind(i, grid); balance(a_indptr)", "no outermost"),
    ("spmm-sum", "visit(i, x)", "there is no index array x"),
    ("spmm-sum", "visit(f, a_indices)", "not all between two numbers of one array of f"),
    ("spmm-sum", "visit(p_j, a_indices)", "it is a serial loop, or carries a reduction"),
    ("spmm-sum", "visit(i, a_indptr)", "not all between two numbers of one array of i"),
    ("spmm-sum", "split(p_j, 2); visit(i, a_indices)", "not all between two numbers of one array of i"),
    ("spmm-sum", "visit(i, a_indices); visit(i_v, a_indices)", "not all between two numbers"),
    ("rows-linear", "visit(r, x)", "there is no index array x"),
    ("rows-linear", "prefetch(d, 2)", "or row by row"),
    ("spmm-sum", "lane(i, 16)", "the bounds of p_j would differ from lane to lane"),
    ("spmm-sum", "kind(i, grid); kind(p_j, grid)", "it starts at a_indptr[i]"),
    ("spmm-sum", "split(p_j, 2); kind(p_j_o, grid)", "it carries the reduction acc"),
    ("spmm-sum", "swizzle(4)", "no two dimensions"),
    ("spmm-sum", "bits(p_j)", "it does not ask whether something that it reads is not 0"),
    ("micro-tiles", "bits(p_in)", "it does not ask whether something that it reads is not 0"),
    ("some", "bits(q_in)", "acc begins elsewhere"),
    ("some-whole", "bits(p_in)", "it does not ask whether something that it reads is not 0"),
    ("some", "bits(p_in); bits(p_in)", "it does not ask whether something that it reads is not 0"),
    ("spmm-sum", "trim(i)", "its turns are not guarded by an end that i grows towards"),
    ("bsr", "trim(ii); trim(ii)", "its turns are not guarded by an end that ii grows towards"),
    ("bsr", "kind(ii, grid); trim(ii)", "it is a grid loop"),
    ("spmm-sum", "lane(f, 16); pad(i, p_j, 4); trim(t)", "differ from lane to lane"),
    ("spmm-sum", "tail(f, 2)", "it is a serial loop"),
    ("bsr", "kind(ii, lane); tail(ii, 1)", "its values are not guarded by an end that ii grows towards"),
    ("rows-linear", "split(r, 4); kind(r_i, lane); tail(r_i, 4)", "it has 4 lanes"),
    ("spmm-sum", "split(f, 4); kind(f_i, lane); tail(f_i, 0)", "0 is less than 1"),
    ("rows-wide", f"{HALVES}; tail(r_i, 1, d, 1, 1)", "d is a serial loop"),
    ("rows-wide", f"{HALVES}; tail(r_i, 1, o_i, 1, 0)", "0 is less than 1"),
    ("rows-wide", f"{HALVES}; tail(r_i, 1, o_i, 2, 1)", "2 lanes are no several times 2"),
    ("rows-wide", f"{HALVES}; tail(o_i, 1, r_i, 1, 1)", "r_i is not inside of it"),
    ("rows-wide", f"{HALVES}; kind(r_o, serial); tail(r_i, 1, o_i, 1, 1)", "not all that a loop of the grid goes"),
    ("some", "clamp(N)", "it is not a part of a range whose end is guarded"),
    ("some", "clamp(p_in); clamp(p_in)", "it is not a part of a range whose end is guarded"),
    ("some", "split(I, 2); clamp(p_in)", "its first entry may be missing"),
    ("spmm-sum", "split(p_j, 4); clamp(p_j_i)", "may be folded twice, and to store"),
    ("some", "scan(3)", "3 is no power of two"),
    ("some", "scan(1)", "1 is less than 2"),
    ("spmm-sum", "work_list(i, p_j, 4, 1)", "pieces are published inside f, which would be serial"),
    ("spmm-sum", "lane(f, 16); rfactor(f)", "exactly one fold"),
    ("softmax", "at_once(p_j)", "it is not a lane"),
    ("spmm-sum", "lane(f, 16); by_length(f, 2)", "it is a lane loop"),
    ("spmm-sum", "kind(f, grid); by_length(i, 2)", "would stand in two places"),
    ("spmm-sum", "by_length(p_j, 0)", "0 is less than 1"),
    ("spmm-sum", "lane(f, 16); at_once(f)", "exactly one fold"),
    ("spmm-mean", "split(p_j, 4); kind(p_j_i, lane); at_once(p_j_i)", "folded each by itself"),
    ("softmax", "split(p_j, 4); kind(p_j_i, lane); at_once(p_j_i); kind(p_j_i, serial)", "twice"),
    ("sddmm", "lane(k, 16); rfactor(k)", "no loop around it carries acc"),
    ("sddmm", "lane(p_i, 16); prefetch(p_i, 2)", "it is a lane"),
    ("spmm-sum", "split_reduction(p_j, atomic)", "not known before the launch"),
    ("spmm-sum", "split_reduction(f, atomic)", "not a serial loop that carries"),
    ("rows-linear", "split_reduction(d, other)", "there is no such way"),
    ("rows-linear", "kind(r, grid); share(r, o, d, 4, 4, 1)", "r and o are not the loops of the grid"),
    ("rows-linear", "kind(r, grid); kind(o, grid); share(r, o, o, 4, 4, 1)", "o is not the one loop inside of both"),
    ("rows-linear", "kind(r, grid); kind(o, grid); share(r, o, d, 0, 4, 1)", "0 is less than 1"),
    ("rows-linear", "split(d, 2); kind(r, grid); kind(o, grid); share(r, o, d_o, 4, 4, 1)", "d_o is not the one loop"),
    ("spmm-sum", "kind(i, grid); kind(f, grid); share(i, f, p_j, 4, 4, 1)", "a loop does not start at 0"),
    ("rows-min", "unroll(o, 8); kind(r, grid); kind(o_o, grid); share(r, o_o, d, 50, 4, 8)", "published inside o_i"),
    ("softmax", "lane(f, 16); work_list(i, p_j, 8, 4); kind(q4, lane)", "p_j is set outside of it, too"),
    ("spmm-sum", "lane(f, 16); work_list(i, p_j, 8, 1); lane(t, 16)", "p_j is set outside of it, too"),
    ("two-outputs", "jam(l, 4); compute_at(h, l)", "k1 is not known before the body of l"),
    ("rows-linear", "split_reduction(d, atomic); lane(d, 16)", "all of it adds to one element of y"),
    ("attention", f"{QUERY}; work_list(I, p_J, 2, 4); cache(q, t_o1)", "I of a list may be no row"),
    ("two-products", f"merge(i, i1); {LANES}; work_list(i, p_j, 4, 1)", "acc1 is made in i beside the"),
    ("epilogue", "merge(i, i1); lane(f, 16); lane(f1, 16); work_list(i, p_j, 4, 1)", "is made in i beside"),
    ("rows-linear", "split(d, 2); split_reduction(d_o, ordered)", "published inside r"),
    ("rows-min", "split(o, 2); split_reduction(d, atomic)", "would hold the start of min"),
    ("sddmm", "split_reduction(k, atomic)", "not stored as it is"),
    ("sddmm", "kind(p_i, grid); split(k, 2); split_reduction(k_i, ordered)", "does not begin right before it"),
    ("two-products", "compute_at(h, l)", "k1 is not known before the body of l"),
    ("two-products", "compute_at(h, k)", "k does not read one element of h"),
    ("two-products", "compute_at(q, k1)", "there is no buffer q"),
    ("two-products", "compute_at(x, k1)", "x is not written by one statement"),
    ("two-products", "split(i, 2); compute_at(h, k1)", "not over its dimensions alone"),
    ("two-products", "inline(h)", "not elementwise"),
    ("two-products", "inline(y)", "y is not read by one later statement"),
    ("micro-tiles", "attach(h)", "h is not written in tiles alone"),
    ("micro-tiles", "attach(x)", "x is not written by one statement"),
    ("micro-tiles", f"{TILED}; attach(y)", "y is not written in tiles alone"),
    ("micro-tiles", f"{TILED.replace('4', '3')}; attach(h)", "tiles of 3 do not hold micro-tiles of 2"),
    ("micro-tiles", f"{TILED}; kind(p_in, lane); attach(h); split(I_i, 2)", "is a lane already"),
    ("micro-tiles", f"{TILED}; split(I, 2); attach(h)", "I_o does not count parts of a tile"),
    ("micro-tiles", f"{TILED}; attach(h); kind(I_i, serial)", "values are split along its lanes"),
    ("micro-tiles", f"{TILED}; kind(N, grid); attach(h)", "N does not count parts of a tile"),
    ("two-products", "kind(i, grid); lane(k, 16); attach(h)", "does not go over the tiles of h"),
    ("weighted-mean", "merge(p_j, f)", "not run over the same range"),
    ("weighted-mean", "merge(p_j1, p_j)", "p_j does not follow p_j1 in one block"),
    ("rows-wide", "tensorise(d)", "not a lane that a reduction folds"),
    ("rows-wide", "lane(r, 16); lane(o, 8); lane(d, 32); tensorise(d)", "o has 8 lanes, fewer than 16"),
    ("rows-wide", "lane(o, 16); lane(d, 32); tensorise(d)", "the result has 1 lanes, not 2"),
    ("rows-min", "lane(r, 16); lane(o, 16); lane(d, 16); tensorise(d)", "min folds no product of tiles"),
    ("rows-linear", "cache(x, o)", "changes with d"),
    ("rows-linear", "kind(r, grid); cache(x, r)", "it is a grid loop"),
    ("rows-linear", "cache(y, o)", "y is written here"),
    ("rows-linear", "cache(q, d)", "d does not read one element of q"),
    ("spmm-sum", "pad(i, p_j, 4, 1); kind(r, serial)", "values are reduced along its lanes"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said", "why"), REFUSED)
def test_refused(name: str, said: str, why: str) -> None:
    _, p = case_of(name)
    with pytest.raises(ScheduleError) as caught:
        apply(p, steps_of(said))
    assert why in str(caught.value) and "hint: " in str(caught.value)


def test_unrolled_loops_say_so_in_c() -> None:
    """Honoured, not ignored: the compiler is told to copy the body out."""
    _, p = case_of("spmm-sum")
    assert "#pragma GCC unroll 2" in emit_c(apply(p, steps_of("unroll(p_j, 2)")))


def test_turns_side_by_side_share_the_loops_inside() -> None:
    _, p = case_of("spmm-sum")
    made = emit_c(apply(p, steps_of("kind(i, grid); jam(f, 2)")))
    both, _, rest = made.partition("for (int64_t f = ")
    assert both.count("for (int64_t p_j = ") == rest.count("for (int64_t p_j = ") == 1
    assert both.count("+=") == 2 and rest.count("+=") == 1


def test_order_has_no_form_in_c() -> None:
    _, p = case_of("spmm-sum")
    with pytest.raises(ScheduleError) as caught:
        emit_c(apply(p, steps_of("kind(i, grid); kind(f, grid); order(f, i)")))
    assert "threads take the loops of the grid as they stand" in str(caught.value)


def test_programs_add_to_one_element() -> None:
    """C with all threads: more additions than one could lose by luck."""
    case = rows_linear(depth=9000)
    assert judged(case, steps_of("split(d, 4); split_reduction(d_o, atomic)"), ("c",)) == ["c"]


@pytest.mark.parametrize("how", ["atomic", "ordered"])
def test_nothing_to_fold(how: str) -> None:
    case = rows_linear(depth=0)
    said = f"kind(r, grid); kind(o, grid); split(d, 2); split_reduction(d_o, {how})"
    assert {"flat", "tile"} <= set(judged(case, steps_of(said)))


def test_deterministic_mode_forbids_atomic_sums() -> None:
    _, p = case_of("rows-linear")
    steps = steps_of("split_reduction(d, atomic)")
    assert driver.compile_c(p, {}, schedule=steps).starts == {"y": 0.0}
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ScheduleError, match="in any order"):
            driver.compile_c(p, {}, schedule=steps)
    finally:
        torch.use_deterministic_algorithms(False)


@INTERPRETER
@pytest.mark.parametrize("stage", ["scheduled", "tile"])
def test_atomics_parse_back(stage: str) -> None:
    _, p = case_of("rows-linear")
    steps = steps_of("split_reduction(d, atomic); lane(o, 16)")
    said = driver.compile_triton(p, {}, {}, schedule=steps).stages[stage]
    assert "atomic(sum, y" in said and str(parse(said)) == said


def test_a_request_for_a_product_stands() -> None:
    """Later steps may not take it back silently."""
    _, p = case_of("rows-wide")
    steps = (
        "lane(r, 16); lane(o, 16); split(d, 16); kind(d_i, lane); tensorise(d_i); kind(d_i, serial)"
    )
    made = apply(p, steps_of(steps))
    assert "tensor=(d_i,)" in str(made) and str(parse(str(made))) == str(made)
    with pytest.raises(ScheduleError, match="keep it a lane"):
        lower_to_tile(made)
    with pytest.raises(ScheduleError, match="no matrix products"):
        emit_c(made)


STORES = """
@flat
def several(
    x: f32[n], o: out[f32[n]], l: work[f32[n]], y: out[f32[n]], z: out[f32[n]], w: out[f32[n]], v: out[f32[n]], n
):
    for i in serial(n):
        o[i] = x[i] * 2.0
        l[i] = x[i] + 1.0
    for j in serial(n):
        y[j] = l[j] * 3.0
    for k in serial(n):
        z[k] = y[k] - 1.0
    for m in serial(n):
        w[m] = z[n - 1 - m]
    for q in serial(n):
        with where(q < n - 1):
            v[q] = w[q + 1]
"""


@pytest.mark.parametrize(
    "said",
    [
        "inline(l)",
        "inline(y)",
        "inline(l); inline(y)",
        "compute_at(l, j); inline(y)",
        "merge(i, j)",
        "merge(i, j); merge(i, k)",
    ],
)
def test_other_stores_stay(said: str) -> None:
    x, p = numbers(1, 5), parse(STORES)
    assert isinstance(p, flat.Program)
    got = run_flat(apply(p, steps_of(said)), {"x": x}, {"n": 5})
    z = (x + 1) * 3 - 1
    want = {"o": x * 2, "y": (x + 1) * 3, "z": z, "w": z[::-1]}
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6)


def test_what_is_written_in_between_is_read_again() -> None:
    """Both loops read h[i]; the first changes it."""
    p = parse(
        """
@flat
def twice(h: out[f32[n]], x: f32[n], y: out[f32[n]], n):
    for k in serial(n):
        h[k] = x[k]
    for i in serial(n):
        v = h[i]
        h[i] = v * 2.0
    for j in serial(n):
        u = h[j]
        y[j] = u
"""
    )
    assert isinstance(p, flat.Program)
    x = numbers(1, 5)
    made = apply(p, steps_of("merge(i, j)"))
    np.testing.assert_allclose(run_flat(made, {"x": x}, {"n": 5})["y"], x * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("merge(i, k)", "y is needed in between"),
        ("merge(k, m)", "m needs z whole"),
        ("merge(m, q)", "q needs w whole"),
    ],
)
def test_nothing_is_read_before_it_is_written(said: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        apply(parse(STORES), steps_of(said))  # type: ignore[type-var]


def test_turns_that_share_an_element_stay_in_order() -> None:
    """y[0] is read and written by every turn: no grid, no lanes, no jam, no other order."""
    shared = parse(
        """
@flat
def total(x: f32[n, 2], y: out[f32[1]], n):
    for i in serial(n):
        for f in serial(2):
            y[0] = y[0] * 2 + x[i * 2 + f]
"""
    )
    for said in ("kind(i, grid)", "jam(i, 2)", "reorder(i, f)", "lane(f, 2)"):
        with pytest.raises(ScheduleError, match="y is written and read in it"):
            apply(shared, steps_of(said))


def test_clamp_asks_for_entries_by_their_place_alone() -> None:
    """x[I * 3 + p_in] instead of x[p]: the turn after the last would read on."""
    _, p = case_of("some")
    loop = find(p, "p_in")
    place, guard = loop.body
    assert isinstance(place, stmt.Let) and isinstance(guard, stmt.Guard)
    direct = replace(guard, body=substitute(guard.body, {place.var: place.value}))
    changed = edit(p, "p_in", lambda s: [replace(s, body=(place, direct))])
    with pytest.raises(ScheduleError, match="depend on p_in beside p"):
        apply(changed, steps_of("clamp(p_in)"))
