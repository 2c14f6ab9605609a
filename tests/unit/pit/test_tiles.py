"""The tile database: found again, shipped or estimated, safe under many writers, deaf to foreign files."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.pit import tiles
from tilewright.pit.tiles import Costs, costs_of, estimated
from tilewright.tune.machine import CPU, H200

MADE = replace(estimated(H200, "bf16"), device="a GPU", source="measured", scale={"rows": 1.2})


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tiles, "SHIPPED", tmp_path / "shipped")
    tiles.forget()
    yield
    tiles.forget()


def asked(dtype: str = "bf16") -> Costs:
    return costs_of("a GPU", dtype, lambda: estimated(H200, dtype))


def test_estimated_where_nothing_was_measured() -> None:
    assert asked().source == "estimated"


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("gpu", [True, False])
def test_estimates_have_every_cost(dtype: str, gpu: bool) -> None:
    made = estimated(H200 if gpu else CPU, dtype, gpu)
    assert all(0 < t.step < t.gathered for t in made.tiles)
    assert min(made.detect, made.look, made.write, made.cores) > 0


def test_larger_tiles_are_better_used() -> None:
    """Microseconds an operation fall with the tile where operands bound a step."""
    cost = [t.step / (t.bm * t.bn * t.bk) for t in estimated(H200, "bf16").tiles]
    assert cost == sorted(cost) and cost[-1] > cost[0]


def test_found_again_by_a_later_reader() -> None:
    path = tiles.write(tiles.path_of("a GPU"), [MADE, replace(MADE, dtype="f32")], "versions")
    assert path.is_file()
    assert asked() == MADE
    assert asked("f32") == replace(MADE, dtype="f32")
    assert asked("f16").source == "estimated"


def test_read_once() -> None:
    before = asked()
    tiles.write(tiles.path_of("a GPU"), [MADE], "versions")
    assert asked() is before
    tiles.forget()
    assert asked() == MADE


def test_measured_here_comes_before_what_is_shipped(tmp_path: Path) -> None:
    tiles.write(tmp_path / "shipped" / "gpu.json", [replace(MADE, detect=7.0)], "versions")
    assert asked().detect == 7.0
    tiles.write(tiles.path_of("a GPU"), [MADE], "versions")
    tiles.forget()
    assert asked() == MADE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "costs": [{}]}']
)
def test_foreign_files_are_ignored_with_a_warning(text: str) -> None:
    path = tiles.path_of("a GPU")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(UserWarning, match="no tiles in"):
        assert asked().source == "estimated"


def test_times_must_be_positive() -> None:
    path = tiles.write(tiles.path_of("a GPU"), [MADE], "versions")
    said = json.loads(path.read_text())
    said["costs"][0]["tiles"][0]["step"] = 0.0
    path.write_text(json.dumps(said))
    with pytest.raises(ValueError, match="not positive"):
        tiles.read(path)


def write(me: int) -> None:
    path = tiles.path_of("a GPU")
    for n in range(30):
        tiles.write(path, [replace(MADE, detect=1.0 + me, look=1.0 + n)] * 5, "versions")
        assert len(tiles.read(path)) == 5


def test_many_processes_write_at_once() -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write, args=(n,)) for n in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    assert [w.exitcode for w in writers] == [0, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asked().detect in (1.0, 2.0, 3.0)
    assert not list(tiles.root().glob(".making-*"))


def test_what_is_shipped_can_be_read() -> None:
    here = Path(tiles.__file__).parent / "data"
    found = [c for path in here.glob("*.json") for c in tiles.read(path)]
    assert len({(c.device, c.dtype) for c in found}) == len(found)
