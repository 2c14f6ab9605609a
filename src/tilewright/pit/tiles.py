"""The tile database: what a step of a dense tile takes on a device, and what the same step takes when it gathers.

In: a device's name, a dtype. Out: `Costs`: measured by `tilewright profile` on this machine (cache folder), shipped
with the package (folder `data`), or estimated from the machine's rates; `source` says which. A file has all dtypes of
one device; it is written under another name and renamed, so that any number of processes may read and write at once.

    costs = costs_of("NVIDIA H200", "bf16", lambda: estimated(machine, "bf16"))
    costs.tiles[0].gathered          # microseconds that one multiprocessor takes for bm x bn x bk, rows of bm gathered
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tilewright.analysis.cost import BYTES
from tilewright.runtime.cache import key_of, store
from tilewright.support import knobs

FORMAT = 2
SHIPPED = Path(__file__).parent / "data"
GATHER = 1.1  # a gathered step over a plain one, where neither was measured
CALLS_US = 40.0  # of the host, in a family's product on the CPU


class Rates(Protocol):
    """A machine: bytes a second of memory and of gathers in cache, operations a second, seconds of a launch."""

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> float: ...
    @property
    def gather(self) -> float: ...
    @property
    def cores(self) -> int: ...
    @property
    def flops(self) -> float: ...
    @property
    def matrix(self) -> float: ...
    @property
    def launch(self) -> float: ...


@dataclass(frozen=True)
class Tile:
    """A dense tile and its setting. step, gathered: microseconds of bm x bn x bk on one multiprocessor that has
    enough of them; alone: on one that has no other; start: microseconds of a launch that are not steps."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    step: float = 0.0
    gathered: float = 0.0
    start: float = 0.0
    alone: float = 0.0


# Tiles that are measured: those of products for many and few rows, and of 32 rows and their own k's or blocks.
SHAPES = (
    Tile(128, 256, 64, 8, 4),
    Tile(128, 128, 64, 4, 6),
    Tile(64, 256, 64, 4, 4),
    Tile(64, 128, 128, 4, 4),
    Tile(64, 64, 64, 4, 7),
    Tile(32, 256, 64, 4, 4),
    Tile(32, 128, 32, 4, 2),
)
SHAPES_32 = (Tile(64, 128, 32, 8, 3), Tile(64, 64, 32, 4, 3), Tile(32, 128, 16, 4, 3))
SHAPES_CPU = (Tile(64, 64, 64, 1, 1), Tile(32, 64, 64, 1, 1))


def shapes(dtype: str, gpu: bool) -> tuple[Tile, ...]:
    if not gpu:
        return SHAPES_CPU
    return SHAPES if BYTES[dtype] == 2 else SHAPES_32


@dataclass(frozen=True)
class Costs:
    """All that a choice needs of a device and dtype, in microseconds and bytes a microsecond.

    dense: the vendor's product, as one tile. detect, look: of an index, fixed and by byte of what is looked at.
    write: of outputs that are set to 0 first. scale: what was measured of a family over its estimate. cache: bytes
    that many programs may read again and again.
    """

    device: str
    dtype: str
    cores: int
    dense: Tile
    tiles: tuple[Tile, ...]
    detect: float
    look: float
    write: float
    scale: Mapping[str, float] = field(default_factory=dict)
    source: str = "estimated"
    cache: float = 1e18


def estimated(m: Rates, dtype: str, gpu: bool = True) -> Costs:
    """Costs by the roofline: operations or operands of a step, whichever takes longer; gathers a little more."""
    item = BYTES[dtype]
    rate = (m.matrix if item == 2 and gpu else m.flops * (1 if gpu else m.cores)) * 1e-6

    def timed(t: Tile, start: float) -> Tile:
        compute = 2 * t.bm * t.bn * t.bk / (rate / m.cores)
        fetch = (t.bm + t.bn) * t.bk * item / (m.gather * 1e-6 / m.cores)
        step = max(compute, fetch)
        return replace(t, step=step, gathered=GATHER * step, start=start)

    launch, memory = m.launch * 1e6, m.memory * 1e-6
    start = launch if gpu else CALLS_US
    made = tuple(timed(t, start) for t in shapes(dtype, gpu))
    dense = timed(shapes(dtype, gpu)[0], launch)
    return Costs(m.name, dtype, m.cores, dense, made, 2 * start, memory / 2, memory)


# --- files ----------------------------------------------------------------------------------------

_HELD: dict[tuple[str, str], Costs] = {}


def root() -> Path:
    return knobs.cache() / "tiles"


def path_of(device: str) -> Path:
    return root() / f"{key_of(FORMAT, device)}.json"


def costs_of(device: str, dtype: str, otherwise: Callable[[], Costs]) -> Costs:
    """Measured here, else shipped, else estimated; read once in a process."""
    key = (device, dtype)
    if key not in _HELD:
        files = (path_of(device), *sorted(SHIPPED.glob("*.json")))
        found = (c for path in files for c in _readable(path) if (c.device, c.dtype) == key)
        _HELD[key] = next(found, None) or otherwise()
    return _HELD[key]


def forget() -> None:
    """Read the files again at the next question."""
    _HELD.clear()


def write(path: Path, made: Iterable[Costs], by: str) -> Path:
    """One file of all dtypes of a device. by: versions that measured it."""
    held = {"format": FORMAT, "by": by, "costs": [asdict(c) for c in made]}
    text = json.dumps(held, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    return store(path, lambda at: _put(at, text))


def _put(path: Path, text: str) -> None:
    path.write_text(text)


def _readable(path: Path) -> list[Costs]:
    """What a file has; a file of another kind is left alone, with a warning."""
    if not path.is_file():
        return []
    try:
        return read(path)
    except (OSError, ValueError, KeyError, TypeError) as why:
        warnings.warn(f"tilewright: no tiles in {path.name}: {why}; ignored", stacklevel=3)
        return []


def made_by(path: Path) -> str:
    """The versions that measured a file."""
    return str(json.loads(path.read_text())["by"])


def read(path: Path) -> list[Costs]:
    said = json.loads(path.read_text())
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError("not a tile database of this format")
    return [_costs(c) for c in said["costs"]]


def _costs(said: dict[str, Any]) -> Costs:
    made = Costs(
        **{
            **said,
            "dense": Tile(**said["dense"]),
            "tiles": tuple(Tile(**t) for t in said["tiles"]),
        }
    )
    times = [v for t in (made.dense, *made.tiles) for v in (t.bm, t.bn, t.bk, t.step, t.gathered)]
    if min([*times, made.cores, made.look, made.write]) <= 0:
        raise ValueError("a size or a time is not positive")
    return made
