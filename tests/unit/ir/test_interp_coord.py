"""Stage I's meaning against dense NumPy: storage order, duplicates, lookups, padding, rounding, append."""

from __future__ import annotations

import numpy as np
import pytest
from builders import (
    Case,
    at,
    attention,
    block_product,
    bsr,
    column_rows,
    coo,
    csc,
    csr,
    dense,
    index,
    numbers,
    ragged_sums,
    reduce,
    row_arrays,
    sddmm,
    size,
    spmm,
    to_dense,
)

from tilewright.ir import coord
from tilewright.ir.coord import Append, Assign, Axis, Program, Stored, Tensor
from tilewright.ir.expr import Buffer, Const, Load
from tilewright.ir.interp import run_coord, to_bf16

ROWS = [[0, 2], [], [4, 1, 1], [3], [j % 5 for j in range(11)]]


def close(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name, w in want.items():
        np.testing.assert_allclose(got[name], w, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("monoid", ["sum", "max", "mean", "softmax_sum", "logsumexp"])
def test_product_by_rows(monoid: str) -> None:
    case = spmm(ROWS, 7, 3, monoid)
    close(run_coord(*case.args), case.want)


@pytest.mark.parametrize(
    "case",
    [
        sddmm(ROWS, 6, 5),
        block_product([[0, 2], [], [1]], (12, 12), 4, 3),
        block_product([[0, 2], [], [1]], (11, 10), 4, 3),
        ragged_sums([3, 0, 1, 5]),
        attention([[0, 1], [], [1]], (10, 7), (4, 4), 3, 2),
    ],
    ids=["sddmm", "blocks", "blocks that stick out", "ragged", "attention"],
)
def test_against_numpy(case: Case) -> None:
    close(run_coord(*case.args), case.want)


def product(a: Tensor, monoid: str = "sum") -> Program:
    x, y = dense("x", "jf"), dense("y", "if", "out")
    value = reduce(monoid, "j", at(a, "ij") * at(x, "jf"))
    return Program("spmm", (a, x, y), (), (Assign((at(y, "if"),), (value,)),))


@pytest.mark.parametrize("monoid", ["sum", "max"])
@pytest.mark.parametrize("form", ["csr", "coo", "csc"])
def test_storage_order_does_not_change_the_meaning(form: str, monoid: str) -> None:
    rows = [[0, 2], [], [1, 4], [3]]
    by_row = spmm(rows, 5, 2, monoid)
    stored = column_rows(rows, 5) if form == "csc" else rows
    arrays = {**by_row.arrays, **row_arrays("a", stored)}
    if form == "csc":
        whole = to_dense(rows, 5, by_row.arrays["a"])
        arrays["a"] = np.array([whole[i, j] for j, r in enumerate(stored) for i in r], np.float32)
    tree = {"csr": csr, "coo": coo, "csc": csc}[form]("a", "ij")
    close(run_coord(product(tree, monoid), arrays, by_row.sizes), by_row.want)


def test_values_flow_through_a_permutation() -> None:
    case = spmm([[0, 2], [1]], 3, 2)
    a = csr("a", "ij")
    perm = Buffer("a_perm", "i32", (size("a_nnz"),), "index")
    moved = Tensor(a.name, a.dtype, a.shape, a.role, a.axes, a.coords, a.values, perm)
    order = np.array([2, 0, 1], np.int32)
    arrays = {**case.arrays, "a_perm": order, "a": np.empty(3, np.float32)}
    arrays["a"][order] = case.arrays["a"]
    close(run_coord(product(moved), arrays, case.sizes), case.want)


def test_a_lookup_that_misses_is_zero() -> None:
    """c[i, j] = a[i, j] * b[i, j] on a's entries; b has other entries and duplicates."""
    a, b = coo("a", "ij"), coo("b", "ij")
    c = coo("c", "ij", "out", like=a)
    p = Program("both", (a, b, c), (), (Assign((at(c, "ij"),), (at(a, "ij") * at(b, "ij"),)),))
    arrays = row_arrays("a", [[0, 2], [1]]) | row_arrays("b", [[2, 2], [0]])
    arrays |= {"a": np.float32([1, 2, 3]), "b": np.float32([10, 20, 40])}
    sizes = {"n_i": 2, "n_j": 3, "a_nnz": 3, "b_nnz": 3}
    np.testing.assert_array_equal(run_coord(p, arrays, sizes)["c"], [0, 60, 0])


def heads(name: str, role: str = "in", like: Tensor | None = None) -> Tensor:
    """e[i, j, h]: a vector on each entry of a COO tree"""
    base = like if like is not None else coo(name, "ij")
    h = Axis("h", "dense", "fixed", size("h"))
    stored = base.axes[0].length
    assert stored is not None
    values = Buffer(name, "f32", (stored, size("h")), role)
    shape, coords = (*base.shape[:2], size("h")), (*base.coords[:2], ((h, 1),))
    return Tensor(name, "f32", shape, role, (*base.axes[:2], h), coords, values)


def test_entries_may_hold_vectors() -> None:
    """s[i, h] = sum(j, e[i, j, h] * w[i, j]);  n[i, j, h] = e[i, j, h] / s[i, h]"""
    w = coo("w", "ij")
    e, n = heads("e", like=w), heads("n", "out", like=w)
    s = dense("s", "ih", "out")
    total = reduce("sum", "j", at(e, "ijh") * at(w, "ij"))
    body = (
        Assign((at(s, "ih"),), (total,)),
        Assign((at(n, "ijh"),), (at(e, "ijh") / at(s, "ih"),)),
    )
    arrays = {**row_arrays("w", [[0, 2], [], [1]]), "w": numbers(1, 3), "e": numbers(2, 3, 2)}
    sizes = {"n_i": 3, "n_j": 3, "n_h": 2, "w_nnz": 3}
    got = run_coord(Program("norm", (w, e, s, n), (), body), arrays, sizes)
    want = np.zeros((3, 2), np.float32)
    np.add.at(want, arrays["w_rows"], arrays["e"] * arrays["w"][:, None])
    close(got, {"s": want, "n": arrays["e"] / want[arrays["w_rows"]]})


def test_stored_counts_entries_whatever_their_values() -> None:
    a, y = csr("a", "ij", ones=True), dense("y", "i", "out")
    value = reduce("sum", "j", Stored(at(a, "ij")))
    p = Program("degree", (a, y), (), (Assign((at(y, "i"),), (value,)),))
    got = run_coord(p, row_arrays("a", ROWS), {"n_i": 5, "n_j": 5, "a_nnz": 17})
    assert got["y"].tolist() == [2, 0, 3, 1, 11]


def test_all_of_a_dense_operand_is_stored() -> None:
    """Gradients ask so where they do not know the formats."""
    x, y = dense("x", "ij"), dense("y", "i", "out")
    value = reduce("sum", "j", Stored(at(x, "ij")))
    p = Program("width", (x, y), (), (Assign((at(y, "i"),), (value,)),))
    got = run_coord(p, {"x": np.zeros((2, 3), np.float32)}, {"n_i": 2, "n_j": 3})
    assert got["y"].tolist() == [3, 3]


def test_padding_is_not_an_entry() -> None:
    """ELL: two entries a row, -1 where there are fewer."""
    i = Axis("i", "dense", "fixed", size("i"))
    idx = Buffer("a_indices", "i32", (size("i"), Const(2, "i64")), "index")
    j = Axis("j", "sparse", "fixed", Const(2, "i64"), i, None, idx)
    values = Buffer("a", "f32", (size("i") * 2,))
    a = Tensor("a", "f32", (size("i"), size("j")), "in", (i, j), (((i, 1),), ((j, 1),)), values)
    arrays = {
        "a_indices": np.int32([[0, 2], [1, -1]]),
        "a": np.float32([1, 2, 3, np.nan]),
        "x": np.float32([[1], [10], [100]]),
    }
    got = run_coord(product(a), arrays, {"n_i": 2, "n_j": 3, "n_f": 1})
    np.testing.assert_array_equal(got["y"], [[201], [30]])


def test_sums_of_16_bits_are_rounded_once() -> None:
    x, y = dense("x", "ij", dtype="bf16"), dense("y", "i", "out", dtype="bf16")
    p = Program("sums", (x, y), (), (Assign((at(y, "i"),), (reduce("sum", "j", at(x, "ij")),)),))
    data = to_bf16(numbers(1, 3, 50))
    want = to_bf16(np.cumsum(data, 1, dtype=np.float32)[:, -1])
    np.testing.assert_array_equal(run_coord(p, {"x": data}, {"n_i": 3, "n_j": 50})["y"], want)


def test_append_keeps_the_order() -> None:
    """The columns of each row tile that hold something: a detector."""
    x = dense("x", "ij")
    found, count = dense("cols", "ij", "out", "i32"), dense("count", "i", "out", "i32")
    seen = at(x, "ij") > 0.0
    s = Append(found, count, (index("i"),), (index("j"),), seen, index("j"))
    data = np.float32([[0, 1, 2], [0, 0, 0], [3, 0, 1]])
    got = run_coord(
        Program("detect", (x, found, count), (), (s,)), {"x": data}, {"n_i": 3, "n_j": 3}
    )
    assert got["count"].tolist() == [2, 0, 2]
    assert got["cols"].tolist() == [[1, 2, 0], [0, 0, 0], [0, 2, 0]]


def test_strides_are_followed() -> None:
    n, m = size("i"), size("j")
    seen = Buffer("x", "f32", (n, m), strides=(Const(1, "i64"), n))
    x, y = Tensor("x", "f32", (n, m), values=seen), dense("y", "i", "out")
    p = Program("sums", (x, y), (), (Assign((at(y, "i"),), (reduce("sum", "j", at(x, "ij")),)),))
    data = numbers(1, 4, 3).T
    close(run_coord(p, {"x": data}, {"n_i": 3, "n_j": 4}), {"y": data.sum(1)})


def test_a_dense_read_outside_raises() -> None:
    x, y = dense("x", "j"), dense("y", "i", "out")
    p = Program("shift", (x, y), (), (Assign((at(y, "i"),), (Load(x, (index("i") + 1,)),)),))
    with pytest.raises(IndexError, match=r"x\[\(3,\)\]"):
        run_coord(p, {"x": np.zeros(3)}, {"n_i": 3, "n_j": 3})


def test_blocks_may_be_a_pattern_only() -> None:
    m = bsr("m", "ij", (2, 2), ones=True)
    y = dense("y", "i", "out")
    p = coord.Program(
        "count", (m, y), (), (Assign((at(y, "i"),), (reduce("sum", "j", at(m, "ij")),)),)
    )
    got = run_coord(p, row_arrays("m", [[0], [0, 1]]), {"n_i": 3, "n_j": 3, "m_nnz": 3})
    assert got["y"].tolist() == [2, 2, 3]
