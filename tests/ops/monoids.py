"""Monoids under test: programs that reduce by each of them, and what they must give.

ROWS["prod"](A, x)                       # y[i, f] = prod(j, a[i, j] * x[j, f])
expected("prod", dense, x)               # the same, row by row, in f64
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tilewright as tw
from tilewright.ops.program import Program

F64 = torch.float64
INF, NAN = float("inf"), float("nan")

sum_of_squares = tw.monoid(
    "sum_of_squares",
    state="total",
    identity=0.0,
    lift=lambda x: x * x,
    combine=lambda a, b: a + b,
    backward=lambda x, result, grad: 2.0 * x * grad,
    lane=("sum",),
)
variance = tw.monoid(  # Chan's update: count, mean, sum of squared distances
    "variance",
    state="n mean far",
    identity=(0.0, 0.0, 0.0),
    lift=lambda x: (1.0, x, 0.0),
    combine=lambda n, m, s, k, p, t: (
        n + k,
        (n * m + k * p) / tw.maximum(n + k, 1.0),
        s + t + (p - m) * (p - m) * n * k / tw.maximum(n + k, 1.0),
    ),
    finalise=lambda n, m, s: s / tw.maximum(n, 1.0),
)
spread = tw.monoid(
    "spread",
    state="low high",
    identity=(INF, -INF),
    lift=lambda x: (x, x),
    combine=lambda a, b, c, d: (tw.minimum(a, c), tw.maximum(b, d)),
    finalise=lambda a, b: tw.where(b < a, 0.0, b - a),
)
horner = tw.monoid(  # s -> scale * s + shift: not commutative, so that the order shows
    "horner",
    state="scale shift",
    identity=(1.0, 0.0),
    lift=lambda a, b: (a, b),
    combine=lambda a, b, c, d: (a * c, b * c + d),
    finalise=lambda a, b: b,
)


def program(name: str, word: Callable[..., Any]) -> Program:
    def fn(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = word(j, a[i, j] * x[j, f])

    fn.__name__ = fn.__qualname__ = f"rows_{name}"
    return tw.program(fn)


def dense_program(name: str, word: Callable[..., Any]) -> Program:
    def fn(x: Any, y: Any) -> None:
        i, j = tw.axes("i j")
        y[i] = word(j, x[i, j])

    fn.__name__ = fn.__qualname__ = f"dense_{name}"
    return tw.program(fn)


BUILT_IN = "sum prod max min mean any all logsumexp argmax argmin".split()
OWN = {"sum_of_squares": sum_of_squares, "variance": variance, "spread": spread}
WORDS: dict[str, Callable[..., Any]] = {**{n: getattr(tw, n) for n in BUILT_IN}, **OWN}
ROWS = {n: program(n, w) for n, w in WORDS.items()}
DENSE = {n: dense_program(n, w) for n, w in WORDS.items()}
EXACT = ("argmax", "argmin", "any", "all")


def first(v: Tensor, largest: bool) -> int:
    """The place of the first extreme value; NaN is the most extreme."""
    if not len(v):
        return -1
    best = v.amax() if largest else v.amin()
    return int((v.isnan() if best.isnan() else v == best).nonzero()[0])


REFERENCE: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda v: v.sum(),
    "prod": lambda v: v.prod(),
    "max": lambda v: v.amax() if len(v) else -INF,
    "min": lambda v: v.amin() if len(v) else INF,
    "mean": lambda v: v.mean() if len(v) else 0,
    "any": lambda v: (v != 0).any(),
    "all": lambda v: (v != 0).all(),
    "logsumexp": lambda v: v.logsumexp(0) if len(v) else -INF,
    "sum_of_squares": lambda v: (v * v).sum(),
    "variance": lambda v: v.var(correction=0) if len(v) else 0,
    "spread": lambda v: v.amax() - v.amin() if len(v) else 0,
}


def reference(word: str, terms: Tensor, held: Tensor) -> Tensor:
    """terms: [rows, columns, width]; held: [rows, columns]"""
    rows, _, width = terms.shape
    made = torch.zeros(rows, width, dtype=F64)
    for i in range(rows):
        at = held[i].nonzero()[:, 0]
        for f in range(width):
            v = terms[i, at, f].double()
            if word.startswith("arg"):
                n = first(v, word == "argmax")
                made[i, f] = at[n] if n >= 0 else -1
            else:
                made[i, f] = REFERENCE[word](v)
    return made


def check(got: Tensor, want: Tensor, word: str) -> None:
    if word in EXACT:
        assert torch.equal(got.double().cpu(), want)
    else:
        tolerance = {torch.float64: 1e-11, torch.float32: 3e-5}.get(got.dtype, 3e-2)
        torch.testing.assert_close(
            got.double().cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def expected(word: str, dense: Tensor, x: Tensor) -> Tensor:
    dense, x = dense.cpu(), x.cpu()
    if dense.dtype in (torch.float16, torch.bfloat16):
        terms = dense.float()[:, :, None] * x.float()
    else:
        terms = dense[:, :, None] * x
    return reference(word, terms, dense != 0)


def rows_of(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)
