"""Numbers inside torch.compile: those that it knows by name only are tensors of one graph for all values.

In: a number, as torch.compile sees it. Out: a tensor without dimensions, which programs take where they take numbers.

    if changing(c):
        c = as_tensor(c, x.device)      # a literal is not: it stays a constant of the graph
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMBERS: tuple[Any, ...] = (
    int,
    float,
    np.integer,
    np.floating,
    np.bool_,
    torch.SymInt,
    torch.SymFloat,
)


def changing(v: Any) -> bool:
    """Whether a number has another value in another call of the same graph."""
    if not torch.compiler.is_compiling():
        return False
    return not torch.fx.experimental.symbolic_shapes.has_static_value(v)


def as_tensor(v: Any, device: torch.device) -> Tensor:
    """A number as a tensor. A product, since torch makes a constant of what fills one."""
    return torch.ones((), dtype=torch.float64, device=device) * v
