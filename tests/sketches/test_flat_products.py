"""Products of the eight kernels in stage III by hand: SpMM in units, SDDMM, BSR, RGMS, compacted GEMM, detector.

In: small random data. Judge: dense NumPy, with programs in any order, outputs poisoned.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import block_product, numbers, row_arrays, sddmm, spmm, to_dense, work_units
from sketches.words import (
    buffer,
    floats,
    fold,
    grid,
    init,
    ints,
    join,
    lane,
    let,
    load,
    program,
    publish,
    serial,
    store,
    unroll,
    where,
)

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Expr, LaneReduce, Var, cast, const, minimum, ne, select, unary
from tilewright.ir.interp import run_flat, run_tile, to_bf16
from tilewright.ir.node import transform
from tilewright.lowering.tiles import lower_to_tile

ROWS = [[0, 2], [], [1, 1, 5], [3], [j % 7 for j in range(40)], [], [4, 0]]
ORDERS = pytest.mark.parametrize("order", ["forward", "reverse", "random"])


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# --- 1: SpMM in units, one launch -------------------------------------------------------------------


def spmm_units(lanes: int, width: int, copies: int) -> flat.Program:
    n_i, n_j, n_f, nnz, n_units = ints("n_i n_j n_f a_nnz n_units")
    idx, val = buffer("a_indices", "i32", nnz), buffer("a", "f32", nnz)
    x, y = buffer("x", "f32", n_j, n_f), buffer("y", "f32", n_i, n_f, role="out")
    units, segs = buffer("units", "i32", n_units, 4), buffer("segs", "i32", n_units, 3, lanes)
    u, f0, r, fl, t, q, f, p, i, s, e, step = ints("u f0 r fl t q f p i s e step")
    trip, nth, pieces, slot = fields = ints("trip nth pieces slot")
    wide, live = ints("wide live", "b1")
    acc, total = floats("acc total")
    out = store(y, i * n_f + f, acc)
    mine = u * (3 * lanes)
    first = load(segs, mine) * n_f + f
    return program(
        "spmm",
        [idx, val, x, y, units, segs],
        grid(u, n_units, grid(f0, (n_f + (width - 1)) // width, lane(r, lanes, lane(
            fl, width,
            *(let(v, load(units, u * 4 + n)) for n, v in enumerate(fields)),
            let(wide, const(0) < pieces),
            let(step, select(wide, const(lanes), const(1))),
            let(f, f0 * width + fl),
            let(i, load(segs, mine + r)),
            let(s, load(segs, mine + lanes + r)),
            let(e, load(segs, mine + 2 * lanes + r)),
            let(live, const(0) <= i),
            where(
                f < n_f,
                init("sum", acc),
                serial(t, 0, (trip + (copies - 1)) // copies, unroll(
                    q, copies,
                    let(p, s + (t * copies + q) * step),
                    where(p < e, fold("sum", acc, load(val, p) * load(x, load(idx, p) * n_f + f))),
                )),
                stmt.If(
                    wide,
                    (
                        init("sum", total),
                        lane(r, lanes, join("sum", total, acc)),
                        publish("sum", total, slot, nth, pieces, store(y, first, total)),
                    ),
                    (where(live, out),),
                ),
            ),
        )))),
    )  # fmt: skip


@ORDERS
def test_spmm_in_units(order: str) -> None:
    case = spmm(ROWS, 9, 33)
    case = case.having(*work_units(case.arrays["a_indptr"], 4, 8, 12))
    got = run_flat(spmm_units(4, 16, 2), case.arrays, case.sizes, order=order)
    close(got["y"], case.want["y"])


# --- 2: SDDMM -----------------------------------------------------------------------------------------


def sddmm_entries(entries: int, width: int) -> flat.Program:
    n_i, n_j, n_k, nnz = ints("n_i n_j n_k a_nnz")
    rows, idx, val = (
        buffer(n, d, nnz) for n, d in (("a_rows", "i32"), ("a_indices", "i32"), ("a", "f32"))
    )
    x, z, out = (
        buffer("x", "f32", n_i, n_k),
        buffer("z", "f32", n_j, n_k),
        buffer("b", "f32", nnz, role="out"),
    )
    g, el, k0, kl, k, p, i, j = ints("g el k0 kl k p i j")
    part, total = floats("part total")
    steps = (n_k + (width - 1)) // width
    return program(
        "sddmm",
        [rows, idx, val, x, z, out],
        grid(g, (nnz + (entries - 1)) // entries, lane(
            el, entries,
            let(p, g * entries + el),
            where(
                p < nnz,
                let(i, load(rows, p)),
                let(j, load(idx, p)),
                lane(kl, width, init("sum", part), serial(
                    k0, 0, steps,
                    let(k, k0 * width + kl),
                    where(k < n_k, fold("sum", part, load(x, i * n_k + k) * load(z, j * n_k + k))),
                )),
                init("sum", total),
                lane(kl, width, join("sum", total, part)),
                store(out, p, load(val, p) * total),
            ),
        )),
    )  # fmt: skip


@ORDERS
def test_sddmm(order: str) -> None:
    case = sddmm(ROWS, 9, 21)
    got = run_flat(sddmm_entries(8, 16), case.arrays, case.sizes, order=order)
    close(got["b"], case.want["b"])


# --- 3: BSR -------------------------------------------------------------------------------------------


def bsr_fused(block: int, group: int, width: int) -> flat.Program:
    """One lane holds `group` blocks side by side: k // block is the block, k % block the column in it."""
    n_i, n_k, n_f, nnz = ints("n_i n_k n_f a_nnz")
    rows = n_i // block
    ptr, idx = buffer("a_indptr", "i32", rows + 1), buffer("a_indices", "i32", nnz)
    blk, x = buffer("a", "f32", nnz, block, block), buffer("x", "f32", n_k, n_f)
    y = buffer("y", "f32", n_i, n_f, role="out")
    f0, i, m, fl, g, k, p, f, lo, hi, col = ints("f0 i m fl g k p f lo hi col")
    (acc,) = floats("acc")
    factors = (
        load(blk, (p * block + m) * block + k % block),
        load(x, (col * block + k % block) * n_f + f),
    )
    return program(
        "bsr",
        [ptr, idx, blk, x, y],
        grid(f0, (n_f + (width - 1)) // width, grid(i, rows, lane(fl, width, lane(
            m, block,
            let(f, f0 * width + fl),
            where(
                f < n_f,
                let(lo, load(ptr, i)),
                let(hi, load(ptr, i + 1)),
                init("sum", acc),
                serial(g, 0, (hi - lo + (group - 1)) // group, lane(
                    k, group * block,
                    let(p, lo + g * group + k // block),
                    where(p < hi, let(col, load(idx, p)), fold("sum", acc, factors[0] * factors[1])),
                )),
                store(y, (i * block + m) * n_f + f, acc),
            ),
        )))),
    )  # fmt: skip


