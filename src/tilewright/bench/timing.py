"""Clocks.

Owns: how time is taken. In: functions without arguments. Out: milliseconds a call, medians.

    graph_ms(plan.launch)          # CUDA: replay of a captured graph, L2 cold
    eager_ms(lambda: spmm(A, x))   # CUDA: wall clock of calls back to back, host included
    cpu_ms(lambda: spmm(A, x))     # CPU
    graphs_ms([a, b]), cpus_ms({"a": a, "b": b})   # in turns, so that drift meets all alike
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch

from tilewright.tune.measure import flush

Fn = Callable[[], object]

REPLAYS, BUDGET_S = 40, 0.15
TICK = 1e-9  # seconds that a call takes at least: clocks of processor time may stand still in short ones


def capture(fn: Fn) -> torch.cuda.CUDAGraph:
    """fn as a CUDA graph, after two runs on a side stream.

    Not `with torch.cuda.graph(...)`, which collects garbage each time: this runs by the thousand.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fn()
        fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            fn()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.synchronize()
    return graph


def graphs_ms(fns: Sequence[Fn], replays: int = REPLAYS, budget_s: float = BUDGET_S) -> list[float]:
    """Median time of each function as a graph replay; the functions take turns."""
    graphs = [capture(fn) for fn in fns]
    return _events_ms([g.replay for g in graphs], replays, budget_s)


def graph_ms(fn: Fn, replays: int = REPLAYS, budget_s: float = BUDGET_S) -> float:
    return graphs_ms([fn], replays, budget_s)[0]


def eager_cold_ms(fn: Fn, replays: int = REPLAYS, budget_s: float = BUDGET_S) -> float:
    """As graph_ms without the graph, for what cannot be captured; device time by events."""
    fn()
    return _events_ms([fn], replays, budget_s)[0]


def _events_ms(fns: Sequence[Fn], replays: int, budget_s: float) -> list[float]:
    first = _round(fns)  # warms up and says how many rounds fit the budget
    torch.cuda.synchronize()
    took = sum(a.elapsed_time(b) for a, b in first) / 1e3
    rounds = _repeats(took, budget_s * len(fns), 7, replays)
    pairs = [_round(fns) for _ in range(rounds)]
    torch.cuda.synchronize()
    return [median(a.elapsed_time(b) for a, b in column) for column in zip(*pairs, strict=True)]


def _round(fns: Sequence[Fn]) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    pairs = []
    for fn in fns:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        flush()
        begin.record()
        fn()
        end.record()
        pairs.append((begin, end))
    return pairs


def _repeats(once_s: float, budget_s: float, least: int, most: int) -> int:
    return max(least, min(most, int(budget_s / max(once_s, 1e-9))))


def eager_ms(fn: Fn, n: int = 200, budget_s: float = BUDGET_S) -> float:
    """Wall clock a call, calls back to back, one synchronisation at the end; median of three."""
    _wall_s(fn, 3)
    n = _repeats(_wall_s(fn, 3) / 3, budget_s, 5, n)
    return median(_wall_s(fn, n) for _ in range(3)) / n * 1e3


def eagers_ms(
    fns: list[Fn], n: int = 100, rounds: int = 9, budget_s: float = BUDGET_S
) -> list[float]:
    """`eager_ms` of several functions in turns, so that a busy host hits all of them; medians of rounds."""
    for fn in fns:
        _wall_s(fn, 3)
    counts = [_repeats(_wall_s(fn, 3) / 3, budget_s / rounds, 3, n) for fn in fns]
    took: list[list[float]] = [[] for _ in fns]
    for _ in range(rounds):
        for k, (fn, count) in enumerate(zip(fns, counts, strict=True)):
            took[k].append(_wall_s(fn, count) / count * 1e3)
    return [median(t) for t in took]


def _wall_s(fn: Fn, n: int) -> float:
    _synchronise()
    begin = time.perf_counter()
    for _ in range(n):
        fn()
    _synchronise()
    return time.perf_counter() - begin


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def cpu_ms(fn: Fn, seconds: float = 0.3, least: int = 5) -> float:
    """Median of the calls that fill `seconds`, after a warm-up."""
    return cpus_ms({"": fn}, seconds, least)[""]


def cpus_ms(
    fns: Mapping[str, Fn],
    seconds: float = 0.3,
    least: int = 5,
    rounds: int = 3,
    of: Callable[[list[float]], float] = median,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """As cpu_ms for several functions, a third of the calls at a time.

    of, clock: on a busy machine, min of processor time.

    Idle threads of one function's runtime spin on; the pause and the untimed call let them rest.
    """
    for fn in fns.values():
        fn()
    times: dict[str, list[float]] = {name: [] for name in fns}
    for _ in range(rounds):
        for name, fn in fns.items():
            time.sleep(0.01)
            fn()
            times[name] += calls_s(fn, seconds / rounds, -(-least // rounds), clock)
    return {name: max(of(taken), TICK) * 1e3 for name, taken in times.items()}


def calls_s(
    fn: Fn, seconds: float, least: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each of the calls that fill `seconds`, at least so many."""
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while len(taken) < least or time.perf_counter() < stop:
        begin = clock()
        fn()
        taken.append(clock() - begin)
    return taken
