"""tw.tune: run every setting on the user's own tensors and remember the fastest.

tune(spmm, A, x)     # -> {"rows": 8, ...}; later calls of spmm on A with this width and dtype use it
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.ops.backend import backend_of
from tilewright.ops.plans import SETTINGS, complete
from tilewright.ops.sparse import as_sparse, rows_first
from tilewright.ops.spmm import plan, spmm
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public

REPEAT = 7


@public
def tune(
    op: Callable[..., Any], A: Any, x: Tensor, *, settings: list[Setting] | None = None
) -> Setting:
    """The fastest setting of an operator for these tensors; remembered with A's structure.

    >>> tune(spmm, A, x)
    """
    if op is not spmm:
        name = getattr(op, "__name__", str(op))
        raise error("argument", where="tune(op, A, x)", name="op", got=name, expected="tw.spmm")
    given = as_sparse(A, "tune(op, A, x)")
    a = rows_first(given)
    s = a.structure
    if backend_of(x.device) != "triton" or s.format != "csr":
        return {}
    span, dtype = x.shape[-1], x.dtype
    best: tuple[float, Setting] | None = None
    for setting in settings or SETTINGS:
        launch = plan(a, x, setting)
        took = measure(launch.launch, x.device)
        if best is None or took < best[0]:
            best = (took, complete(setting, s, span, dtype))
    assert best is not None
    s.plans["chosen", span, dtype] = best[1]
    for held in (s, given.structure):  # calls planned before forget their plan
        held.plans.pop("bundle", None)
    if s.transposed is not None:
        s.transposed.plans.setdefault(("chosen", span, dtype), best[1])
    return best[1]


def measure(launch: Callable[[], None], device: torch.device) -> float:
    """Median milliseconds of a launch."""
    launch()
    if device.type != "cuda":
        return _clock(launch)
    took = []
    for _ in range(REPEAT):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end))
    return sorted(took)[REPEAT // 2]


def _clock(launch: Callable[[], None]) -> float:
    began = time.perf_counter()
    launch()
    return (time.perf_counter() - began) * 1e3
