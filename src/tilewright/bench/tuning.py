"""`tilewright tune`: measured plans from the command line.

tilewright tune run --data cora.npz --op spmm --width 128 --dtype fp32     # search, and keep the best
tilewright tune list                                                       # what is kept
tilewright tune show 3f2a                                                  # one of them, by its number
tilewright tune clear                                                      # forget all
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tilewright.bench import graphs, subject
from tilewright.bench.suite import count, dtype_of, seeded
from tilewright.formats import SparseTensor
from tilewright.support.errors import error
from tilewright.tune import store
from tilewright.tune.store import Record
from tilewright.view.choices import record_lines, spelled

OPS = ("spmm", "sddmm")
SHORT = 8


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tilewright tune", description="Measured plans.")
    commands = made.add_subparsers(dest="action", required=True)
    commands.add_parser("list", help="the plans that are kept, and their gains")
    commands.add_parser("clear", help="forget all plans")
    shown = commands.add_parser("show", help="a plan: what was tried, where and when")
    shown.add_argument("number", help="the beginning of its number in `list`")
    run = commands.add_parser("run", help="search settings for a graph and keep the fastest")
    known = ", ".join(graphs.GENERATED)
    run.add_argument("--data", required=True, help=f"a CSR graph (.npz), or one of {known}")
    run.add_argument("--op", choices=OPS, default="spmm")
    run.add_argument("--width", type=count, default=128, help="features")
    run.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="fp32")
    run.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    run.add_argument("--budget", type=float, default=10.0, help="seconds")
    run.add_argument("--quiet", action="store_true", help="no progress")
    return made


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    match args.action:
        case "list":
            print("\n".join(table(store.read(store.root()))))
        case "clear":
            print(f"{store.clear()} plans forgotten, in {store.root()}")
        case "show":
            print("\n".join(told(one(args.number))))
        case _:
            print("\n".join(told(tuned(args))))
    return 0


def table(records: Sequence[Record]) -> list[str]:
    if not records:
        return [f"no plans in {store.root()}"]
    made = [f"{'number':<{SHORT}}  {'ms':>9}  {'gain':>6}  program, sizes, structure, setting"]
    for r in records:
        name = r.key.program.partition("|")[0]
        what = f"{name} {r.key.sizes} {r.key.structure or '-'}  {spelled(r.setting)}"
        made.append(f"{r.key.file[:SHORT]}  {r.ms:>9.4g}  {r.gain:>5.2f}x  {what}")
    return made


def one(number: str) -> Record:
    found = [r for r in store.read(store.root()) if r.key.file.startswith(number)]
    if len(found) != 1:
        expected = "the beginning of one number of `tilewright tune list`"
        raise error("argument", where="tune show", name="number", got=number, expected=expected)
    return found[0]


def told(r: Record) -> list[str]:
    made = [f"plan {r.key.file[:SHORT]}: {spelled(r.setting)}", *record_lines(r)]
    made += [f"failed: {spelled(s)}: {why}" for s, why in r.how.get("failed", [])]
    return [*made, r.key.versions]


def tuned(args: argparse.Namespace) -> Record:
    """Search for the graph that was asked for; the record that is now kept."""
    op = subject.op("tuning")
    call = arguments(args)
    operator = subject.function(args.op)
    op.tune(operator, *call, budget_s=args.budget, show=not args.quiet)
    key = op.subject_of_op(operator, call, {}).case.whole_key()
    found = store.find(key)
    assert found is not None
    return found


def arguments(args: argparse.Namespace) -> list[Any]:
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    path = Path(args.data)
    if args.data not in graphs.GENERATED and not path.is_file():
        expected = f"a .npz file or one of {', '.join(graphs.GENERATED)}"
        raise error("argument", where="tune run", name="--data", got=args.data, expected=expected)
    g = graphs.load(path.stem if path.is_file() else args.data, path.parent, device)
    dtype, random = dtype_of(args.dtype), seeded(device)
    values = torch.randn(g.nnz, generator=random, device=device).to(dtype)
    a = SparseTensor.from_torch(g.torch_csr(values))
    sides = (g.rows, g.cols) if args.op == "sddmm" else (g.cols,)
    return [
        a,
        *(torch.randn(n, args.width, generator=random, device=device).to(dtype) for n in sides),
    ]
