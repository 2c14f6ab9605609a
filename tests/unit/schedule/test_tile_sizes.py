"""Default schedules for Triton: what a thread holds stays within what it has registers for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tile_sizes import MOST, largest

import tilewright as tw
from tilewright import driver
from tilewright.formats.bind import bind
from tilewright.formats.storage import Spec
from tilewright.ir import tile
from tilewright.ir.node import walk
from tilewright.language.trace import trace
from tilewright.ops.backend import backend

WIDE = {"edges": 32, "width": 128, "warps": 4}
TILES = {"bm": 64, "bn": 64, "bk": 32, "warps": 4}


def embedded(x: Any, w: Any, at: Any, y: Any) -> None:
    i, g, f = tw.axes("i g f")
    y[f] = tw.sum((i, g), x[at[i], g] * w[f, g])


def three_sums(x: Any, w: Any, v: Any, y: Any) -> None:
    i, g, h, f = tw.axes("i g h f")
    y[f] = tw.sum((i, g, h), tw.exp(x[i, g] * w[f, h]) * v[g, h])


def inside_a_group(x: Any, w: Any, ks: Any, count: Any, y: Any) -> None:
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[i, n] = tw.sum(k, tw.tanh(x[i, k] * w[n, k]))


def rows_begin(x: Any, b: Any, rows: Any, count: Any, y: Any) -> None:
    I, i, n = tw.axes("I i n")
    tw.append(rows, count, I, where=tw.not_equal(x[I, 0], 0), over=I, ordered=False)
    y.sized(x.dim(0), b.dim(1))
    y[i, n] = b[i, n] * 2.0


def quotients(x: Any, s: Any, k: Any, w: Any, y: Any) -> None:
    i, n, f = tw.axes("i n f")
    y[i, n] = tw.sum(f, x[i, f] / (s[f] + k[i]) * w[f, n])


def scaled(x: Any, s: Any, w: Any, y: Any) -> None:
    """What scales a row vanishes nowhere."""
    i, n, f = tw.axes("i n f")
    y[i, n] = tw.sum(f, x[i, f] * s[i] * w[f, n])


def of_both(x: Any, w: Any, c: Any, y: Any) -> None:
    i, n, f = tw.axes("i n f")
    y[i, n] = tw.sum(f, x[i, f] * w[f, n] * c[i, n])


RANKS = {"x": 2, "w": 2, "v": 2, "b": 2, "c": 2, "ks": 2, "at": 1, "count": 1, "rows": 1}
INDEX = ("ks", "at", "count", "rows")


def lowered(fn: Any, setting: dict[str, int]) -> tile.Program:
    t = trace(fn)
    dtypes = {n: "i32" if n in INDEX else "f64" for n in t.inputs}
    specs = {n: Spec("dense", dtypes[n], RANKS.get(n, 1)) for n in t.inputs}
    return driver.to_tile(bind(t, specs).program, setting, {}, {})


@pytest.mark.parametrize("setting", [WIDE, TILES, {"width": 128, "warps": 4}], ids=str)
@pytest.mark.parametrize("fn", [embedded, three_sums, inside_a_group, quotients, scaled, of_both])
def test_threads_have_room(fn: Any, setting: dict[str, int]) -> None:
    held, value = largest(lowered(fn, setting), 4)
    assert held <= MOST, value


def test_many_rows_begin_in_turns() -> None:
    made = lowered(rows_begin, {"width": 128, "warps": 4})
    assert largest(made, 4)[0] <= MOST and any(isinstance(n, tile.For) for n in walk(made.body))


@pytest.mark.parametrize("fn", [quotients, scaled])
def test_products_of_what_does_not_vanish(fn: Any) -> None:
    """Where a tile of k sticks out, each side is 0: still a product of matrices."""
    assert any(isinstance(n, tile.Dot) for n in walk(lowered(fn, TILES).body))


def test_inner_sums_are_no_longer_than_they_have_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 8 beside rows of 600: each has lanes of its own, and the long one is summed up part by part."""
    found: dict[str, list[int]] = {}
    real = driver.compile_triton

    def compiled(*args: Any) -> Any:
        made = real(*args)
        found[made.name] = [int(n) for n in re.findall(r"# tile \w+ = (\d+)", made.text)]
        return made

    monkeypatch.setattr(driver, "compile_triton", compiled)
    mask = tw.block_mask(torch.ones(1, 1, dtype=torch.bool), block=16)
    q, k, v = (torch.ones(1, 1, 16, d, requires_grad=True) for d in (8, 8, 600))
    with backend("triton"):
        tw.attention(q, k, v, mask=mask).sum().backward()
    for name in ("attention_blocks_d_q", "attention_blocks_d_k"):
        assert sorted(set(found[name])) == [16, 128]


@tw.program
def weighted(a: Any, s: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * s[j], x[j, f])


@pytest.mark.parametrize("dtype, most", [(torch.float64, 20), (torch.float32, 80)], ids=str)
def test_exponentials_of_64_bits_have_few_copies(dtype: torch.dtype, most: int) -> None:
    """Of a list of rows there are rounds of several lengths, each with its copies: they took a minute to compile."""
    A = tw.SparseTensor.from_dense(torch.eye(40, dtype=dtype)).prepare()
    x = torch.ones(40, 4, dtype=dtype)
    with backend("triton"):
        weighted(A, x[:, 0].contiguous(), x)
        texts = [k.text for k in weighted.kernels(A, x[:, 0].contiguous(), x)]
    (listed,) = (t for t in texts if "segs_ptr" in t)
    rounds = re.findall(r"static_range\((\d+)\)", listed)
    assert rounds and 2 * sum(map(int, rounds)) <= most
