"""tw.Index: what is listed, from values, masks, lengths and choices, on every back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fuzz.lists import TILES, draw, judge, same, wanted
from ops.places import Place
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
from tilewright.formats.bind import bind
from tilewright.formats.storage import Spec
from tilewright.ir.coord import Append, Reduce
from tilewright.ir.node import walk
from tilewright.ops.index import Index
from tilewright.pit import detect
from tilewright.runtime.counters import counters
from tilewright.support.errors import TilewrightError


def values(rows: int = 35, columns: int = 70, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Few values; NaN and the smallest number are values, -0 is none."""
    x = torch.zeros(rows, columns)
    x[0, 9], x[5, 36], x[17, 64], x[rows - 1, columns - 1] = 1.0, -2.0, 0.25, 3.0
    if dtype.is_floating_point:
        x[8, 0], x[9, 1], x[20, 20] = float("nan"), -0.0, torch.finfo(dtype).tiny
    return x.to(dtype)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_values(tile: Any, ordered: bool, where: Place) -> None:
    x = values().to(where.device)
    made = Index.from_values(x, tile, ordered=ordered)
    assert same(made, wanted(x.cpu(), tile)) is None
    assert made.positions.dtype == torch.int32 and made.counts.shape == (1,)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("tile", [(1, 1), (16, 1), (4, 32)], ids=str)
def test_grouped(tile: Any, ordered: bool, where: Place) -> None:
    """For each group of rows, the columns it has: what a product with a compacted k reads."""
    x = values().to(where.device)
    made = Index.from_values(x, tile, grouped=True, ordered=ordered)
    assert same(made, wanted(x.cpu(), tile)) is None
    assert made.groups == len(made.counts) == made.grid[0]