@ORDERS
def test_bsr(order: str) -> None:
    case = block_product([[0, 2, 1], [], [1]], (12, 12), 4, 9)
    got = run_flat(bsr_fused(4, 2, 8), case.arrays, case.sizes, order=order)
    close(got["y"], case.want["y"])


# --- 4: RGMS ------------------------------------------------------------------------------------------


def rgms_units(lanes: int, depth: int, width: int) -> flat.Program:
    """A unit is one relation of one group of rows; the relations of a group are combined in order."""
    n_i, n_j, n_r, nnz, n_units = ints("n_i n_j n_r a_nnz n_units")
    ptr, idx, val = (
        buffer("a_indptr", "i32", n_r * n_i + 1),
        buffer("a_indices", "i32", nnz),
        buffer("a", "f32", nnz),
    )
    x, w = buffer("x", "bf16", n_j, depth), buffer("w", "bf16", n_r, depth, width)
    y, units = buffer("y", "f32", n_i, width, role="out"), buffer("units", "i32", n_units, 6)
    u, r, k, l, j, i, p, lo, hi = ints("u r k l j i p lo hi")
    rel, row, trip, nth, pieces, slot = fields = ints("rel row trip nth pieces slot")
    t, z = floats("t z")
    gathered = cast("f32", load(x, load(idx, p) * depth + k))
    narrow = cast("f32", cast("bf16", t))
    return program(
        "rgms",
        [ptr, idx, val, x, w, y, units],
        grid(u, n_units, lane(
            r, lanes,
            *(let(v, load(units, u * 6 + n)) for n, v in enumerate(fields)),
            let(i, row + r),
            where(i < n_i, let(lo, load(ptr, rel * n_i + i)), let(hi, load(ptr, rel * n_i + i + 1))),
            lane(k, depth, init("sum", t), serial(
                j, 0, trip, let(p, lo + j), where(p < hi, fold("sum", t, load(val, p) * gathered))
            )),
            lane(
                l, width,
                init("sum", z),
                lane(k, depth, fold("sum", z, narrow * cast("f32", load(w, (rel * depth + k) * width + l)))),
                publish("sum", z, slot, nth, pieces, where(i < n_i, store(y, i * width + l, z))),
            ),
        )),
    )  # fmt: skip


