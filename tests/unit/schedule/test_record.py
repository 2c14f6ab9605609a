"""A schedule as data: its text parses back, its replay is the same program, mistakes are told."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from builders import attention, block_product, sddmm, spmm

import tilewright.schedule
from tilewright.ir import flat
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.schedule.default_c import schedule_c
from tilewright.schedule.default_triton import schedule_triton
from tilewright.schedule.options import COptions
from tilewright.schedule.record import Scheduled, Step, apply, parse_steps, show_steps
from tilewright.support.errors import ScheduleError

ROWS = [[0, 2], [], [1, 1, 3]]
CASES = {
    "spmm": spmm(ROWS, 5, 6),
    "sddmm": sddmm(ROWS, 5, 7),
    "bsr": block_product([[0], [1]], (7, 8), 4, 5),
    "attention": attention([[0], [1]], (7, 8), (4, 4), 5, 6),
}
DEFAULTS: dict[str, Any] = {
    "c": lambda p: schedule_c(p, COptions()),
    "triton": lambda p: schedule_triton(p, {}),
    "listed": lambda p: schedule_triton(p, {"listed": 1, "unroll": 2, "outer": 1}),
}


def stage_three(name: str) -> flat.Program:
    return lower_to_flat(lower_to_position(CASES[name].program))


@pytest.mark.parametrize("target", DEFAULTS)
@pytest.mark.parametrize("name", CASES)
def test_a_default_is_its_record(name: str, target: str) -> None:
    """Written down, read back and replayed on the same program: the same program."""
    p = stage_three(name)
    made = DEFAULTS[target](p)
    steps = parse_steps(show_steps(made.steps))
    assert steps == made.steps and steps
    assert str(apply(p, steps)) == str(made.program) != str(p)


def test_text() -> None:
    said = "split(f, 32)\nkind(f_i, lane)\norder(i, f_o)"
    steps = parse_steps(f"# tiles of features\n{said}  # slowest first\n")
    assert steps == (
        Step("split", ("f", 32)),
        Step("kind", ("f_i", "lane")),
        Step("order", ("i", "f_o")),
    )
    assert show_steps(steps) == said


def test_steps_one_by_one() -> None:
    p = stage_three("spmm")
    made = Scheduled(p).then("split", "f", 4).then("kind", "f_i", "lane")
    assert show_steps(made.steps) == "split(f, 4)\nkind(f_i, lane)"
    assert str(apply(p, made.steps)) == str(made.program)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("split(f, 4", "it is not a step"),
        ("split(f, 4)\nx = 3", "line 2, `x = 3`"),
        ("split(f, factor=4)", "it is not a step"),
        ("split(f, True)", "it is not a step"),
        ("split(f, g + 1)", "it is not a step"),
    ],
)
def test_text_that_cannot_be_read(said: str, why: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_steps(said)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("cut(f, 4)", "there is no such primitive"),
        ("split(f)", "it takes split(name, factor)"),
        ("split(f, g)", "it takes split(name, factor)"),
        ("split(f, 4, 4)", "it takes split(name, factor)"),
        ("order(f, 4)", "it takes order(*names)"),
        ("split(g, 4)", "there is no such loop"),
    ],
)
def test_steps_that_cannot_be_taken(said: str, why: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        apply(stage_three("spmm"), parse_steps(said))
    assert why in str(caught.value)


def test_primitives_know_no_target() -> None:
    """Options belong to the default schedulers; what both targets share cannot read them."""
    folder = Path(tilewright.schedule.__file__).parent
    for path in folder.glob("*.py"):
        if not path.stem.startswith("default_"):
            tree = ast.parse(path.read_text())
            named = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
            assert "tilewright.schedule.options" not in named, path.name