@pytest.mark.parametrize("turned", [False, True], ids=["by row", "by column"])
@pytest.mark.parametrize("tile", [(8, 1), (32, 1), (16, 16)], ids=str)
def test_many_lists(tile: Any, turned: bool, where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that are made in one pass, a program for each: in order, also where any order would do."""
    monkeypatch.setattr(detect, "MANY", 3)
    rows = 3 * tile[0] + 3
    x = torch.zeros(rows, 37)
    x[torch.arange(0, rows, 5), torch.arange(0, rows, 5) % 37] = 1.0
    x[: tile[0]] = 1.0
    x = (x.t().contiguous().t() if turned else x).to(where.device)
    for ordered in (True, False):
        made = Index.from_values(x, tile, grouped=True, ordered=ordered)
        assert same(made, wanted(x.cpu(), tile)) is None


DTYPES = ["float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("name", DTYPES)
def test_dtype(name: str, where: Place) -> None:
    x = values().nan_to_num(1.0).abs().ceil().to(getattr(torch, name))
    assert same(Index.from_values(x.to(where.device), (4, 8)), wanted(x, (4, 8))) is None


@pytest.mark.parametrize("tensor", [None, torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16"])
def test_threshold(name: str, tensor: torch.dtype | None, where: Place) -> None:
    x = values(dtype=getattr(torch, name))
    t = 0.5 if tensor is None else torch.tensor(0.5, dtype=tensor, device=where.device)
    for ordered in (True, False):
        made = Index.from_values(x.to(where.device), (8, 1), threshold=t, ordered=ordered)
        assert same(made, wanted(x, (8, 1), 0.5)) is None
    assert len(made.compact()) < len(Index.from_values(x, (8, 1)).compact())


def test_another_layout(where: Place) -> None:
    """A transposed view is read as it is."""
    x = values().to(where.device).t()
    assert not x.is_contiguous()
    assert same(Index.from_values(x, (1, 16)), wanted(x.cpu(), (1, 16))) is None


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1)], ids=str)
def test_nothing_to_look_at(shape: tuple[int, int], where: Place) -> None:
    x = torch.ones(shape, device=where.device)
    for tile in ((1, 1), (2, None)):
        for ordered in (True, False):
            made = Index.from_values(x, tile, ordered=ordered)  # type: ignore[arg-type]
            assert same(made, wanted(x.cpu(), tile)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("tile", [(1, None), (None, 2), (1, 1), (4, 8)], ids=str)
def test_a_threshold_where_it_lies(tile: Any, where: Place) -> None:
    """It may come from a computation, and wants no gradient; NaN is above all of them."""
    x = values().to(where.device)
    t = x.nan_to_num().abs().mean().requires_grad_() * 2
    for grouped in (False, True)[: 1 if None in tile else 2]:
        made = Index.from_values(x, tile, threshold=t, grouped=grouped)
        assert same(made, wanted(x.cpu(), tile, t.item())) is None


@pytest.mark.parametrize("tile", [(1, 1), (1, None), (2, 3), (None, 2)], ids=str)
def test_many_parts(tile: Any, where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordered list is made of parts; a part may hold several rows of micro-tiles."""
    monkeypatch.setattr(detect, "CHUNKS", 4)
    x = (torch.rand(37, 11) < 0.3).float().to(where.device)
    assert detect.chunk_of(37) > 4
    assert same(Index.from_values(x, tile), wanted(x.cpu(), tile)) is None


def test_parts_are_few() -> None:
    for n in (1, 2048, 2049, 10**6, 2**31):
        assert -(-n // detect.chunk_of(n)) <= detect.CHUNKS
    assert detect.chunk_of(2048) == 1


@pytest.mark.parametrize("number", range(12))
def test_drawn(number: int) -> None:
    d = draw(3, number, 0.2, (33,))
    assert judge(d) is None, d.words


# --- other sources ----------------------------------------------------------------------------------


def test_mask(where: Place) -> None:
    bits = torch.tensor([[True, False, True], [False, False, True]], device=where.device)
    made = Index.from_mask(bits, (16, 32), (20, 90))
    assert made.compact().tolist() == [0, 2, 5] and made.tile == (16, 32)
    rows = Index.from_mask(
        torch.tensor([True, False, True], device=where.device), (8, None), (20, 7)
    )
    assert rows.compact().tolist() == [0, 2] and rows.grid == (3, 1)


def test_lengths(where: Place) -> None:
    """Lengths beyond the longest, and negative ones, are cut."""
    size = torch.tensor([2, 0, 9, -3, 1], device=where.device)
    made = Index.from_lengths(size, 4)
    assert [p.tolist() for p in made.compact()] == [[0, 1], [], [8, 9, 10, 11], [], [16]]
    assert made.counts.tolist() == [2, 0, 4, 0, 1]
    starts = torch.tensor([0, 2, 2, 6], device=where.device, dtype=torch.int32)
    assert [p.tolist() for p in Index.from_offsets(starts, 4).compact()] == [
        [0, 1],
        [],
        [8, 9, 10, 11],
    ]


@pytest.mark.parametrize("shape", [(40, 2), (7, 1), (0, 2)], ids=str)
def test_choices(shape: tuple[int, int], where: Place) -> None:
    """Ids that name no expert are in no list."""
    ids = torch.randint(-1, 6, shape)
    made = Index.from_choices(ids.to(where.device), 5)
    flat = ids.reshape(-1).numpy()
    assert [p.tolist() for p in made.compact()] == [
        np.flatnonzero(flat == e).tolist() for e in range(5)
    ]
    assert made.counts.tolist() == [int((flat == e).sum()) for e in range(5)]
    assert len(made.positions) == len(flat)


def test_choices_of_more_tokens(where: Place) -> None:
    """A kernel that counted few counts many: how many there are is no part of what it was made for."""
    for tokens in (3, 20, 300):
        ids = torch.arange(tokens, device=where.device)[:, None] % 2
        assert Index.from_choices(ids, 2).counts.tolist() == [(tokens + 1) // 2, tokens // 2]


# --- what an index promises -------------------------------------------------------------------------


def test_twice_the_same(where: Place) -> None:
    x = (torch.rand(50, 40) < 0.2).float().to(where.device)
    first, second = (Index.from_values(x, (2, 4)) for _ in range(2))
    assert torch.equal(first.compact(), second.compact())  # type: ignore[arg-type]


def test_nothing_waits_for_the_device() -> None:
    """On tensors without contents everything but compact works: shapes follow from shapes."""
    with FakeTensorMode():
        x = torch.empty(20, 30)
        made = Index.from_values(x, (4, 8))
        assert made.positions.shape == (20,) and made.counts.shape == (1,)
        assert Index.from_values(x, (4, 8), grouped=True).positions.shape == (5, 4)
        assert Index.from_values(x, (4, 8), ordered=False).positions.shape == (20,)
        ids = torch.empty(6, 2, dtype=torch.int64)
        assert Index.from_choices(ids, 3).ends.shape == (3,)  # type: ignore[union-attr]
        with pytest.raises(Exception, match="_local_scalar_dense"):
            made.compact()


def test_no_kernel_for_another_pattern_or_height() -> None:
    x = torch.rand(30, 64)
    Index.from_values(x, (8, 1))
    counters.reset()
    for rows in (1, 15, 16, 17, 30):
        Index.from_values(x[:rows] * 0.0, (8, 1))
    assert counters.c_builds == counters.triton_builds == counters.disk_hits == 0


def test_print() -> None:
    x = torch.zeros(64, 96)
    x[3, 40] = x[50, 0] = 1.0
    assert str(Index.from_values(x, (16, 32))) == (
        "Index: micro-tiles of 16 x 32 in 64 x 96 (a grid of 4 x 3): 2 of 12 (16.7%)\n"
        "  one list, in order; 48 bytes of room on cpu"
    )
    assert "all x 1" in str(Index.from_values(x, (None, 1)))
    assert tw.Index is Index


REFUSED = {
    "rank": (lambda: Index.from_values(torch.ones(3)), "2 dimensions"),
    "tile": (lambda: Index.from_values(torch.ones(3, 3), (0, 1)), "a number or None"),
    "all": (lambda: Index.from_values(torch.ones(3, 3), (None, None)), "a number or None"),
    "groups": (lambda: Index.from_values(torch.ones(3, 3), (1, None), grouped=True), "two numbers"),
    "whole": (
        lambda: Index.from_values(torch.ones(3, 3, dtype=torch.int32), threshold=0.5),
        "floating point",
    ),
    "mask": (lambda: Index.from_mask(torch.ones(3, 3), (2, 2), (9, 6)), "one for each micro-tile"),
    "ids": (lambda: Index.from_choices(torch.ones(3, 3), 2), "int32"),
    "experts": (lambda: Index.from_choices(torch.ones(3, 3).int(), -1), "0 or more"),
    "half": (lambda: Index.from_lengths(torch.ones(3).int(), 2.5), "a whole number"),  # type: ignore[arg-type]
    "none": (lambda: Index.from_choices(torch.ones(3, 3).int(), None), "a whole number"),  # type: ignore[arg-type]
    "threshold": (
        lambda: Index.from_values(torch.ones(3, 3), threshold="0.5"),  # type: ignore[arg-type]
        "a number, or a tensor without dimensions",
    ),
    "thresholds": (
        lambda: Index.from_values(torch.ones(3, 3), threshold=torch.ones(3)),
        "0 dimensions",
    ),
    "elsewhere": (
        lambda: Index.from_values(torch.ones(3, 3), threshold=torch.ones((), device="meta")),
        "threshold lives on meta",
    ),
    "longest": (lambda: Index.from_lengths(torch.ones(3).int(), -1), "0 or more"),
    "list": (lambda: Index.from_values([[1.0]]), "a dense (strided) tensor"),  # type: ignore[arg-type]
    "mask dims": (lambda: Index.from_mask(torch.ones(2, 2, 2)), "mask has shape (2, 2, 2)"),
    "mask list": (lambda: Index.from_mask([True]), "a dense (strided) tensor"),  # type: ignore[arg-type]
    "ids list": (lambda: Index.from_choices([[1]], 2), "a dense (strided) tensor"),  # type: ignore[arg-type]
    "auto": (
        lambda: tw.linear.auto(torch.ones(3, 3), torch.ones(3, 3), index="rows"),  # type: ignore[attr-defined]
        "a tw.Index of x",
    ),
    "large": (
        lambda: Index.from_values(torch.ones(1, 1).expand(1 << 16, 1 << 16)),
        "2147483648",
    ),
}


def test_numbers_of_numpy(where: Place) -> None:
    x = torch.tensor([[0.25, 0.75]], device=where.device)
    assert Index.from_values(x, threshold=np.float32(0.5)).compact().tolist() == [1]
    assert len(Index.from_lengths(x.int()[0], np.int64(2)).compact()) == 2


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.complex64, torch.float8_e4m3fn], ids=str
)
def test_dtypes_that_kernels_do_not_read(dtype: torch.dtype, where: Place) -> None:
    x = torch.tensor([[0.0, -0.0, 2.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], device=where.device)
    assert Index.from_values(x.to(dtype), (1, None)).compact().tolist() == [0, 2]


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    action, told = REFUSED[name]
    with pytest.raises(TilewrightError) as why:
        action()
    assert told in str(why.value)


@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32"])
def test_places_are_added_up_in_whole_numbers(dtype: str) -> None:
    """Floats would lose places beyond 2**24, whatever the dtype of the values that are looked at."""
    program = bind(detect.raised(1024), {"seen": Spec("dense", dtype, 1)}).program
    (made,) = (s for s in program.body if isinstance(s, Append))
    sums = [n for n in walk(made.start) if isinstance(n, Reduce)]
    assert [n.monoid.dtypes for n in sums] == [("i64",)]


def test_tiles_larger_than_what_they_cut() -> None:
    """A tile that sticks out costs what is there."""
    x = torch.eye(3)
    for tile in ((1 << 40, 1), (2, 1 << 31), (1 << 31, 1 << 31)):
        index = tw.Index.from_values(x, tile)
        assert index.tile == tile and index.compact().tolist() == list(
            range(index.grid[0] * index.grid[1])
        )


def test_groups_of_whole_sides_are_refused() -> None:
    with pytest.raises(tw.TilewrightError, match="two numbers"):
        tw.Index.from_mask(torch.tensor([True, False]), (2, None), (4, 5), grouped=True)
