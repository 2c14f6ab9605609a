"""The `tilewright` command.

tilewright demo [--out DIR]      what the package does, in a minute
tilewright bench SUITE ...       measurements; `tilewright bench --help`
tilewright tune ACTION ...       measured plans: run, list, show, clear
tilewright profile               what tiles take on this machine, for choices of dynamic sparsity
tilewright env                   versions, back ends, cache folder, knobs
tilewright code NAME             every stage of an operator on a small example
tilewright resume FILE           the stages that follow the one in a file, which may be edited
tilewright --version
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from json import JSONDecodeError
from pathlib import Path

from tilewright import bench, driver
from tilewright.bench import profile, tuning
from tilewright.schedule.record import parse_steps
from tilewright.support.errors import TilewrightError, error
from tilewright.support.version import VERSION
from tilewright.view import demo, environment, samples, stages


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tilewright", description="A sparse compiler for PyTorch.")
    made.add_argument("--version", action="version", version=f"tilewright {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    shown = commands.add_parser(
        "demo", help="one operator from notation to code, checked and timed"
    )
    shown.add_argument("--out", type=Path, default=Path("demo_out"), help="folder for the files")
    shown.add_argument("--tiny", action="store_true", help="sizes for a test; times mean nothing")
    commands.add_parser("env", help="versions, back ends, cache folder, knobs")
    code = commands.add_parser("code", help="every stage of an operator on a small example")
    code.add_argument("name", choices=samples.NAMES)
    code.add_argument(
        "--beside", nargs=2, metavar=("LEFT", "RIGHT"), help="two stages side by side"
    )
    resumed = commands.add_parser(
        "resume", help="the stages that follow the one in a file of TILEWRIGHT_DUMP"
    )
    resumed.add_argument("file", type=Path)
    resumed.add_argument("--backend", choices=("c", "triton"), default="c")
    resumed.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=N", help="setting of the schedule: rows=8"
    )
    resumed.add_argument(
        "--schedule", type=Path, metavar="FILE", help="steps to take, one a line: schedule.py"
    )
    commands.add_parser("bench", help="measurements beside peers", add_help=False)
    commands.add_parser("tune", help="measured plans: run, list, show, clear", add_help=False)
    commands.add_parser("profile", help="what tiles take on this machine", add_help=False)
    return made


def run(argv: Sequence[str]) -> int:
    if argv[:1] == ["bench"]:
        return bench.main(list(argv[1:]))
    if argv[:1] == ["tune"]:
        return tuning.main(list(argv[1:]))
    if argv[:1] == ["profile"]:
        return profile.main(list(argv[1:]))
    args = parser().parse_args(argv)
    if args.command == "demo":
        return demo.main(args.out, demo.TINY if args.tiny else None)
    if args.command == "env":
        print(environment.describe())
        return 0
    if args.command == "resume":
        steps = None if args.schedule is None else parse_steps(existing(args.schedule).read_text())
        setting = setting_of(args.set)
        print(stages.sections(driver.texts(existing(args.file), args.backend, setting, steps)))
        return 0
    print(samples.code(args.name, args.beside))
    return 0


def existing(path: Path) -> Path:
    if not path.is_file():
        expected = "a file of the folder TILEWRIGHT_DUMP"
        raise error("argument", where="resume", name="FILE", got=path, expected=expected)
    return path


def setting_of(said: Sequence[str]) -> dict[str, int]:
    """rows=8 width=32 -> {"rows": 8, "width": 32}"""
    made = {}
    for word in said:
        name, _, number = word.partition("=")
        if not (name and number.isdecimal()):
            raise error("argument", where="--set", name="--set", got=word, expected="NAME=N")
        made[name] = int(number)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command; mistakes are told in a few lines, without a traceback."""
    try:
        return run(list(sys.argv[1:] if argv is None else argv))
    except TilewrightError as why:
        print(f"tilewright: {why}", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError, JSONDecodeError) as why:
        print(f"tilewright: a file cannot be used: {why}", file=sys.stderr)
        return 2
