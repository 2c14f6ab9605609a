"""The eight kernels as stage I says them, judged by dense NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from builders import (
    Case,
    at,
    attention,
    block_mask,
    block_product,
    bsr,
    dense,
    index,
    numbers,
    reduce,
    row_arrays,
    sddmm,
    size,
    spmm,
    to_dense,
)

from tilewright.ir.coord import Append, Assign, Axis, Program, Tensor
from tilewright.ir.expr import Buffer, Load, ne, unary
from tilewright.ir.interp import run_coord


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        spmm([[0, 2], [], [1, 1], [3]], 5, 3),
        sddmm([[0, 2], [], [1, 1], [3]], 5, 3),
        block_product([[0, 2], [], [1]], (12, 12), 4, 3),
        attention([[0, 1], [], [1]], (10, 7), (4, 4), 3, 2),
    ],
    ids=["spmm", "sddmm", "bsr", "attention"],
)
def test_one_structure(case: Case) -> None:
    got = run_coord(*case.args)
    for name, want in case.want.items():
        close(got[name], want)


def related(name: str) -> Tensor:
    """a[r, i, j]: relation and row dense, column compressed under both."""
    r = Axis("r", "dense", "fixed", size("r"))
    i = Axis("i", "dense", "fixed", size("i"), r)
    nnz = size(f"{name}_nnz")
    ptr = Buffer(f"{name}_indptr", "i32", (size("r") * size("i") + 1,), "index")
    j = Axis(
        "j", "sparse", "variable", None, i, ptr, Buffer(f"{name}_indices", "i32", (nnz,), "index")
    )
    shape, coords = (size("r"), size("i"), size("j")), (((r, 1),), ((i, 1),), ((j, 1),))
    return Tensor(name, "f32", shape, "in", (r, i, j), coords, Buffer(name, "f32", (nnz,)))


def test_rgms() -> None:
    """y[i, l] = sum(r, j, k: a[r, i, j] * x[j, k] * w[r, k, l])"""
    a, x, w, y = related("a"), dense("x", "jk"), dense("w", "rkl"), dense("y", "il", "out")
    value = reduce("sum", "rjk", at(a, "rij") * at(x, "jk") * at(w, "rkl"))
    p = Program("rgms", (a, x, w, y), (), (Assign((at(y, "il"),), (value,)),))
    rows = [[0, 1], [], [3], [2], [1], []]
    arrays = row_arrays("a", rows)
    arrays |= {"a": numbers(1, 5), "x": numbers(2, 4, 3), "w": numbers(3, 2, 3, 5)}
    whole = to_dense(rows, 4, arrays["a"]).reshape(2, 3, 4)
    sizes = {"n_r": 2, "n_i": 3, "n_j": 4, "n_k": 3, "n_l": 5, "a_nnz": 5}
    want = np.einsum("rij,jk,rkl->il", whole, arrays["x"], arrays["w"])
    close(run_coord(p, arrays, sizes)["y"], want)


def test_compacted_gemm() -> None:
    """c[i, n] = relu(sum(k, m[i, k] * a[k, i] * b[k, n])) over the columns that each row tile uses"""
    m = bsr("m", "ik", (4, 1), ones=True)
    a, b, c = dense("a", "ki"), dense("b", "kn"), dense("c", "in", "out")
    value = unary("relu", reduce("sum", "k", at(m, "ik") * at(a, "ki") * at(b, "kn")))
    p = Program("gemm", (m, a, b, c), (), (Assign((at(c, "in"),), (value,)),))
    used = [[0, 3], [], [2]]
    keep = block_mask(used, (12, 5), (4, 1)).T
    arrays = {**row_arrays("m", used), "a": numbers(1, 5, 12), "b": numbers(2, 5, 3)}
    arrays["a"][~keep] = np.nan
    want = np.maximum(np.where(keep, arrays["a"], 0).T @ arrays["b"], 0)
    sizes = {"n_i": 12, "n_k": 5, "n_n": 3, "m_nnz": 3}
    close(run_coord(p, arrays, sizes)["c"], want)


def test_mixture_of_experts() -> None:
    """h[s, n] = silu(x[tok[s]] @ wg[ex[s]]) * ...; y[t, d] = sum(c, gate[t, c] * h[slot[t, c]] @ wd[...])"""
    x, wg, wu = dense("x", "td"), dense("wg", "edn"), dense("wu", "edn")
    wd, gate = dense("wd", "end"), dense("gate", "tc")
    tok, ex, slot = (
        dense(n, i, dtype="i32") for n, i in (("tok", "s"), ("ex", "s"), ("slot", "tc"))
    )
    h, y = dense("h", "sn", "out"), dense("y", "td", "out")
    n, d = index("n"), index("d")
    row = Load(x, (at(tok, "s"), d))
    g, u = (reduce("sum", "d", row * Load(w, (at(ex, "s"), d, n))) for w in (wg, wu))
    up = Assign((at(h, "sn"),), (g * unary("sigmoid", g) * u,))
    where = at(slot, "tc")
    inner = reduce("sum", "n", Load(h, (where, n)) * Load(wd, (Load(ex, (where,)), n, d)))
    down = Assign((at(y, "td"),), (reduce("sum", "c", at(gate, "tc") * inner),))
    p = Program("moe", (x, wg, wu, wd, gate, tok, ex, slot, h, y), (), (up, down))
    experts = np.array([[0, 2], [2, 0], [2, 2]])
    order = np.argsort(experts.reshape(-1), kind="stable")
    arrays = {"x": numbers(1, 3, 4), "wg": numbers(2, 3, 4, 5), "wu": numbers(3, 3, 4, 5)}
    arrays |= {"wd": numbers(4, 3, 5, 4), "gate": numbers(5, 3, 2), "tok": order // 2}
    arrays |= {"ex": experts.reshape(-1)[order], "slot": np.argsort(order).reshape(3, 2)}
    sizes = {"n_t": 3, "n_d": 4, "n_e": 3, "n_n": 5, "n_c": 2, "n_s": 6}
    want = np.zeros((3, 4), np.float32)
    for t, c in np.ndindex(3, 2):
        e = experts[t, c]
        a, b = arrays["x"][t] @ arrays["wg"][e], arrays["x"][t] @ arrays["wu"][e]
        want[t] += arrays["gate"][t, c] * ((a / (1 + np.exp(-a)) * b) @ arrays["wd"][e])
    close(run_coord(p, arrays, sizes)["y"], want)


def test_detector() -> None:
    """For each row tile p, the columns n where any row of the tile holds something, in order."""
    c = dense("c", "pmn")
    found, count = dense("found", "pn", "out", "i32"), dense("count", "p", "out", "i32")
    seen = reduce("any", "m", ne(at(c, "pmn"), 0.0))
    s = Append(found, count, (index("p"),), (index("n"),), seen, index("n"))
    p = Program("detect", (c, found, count), (), (s,))
    data = np.where(numbers(1, 3, 4, 9) > 1.0, 1, 0).astype(np.float32)
    got = run_coord(p, {"c": data}, {"n_p": 3, "n_m": 4, "n_n": 9})
    for t in range(3):
        assert (
            got["found"][t, : got["count"][t]].tolist() == np.flatnonzero(data[t].any(0)).tolist()
        )
