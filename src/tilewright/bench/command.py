"""`tilewright bench`: the command line of the suites.

tilewright bench spmm --device cuda --data graphs --probes probes --json spmm.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tilewright.bench import attention, bsr, dynamic, formats, pruned, regret, rows, sddmm, spmm
from tilewright.bench.machine import writable
from tilewright.bench.suite import DTYPES, KINDS, Options, Run, count, counts
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
GPU_SUITES = ("attention", "rows")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="tilewright bench",
        description="Time an operator beside its peers, check every output, print a table.",
    )
    option = made.add_argument
    option("suite", choices=SUITES)
    option("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")
    option("--data", type=Path, help="folder of CSR graphs (.npz); without it, generated graphs")
    option("--probes", type=Path, help="folder of hand-written kernels to compare with")
    option("--json", type=Path, help="file that receives all figures")
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
    option("--limit", type=float, default=280.0, help="seconds after which no case begins")
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
    if device == "cpu" and args.suite in GPU_SUITES:
        expected = f"cuda: the {args.suite} suite measures GPUs"
        raise error("argument", where="bench", name="--device", got=device, expected=expected)
    if device == "cuda" and not torch.cuda.is_available():
        raise error(
            "argument", where="bench", name="--device", got="cuda", expected="cpu: there is no GPU"
        )
    return Options(
        device=device,
        data=_folder(args.data, "--data"),
        probes=_folder(args.probes, "--probes"),
        json=None if args.json is None else writable(args.json),
        quick=args.quick,
        settings=args.settings,
        graphs=tuple(args.graphs.split(",")) if args.graphs else (),
        widths=args.widths,
        limit=args.limit,
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
        return SUITES[args.suite](Run(args.suite, options(args)))
    finally:
        torch.set_num_threads(before)
