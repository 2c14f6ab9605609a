"""The stages of a kernel, for reading.

In: a kernel, or a statement that has no kernel here. Out: text with a heading for each stage.

    print(show(kernel))                                 # one stage under the other
    print(show(kernel, only=("coord", "loops")))
    print(beside(kernel, "flat", "scheduled"))          # two stages next to each other
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from tilewright import driver
from tilewright.codegen.triton import emit_triton
from tilewright.ir.text import text
from tilewright.ops.step import Step
from tilewright.runtime.kernel import Kernel
from tilewright.view.columns import heading, side_by_side

TITLES = {
    "coord": "stage I: coordinate space",
    "loops": "stage II: position space",
    "flat": "stage III: flat loops",
    "scheduled": "stage III, scheduled",
    "tile": "tile form",
    "triton": "Triton",
    "c": "C",
}


def readable(stage: str, said: str) -> str:
    """A stage's text; of C its functions alone, without the helpers that stand above them."""
    if stage != "c":
        return said.strip("\n")
    found = re.search(r"^(static __attribute__\(\(noinline\)\) )?void ", said, re.MULTILINE)
    if found is None:
        return said.strip("\n")
    above = said[: found.start()].rstrip().count("\n") + 1
    told = f"// {above} lines of includes and helpers left out"
    return f"{told}\n{said[found.start() :]}".strip("\n")


def show(kernel: Kernel, only: Sequence[str] | None = None) -> str:
    """Every stage of a kernel (or some), each under its heading."""
    return sections({k: v for k, v in kernel.stages.items() if only is None or k in only})


def sections(stages: Mapping[str, str]) -> str:
    """Texts by stage, each under its heading."""
    made = [f"{heading(TITLES.get(k, k))}\n{readable(k, v)}" for k, v in stages.items()]
    return "\n\n".join(made)


def beside(kernel: Kernel, left: str, right: str, width: int | None = None) -> str:
    """Two stages next to each other; long lines are folded."""
    said = {TITLES[s]: readable(s, kernel.stages[s]) for s in (left, right)}
    return side_by_side(said, width)


def gpu_stages(step: Step, tensors: Sequence[Tensor], ints: Sequence[int]) -> dict[str, str]:
    """Tile form and Triton text of a statement, on any machine: nothing is built."""
    sizes = dict(zip(step.size_names, step.sizes(tensors, ints), strict=True))
    made = driver.to_tile(step.bound.program, step.setting({}, sizes), {}, {})
    return {"tile": text(made), "triton": emit_triton(made)}
