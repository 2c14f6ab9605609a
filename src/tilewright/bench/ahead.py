"""Compiles ahead: other processes build the kernels that suites will time; the caches on disk remember them.

compiled({"spmm": tasks, "bsr": tasks}, options, run.say)     # returns when all are there, or the time is up
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tilewright.bench.suite import Task

LIMIT_S = 150.0
SPARE = 2  # cores left to this process


def compiled(
    tasks: Mapping[str, list[Task]],
    workers: int,
    probes: Path | None,
    say: Callable[[str], None],
) -> None:
    """Tasks by suite, spread over processes; what fails there is told, and compiled by who needs it."""
    every = [(suite, task) for suite, some in tasks.items() for task in some]
    workers = min(workers, max((os.cpu_count() or SPARE) - SPARE, 1), len(every))
    if workers < 2:
        return
    say(f"compiling ahead: {len(every)} tasks in {workers} processes")
    folder = str(probes.resolve()) if probes else None
    started = [_worker({"probes": folder, "tasks": every[k::workers]}) for k in range(workers)]
    stop = time.monotonic() + LIMIT_S
    for worker in started:
        try:
            said, _ = worker.communicate(timeout=max(stop - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            worker.kill()
            said = "out of time\n" + worker.communicate()[0]
        for line in said.splitlines():
            say(f"compiling ahead: {line}")
    say("compiled ahead")


def _worker(order: object) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tilewright.bench.warm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert worker.stdin
    json.dump(order, worker.stdin)
    worker.stdin.close()
    worker.stdin = None
    return worker
