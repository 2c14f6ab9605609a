"""The database on disk: found again, safe under many writers, deaf to foreign files."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.tune import store
from tilewright.tune.store import Key, Record

KEY = Key("spmm_sum|a=csr:f32", "c", "100,32", "r7-c7-e9-l4", "a CPU, 2 threads")
RECORD = Record(KEY, {"width": 128, "grain": 64}, 0.5, "2026-01-01 00:00:00", {"first_ms": 1.0})


def write(me: int) -> None:
    """One key that all write, and keys of its own."""
    path = store.root() / KEY.folder / f"{KEY.file}.json"
    for n in range(40):
        long = {"filling": "x" * 5000}
        store.put(Record(KEY, {"width": me, "grain": n}, 0.5, "now", long))
        store.put(Record(replace(KEY, sizes=f"{me},{n}"), {"width": me}, 0.5, "now"))
        assert store.record_of(path).setting["width"] in range(4)


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    store.forget()


def test_found_again_by_a_later_reader() -> None:
    assert store.empty()
    assert store.find(KEY) is None and not store.knows(KEY)
    path = store.put(RECORD)
    store.forget()
    assert path is not None and path.is_file() and not store.empty()
    assert store.find(KEY) == RECORD and RECORD.gain == 2.0


@pytest.mark.parametrize("field", ["program", "space", "sizes", "structure", "device", "versions"])
def test_every_part_of_the_key_counts(field: str) -> None:
    store.put(RECORD)
    other = replace(KEY, **{field: "another"})
    assert store.find(other) is None
    assert store.knows(other) == (field == "structure")


def test_kept_in_this_process_only_if_asked() -> None:
    assert store.put(RECORD, save=False) is None
    assert store.find(KEY) == RECORD and not store.root().exists()


def test_the_last_one_counts() -> None:
    store.put(RECORD)
    store.put(replace(RECORD, ms=0.25))
    store.forget()
    found = store.find(KEY)
    assert found is not None and found.ms == 0.25 and len(store.read(store.root())) == 1


def test_many_processes_write_at_once() -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write, args=(n,)) for n in range(4)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    assert [w.exitcode for w in writers] == [0, 0, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(store.read(store.root())) == 161
    assert not list(store.root().rglob(".making-*"))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "\x00\x01", '{"format": 99}', '{"format": 1, "key": {}}', '{"format": 1}'],
)
def test_foreign_files_are_ignored_with_one_warning(text: str) -> None:
    path = store.put(RECORD)
    assert path is not None
    for name in ("broken.json", "other.json"):
        (path.parent / name).write_text(text)
    store.forget()
    with pytest.warns(UserWarning, match=r"no plan in .*broken.json.* and 1 more; ignored") as seen:
        assert store.find(KEY) == RECORD
        assert store.find(KEY) == RECORD
    assert len(seen) == 1


def test_a_record_under_another_name_is_foreign() -> None:
    path = store.put(RECORD)
    assert path is not None
    said = json.loads(path.read_text())
    said["key"]["sizes"] = "7"
    path.write_text(json.dumps(said))
    store.forget()
    with pytest.warns(UserWarning, match="not what its name says"):
        assert store.find(KEY) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("setting", []),
        ("setting", {"prefetch": 10**30}),
        ("setting", {"rows": True}),
        ("setting", {"rows": -1}),
        ("how", {"first_ms": "x"}),
    ],
    ids=str,
)
def test_a_record_that_makes_no_sense(field: str, value: object) -> None:
    path = store.put(RECORD)
    assert path is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    store.forget()
    with pytest.warns(UserWarning, match="no plan in"):
        assert store.find(KEY) is None


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be kept"):
        assert store.put(RECORD) is None
    assert store.find(KEY) == RECORD


def test_a_folder_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "~/kernels")
    assert store.root().parent == tmp_path / "kernels"


def test_clear() -> None:
    store.put(RECORD)
    assert store.clear() == 1 and store.find(KEY) is None and store.clear() == 0
