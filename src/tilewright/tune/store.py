"""Plans on disk: what was measured, for processes that come later.

Owns: the folder `plans` in the cache folder (TILEWRIGHT_CACHE). One file a record, written under another name and
renamed, so that any number of processes may write at once; the last one counts. A folder for each device and set of
versions, so that a process reads only what may serve it. Files that cannot be read are left alone, with one warning.

    put(Record(key, {"rows": 8, ...}, 0.012, ...))       # in this process at once, and on disk
    find(key)                                            # the record of such a call, or None

A key speaks of a class of calls, not of one: the program with its formats and dtypes, the space that its settings
are from, sizes and structure by class, device and versions.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import threading
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tilewright.runtime.cache import key_of, store
from tilewright.schedule.options import Setting
from tilewright.support import knobs
from tilewright.support.version import VERSION

FORMAT = 1
LARGEST = 1 << 20  # number in a setting


@cache
def versions() -> str:
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    return f"tilewright {VERSION}, torch {torch.__version__}, triton {triton}"


@dataclass(frozen=True)
class Key:
    """program: its name and arguments; space: of its settings; sizes, structure: classes; where it ran."""

    program: str
    space: str
    sizes: str
    structure: str
    device: str
    versions: str = field(default_factory=versions)

    @property
    def folder(self) -> str:
        return key_of(self.device, self.versions)

    @property
    def file(self) -> str:
        return key_of(FORMAT, *asdict(self).values())

    @property
    def call(self) -> tuple[str, str, str]:
        """All but the structure: whether it is worth asking for statistics."""
        return self.program, self.space, self.sizes


@dataclass(frozen=True)
class Record:
    """The best setting that was found, its milliseconds, and how: tried, first setting and its milliseconds ..."""

    key: Key
    setting: Setting
    ms: float
    when: str
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """How many times faster than what was used before."""
        first = float(self.how.get("first_ms") or self.ms)
        return first / self.ms if self.ms else 1.0


class _Folder:
    """The records of one device and set of versions, read once."""

    def __init__(self, path: Path) -> None:
        self.records: dict[str, Record] = {}
        self.calls: set[tuple[str, str, str]] = set()
        for record in read(path):
            self.add(record)

    def add(self, record: Record) -> None:
        self.records[record.key.file] = record
        self.calls.add(record.key.call)


_OPEN: dict[Path, _Folder] = {}
_EMPTY: list[bool | None] = [None]
_LOCK = threading.Lock()


def root() -> Path:
    return knobs.cache() / "plans"


def _folder(key: Key) -> _Folder:
    path = root() / key.folder
    with _LOCK:
        if path not in _OPEN:
            _OPEN[path] = _Folder(path)
        return _OPEN[path]


def empty() -> bool:
    """Whether nothing was ever kept. Asked in every call of a program: the disk is looked at once."""
    known = _EMPTY[0]
    if known is None:
        known = _EMPTY[0] = not root().is_dir()
    return known


def knows(key: Key) -> bool:
    """Whether there is a record of this call on any structure."""
    return key.call in _folder(key).calls


def find(key: Key) -> Record | None:
    return _folder(key).records.get(key.file)


def put(record: Record, save: bool = True) -> Path | None:
    """Keep a record in this process and, if the folder can be written, on disk: its file."""
    _folder(record.key).add(record)
    _EMPTY[0] = False
    if not save:
        return None
    path = root() / record.key.folder / f"{record.key.file}.json"
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return store(path, lambda made: _write(made, text))
    except OSError as why:
        warnings.warn(f"tilewright: a plan could not be kept in {path.parent}: {why}", stacklevel=2)
        return None


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def read(folder: Path) -> list[Record]:
    """Every record below a folder, oldest first. Other files are left alone, with one warning."""
    made, bad = [], []
    for path in sorted(folder.rglob("*.json")) if folder.is_dir() else ():
        try:
            made.append(record_of(path))
        except (OSError, ValueError, KeyError, TypeError) as why:
            bad.append(f"{path.name}: {why}")
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        warnings.warn(f"tilewright: no plan in {folder}/{bad[0]}{more}; ignored", stacklevel=2)
    return sorted(made, key=lambda r: r.when)


def record_of(path: Path) -> Record:
    said = json.loads(path.read_text())
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError("not a plan of this format")
    key, setting, how = Key(**said["key"]), dict(said["setting"]), dict(said["how"])
    if key.file != path.stem or not isinstance(said["setting"], dict):
        raise ValueError("not what its name says")
    if not all(type(v) is int and 0 <= v <= LARGEST for v in setting.values()):
        raise ValueError(f"a setting has whole numbers from 0 to {LARGEST}")
    made = Record(key, setting, float(said["ms"]), str(said["when"]), how)
    made.gain  # noqa: B018 - how must make sense
    return made


def clear() -> int:
    """Forget all plans, here and on disk: how many there were."""
    many = len(read(root()))
    shutil.rmtree(root(), ignore_errors=True)
    forget()
    return many


def forget() -> None:
    """Read the folders again at the next question."""
    with _LOCK:
        _OPEN.clear()
        _EMPTY[0] = None
