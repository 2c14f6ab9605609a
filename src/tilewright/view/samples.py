"""Small examples of the package's operators, to read their stages.

print(code("spmm"))
print(code("sddmm", ("flat", "scheduled")))
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewright.formats.mask import block_mask
from tilewright.ops.attention import plan as attention_plan
from tilewright.ops.bound import Launch
from tilewright.ops.linear import rows_plan
from tilewright.ops.sddmm import plan as sddmm_plan
from tilewright.ops.spmm import plan as spmm_plan
from tilewright.support.errors import error
from tilewright.view.cases import case
from tilewright.view.stages import beside, show

NAMES = ("spmm", "sddmm", "linear", "attention")


def launch(name: str) -> Launch:
    """A bound launch of an operator on a small example, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, x = case("uniform", 64, 4, device), torch.randn(64, 32, device=device)
    match name:
        case "spmm":
            return spmm_plan(a, x)
        case "sddmm":
            return sddmm_plan(a, x, x)
        case "linear":
            return rows_plan(x, x, torch.arange(0, 64, 3, device=device))
        case "attention":
            q = torch.randn(1, 2, 64, 32, device=device)
            bits = torch.ones(4, 4, dtype=torch.bool, device=device).tril()
            return attention_plan(q, q, q, block_mask(bits, block=16))
    raise error(
        "argument", where="code(name)", name="name", got=repr(name), expected=f"one of {NAMES}"
    )


def code(name: str, sides: Sequence[str] | None = None) -> str:
    """Every stage of an operator, or two of them next to each other."""
    kernel = launch(name).kernel
    if sides is None:
        return show(kernel)
    for stage in sides:
        if stage not in kernel.stages:
            expected = f"one of {', '.join(kernel.stages)}"
            raise error(
                "argument", where="code(name, beside)", name="stage", got=stage, expected=expected
            )
    return beside(kernel, sides[0], sides[1])
