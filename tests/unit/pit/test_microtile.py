"""Micro-tiles: shapes that were worked out by hand, and addresses counted one by one."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.analysis.cost import BYTES
from tilewright.pit.microtile import CPU, GPU, Device, MicroTile, micro_tile, product_tiles
from tilewright.support.errors import TilewrightError

SHAPES = {
    # tile, axis, dtype, layout, device: shape
    ((32, 32), 0, "f32", "row", GPU): (1, 32),
    ((32, 32), 1, "f32", "column", GPU): (32, 1),
    ((32, 32), 1, "f32", "row", GPU): (32, 8),
    ((64, 32), 1, "bf16", "column", GPU): (64, 1),
    ((64, 32), 1, "bf16", "row", GPU): (64, 16),
    ((64, 32), 0, "bf16", "column", GPU): (16, 32),
    ((32, 64), 0, "f16", "row", GPU): (1, 64),
    ((16, 16), 1, "f64", "row", CPU): (16, 8),
    ((16, 64), 0, "u8", "row", CPU): (1, 64),
    ((8, 1), 1, "f32", "column", GPU): (8, 1),
}


@pytest.mark.parametrize("given", SHAPES, ids=str)
def test_shape(given: tuple) -> None:  # type: ignore[type-arg]
    made = micro_tile(*given)
    assert made.shape == SHAPES[given] and made.legal


def granules(t: MicroTile, at: tuple[int, int], width: int, device: Device) -> set[int]:
    """The granules that a micro-tile at a place touches in a large matrix."""
    item = BYTES[t.dtype]
    rows = range(at[0] * t.rows, (at[0] + 1) * t.rows)
    columns = range(at[1] * t.columns, (at[1] + 1) * t.columns)
    places = (
        r * width + c if t.layout == "row" else c * width + r for r, c in product(rows, columns)
    )
    return {p * item // device.granule for p in places}


@pytest.mark.parametrize("device", [GPU, CPU], ids=lambda d: d.name)
@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "u8"])
@pytest.mark.parametrize("tile", [(64, 64), (16, 128), (4, 4), (1, 64)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_legal_micro_tile_wastes_nothing(
    tile: tuple[int, int], axis: int, dtype: str, layout: str, device: Device
) -> None:
    """Legal: all that memory delivers is used, wherever it stands. Not legal: something is not."""
    t = micro_tile(tile, axis, dtype, layout, device)
    wanted = t.rows * t.columns * BYTES[dtype]
    for at in ((0, 0), (3, 5), (7, 2)):
        delivered = len(granules(t, at, 4096, device)) * device.granule
        assert (delivered == wanted) == t.legal


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_better_layout_is_thinner(axis: int, dtype: str) -> None:
    for layout in ("row", "column"):
        t = micro_tile((64, 64), axis, dtype, layout)
        best = micro_tile((64, 64), axis, dtype, t.better)
        assert best.shape[axis] == 1 <= t.shape[axis]
        assert (t.better == layout) == (t.shape[axis] == 1)


def test_a_tile_too_narrow_is_told() -> None:
    t = micro_tile((32, 8), 0, "bf16", "row")
    assert not t.legal and "the tile needs 16 columns" in t.why
    assert "16 bytes in a row, and gpu memory delivers 32" in str(t)


def test_one_axis_of_a_product() -> None:
    rows = product_tiles((64, 128, 32), "m", "bf16")
    assert {t.operand: t.shape for t in rows.operands} == {"a": (1, 32), "c": (1, 128)}
    k = product_tiles((64, 128, 32), "k", "bf16", {"a": "column"})
    assert {t.operand: t.shape for t in k.operands} == {"a": (64, 1), "b": (1, 128)}
    n = product_tiles((64, 128, 32), "n", "bf16", {"b": "column"})
    assert {t.operand: t.shape for t in n.operands} == {"b": (32, 1), "c": (64, 16)}
    assert rows.legal and k.legal and n.legal
    batch = product_tiles((64, 128, 32), "batch", "bf16")
    assert batch.legal and batch.of("a").shape == (64, 32)


def test_two_axes_of_a_product() -> None:
    """Rows are grouped by the tile, and each group lists its own k's: b is read row by row."""
    made = product_tiles((16, 128, 32), ("m", "k"), "bf16", {"a": "column"})
    assert {t.operand: t.shape for t in made.operands} == {"a": (16, 1), "b": (1, 128)}
    outputs = product_tiles((64, 64, 32), ("m", "n"), "f32", {"b": "column"})
    assert {t.operand: t.shape for t in outputs.operands} == {
        "a": (1, 32),
        "b": (32, 1),
        "c": (1, 8),
    }
    columns = product_tiles((64, 64, 32), ("n", "k"), "f32")
    assert columns.of("b").shape == (1, 64) and columns.of("a").shape == (64, 8)


def test_products_have_smallest_shapes() -> None:
    made = product_tiles((8, 128, 32), "k", "bf16", {"a": "column"})
    assert not made.legal and "multiples of 16 x 16 x 16" in made.why
    assert product_tiles((1, 64, 7), "k", "f32", device=CPU).why.startswith("a: ")
    assert product_tiles((16, 64, 32), "k", "f32", {"a": "column"}, CPU).legal


def test_derivations_print_as_a_table() -> None:
    text = str(product_tiles((64, 128, 32), ("m", "k"), "bf16"))
    assert text.splitlines()[0] == "m and k of a 64 x 128 x 32 product, bf16 on gpu: legal"
    assert "a 64 x 16 (row major): legal, 32 bytes in a row; write it column major" in text


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: micro_tile((4, 4), 0, "f32", "diagonal"), "row or column"),
        (lambda: micro_tile((4, 4), 0, "f8"), "f64"),
        (lambda: micro_tile((0, 4), 0, "f32"), "positive sizes"),
        (lambda: product_tiles((4, 4, 4), ("m", "n", "k"), "f32"), "two of m, n, k"),
    ],
)
def test_refusals(call, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TilewrightError) as why:
        call()
    assert told in str(why.value)
