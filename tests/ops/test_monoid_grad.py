"""Gradients of monoids: gradcheck in f64, zeros of products, ties, and errors that name the statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import close, gradcheck, leaf, matrix, randn
from ops.monoids import DENSE, F64, ROWS, rows_of, sum_of_squares
from ops.places import Place

import tilewright as tw


def full(place: Place) -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(
        matrix(5, 6, 0.6, dtype=F64, device=place.device)
        + torch.eye(5, 6, dtype=F64, device=place.device) * 2
    )


@pytest.mark.parametrize(
    "word", ["sum", "prod", "max", "min", "mean", "logsumexp", "sum_of_squares"]
)
def test_gradient(word: str, fast: Place) -> None:
    A = full(fast)
    v, x = leaf(A.values), leaf(randn(6, 3, dtype=F64, device=fast.device))
    assert gradcheck(lambda v, x: ROWS[word](A.with_values(v), x), (v, x))


@pytest.mark.parametrize("word", ["prod", "max", "mean", "logsumexp", "sum_of_squares"])
def test_gradient_dense(word: str, where: Place) -> None:
    x = leaf(randn(2, 3, dtype=F64, device=where.device))
    assert gradcheck(DENSE[word], (x,))


def test_gradient_of_a_vector_mean(where: Place) -> None:
    @tw.program
    def middle(x: Any, b: Any, y: Any) -> None:
        i, j = tw.axes("i j")
        y[i] = tw.mean(j, x[j]) * b[i]

    x, b = (leaf(randn(n, dtype=F64, device=where.device)) for n in (4, 3))
    assert gradcheck(middle, (x, b))


AROUND: dict[str, Callable[..., Any]] = {
    "tanh": lambda a, x, b, i, j, f: tw.tanh(tw.sum(j, a[i, j] * x[j, f]) + b[f]),
    "quotient": lambda a, x, b, i, j, f: (
        tw.sum(j, a[i, j] * x[j, f]) / (tw.sum(j, a[i, j] * a[i, j]) + b[f] * b[f])
    ),
    "length": lambda a, x, b, i, j, f: tw.sqrt(tw.sum(j, a[i, j] ** 2) + 1.0) * x[i, f] * b[f],
    "product": lambda a, x, b, i, j, f: tw.gelu(tw.prod(j, a[i, j] * x[j, f] + b[f])),
    "own": lambda a, x, b, i, j, f: tw.log1p(sum_of_squares(j, a[i, j] * x[j, f])) * b[f],
}


@pytest.mark.parametrize("name", AROUND)
def test_gradient_around_a_reduction(name: str, fast: Place) -> None:
    """What stands around a reduction reads its result again, computed once."""

    def fn(a: Any, x: Any, b: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = AROUND[name](a, x, b, i, j, f)

    fn.__name__ = f"around_{name}"
    made = tw.program(fn)
    A = tw.SparseTensor.from_dense(
        matrix(5, 5, 0.6, dtype=F64, device=fast.device)
        + torch.eye(5, dtype=F64, device=fast.device) * 2
    )
    v, x, b = (
        leaf(A.values),
        *(leaf(randn(*s, dtype=F64, device=fast.device)) for s in ((5, 3), (3,))),
    )
    assert gradcheck(lambda v, x, b: made(A.with_values(v), x, b), (v, x, b))


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_gradient_of_a_product_with_zeros(zeros: int, where: Place) -> None:
    x = randn(1, 4, dtype=F64, device=where.device)
    x[0, 1 : 1 + zeros] = 0
    got, want = leaf(x), leaf(x)
    DENSE["prod"](got).sum().backward()
    want.prod(1).sum().backward()
    close(got.grad, want.grad)


def test_ties_share_the_gradient(where: Place) -> None:
    """As torch.amax does."""
    x = rows_of([1, 5, 5, 5], [2, 2, 0, 2]).to(where.device)
    got, want = leaf(x), leaf(x)
    DENSE["max"](got).sum().backward()
    want.amax(1).sum().backward()
    close(got.grad, want.grad)


@pytest.mark.parametrize("word", ["any", "all", "variance"])
def test_no_gradient(word: str, where: Place) -> None:
    """The error names the statement."""
    y = DENSE[word](leaf(randn(3, 4, device=where.device)))
    with pytest.raises(tw.TilewrightError, match=rf"(?s){word} has no derivative.*y\[i\] = {word}"):
        y.sum().backward()


@tw.program
def nearest(x: Any, w: Any, s: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[j] = tw.max(i, tw.sum(f, x[i, f] * w[j, f]) - s[i])


@pytest.mark.parametrize("width", [3, 37])
def test_the_largest_of_sums(width: int, where: Place) -> None:
    """The largest is found again by its value: sums inside are made once, and not in another order."""
    shapes = ((9, width), (4, width), (9,))
    x, w, s = (
        leaf(randn(*z, seed=n, dtype=F64, device=where.device)) for n, z in enumerate(shapes)
    )
    got = torch.autograd.grad(nearest(x, w, s).square().sum(), (x, w, s))
    want = torch.autograd.grad((x @ w.T - s[:, None]).amax(0).square().sum(), (x, w, s))
    for a, b in zip(got, want, strict=True):
        close(a, b)


@tw.program
def apart(b: Any, s: Any, y: Any) -> None:
    i, g = tw.axes("i g")
    y[i] = tw.sum(g, b[g] - s[i])


def test_a_sum_of_what_does_not_change(where: Place) -> None:
    """Only b says how many terms have s[i]."""
    b, s = (leaf(randn(n, dtype=F64, device=where.device)) for n in (5, 3))
    assert gradcheck(apart, (b, s))
