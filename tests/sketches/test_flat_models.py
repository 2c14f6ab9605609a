"""Attention and mixture of experts in stage III by hand.

In: small random data. Judge: dense NumPy, with programs in any order, outputs poisoned.
"""

from __future__ import annotations

import numpy as np
import pytest
from builders import block_mask, masked_softmax, numbers, row_arrays
from sketches.words import (
    buffer,
    finalised,
    floats,
    fold,
    grid,
    init,
    ints,
    lane,
    let,
    load,
    program,
    serial,
    store,
    unroll,
    where,
)

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Expr, Var, unary
from tilewright.ir.interp import run_flat

ORDERS = pytest.mark.parametrize("order", ["forward", "random"])


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# --- 5: attention over a block mask, causal inside the blocks on the diagonal ---------------------------


def attention(bm: int, bn: int, depth: int, width: int) -> flat.Program:
    """Full blocks and partial ones are two lists, so two loops; only the second asks for the pattern."""
    n_h, n_i, n_j, n_full, n_part = ints("n_h n_i n_j n_full n_part")
    blocks = (n_i + (bm - 1)) // bm
    lists = {
        kind: (buffer(f"{kind}_indptr", "i32", blocks + 1), buffer(f"{kind}_indices", "i32", n))
        for kind, n in (("full", n_full), ("part", n_part))
    }
    q, k, v = (
        buffer(n, "f32", n_h, rows, d)
        for n, rows, d in (("q", n_i, depth), ("k", n_j, depth), ("v", n_j, width))
    )
    o, lse = (
        buffer("o", "f32", n_h, n_i, width, role="out"),
        buffer("l", "f32", n_h, n_i, role="out"),
    )
    h, ib, m, e, n, d, i, j, p = ints("h ib m e n d i j p")
    scale, s, weighted, log = floats("scale s weighted log")
    state = tuple(floats("top total acc"))

    def over(kind: str, pattern: Expr) -> stmt.Stmt:
        ptr, idx = lists[kind]
        return serial(p, load(ptr, ib), load(ptr, ib + 1), lane(
            n, bn,
            let(j, load(idx, p) * bn + n),
            where(
                j < n_j,
                init("sum", s),
                lane(d, depth, fold("sum", s, load(q, (h * n_i + i) * depth + d) * load(k, (h * n_j + j) * depth + d))),
                where(pattern, fold("softmax_sum", state, s * scale, load(v, (h * n_j + j) * width + e))),
            ),
        ))  # fmt: skip

    result, logsum = finalised("softmax_sum", *state)
    return program(
        "attention",
        [*lists["full"], *lists["part"], q, k, v, o, lse],
        grid(h, n_h, grid(ib, blocks, lane(m, bm, lane(
            e, width,
            let(i, ib * bm + m),
            where(
                i < n_i,
                init("softmax_sum", *state),
                over("full", j < n_j),
                over("part", j <= i),
                let(weighted, result),
                let(log, logsum),
                store(o, (h * n_i + i) * width + e, weighted),
                store(lse, h * n_i + i, log),
            ),
        )))),
        scalars=(scale,),
    )  # fmt: skip


@ORDERS
def test_attention(order: str) -> None:
    full, part, n, block = [[], [0], [], [0, 1]], [[0], [1], [], [3]], (14, 15), (4, 4)
    mask = block_mask(full, n, block) | block_mask(part, n, block) & np.tri(*n, dtype=bool)
    data = {"q": numbers(1, 2, 14, 6), "k": numbers(2, 2, 15, 6), "v": numbers(3, 2, 15, 5)}
    arrays = {**data, **row_arrays("full", full), **row_arrays("part", part)}
    sizes = {"n_h": 2, "n_i": 14, "n_j": 15, "n_full": 3, "n_part": 3}
    got = run_flat(attention(4, 4, 6, 5), arrays, sizes, {"scale": 0.5}, order=order)
    for h in range(2):
        want = masked_softmax({name: a[h] for name, a in data.items()}, mask, 0.5)
        close(got["o"][h], want["o"])
        close(got["l"][h], want["l"])


# --- 7: mixture of experts ----------------------------------------------------------------------------


def silu(x: Expr) -> Expr:
    return x * unary("sigmoid", x)


def moe_up(bm: int, bn: int, bk: int) -> flat.Program:
    """h[slot] = silu(x[token] @ wg[expert]) * (x[token] @ wu[expert]); two reductions in one loop.

    The number of tiles is known on the device only: the grid has the host's bound and leaves early.
    """
    n_t, n_s, n_e, n_d, n_h, bound = ints("n_t n_s n_e n_d n_h bound")
    x, tok = buffer("x", "f32", n_t, n_d), buffer("tok", "i32", n_s)
    wg, wu = (buffer(n, "f32", n_e, n_d, n_h) for n in ("wg", "wu"))
    tiles, count = buffer("tiles", "i32", bound, 3), buffer("count", "i32", 1)
    out = buffer("h", "f32", n_s, n_h, role="out")
    t, n0, m, nl, k0, kl, n, k, s, ex, stop, token = ints("t n0 m nl k0 kl n k s ex stop token")
    g, u = floats("g u")

    def term(w: Buffer, acc: Var) -> stmt.Stmt:
        return fold("sum", acc, load(x, token * n_d + k) * load(w, (ex * n_d + k) * n_h + n))

    return program(
        "up",
        [x, tok, wg, wu, tiles, count, out],
        grid(t, bound, grid(n0, (n_h + (bn - 1)) // bn, where(
            t < load(count, 0),
            let(ex, load(tiles, t * 3)),
            let(stop, load(tiles, t * 3 + 2)),
            lane(m, bm, lane(
                nl, bn,
                let(s, load(tiles, t * 3 + 1) + m),
                let(n, n0 * bn + nl),
                where(s < stop, let(token, load(tok, s)), where(
                    n < n_h,
                    init("sum", g),
                    init("sum", u),
                    serial(k0, 0, (n_d + (bk - 1)) // bk, lane(
                        kl, bk, let(k, k0 * bk + kl), where(k < n_d, term(wg, g), term(wu, u))
                    )),
                    store(out, s * n_h + n, silu(g) * u),
                )),
            )),
        ))),
    )  # fmt: skip


