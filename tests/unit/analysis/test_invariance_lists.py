"""Axis rules of programs over lists: what a list names is in its order; all other axes may be permuted."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from semantics.axes import Case, bound, check_any_order, entry_of

import tilewright as tw
from tilewright.ops.grouped_matmul import grouped_product, tiles_of
from tilewright.ops.products import listed_product, masked_product
from tilewright.ops.registry import template
from tilewright.pit.compact import compact

PRODUCTS = {
    "rows": lambda: listed_product("i"),
    "rows by 2": lambda: listed_product("i", 2),
    "columns": lambda: listed_product("n"),
    "k": lambda: listed_product("k"),
    "k for rows": lambda: listed_product("k", 1, 2),
    "masked": lambda: masked_product(2, 1, 2, 1),
    "experts": lambda: grouped_product(2).name,
}


@cache
def product(name: str) -> Case:
    x, w = torch.randn(6, 8), torch.randn(6, 8)
    if name == "experts":
        index = tw.Index.from_choices(torch.tensor([[0, 1], [2, -1], [1, 1]]), 3)
        tiles = {n: t.contiguous() for n, t in tiles_of(index, 16).items()}
        found = {"x": x[:3], "w": torch.randn(3, 8, 5), "positions": index.positions, **tiles}
    else:
        grouped = name in ("k for rows", "masked")
        index = tw.Index.from_values((x > 0.5) if grouped else (x[:3] > 0), (2, 1), grouped=grouped)
        axis = {"rows": "i", "rows by 2": "i", "columns": "n"}.get(name, "k")
        positions = index.positions if grouped else torch.tensor([2, 0, 1], dtype=torch.int32)
        counts = index.counts if grouped else torch.tensor([2], dtype=torch.int32)
        found = {"x": x, "w": w, f"{axis}_list": positions, f"{axis}_count": counts}
    traced = template(PRODUCTS[name]()).traced
    given = {n: found[n] for n in traced.inputs}
    return bound(entry_of(traced, given).steps[0], list(given.values()), [])


INVARIANT = [(n, a.axis) for n in PRODUCTS for a in product(n).rules.axes if a.invariant]


@pytest.mark.parametrize(("name", "axis"), INVARIANT)
def test_any_order_gives_the_same(name: str, axis: str) -> None:
    check_any_order(product(name).split, axis)


@pytest.mark.parametrize(
    ("name", "axis", "why"),
    [
        ("rows", "i", "i_list names its values"),
        ("k for rows", "k", "k_list names its values"),
        ("masked", "p_k", "it counts places of k_list"),
        ("experts", "r", "it counts places of positions"),
    ],
)
def test_what_a_list_names_is_in_its_order(name: str, axis: str, why: str) -> None:
    rule = product(name).rules.axis(axis)
    assert not rule.invariant and not rule.skips and why in rule.why


def test_lists_travel() -> None:
    travels = [str(t) for t in product("experts").rules.axis("t").travels]
    assert travels == ["places.0", "fill.0", "owner.0"]


def test_axes_are_compacted_one_after_the_other() -> None:
    by_k = template(listed_product("k")).traced
    both = compact(by_k, "i", "x")
    assert [n.index.name for n in both.body[0].listed] == ["k", "i"]
    for again in ("i", "k"):
        with pytest.raises(tw.TilewrightError, match=f"{again}_list names its values"):
            compact(both, again, "x")
    with pytest.raises(tw.TilewrightError, match="i_list names its values"):
        compact(template(listed_product("i")).traced, "k", "x", group=("i", 2))

    x, w = torch.randn(6, 8), torch.randn(5, 8)
    rows, ks = torch.tensor([4, 1, 0]), torch.tensor([7, 2, 3])
    lists = [ks.int(), torch.tensor([2]).int(), rows.int(), torch.tensor([2]).int()]
    given = dict(zip(both.inputs, [x, w, *lists], strict=True))
    entry = entry_of(both, given)
    (y,) = entry.forward(list(given.values()), [], [])
    want = torch.zeros(6, 5)
    want[rows[:2]] = x[rows[:2]][:, ks[:2]] @ w[:, ks[:2]].T
    torch.testing.assert_close(y, want)
