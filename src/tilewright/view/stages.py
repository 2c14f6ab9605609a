"""The stages of a kernel, for reading.

In: a kernel, or a statement that has no kernel here. Out: text with a heading for each stage.

    print(show(kernel))                                 # one stage under the other
    print(show(kernel, only=("coord", "loops")))
    print(beside(kernel, "flat", "scheduled"))          # two stages next to each other
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from torch import Tensor

from tilewright import driver
from tilewright.codegen.triton import emit_triton
from tilewright.ir.text import text
from tilewright.ops.step import Step
from tilewright.runtime.kernel import Kernel

TITLES = {
    "coord": "stage I: coordinate space",
    "loops": "stage II: position space",
    "flat": "stage III: flat loops",
    "scheduled": "stage III, scheduled",
    "tile": "tile form",
    "triton": "Triton",
    "c": "C",
}


def heading(title: str, width: int = 100) -> str:
    return f"--- {title} ".ljust(width, "-")


def readable(stage: str, said: str) -> str:
    """A stage's text; of C the function alone, without the helpers that stand above it."""
    if stage != "c":
        return said.strip("\n")
    head, found, body = said.partition("\nvoid ")
    if not found:
        return said.strip("\n")
    return f"// {head.count(chr(10))} lines of includes and helpers left out\nvoid {body}".strip(
        "\n"
    )


def show(kernel: Kernel, only: Sequence[str] | None = None) -> str:
    """Every stage of a kernel (or some), each under its heading."""
    return sections({k: v for k, v in kernel.stages.items() if only is None or k in only})


def sections(stages: Mapping[str, str]) -> str:
    """Texts by stage, each under its heading."""
    made = [f"{heading(TITLES.get(k, k))}\n{readable(k, v)}" for k, v in stages.items()]
    return "\n\n".join(made)


def beside(kernel: Kernel, left: str, right: str, width: int | None = None) -> str:
    """Two stages next to each other; long lines are folded."""
    width = width or shutil.get_terminal_size((160, 40)).columns
    half = max((width - 3) // 2, 20)
    columns = [_column(kernel.stages[stage], stage, half) for stage in (left, right)]
    return "\n".join(f"{a:{half}} | {b}".rstrip() for a, b in zip_longest(*columns, fillvalue=""))


def _column(said: str, stage: str, width: int) -> list[str]:
    lines = [heading(TITLES.get(stage, stage), width)]
    for line in readable(stage, said).splitlines():
        lead = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(line, width, drop_whitespace=False, subsequent_indent=lead) or [""]
    return lines


def gpu_stages(step: Step, tensors: Sequence[Tensor], ints: Sequence[int]) -> dict[str, str]:
    """Tile form and Triton text of a statement, on any machine: nothing is built."""
    sizes = dict(zip(step.size_names, step.sizes(tensors, ints), strict=True))
    made = driver.to_tile(step.bound.program, step.setting({}, sizes), {}, {})
    return {"tile": text(made), "triton": emit_triton(made)}
