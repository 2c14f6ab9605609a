"""make fuzz: draw programs and inputs, judge them, tell what failed and how to see it again.

    python -m fuzz.run --count 5000 --seed 0        # 5,000 draws, ten for each program; a part of the cross product
    python -m fuzz.run --cross                      # conformance cases x patterns x index widths x dtypes, all of it
    python -m fuzz.run --seed 0 --only 17.3         # one draw, with its words; one variant with --cross
    python -m fuzz.run --schedules --count 2000         # schedules of programs that are known

Workers are processes of their own, so that a crash is a finding too: it names the draw that it began.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

SHARE = 0.1
LIMIT = 300  # seconds for all draws of one program


def main() -> int:
    given = arguments()
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if given.worker:
        return work(given)
    if given.schedules:
        from fuzz.schedules import main as schedules

        return schedules(given.count, given.seed, given.triton, given.only)
    if given.only:
        return one(given)
    if given.mutants:
        from fuzz.mutants import main as mutants

        return mutants(given.seed)
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        os.environ["TILEWRIGHT_CACHE"] = folder
        if given.cross:
            return run(given, "cross")
        bad = max(run(given, "draws"), patterns(given, "lists"), patterns(given, "products"))
        return max(run(given, "cross"), bad) if given.part > 0 else bad


def run(given: Any, what: str) -> int:
    """All draws, or the chosen part of the cross product, over several workers."""
    began = time.perf_counter()
    plans = count_cases() if what == "cross" else -(-given.count // given.draws)
    with ThreadPoolExecutor(given.jobs) as pool:
        parts = [pool.submit(watch, given, what, n, plans) for n in range(given.jobs)]
        told = [t for part in parts for t in part.result()]
    return report(given, what, told, time.perf_counter() - began)


def count_cases() -> int:
    from fuzz.cross import cases

    return len(cases())


def patterns(given: argparse.Namespace, what: str) -> int:
    """Detectors (lists), or products over lists, on drawn patterns."""
    from importlib import import_module

    count, began = getattr(given, what), time.perf_counter()
    wrong = list(import_module(f"fuzz.{what}").run(count, given.seed))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    seconds = time.perf_counter() - began
    print(f"seed {given.seed}: {count} {what} in {seconds:.0f} s, {len(wrong)} wrong")
    return int(bool(wrong))


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description="draw programs and judge what the compiler makes")
    made.add_argument("--count", type=int, default=5000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--draws", type=int, default=10, help="draws of inputs for each program")
    made.add_argument("--lists", type=int, default=10000, help="draws of patterns for detectors")
    made.add_argument("--products", type=int, default=2000, help="draws of products over lists")
    made.add_argument("--jobs", type=int, default=2)
    made.add_argument("--triton", type=float, default=SHARE, help="share of Triton's interpreter")
    made.add_argument("--cross", action="store_true", help="the cross product only, all of it")
    made.add_argument("--part", type=float, default=0.03, help="of the cross product, beside draws")
    made.add_argument("--only", help="PROGRAM.DRAW: one draw, with its words")
    made.add_argument("--schedules", action="store_true", help="random schedules of real programs")
    made.add_argument("--mutants", action="store_true", help="planted bugs: each must be caught")
    made.add_argument("--worker", help=argparse.SUPPRESS)
    return made.parse_args()


def watch(given: Any, what: str, first: int, plans: int) -> list[dict[str, Any]]:
    """One worker after another over every jobs-th program; a crash costs one program."""
    told: list[dict[str, Any]] = []
    at = first
    while at < plans:
        command = [sys.executable, "-m", "fuzz.run", "--worker", f"{at}:{plans}:{given.jobs}"]
        command += ["--seed", str(given.seed), "--draws", str(given.draws)]
        command += ["--triton", str(given.triton)]
        command += ["--cross"] if what == "cross" else []
        command += ["--part", "1" if given.cross else str(given.part)]
        last: dict[str, Any] = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                if not line.startswith("{"):
                    continue
                last = json.loads(line)
                if last["kind"] != "begun":
                    told.append(last)
                    show(given, what, last)
            code = worker.wait()
        if code == 0:
            break
        told.append({**last, "kind": "crashed", "why": f"the process ended with {code}"})
        show(given, what, told[-1])
        at = int(last.get("plan", at)) + given.jobs
    return told


def work(given: Any) -> int:
    import torch

    torch.set_num_threads(1)
    first, plans, step = map(int, given.worker.split(":"))
    for number in range(first, plans, step):
        signal.alarm(LIMIT)  # a program that does not end is a finding too
        for told in planned(given, number):
            print(json.dumps(asdict(told)), flush=True)
        if (number - first) // step % 20 == 19:
            print(f"tilewright: {number + 1} of {plans} programs", file=sys.stderr, flush=True)
    return 0


def planned(given: Any, number: int, only: int | None = None) -> Iterator[Any]:
    """The draws of a program, or the variants of a case."""
    if given.cross:
        from fuzz.cross import plan as variants

        return variants(given.seed, number, given.part, given.triton, only)
    from fuzz.work import plan

    return plan(given.seed, number, given.draws, given.triton, only)


def one(given: Any) -> int:
    from fuzz.work import FAILED

    number, draw = map(int, given.only.split("."))
    told = list(planned(given, number, draw))[-1]
    print(f"{told.kind} on {told.where}: {told.why}\n  {told.words}")
    return int(told.kind in FAILED)


def show(given: Any, what: str, told: dict[str, Any]) -> None:
    if told["kind"] in ("wrong", "broken", "crashed"):
        at = f"{told['plan']}.{told['draw']}"
        how = "--cross" if what == "cross" else f"--draws {given.draws}"
        again = f'make fuzz ARGS="--seed {given.seed} {how} --only {at}"'
        print(f"{told['kind']} on {told['where']}: {told['why']}\n  {told['words']}\n  {again}")


def report(given: Any, what: str, told: list[dict[str, Any]], seconds: float) -> int:
    kinds = Counter(t["kind"] for t in told)
    places = Counter(t["where"] for t in told)
    rate = len(told) / seconds
    print(
        f"seed {given.seed}: {len(told)} {'variants' if what == 'cross' else 'draws'} "
        f"in {seconds:.0f} s, {rate:.1f} a second; "
        + ", ".join(f"{n} {k}" for k, n in kinds.most_common())
        + "; "
        + ", ".join(f"{n} on {k}" for k, n in places.items())
    )
    why = Counter(t["why"].split(" in: ")[0][:90] for t in told if t["kind"] == "refused")
    for reason, n in why.most_common(8):
        print(f"  refused {n}: {reason}")
    return int(any(kinds[k] for k in ("wrong", "broken", "crashed")))


if __name__ == "__main__":
    sys.exit(main())