def moe_down(bm: int, bd: int, bn: int) -> flat.Program:
    """part[slot_of[s]] = gate * (h[s] @ wd[expert]): each slot has one owner, nothing is added twice"""
    n_s, n_e, n_d, n_h, bound = ints("n_s n_e n_d n_h bound")
    hidden, wd = buffer("h", "f32", n_s, n_h), buffer("wd", "f32", n_e, n_h, n_d)
    slot_of, gate = buffer("slot_of", "i32", n_s), buffer("gate", "f32", n_s)
    tiles, count = buffer("tiles", "i32", bound, 3), buffer("count", "i32", 1)
    part = buffer("part", "f32", n_s, n_d, role="out")
    t, d0, m, dl, k0, kl, n, d, s, ex, stop, slot = ints("t d0 m dl k0 kl n d s ex stop slot")
    (acc,) = floats("acc")
    weight = load(wd, (ex * n_h + n) * n_d + d)
    return program(
        "down",
        [hidden, wd, slot_of, gate, tiles, count, part],
        grid(t, bound, grid(d0, (n_d + (bd - 1)) // bd, where(
            t < load(count, 0),
            let(ex, load(tiles, t * 3)),
            let(stop, load(tiles, t * 3 + 2)),
            lane(m, bm, lane(
                dl, bd,
                let(s, load(tiles, t * 3 + 1) + m),
                let(d, d0 * bd + dl),
                where(s < stop, let(slot, load(slot_of, s)), where(
                    d < n_d,
                    init("sum", acc),
                    serial(k0, 0, (n_h + (bn - 1)) // bn, lane(
                        kl, bn,
                        let(n, k0 * bn + kl),
                        where(n < n_h, fold("sum", acc, load(hidden, s * n_h + n) * weight)),
                    )),
                    store(part, slot * n_d + d, load(gate, s) * acc),
                )),
            )),
        ))),
    )  # fmt: skip


def moe_combine(top: int, width: int) -> flat.Program:
    """y[token] = the sum of its `top` parts, always in the same order"""
    n_t, n_d = ints("n_t n_d")
    part, y = buffer("part", "f32", n_t, top, n_d), buffer("y", "f32", n_t, n_d, role="out")
    t, d, c = ints("t d c")
    (acc,) = floats("acc")
    return program(
        "combine",
        [part, y],
        grid(t, n_t, lane(d, width, where(
            d < n_d,
            init("sum", acc),
            unroll(c, top, fold("sum", acc, load(part, (t * top + c) * n_d + d))),
            store(y, t * n_d + d, acc),
        ))),
    )  # fmt: skip


def expert_lists(experts: np.ndarray, n_e: int, bm: int, bound: int) -> dict[str, np.ndarray]:
    """Slots sorted by expert, cut into tiles of bm; experts: [tokens, top]."""
    slots = np.argsort(experts.reshape(-1), kind="stable")
    sizes = np.bincount(experts.reshape(-1), minlength=n_e)
    tiles, start = [], 0
    for e, n in enumerate(sizes):
        tiles += [(e, m, start + n) for m in range(start, start + n, bm)]
        start += n
    table = np.full((bound, 3), 2**30, np.int32)
    table[: len(tiles)] = tiles
    return {
        "tiles": table,
        "count": np.array([len(tiles)], np.int32),
        "slot_of": slots.astype(np.int32),
        "tok": (slots // experts.shape[1]).astype(np.int32),
    }


def moe_reference(a: dict[str, np.ndarray], experts: np.ndarray, gates: np.ndarray) -> np.ndarray:
    y = np.zeros_like(a["x"])
    for t, c in np.ndindex(experts.shape):
        e = experts[t, c]
        g, u = a["x"][t] @ a["wg"][e], a["x"][t] @ a["wu"][e]
        y[t] += gates[t, c] * ((g / (1 + np.exp(-g)) * u) @ a["wd"][e])
    return y


@ORDERS
def test_mixture_of_experts(order: str) -> None:
    n_t, top, n_e, n_d, n_h, bm = 7, 2, 4, 6, 5, 4
    experts = np.array([[0, 3], [3, 1], [0, 1], [3, 0], [0, 1], [0, 3], [3, 0]])  # nothing for 2
    gates, n_s = numbers(9, n_t, top), n_t * top
    arrays = {"x": numbers(1, n_t, n_d), "wd": numbers(4, n_e, n_h, n_d)}
    arrays |= {"wg": numbers(2, n_e, n_d, n_h), "wu": numbers(3, n_e, n_d, n_h)}
    bound = n_s // bm + n_e
    arrays |= expert_lists(experts, n_e, bm, bound)
    arrays["gate"] = gates.reshape(-1)[arrays["slot_of"]]
    sizes = {"n_t": n_t, "n_s": n_s, "n_e": n_e, "n_d": n_d, "n_h": n_h, "bound": bound}
    arrays |= run_flat(moe_up(bm, 4, 4), arrays, sizes, order=order)
    arrays |= run_flat(moe_down(bm, 4, 4), arrays, sizes, order=order)
    arrays["part"] = arrays["part"].reshape(n_t, top, n_d)
    got = run_flat(moe_combine(top, 8), arrays, sizes, order=order)
    close(got["y"], moe_reference(arrays, experts, gates))
