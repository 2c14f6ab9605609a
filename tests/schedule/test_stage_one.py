"""Primitives of stage I: the interpreters of all stages and the executors agree with NumPy before and after."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Case, at, coo, csr, dense, numbers, reduce, row_arrays, spmm
from schedule.draws import ROWS
from schedule.judge import judged, stage_three

from tilewright.ir import coord
from tilewright.ir.coord import Assign
from tilewright.ir.interp import run_coord
from tilewright.ir.text import text
from tilewright.schedule.record import apply, parse_steps
from tilewright.support.errors import ScheduleError


def sampled() -> Case:
    """b[i, j] = a[i, j] * sum(k, x[i, k] * z[j, k]), by rows"""
    a = csr("a", "ij")
    b = coo("b", "ij", "out", like=a)
    value = at(a, "ij") * reduce(
        "sum", "k", at(dense("x", "ik"), "ik") * at(dense("z", "jk"), "jk")
    )
    x, z = (n.buffer for n in _loads(value))
    p = coord.Program("sampled", (a, x, z, b), (), (Assign((at(b, "ij"),), (value,)),))
    arrays = row_arrays("a", ROWS)
    i, j = arrays["a_rows"], arrays["a_indices"]
    arrays |= {"a": numbers(1, len(i)), "x": numbers(2, len(ROWS), 4), "z": numbers(3, 6, 4)}
    sizes = {"n_i": len(ROWS), "n_j": 6, "n_k": 4, "a_nnz": len(i)}
    want = arrays["a"] * (arrays["x"][i] * arrays["z"][j]).sum(1)
    return Case(p, arrays, sizes, want={"b": want})


def _loads(value: coord.Expr) -> list[coord.Load]:
    found = value.b.args[0]  # type: ignore[attr-defined]
    return [found.a, found.b]


def fused(case: Case) -> Case:
    made = apply(case.program, parse_steps("fuse(a)"))
    return Case(made, case.arrays, case.sizes, case.scalars, case.want)


def test_entries_are_one_loop() -> None:
    case = sampled()
    assert "for p_j in serial(a_indptr[i], a_indptr[i + 1]):" in text(stage_three(case))
    made = fused(case)
    lines = text(stage_three(made)).partition("):\n")[2].split("\n")
    assert [s.strip() for s in lines[:3]] == [
        "for p_i in serial(a_nnz):", "i = a_rows[p_i]", "j = a_indices[p_i]",
    ]  # fmt: skip
    np.testing.assert_allclose(run_coord(*made.args)["b"], case.want["b"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", ["", "split(p_i, 4)\nkind(p_i_i, lane)\nkind(p_i_o, grid)"])
def test_fused_entries_run_everywhere(steps: str) -> None:
    assert len(judged(fused(sampled()), parse_steps(steps))) == 4


def test_reductions_of_rows_stay() -> None:
    with pytest.raises(ScheduleError, match="leave it stored by rows"):
        apply(spmm(ROWS, 6, 3).program, parse_steps("fuse(a)"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("fuse(x)", "no such sparse tensor"),
        ("split(i, 4)", "there is no such primitive"),
        ("reorder(j, f)", "no reduction runs over both"),
    ],
)
def test_refused(said: str, why: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        apply(spmm(ROWS, 6, 3).program, parse_steps(said))
    assert why in str(caught.value)


def test_reductions_in_another_order() -> None:
    """y[i] = sum((j, k), x[i, j] * z[j, k])"""
    x, z, y = dense("x", "ij"), dense("z", "jk"), dense("y", "i", "out")
    value = reduce("sum", "jk", at(x, "ij") * at(z, "jk"))
    p = coord.Program("both", (x, z, y), (), (Assign((at(y, "i"),), (value,)),))
    arrays = {"x": numbers(1, 3, 4), "z": numbers(2, 4, 5)}
    want = (arrays["x"] @ arrays["z"]).sum(1)
    case = Case(p, arrays, {"n_i": 3, "n_j": 4, "n_k": 5}, want={"y": want})
    made = Case(apply(p, parse_steps("reorder(j, k)")), arrays, case.sizes, want=case.want)
    nest = [s.strip() for s in text(stage_three(made)).splitlines() if "for " in s]
    assert nest == ["for i in serial(n_i):", "for k in serial(n_k):", "for j in serial(n_j):"]
    assert len(judged(made, ())) == 4
