"""Whether rows that share columns should take their turns one after the other, on a CPU.

In: the columns of a structure as its rows come, and as they would come; the bytes of a gathered row. Out: seconds that
the other order saves: gathers that miss a cache, at what a line from behind it takes, less what rows cost whose
values and results do not follow one another in memory.

    saved(indices, visits.columns, rows, 512, 4) > 0
"""

from __future__ import annotations

from torch import Tensor

from tilewright.runtime.caches import sizes
from tilewright.runtime.visits import missing

LINE = 64
ROOM = 0.8  # of a cache, for gathered rows
BEHIND = {1: 0.10e-9, 2: 0.35e-9, 3: 0.6e-9}  # seconds of a line from behind each cache (fitted)
# Of a row, a line of values and a line of what rows read by number, that do not follow the ones before (fitted).
TURN, JUMP, READ = 2e-9, 8e-9, 0.6e-9
NEAR = 0.25  # of that, where a thread's own cache holds all entries
# Of a result's line beside one of the same row, where threads write neighbours: caches ask for what another one holds.
BESIDE = 0.1e-9


def saved(
    now: Tensor,
    then: Tensor | None,
    rows: int,
    row_bytes: int,
    value_bytes: int,
    read: int = 0,
    written: int = 0,
) -> float:
    """Seconds of one thread that a call saves; without `then`, what it would at most.

    read: bytes that a row reads by its number, from beyond all caches; written: those that it leaves in them.
    """
    lines = max(row_bytes / LINE, 1.0)
    gained = 0.0
    for level, size in sizes().items():
        room = int(ROOM * size) // max(row_bytes, LINE)
        left = 0.0 if then is None else missing(then, room)
        gained += (missing(now, room) - left) * BEHIND.get(level, 0.0)
    held = len(now) * (now.itemsize + value_bytes)
    near = NEAR if held <= sizes()[2] else 1.0
    lost = near * (rows * TURN + len(now) * value_bytes / LINE * JUMP)
    lost += rows * (read / LINE * READ + (written / LINE) ** 2 * BESIDE)
    return len(now) * lines * gained - lost
