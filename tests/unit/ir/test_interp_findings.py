"""What the interpreters found wrong in later stages. A case that passes has been fixed: drop its mark."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import Case, at, coo, dense, numbers, reduce, row_arrays, spmm, to_dense

from tilewright.ir import flat
from tilewright.ir.coord import Assign, Program
from tilewright.ir.expr import Expr, const, unary
from tilewright.ir.interp import run_coord, run_flat, run_loops, run_tile
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.schedule.loop import kind, split
from tilewright.schedule.reduce import rfactor
from tilewright.support.errors import TilewrightError

ROWS = [[0, 2], [], [1, 1, 5], [3], [j % 7 for j in range(40)]]


def entry_lanes(p: flat.Program, lanes: int) -> flat.Program:
    p = kind(kind(split(p, "f", 16), "f_o", "grid"), "f_i", "lane")
    return kind(kind(split(p, "p_j", lanes), "p_j_i", "lane"), "i", "grid")


def row_program(monoid: str, args: Callable[[Expr, Expr], tuple[Expr, ...]]) -> Case:
    case = spmm(ROWS, 9, 5)
    a, x, y = case.program.tensors
    value = reduce(monoid, "j", *args(at(a, "ij"), at(x, "jf")))
    p = Program("rows", (a, x, y), (), (Assign((at(y, "if"),), (value,)),))
    made = Case(p, case.arrays, case.sizes)
    return Case(p, case.arrays, case.sizes, want=run_coord(*made.args))


def same_in_tiles(case: Case, schedule: Callable[[flat.Program], flat.Program]) -> None:
    made = schedule(lower_to_flat(lower_to_position(case.program)))
    for got in (run_flat(*case.at(made)), run_tile(*case.at(lower_to_tile(made)))):
        np.testing.assert_allclose(got["y"], case.want["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("monoid", ["sum", "mean"])
def test_rfactor_over_five_lanes(monoid: str) -> None:
    case = row_program(monoid, lambda a, x: (unary("exp", a) + x * 0.0,))
    same_in_tiles(case, lambda p: rfactor(entry_lanes(p, 5), "p_j_i"))


def test_softmax_of_a_computed_value() -> None:
    case = row_program("softmax_sum", lambda a, x: (a, const(1.0) / x))
    same_in_tiles(case, lambda p: entry_lanes(p, 8))


def test_coo_rows_are_summed_or_refused() -> None:
    a, x, y = coo("a", "ij"), dense("x", "jf"), dense("y", "if", "out")
    value = reduce("sum", "j", at(a, "ij") * at(x, "jf"))
    p = Program("coo", (a, x, y), (), (Assign((at(y, "if"),), (value,)),))
    arrays = {**row_arrays("a", [[0, 2], [1]]), "a": numbers(1, 3), "x": numbers(2, 3, 2)}
    case = Case(p, arrays, {"n_i": 2, "n_j": 3, "n_f": 2, "a_nnz": 3})
    try:
        position = lower_to_position(p)
    except TilewrightError:
        return
    want = to_dense([[0, 2], [1]], 3, arrays["a"]) @ arrays["x"]
    np.testing.assert_allclose(run_loops(*case.at(position))["y"], want, rtol=1e-5)
