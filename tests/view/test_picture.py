"""The picture, with matplotlib and without."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tilewright.view import picture
from tilewright.view.cases import RULES, case, density
from tilewright.view.picture import Chart, draw

CHART = Chart("spmm", "ms", ["a & b", "c"], {"ours": [1.0, 2.0], "theirs": [2.0, 1.0]})
GRID = [[0.0, 0.5], [1.0, 0.0]]
TAG = "{http://www.w3.org/2000/svg}"


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = draw(tmp_path / "new" / "p", "title", {"a": GRID}, [CHART])
    assert path.suffix == ".png"
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_svg_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_matplotlib", lambda: None)
    path = draw(tmp_path / "p", "title", {"a & b": GRID}, [CHART])
    assert path.suffix == ".svg"
    page = xml.parse(path).getroot()
    said = [t.text for t in page.iter(TAG + "text")]
    assert {"title", "a & b", "spmm", "a & b, 2.0x", "c, 0.5x"} <= set(said)


def test_svg_stays_inside_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_matplotlib", lambda: None)
    page = xml.parse(draw(tmp_path / "p", "t", {"a": GRID}, [CHART, CHART])).getroot()
    high, wide = float(page.get("height", 0)), float(page.get("width", 0))
    for box in page.iter(TAG + "rect"):
        x, y, w, h = (float(box.get(k, 0)) for k in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= wide and y + h <= high


def test_gains() -> None:
    assert CHART.gains() == [2.0, 0.5]


@pytest.mark.parametrize("name", RULES)
def test_density_counts_every_entry(name: str) -> None:
    a = case(name, 100, 5)
    grid = density(a, 10)
    assert sum(map(sum, grid)) * 100 == pytest.approx(a.nnz)


@pytest.mark.parametrize("name", RULES)
def test_cases_are_of_the_size_asked(name: str) -> None:
    a = case(name, 320, 8)
    assert 0.5 * 320 * 8 < a.nnz <= 1.1 * 320 * 8


def test_empty_rows_are_empty() -> None:
    indptr = case("empty rows", 99, 4).structure.indptr
    assert indptr is not None
    assert int((indptr.diff() == 0).sum()) >= 66
