"""Draws one after the other, each judged; what breaks is told like what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def each(
    what: str,
    draw: Callable[[int, int], Any],
    judge: Callable[[Any], str | None],
    count: int,
    seed: int,
) -> Iterator[str]:
    """What went wrong, draw by draw; a draw tells `where` it runs and, in `words`, what it is."""
    for n in range(count):
        d = draw(seed, n)
        try:
            why = judge(d)
        except Exception as broken:
            why = f"{type(broken).__name__}: {broken}"
        if why is not None:
            yield f"{what} {n} of seed {seed} on {d.where}: {d.words}: {why}"
