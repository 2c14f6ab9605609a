"""Time of functions that do the same work, taken in turns so that drift meets all alike.

times({"ours": lambda: spmm(A, x), "torch": lambda: C @ x})     # {"ours": Time(0.61, 1.04), ...}
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

import torch

ROUNDS, LEAST = 3, 3
AGREE = 1.2


class Time(NamedTuple):
    """Milliseconds of a call: the least median of a round; `spread`: the next least over it."""

    ms: float
    spread: float

    @property
    def calm(self) -> bool:
        """Whether two rounds agree."""
        return self.spread <= AGREE


def fastest(fns: Mapping[str, Callable[[], object]]) -> str:
    """The name of the fastest, by a short race; what takes four times the least at first leaves it."""
    first = {name: _once(fn) for name, fn in fns.items()}
    kept = [name for name in fns if first[name] <= 4 * min(first.values())]
    return min(kept, key=lambda name: min(_calls(fns[name], 0.0))) if len(kept) > 1 else kept[0]


def times(fns: Mapping[str, Callable[[], object]], seconds: float = 0.4) -> dict[str, Time]:
    """Every function warmed up, then rounds in turns: three, then more until two of each agree.

    A round is at least three calls and a third of `seconds`; after eight times `seconds` no round begins.
    """
    stop = time.perf_counter() + 8 * seconds
    for fn in fns.values():
        fn()
    taken: dict[str, list[float]] = {name: [] for name in fns}  # medians of rounds
    for n in itertools.count():
        late = time.perf_counter() > stop
        if n >= ROUNDS and (late or all(_time(t).calm for t in taken.values())):
            break
        for name, fn in fns.items():
            time.sleep(0.005)  # threads of the function before come to rest
            fn()
            taken[name].append(median(_calls(fn, seconds / ROUNDS)))
    return {name: _time(t) for name, t in taken.items()}


def _time(taken: list[float]) -> Time:
    first, second = sorted(taken)[:2]
    return Time(first, second / first)


def _calls(fn: Callable[[], object], seconds: float) -> list[float]:
    made: list[float] = []
    stop = time.perf_counter() + seconds
    while len(made) < LEAST or time.perf_counter() < stop:
        made.append(_once(fn))
    return made


def _once(fn: Callable[[], object]) -> float:
    """Milliseconds from the call until its result is there."""
    begin = time.perf_counter()
    fn()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3
