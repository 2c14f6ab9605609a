"""Texts next to each other."""

from __future__ import annotations

import pytest

from tilewright.view.columns import LEAST, fold, shares, side_by_side

TEXTS = {f"title {n}": f"head {n}\n  " + "word " * 30 + f"end{n}" for n in range(5)}


@pytest.mark.parametrize("width", [20, 40, 79, 80, 120, 200, 400])
def test_nothing_is_wider_than_asked(width: int) -> None:
    assert max(map(len, side_by_side(TEXTS, width).splitlines())) <= width


@pytest.mark.parametrize("width", [20, 80, 200])
def test_nothing_is_lost(width: int) -> None:
    told = side_by_side(TEXTS, width)
    assert [n for n in range(5) if f"head {n}" not in told or f"end{n}" not in told] == []


@pytest.mark.parametrize("width, columns", [(LEAST, 1), (2 * LEAST + 3, 2), (3 * LEAST + 6, 3)])
def test_as_many_columns_as_fit(width: int, columns: int) -> None:
    first = side_by_side(TEXTS, width).splitlines()[0]
    assert first.count("--- title") == columns


def test_short_columns_leave_their_room() -> None:
    assert shares([10, 50, 90], 100) == [10, 45, 45]
    assert shares([10, 20], 100) == [10, 20]


def test_folded_lines_are_indented() -> None:
    first, *rest = fold("  for i in range of a very long name", 20)
    assert first.startswith("  for") and all(line.startswith("      ") for line in rest)


def test_the_terminals_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert max(map(len, side_by_side(TEXTS).splitlines())) <= 90
