"""Search spaces: products with rules and reasons."""

from __future__ import annotations

import pytest

from tilewright.ops import spaces
from tilewright.ops.settings import pack, unpack
from tilewright.tune.space import Param, Rule, Space

SPACES = {
    "lists": spaces.lists(128, False),
    "lists-half": spaces.lists(256, True),
    "padded": spaces.padded(20, False),
    "entries": spaces.entries(64),
    "product": spaces.product(2),
    "blocks": spaces.blocks(128, 64),
    "block-products": spaces.block_products(128, 128, 512, 2),
    "c": spaces.c(512),
}
SMALL = Space(
    "small",
    (Param("a", (1, 2), format=True), Param("b", (3, 4))),
    (Rule("a and b are not both even", lambda p: p["a"] % 2 == 1 or p["b"] % 2 == 1),),
)


def test_points_are_the_product_less_the_rules() -> None:
    assert list(SMALL.points()) == [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}]
    assert SMALL.size == 3


@pytest.mark.parametrize(
    "point, why",
    [
        ({"a": 1, "b": 3}, None),
        ({"a": 2, "b": 4}, "a and b are not both even"),
        ({"a": 3, "b": 3}, "a=3: one of 1, 2"),
        ({"a": 1}, "b is missing"),
        ({"a": 1, "b": 3, "c": 1}, "c: no parameter of small (a, b)"),
    ],
)
def test_reasons(point: dict[str, int], why: str | None) -> None:
    assert SMALL.why_not(point) == why


def test_print() -> None:
    assert str(SMALL).splitlines() == [
        "space small: 3 points",
        "  a  format    1, 2",
        "  b  schedule  3, 4",
        "  rule: a and b are not both even",
    ]


@pytest.mark.parametrize("name", SPACES)
def test_every_space_has_points_and_its_rules_forbid_some(name: str) -> None:
    space = SPACES[name]
    points = list(space.points())
    assert 2 <= len(points) < 10_000
    assert all(space.why_not(p) is None for p in points)
    for rule in space.rules:
        if "do not divide" not in rule.reason:
            assert not all(rule.holds(p) for p in Space("free", space.params).points()), rule.reason


def test_odd_widths_keep_few_values_in_flight() -> None:
    """A kernel with more of them spills: tests/codegen builds one of 33 features."""
    many = {"rows": 16, "long": 32, "chunk": 512, "alike": 0, "unroll": 4, "warps": 2}
    many |= {"width": 32, "outer": 0}
    assert spaces.lists(32, False).why_not(many) is None
    assert "in flight" in str(spaces.lists(33, False).why_not(many))
    assert spaces.lists(33, False).why_not({**many, "rows": 4}) is None


@pytest.mark.parametrize("name", SPACES)
def test_points_travel_as_an_integer(name: str) -> None:
    """But for what only a work list needs."""
    for point in SPACES[name].points():
        kept = {k: v for k, v in point.items() if v and k not in ("long", "chunk", "alike")}
        assert unpack(pack(point)) == kept
        assert pack(point) < 1 << 63


@pytest.mark.parametrize("span", [1, 32, 128, 130, 4096])
def test_the_usual_c_options_are_a_point(span: int) -> None:
    assert spaces.c(span).why_not({"width": 128, "prefetch": 8, "grain": 256}) is None
