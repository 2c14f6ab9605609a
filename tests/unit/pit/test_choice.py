"""The choice as arithmetic: what the numbers say, that more work never costs less, that it does not waver."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.pit.choice import MARGIN, Chooser, Seen, Site, decide, estimates
from tilewright.pit.tiles import Costs, estimated
from tilewright.tune.machine import H200

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "h200_rows.json"
COSTS = estimated(H200, "bf16")
SITE = Site("linear", 4096, 4096, 4096, "bf16", "NVIDIA H200")
GROUPS, WIDE = 128, 64  # blocks of 32 x 64 in 4096 x 4096


def rows(share: float) -> Seen:
    return Seen(round(share * 4096), 4096, 1, 4096)


def blocks(share: float) -> Seen:
    kept = round(share * GROUPS * WIDE)
    return Seen(kept, GROUPS * WIDE, -(-kept // GROUPS), GROUPS)


def total(family: str, seen: Seen, costs: Costs = COSTS) -> float:
    return next(e.total for e in estimates(SITE, {family: seen}, costs) if e.family == family)


@pytest.mark.parametrize(
    "statistics, family",
    [
        ({}, "dense"),
        ({"rows": rows(1.0), "blocks": blocks(1.0)}, "dense"),
        ({"rows": rows(0.95), "blocks": blocks(1.0)}, "dense"),
        ({"rows": rows(0.1), "blocks": blocks(1.0)}, "rows"),
        ({"rows": rows(1.0), "blocks": blocks(0.05)}, "blocks"),
    ],
)
def test_what_the_numbers_say(statistics: dict[str, Seen], family: str) -> None:
    assert decide(SITE, statistics, COSTS).family == family


@pytest.mark.parametrize("family, seen", [("rows", rows(0.0)), ("blocks", blocks(0.0))])
def test_where_nothing_is_left_nothing_is_multiplied(family: str, seen: Seen) -> None:
    made = decide(SITE, {family: seen}, COSTS)
    assert made.family == family and made.estimates[0].product == 0.0


@pytest.mark.parametrize("high", [1, 16, 128])
def test_groups_of_rows_count_as_their_rows(high: int) -> None:
    of = -(-4096 // high)
    seen = Seen(of // 2, of, 1, of)
    assert total("rows", seen) == total("rows", rows(0.5))


def test_a_weight_beyond_the_cache_and_a_lone_tile_cost_more() -> None:
    tiles = tuple(replace(t, alone=3 * t.step) for t in COSTS.tiles)
    few = Seen(64, 4096, 1, 4096)
    assert total("blocks", blocks(0.1), replace(COSTS, cache=1e6)) > total("blocks", blocks(0.1))
    assert total("rows", few, replace(COSTS, tiles=tiles)) > total("rows", few)


@pytest.mark.parametrize("gain, family", [(1.03, "dense"), (1.08, "rows")])
def test_a_small_gain_is_left_to_dense(gain: float, family: str) -> None:
    known = {"rows": rows(0.5)}
    scale = {"dense": gain * total("rows", known["rows"]) / total("dense", rows(1.0))}
    made = decide(SITE, known, replace(COSTS, scale=scale))
    assert made.family == family and made.estimates[0].family == "rows"
    assert ("by less than 5%" in made.why) == (family == "dense")
    assert decide(SITE, known, replace(COSTS, scale=scale), "rows").family == "rows"


def test_dense_is_always_there() -> None:
    assert [e.family for e in estimates(SITE, {}, COSTS)] == ["dense"]


def test_a_small_product_is_not_worth_an_index() -> None:
    small = replace(SITE, rows=64, columns=64, inner=64)
    assert decide(small, {"rows": Seen(1, 64, 1, 64)}, COSTS).family == "dense"


@pytest.mark.parametrize(
    "cause, changed",
    [
        ("gather", {"tiles": tuple(replace(t, gathered=2 * t.gathered) for t in COSTS.tiles)}),
        ("index", {"detect": COSTS.detect + 50}),
        ("index", {"look": COSTS.look / 4}),
        ("zeros", {"write": COSTS.write / 4}),
    ],
)
def test_every_cost_counts(cause: str, changed: dict[str, object]) -> None:
    more = replace(COSTS, **changed)  # type: ignore[arg-type]
    before, after = (
        next(e for e in estimates(SITE, {"rows": rows(0.5)}, c) if e.family == "rows")
        for c in (COSTS, more)
    )
    assert getattr(after, cause) > getattr(before, cause)
    assert after.total > before.total


def test_groups_store_what_they_make_and_start_no_sooner_than_the_vendor() -> None:
    slow = replace(COSTS, write=COSTS.write / 4, dense=replace(COSTS.dense, start=99.0))
    before, after = (
        next(e for e in estimates(SITE, {"blocks": blocks(0.05)}, c) if e.family == "blocks")
        for c in (COSTS, slow)
    )
    assert after.stores == pytest.approx(4 * before.stores) and after.start == 99.0
    assert after.total > before.total


def test_the_vendor_splits_sums_where_tiles_are_few() -> None:
    """8 tiles for 132 multiprocessors: no family of whole tiles keeps them busy."""
    few = replace(SITE, rows=256, columns=1024, inner=65536)
    dense = next(iter(estimates(few, {}, COSTS)))
    assert dense.tail == 0 and dense.product < dense.tile.step * few.inner / dense.tile.bk


def test_a_longest_group_counts() -> None:
    even, uneven = blocks(0.05), replace(blocks(0.05), longest=WIDE)
    small = replace(SITE, columns=64)
    found = [
        next(e for e in estimates(small, {"blocks": s}, COSTS) if e.family == "blocks").total
        for s in (even, uneven)
    ]
    assert found[1] > found[0]


def test_a_measured_scale_counts() -> None:
    scaled = replace(COSTS, scale={"rows": 3.0})
    assert total("rows", rows(0.5), scaled) == pytest.approx(3 * total("rows", rows(0.5)))


WHOLE = [r for r in json.loads(RESULTS.read_text())["rows"] if "dense_ms" in r]


@pytest.mark.parametrize("row", WHOLE, ids=lambda r: r["case"])
def test_estimates_are_near_what_was_measured(row: dict[str, Any]) -> None:
    """Dense and the rows kernel on the H200, index given, from the machine's rates alone."""
    found = {
        e.family: e for e in estimates(SITE, {"rows": Seen(row["rows"], 4096, 1, 4096)}, COSTS)
    }
    kernel = found["rows"]
    alone = kernel.product + kernel.gather + kernel.tail + kernel.start
    assert found["dense"].total / (1e3 * row["dense_ms"]) == pytest.approx(1.0, abs=0.2)
    assert alone / (1e3 * row["best_ms"]) == pytest.approx(1.0, abs=0.25)


