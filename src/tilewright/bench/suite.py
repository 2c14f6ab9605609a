"""What all suites share: options, rows as they come in, the time limit.

def measure(run: Run) -> Measured:
    yield [{"width": 32, ...}, ...]         # tasks: what other processes are to compile before anything is timed
    run.add({"graph": "cora", ...})
    return run.finish(text, summary)        # prints the text last, writes the JSON
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tilewright.bench import machine, timing

Task = dict[str, Any]  # what a process compiles ahead (bench/ahead.py)
Measured = Generator[list[Task], None, int]  # the tasks of a suite; its exit status

LIMIT_S = 280.0
TRACES = 3  # failures told in full
NEAR_ENTRIES = 20_000_000  # graphs of at most so many try all lists like the fastest
KINDS = ("detection", "layer", "product")  # of the suite dynamic
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Options:
    """The command line, read."""

    device: str = "cpu"
    data: Path | None = None
    probes: Path | None = None
    json: Path | None = None
    quick: bool = False
    settings: int | None = None
    graphs: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    limit: float = LIMIT_S
    workers: int = 14
    tune: bool = False
    flex: bool = False
    nnz: int | None = None
    dtypes: tuple[str, ...] = ()
    reduces: tuple[str, ...] = ("sum",)
    kinds: tuple[str, ...] = KINDS
    busy: bool = False


@dataclass
class Run:
    """One suite under way."""

    suite: str
    options: Options
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)  # the command
    opened: float = field(default_factory=time.monotonic)  # the first case
    stopped: bool = False

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def open(self) -> None:
        """What comes now is measuring."""
        self.opened = time.monotonic()

    @property
    def clock(self) -> str:
        """How CPU times are taken."""
        if self.options.busy:
            return "processor time of the fastest call, one thread"
        return f"median wall clock, {torch.get_num_threads()} threads"

    def cpus_ms(self, calls: Mapping[str, timing.Fn]) -> dict[str, float]:
        """CPU times in turns."""
        seconds = 0.1 if self.options.quick else 0.3
        if self.options.busy:
            return timing.cpus_ms(calls, seconds, of=min, clock=time.process_time)
        return timing.cpus_ms(calls, seconds)

    @property
    def late(self) -> bool:
        """Whether the next case must not begin; a run that was told so once is not complete."""
        self.stopped = self.stopped or self.elapsed > self.options.limit
        return self.stopped

    def say(self, text: str) -> None:
        print(f"[{self.elapsed:6.1f} s] {text}", file=sys.stderr, flush=True)

    def fail(self, where: str, why: BaseException) -> None:
        """A part that broke: told, kept, and not the end of the suite."""
        first = str(why).strip().partition("\n")[0][:160]
        self.failures.append(f"{where}: {type(why).__name__}: {first}")
        self.say(f"failed: {self.failures[-1]}")
        if len(self.failures) <= TRACES:
            traceback.print_exception(why, file=sys.stderr)

    @contextmanager
    def part(self, where: str) -> Iterator[None]:
        """What breaks inside is a failure of this part alone."""
        try:
            yield
        except Exception as why:
            self.fail(where, why)

    @contextmanager
    def peer(self, where: str) -> Iterator[None]:
        """A peer that breaks is told and left out."""
        try:
            yield
        except Exception as why:
            first = str(why).strip().partition("\n")[0][:160]
            self.say(f"peer left out: {where}: {type(why).__name__}: {first}")

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.save({"complete": False})

    def save(self, summary: dict[str, Any]) -> None:
        if self.options.json:
            seconds = round(time.monotonic() - self.opened, 1)
            told = {**summary, "failures": self.failures, "seconds": seconds}
            made = machine.result(self.suite, self.options.device, self.rows, told)
            machine.write(self.options.json, made)

    def finish(self, text: str, summary: dict[str, Any]) -> int:
        """0 when every part ran and every output was right."""
        wrong = [str(row.get("case")) for row in self.rows if row.get("ok") is False]
        self.save({"complete": not self.stopped, "wrong": wrong, **summary})
        print(text)
        if self.stopped:
            print(f"NOTE stopped at the limit of {self.options.limit:g} s; cases are missing")
        for failure in self.failures[:8]:
            print(f"FAIL {failure}")
        if len(self.failures) > 8:
            print(f"FAIL and {len(self.failures) - 8} more")
        print(
            f"{'MISS' if wrong else 'PASS'} outputs right: {len(wrong)} of {len(self.rows)} wrong"
        )
        seconds = time.monotonic() - self.opened
        print(f"{self.suite} on {self.options.device}: {seconds:.0f} s", flush=True)
        return 1 if wrong or self.failures else 0


def dtype_name(dtype: torch.dtype) -> str:
    short = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return short.get(dtype, str(dtype).removeprefix("torch."))


def dtype_of(name: str) -> torch.dtype:
    return DTYPES[name]


def dtypes_of(run: Run, usual: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
    """Those asked for, else the usual ones."""
    return tuple(DTYPES[name] for name in run.options.dtypes) or usual


def seeded(device: str, seed: int = 1) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def fastest(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Of timed settings; empty of none."""
    return min(settings, key=lambda s: float(s["ms"]), default={})


def spelled(setting: dict[str, Any] | None) -> str:
    return ",".join(f"{k}={v}" for k, v in (setting or {}).items()) or "-"


def count(text: str) -> int:
    """A number of an option, one or more; argparse tells what it refuses."""
    made = int(text)
    if made < 1:
        raise ValueError(text)
    return made


def counts(text: str) -> tuple[int, ...]:
    """8,32 -> (8, 32)"""
    return tuple(map(count, text.split(",")))
