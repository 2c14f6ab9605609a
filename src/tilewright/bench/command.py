"""`tilewright bench`: the command line of the suites.

tilewright bench spmm --device cuda --data graphs --probes probes --json spmm.json
tilewright bench spmm sddmm bsr --data graphs --json results     # a file for each; what all need is compiled first
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from tilewright.bench import attention, bsr, dynamic, formats, pruned, regret, rows, sddmm, spmm
from tilewright.bench.ahead import compiled
from tilewright.bench.machine import writable
from tilewright.bench.suite import DTYPES, KINDS, LIMIT_S, Measured, Options, Run, count, counts
from tilewright.support.errors import error

SUITES = {
    "spmm": spmm.measure,
    "sddmm": sddmm.measure,
    "rows": rows.measure,
    "attention": attention.measure,
    "formats": formats.measure,
    "regret": regret.measured,
    "bsr": bsr.measure,
    "pruned": pruned.measure,
    "dynamic": dynamic.measure,
}
GPU_SUITES = ("rows",)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="tilewright bench",
        description="Time an operator beside its peers, check every output, print a table.",
    )
    option = made.add_argument
    option("suites", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES))
    option("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")
    option("--data", type=Path, help="folder of CSR graphs (.npz); without it, generated graphs")
    option("--probes", type=Path, help="folder of hand-written kernels to compare with")
    option("--json", type=Path, help="file that receives all figures; of several suites, a folder")
    option("--quick", action="store_true", help="fewer graphs, widths and settings")
    option("--settings", type=count, help="number of tile settings to time")
    option("--graphs", help="names, separated by commas")
    option("--widths", type=counts, default=(), help="feature widths, separated by commas")
    option("--dtypes", help="fp32, bf16, fp16, separated by commas")
    option("--reduces", default="sum", help="sum, mean, max, min, separated by commas (spmm)")
    option("--kinds", default=",".join(KINDS), help="detection, layer, product (dynamic)")
    option("--threads", type=count, help="CPU threads; default: torch's")
    option(
        "--busy",
        action="store_true",
        help="for a CPU that others use: one thread, processor time of the fastest call",
    )
    option(
        "--limit",
        type=float,
        help=f"seconds after which no case begins; default: {LIMIT_S:g} a suite",
    )
    option("--workers", type=int, default=14, help="processes that compile ahead; 0: none")
    option("--tune", action="store_true", help="tune before the operator is timed (spmm)")
    option("--flex", action="store_true", help="time compiled flex_attention too (attention)")
    option("--nnz", type=count, help="entries of the generated matrix (formats)")
    return made


def _folder(given: Path | None, name: str) -> Path | None:
    if given is not None and not given.is_dir():
        raise error("argument", where="bench", name=name, got=given, expected="a folder")
    return given


def _among(given: str | None, known: tuple[str, ...], name: str) -> tuple[str, ...]:
    made = tuple(given.split(",")) if given else ()
    if not set(made) <= set(known):
        raise error("argument", where="bench", name=name, got=given, expected=f"some of {known}")
    return made


def options(args: argparse.Namespace) -> Options:
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    alone = [name for name in args.suites if name in GPU_SUITES]
    if device == "cpu" and alone:
        expected = f"cuda: the {alone[0]} suite measures GPUs"
        raise error("argument", where="bench", name="--device", got=device, expected=expected)
    if device == "cuda" and not torch.cuda.is_available():
        raise error(
            "argument", where="bench", name="--device", got="cuda", expected="cpu: there is no GPU"
        )
    return Options(
        device=device,
        data=_folder(args.data, "--data"),
        probes=_folder(args.probes, "--probes"),
        quick=args.quick,
        settings=args.settings,
        graphs=tuple(args.graphs.split(",")) if args.graphs else (),
        widths=args.widths,
        limit=args.limit or LIMIT_S * len(args.suites),
        workers=args.workers,
        tune=args.tune,
        flex=args.flex,
        nnz=args.nnz,
        dtypes=_among(args.dtypes, tuple(DTYPES), "--dtypes"),
        reduces=_among(args.reduces, ("sum", "mean", "max", "min"), "--reduces"),
        kinds=_among(args.kinds, KINDS, "--kinds"),
        busy=args.busy,
    )


def main(argv: list[str]) -> int:
    args, before = parser().parse_args(argv), torch.get_num_threads()
    if args.threads or args.busy:
        torch.set_num_threads(1 if args.busy else args.threads)
    try:
        return measured(_runs(args))
    finally:
        torch.set_num_threads(before)


def _runs(args: argparse.Namespace) -> list[Run]:
    asked, began = options(args), time.monotonic()
    names = list(dict.fromkeys(args.suites))
    return [Run(n, replace(asked, json=_file(args.json, n, names)), began=began) for n in names]


def _file(given: Path | None, suite: str, names: list[str]) -> Path | None:
    """Where the figures of a suite go: to the file, or to one in the folder."""
    if given is None:
        return None
    if len(names) > 1 and (given.suffix or given.is_file()):
        expected = "a folder, of several suites"
        raise error("argument", where="bench", name="--json", got=given, expected=expected)
    return writable(given / f"{suite}.json" if len(names) > 1 else given)


def measured(runs: list[Run]) -> int:
    """One suite after the other, after all that they need is compiled; 0 where every one is."""
    suites = [SUITES[run.suite](run) for run in runs]
    tasks = {run.suite: next(suite, []) for run, suite in zip(runs, suites, strict=True)}
    asked = runs[0].options
    if asked.device == "cuda":
        compiled(tasks, asked.workers, asked.probes, runs[0].say)
    return max(_to_the_end(run, suite) for run, suite in zip(runs, suites, strict=True))


def _to_the_end(run: Run, suite: Measured) -> int:
    run.open()
    try:
        next(suite)
    except StopIteration as done:
        return int(done.value)
    raise AssertionError(f"{run.suite} yields twice")