shares = st.floats(0, 1)
known = st.fixed_dictionaries({"rows": shares.map(rows), "blocks": shares.map(blocks)})


@settings(max_examples=100, deadline=None)
@given(shares, shares)
def test_more_is_never_cheaper(a: float, b: float) -> None:
    less, more = sorted((a, b))
    assert total("rows", rows(less)) <= total("rows", rows(more)) + 1e-9
    assert total("blocks", blocks(less)) <= total("blocks", blocks(more)) + 1e-9


sizes = st.integers(1, 20000)


@settings(max_examples=100, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from(["bf16", "f32"]))
def test_where_everything_is_there_nothing_is_skipped(m: int, n: int, k: int, dtype: str) -> None:
    site = Site("linear", m, n, k, dtype, "a GPU")
    high, wide = -(-m // 32), -(-k // 64)
    seen = {"rows": Seen(m, m, 1, m), "blocks": Seen(high * wide, high * wide, wide, high)}
    assert decide(site, seen, estimated(H200, dtype)).family == "dense"


@settings(max_examples=100, deadline=None)
@given(shares, shares, shares)
def test_once_dense_always_dense(a: float, b: float, other: float) -> None:
    """If dense is chosen at some share of rows, it is chosen at every larger one."""
    less, more = sorted((a, b))
    pick = lambda share: decide(SITE, {"rows": rows(share), "blocks": blocks(other)}, COSTS).family
    if pick(less) == "dense":
        assert pick(more) == "dense"


@settings(max_examples=100, deadline=None)
@given(known, st.sampled_from(["dense", "rows", "blocks", None, "gone"]))
def test_hysteresis(seen: dict[str, Seen], before: str | None) -> None:
    """What is chosen is at most the margin away from the best, and another one only where it is beyond it."""
    made = decide(SITE, seen, COSTS, before)
    cost = {e.family: e.total for e in made.estimates}
    best = min(cost.values())
    assert cost[made.family] * (1 - MARGIN) <= best + 1e-9
    if before in cost and made.family != before:
        assert best < (1 - MARGIN) * cost[before]
    assert decide(SITE, seen, COSTS, made.family).family == made.family


@settings(max_examples=50, deadline=None)
@given(st.lists(known, min_size=1, max_size=12))
def test_near_numbers_do_not_waver(history: list[dict[str, Seen]]) -> None:
    """Numbers that come again, in any order, change the choice only by more than the margin each time."""
    choose = Chooser(lambda site: COSTS)
    before = None
    for seen in [*history, *history]:
        family = choose(SITE, seen)
        cost = {e.family: e.total for e in choose.made[SITE].estimates}
        if before is not None and family != before:
            assert cost[family] < (1 - MARGIN) * cost[before]
        before = family


def test_sites_are_apart() -> None:
    choose = Chooser(lambda site: COSTS)
    other = replace(SITE, dtype="f32")
    assert choose(SITE, {"rows": rows(0.1)}) == "rows"
    assert choose(other, {"rows": rows(1.0)}) == "dense"
    assert choose(SITE, {"rows": rows(0.1)}) == "rows"


def test_explanation() -> None:
    choose = Chooser(lambda site: COSTS)
    assert "nothing was chosen yet" in choose.explain(SITE)
    choose(SITE, {"rows": rows(0.1)})
    choose(SITE, {"rows": rows(1.0)})
    told = choose.explain(SITE)
    assert told.startswith("linear 4096 x 4096 x 4096, bf16 on NVIDIA H200: dense (dense is ")
    assert "times cheaper than rows, used before; tiles estimated)" in told
    assert "100.0% kept, 128x256x64: product" in told


def test_kept_by_hysteresis_is_told() -> None:
    choose = Chooser(lambda site: COSTS)
    choose(SITE, {"rows": rows(0.5)})
    share = next(
        s / 100
        for s in range(50, 101)
        if total("rows", rows(s / 100)) > decide(SITE, {}, COSTS).estimates[0].total
    )
    assert choose(SITE, {"rows": rows(share)}) == "rows"
    assert "kept: dense would be cheaper, but by less than 10%" in choose.explain(SITE)


def test_the_end_of_rows_is_shared() -> None:
    """2,068 rows: two waves of 128 x 256 and a part of one, not three; 100 rows more than 2,048 are a tile."""
    sums = [total("rows", Seen(n, 4096, 1, 4096)) for n in (2048, 2068, 2148)]
    assert sums[0] < sums[1] < sums[0] + 0.5 * (sums[2] - sums[0])


def test_few_sums_of_32_bits_are_in_pieces() -> None:
    costs, site = estimated(H200, "f32"), Site("linear", 1024, 1024, 4096, "f32", "NVIDIA H200")
    made = next(
        e for e in estimates(site, {"rows": Seen(523, 1024, 1, 1024)}, costs) if e.family == "rows"
    )
    assert (made.tile.bm, made.tile.bn, made.tail) == (64, 128, 32.0)
