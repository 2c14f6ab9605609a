"""Every conformance case in every variant: patterns x index widths x dtypes, judged by its dense result in f64.

    for told in plan(seed=0, number=3, part=0.05): print(told.kind, told.words)

number: the case; draw: the variant. `part` of the variants are run, chosen by the seed; 1.0 runs all of them.
bf16 runs in C only: Triton's interpreter multiplies the bits of bf16 in tl.dot.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from conformance.cases import PATTERNS, Case, Variant, execute, made_in
from fuzz.work import TOLERANCE, Told, first_line
from torch import Tensor

from tilewright.support.errors import BackendError, TilewrightError

MODULES = ("attention", "entries", "pairs", "products", "rows", "tensors")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
VARIANTS = [Variant(*v) for v in itertools.product(PATTERNS, (torch.int32, torch.int64), DTYPES)]


def cases() -> list[Case]:
    """Those of all conformance tests."""
    found = (importlib.import_module(f"conformance.test_{m}").CASES for m in MODULES)
    return [c for part in found for c in part]


def plan(
    seed: int, number: int, part: float = 1.0, share: float = 0.1, only: int | None = None
) -> Iterator[Told]:
    """The variants of one case. The numbers alone decide everything."""
    case = cases()[number]
    for draw, v in enumerate(VARIANTS):
        rng = np.random.default_rng([seed, number, draw])
        chosen, other = rng.random() < part, rng.random() < share
        where = "triton" if other and v.dtype != torch.bfloat16 else "c"
        if draw != only if only is not None else not chosen:
            continue
        yield Told("begun", where, number, draw)
        kind, why = judged(case, v, where)
        words = "" if kind == "ok" else f"{case.name}: {v}"
        yield Told(kind, where, number, draw, why, words)


def judged(case: Case, v: Variant, where: str) -> tuple[str, str]:
    try:
        inputs, want = made_in(case, v)
        got = execute(case.run, inputs, where)
    except BackendError as why:
        return "broken", first_line(why)
    except TilewrightError as why:
        return "refused", first_line(why)
    except Exception as why:
        return "broken", f"{type(why).__name__}: {first_line(why)}"
    wanted: Sequence[Any] = want if isinstance(want, tuple) else (want,)
    for g, w in zip(got, wanted, strict=True):
        w = w.double().numpy() if isinstance(w, Tensor) else np.asarray(w)
        if not close(g, w, TOLERANCE[v.dtype]):
            at = tuple(int(n) for n in np.argwhere(~np.isclose(g, w, TOLERANCE[v.dtype]))[0])
            return "wrong", f"at {at}: {g[at]}, expected {w[at]}"
    return "ok", ""


def close(got: np.ndarray, want: np.ndarray, limit: float) -> bool:
    """Within a limit relative to the largest element."""
    finite = np.abs(want[np.isfinite(want)])
    room = limit * (1 + (finite.max() if finite.size else 0.0))
    with np.errstate(invalid="ignore"):
        near = (np.abs(got - want) <= room) | (got == want) | (np.isnan(got) & np.isnan(want))
    return got.shape == want.shape and bool(near.all())