def relation_units(lengths: np.ndarray, lanes: int) -> np.ndarray:
    """lengths: [relations, rows]; groups that a relation does not touch have no unit, unless none does."""
    made = []
    for g in range(0, lengths.shape[1], lanes):
        trips = lengths[:, g : g + lanes].max(1)
        used = np.flatnonzero(trips) if trips.any() else [0]
        slot = len(made)
        made += [(r, g, trips[r], n, len(used), slot) for n, r in enumerate(used)]
    return np.array(made, np.int32)


@ORDERS
def test_rgms(order: str) -> None:
    rows = [[0, 1], [], [3], [], [], [], [2], [1], [], [], [], []]
    arrays = row_arrays("a", rows)
    arrays |= {
        "a": numbers(1, 5),
        "x": to_bf16(numbers(2, 4, 8)),
        "w": to_bf16(numbers(3, 2, 8, 5)),
    }
    arrays["units"] = relation_units(np.array([len(r) for r in rows]).reshape(2, 6), 4)
    sizes = {"n_i": 6, "n_j": 4, "n_r": 2, "a_nnz": 5, "n_units": len(arrays["units"])}
    gathered = to_bf16(to_dense(rows, 4, arrays["a"]).reshape(2, 6, 4) @ arrays["x"])
    got = run_flat(rgms_units(4, 8, 5), arrays, sizes, order=order)
    close(got["y"], np.einsum("rik,rkl->il", gathered, arrays["w"]))


# --- 6 and 8: compacted GEMM, detector in its epilogue --------------------------------------------------


def compacted(tile: int, width: int, step: int, epilogue: str = "rows") -> flat.Program:
    """c = relu(a @ b + bias) where a, stored k-major, has few columns in each row tile."""
    n_m, n_n, n_k, nnz = ints("n_m n_n n_k nnz")
    tiles = n_m // tile
    ptr, cols = buffer("ptr", "i32", tiles + 1), buffer("cols", "i32", nnz)
    a, b, bias = (
        buffer("a", "f32", n_k, n_m),
        buffer("b", "f32", n_k, n_n),
        buffer("bias", "f32", n_n),
    )
    pm, pn, m, nl, kl, p0, p, kk, lo, hi, n = ints("pm pn m nl kl p0 p kk lo hi n")
    acc, out = floats("acc out")
    outputs, finish = EPILOGUES[epilogue](tile, n_m, n_n, pm, m, n, out)
    return program(
        "compacted",
        [ptr, cols, a, b, bias, *outputs],
        grid(pm, tiles, grid(pn, (n_n + (width - 1)) // width, lane(m, tile, lane(
            nl, width,
            let(n, pn * width + nl),
            where(
                n < n_n,
                let(lo, load(ptr, pm)),
                let(hi, load(ptr, pm + 1)),
                init("sum", acc),
                serial(p0, 0, (hi - lo + (step - 1)) // step, lane(
                    kl, step,
                    let(p, lo + p0 * step + kl),
                    where(
                        p < hi,
                        let(kk, load(cols, p)),
                        fold("sum", acc, load(a, kk * n_m + pm * tile + m) * load(b, kk * n_n + n)),
                    ),
                )),
                let(out, unary("relu", acc + load(bias, n))),
                *finish,
            ),
        )))),
        swizzle=2,
    )  # fmt: skip


def _rows(tile: int, n_m: Var, n_n: Var, pm: Var, m: Var, n: Var, out: Var):  # type: ignore[no-untyped-def]
    c = buffer("c", "f32", n_m, n_n, role="out")
    return [c], [store(c, (pm * tile + m) * n_n + n, out)]


def _detected(tile: int, n_m: Var, n_n: Var, pm: Var, m: Var, n: Var, out: Var):  # type: ignore[no-untyped-def]
    """c transposed; for each row tile the columns that hold something, and those columns packed."""
    c = buffer("c", "f32", n_n, n_m, role="out")
    found = buffer("found", "i32", n_m // tile, n_n, role="out")
    count = buffer("count", "i32", n_m // tile, role="out")
    packed = buffer("packed", "f32", n_m // tile, n_n, tile, role="out")
    keep, at = Var("keep", "b1"), Var("at")
    listed = stmt.Append(found, count, pm, pm * n_n, keep, n, at)
    return [c, found, count, packed], [
        store(c, n * n_m + pm * tile + m, out),
        let(keep, LaneReduce("any", (m,), ne(out, 0.0))),
        listed,
        where(keep, store(packed, at * tile + m, out)),
    ]


EPILOGUES = {"rows": _rows, "detected": _detected}


def gemm_case() -> tuple[dict[str, np.ndarray], dict[str, int], np.ndarray]:
    """Rows in tiles of 4; each tile uses some of 7 columns; relu leaves whole columns of c at zero."""
    used = [[0, 3, 6], [], [2], [5, 1]]
    arrays = {"ptr": np.cumsum([0, *map(len, used)]).astype(np.int32)}
    arrays |= {
        "cols": np.array([c for r in used for c in r], np.int32),
        "a": numbers(1, 7, 16),
        "b": numbers(2, 7, 11),
    }
    arrays["bias"] = np.where(np.arange(11) % 3 == 0, -100, numbers(3, 11)).astype(np.float32)
    keep = np.zeros((7, 16), bool)
    for t, columns in enumerate(used):
        keep[columns, t * 4 : t * 4 + 4] = True
    arrays["a"][~keep] = np.nan
    want = np.maximum(np.where(keep, arrays["a"], 0).T @ arrays["b"] + arrays["bias"], 0)
    return arrays, {"n_m": 16, "n_n": 11, "n_k": 7, "nnz": 6}, want


@ORDERS
def test_compacted_gemm(order: str) -> None:
    arrays, sizes, want = gemm_case()
    close(run_flat(compacted(4, 8, 2), arrays, sizes, order=order)["c"], want)


@ORDERS
def test_detector_in_the_epilogue(order: str) -> None:
    arrays, sizes, want = gemm_case()
    zeroed = ("count",)
    got = run_flat(compacted(4, 8, 2, "detected"), arrays, sizes, zeroed=zeroed, order=order)
    close(got["c"], want.T)
    for t in range(4):
        tile = want[t * 4 : t * 4 + 4]
        n = got["count"][t]
        columns = got["found"][t, :n]
        assert sorted(columns) == np.flatnonzero(tile.any(0)).tolist()
        close(got["packed"][t, :n], tile.T[columns])


def test_detector_in_the_epilogue_of_a_tile() -> None:
    """The same in tile form: a scan in the tile and one addition to the count, which programs share."""
    arrays, sizes, want = gemm_case()
    p = compacted(4, 8, 2, "detected")
    shared = lambda n: replace(n, shared=True) if isinstance(n, stmt.Append) else None
    made = lower_to_tile(replace(p, body=transform(p.body, shared)))
    for order in ("forward", "reverse"):
        got = run_tile(made, arrays, sizes, zeroed=("count",), order=order)
        for t in range(4):
            n, tile = got["count"][t], want[t * 4 : t * 4 + 4]
            columns = got["found"][t, :n]
            assert sorted(columns) == np.flatnonzero(tile.any(0)).tolist()
            close(got["packed"][t, :n], tile.T[columns])


def bitmap(tile: int, words: int) -> flat.Program:
    """The ordered lowering of the same detector: one bit for each column, compacted by a later scan."""
    n_m, n_n = ints("n_m n_n")
    c = buffer("c", "f32", n_m, n_n)
    bits = buffer("bits", "i64", n_m // tile, words, role="out")
    pm, m, w, b, n = ints("pm m w b n")
    (seen,) = ints("seen", "b1")
    power: Expr = cast("i64", unary("exp2", cast("f64", b)))
    inside = minimum(n, n_n - 1)
    value = select(n < n_n, load(c, (pm * tile + m) * n_n + inside), const(0.0))
    return program(
        "bitmap",
        [c, bits],
        grid(pm, n_m // tile, lane(w, words, lane(
            b, 32,
            let(n, w * 32 + b),
            lane(m, tile, let(seen, LaneReduce("any", (m,), ne(value, 0.0)))),
            store(bits, pm * words + w, LaneReduce("sum", (b,), select(seen, power, const(0)))),
        ))),
    )  # fmt: skip


def test_detector_as_bitmap() -> None:
    c = np.where(numbers(1, 8, 40) > 0.8, numbers(2, 8, 40), 0).astype(np.float32)
    got = run_flat(bitmap(4, 2), {"c": c}, {"n_m": 8, "n_n": 40})["bits"]
    for t in range(2):
        columns = [n for n in range(40) if got[t, n // 32] >> (n % 32) & 1]
        assert columns == np.flatnonzero(c[t * 4 : t * 4 + 4].any(0)).tolist()
