"""Sums over the union of two structures: entries of one, then those of the other that the first has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conformance.cases import Case, conform, judge, matrix, numbers, sparse
from ops.matrices import gradcheck
from torch import Tensor

import tilewright as tw
from tilewright.lowering.position import lower_to_position
from tilewright.ops.args import read_program
from tilewright.ops.call import arguments, prepared
from tilewright.ops.entry import entry

R = tw.rules


@tw.program
def plus(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, (a[i, j] + b[i, j]) * x[j, f])


@tw.program
def distance(a: Any, b: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, tw.abs(a[i, j] - b[i, j]))


@tw.program
def three(a: Any, b: Any, c: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, tw.maximum(a[i, j] + c[i, j], b[i, j]) * x[j, f])


@tw.program
def shifted(a: Any, b: Any, y: Any) -> None:
    """Not 0 where neither is: the whole range."""
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, tw.exp(a[i, j] + b[i, j]))


def sides() -> tuple[Tensor, Tensor]:
    """Row 2 is empty in both, row 3 is full in both; the last two columns have nothing."""
    A, B = matrix(8, 11, seed=1), matrix(8, 11, 0.2, seed=2)
    A[:, -2:] = B[:, -2:] = 0
    return A, B


def mixed(dense: Tensor, twice: bool = False) -> Any:
    """Entries in no order, some of them several times."""
    at = torch.cat([dense.nonzero()] * (1 + twice))
    at = at[torch.randperm(len(at), generator=torch.Generator().manual_seed(0))]
    values = dense[at[:, 0], at[:, 1]]
    return tw.SparseTensor.from_coo(at[:, 0], at[:, 1], values, tuple(dense.shape))


def added(first: Callable[[Tensor], Any], second: Callable[[Tensor], Any], times: int = 1) -> Any:
    """x holds NaN where neither has an entry."""

    def make() -> Any:
        A, B = sides()
        x = numbers(11, 3)
        want = (A + times * B) @ x
        x[-2:] = torch.nan
        return [first(A), second(B), x], want

    return make


def distances() -> Any:
    A, B = sides()
    return [sparse(A), sparse(B)], (A - B).abs().sum(1)


def trio() -> Any:
    (A, B), C = sides(), matrix(8, 11, 0.2, seed=5)
    x = numbers(11, 3)
    return [sparse(A), sparse(B), sparse(C), x], torch.maximum(A + C, B) @ x


def of_everything() -> Any:
    A, B = sides()
    return [sparse(A), sparse(B)], torch.exp(A + B).sum(1)


CASES = [
    Case("csr-csr", plus, added(sparse, sparse)),
    Case("in-no-order", plus, added(sparse, mixed)),
    Case("several-times", plus, added(mixed, lambda B: mixed(B, True), 2)),
    Case("csr-ell", plus, added(sparse, lambda B: sparse(B, "ell")), converts=True),
    Case(
        "csr-parts", plus, added(sparse, lambda B: sparse(B).decompose(R.hyb(1, 1))), converts=True
    ),
    Case("distance", distance, distances),
    Case("three", three, trio),
    Case("not-zero", shifted, of_everything),
]


@conform(CASES)
def test_unions(case: Case, executor: str) -> None:
    judge(case, executor)


@pytest.mark.parametrize(
    ("program", "ranges"), [(plus, 0), (distance, 0), (shifted, 1)], ids=["plus", "abs", "exp"]
)
def test_columns_are_not_all_visited(program: Any, ranges: int) -> None:
    A, B = sides()
    given = [sparse(A), mixed(B), *([numbers(11, 3)] if program is plus else [])]
    program(*given)
    text = program.kernels(*given)[0].stages["loops"]
    assert text.count("range(n_j)") == ranges, text


def test_gradients() -> None:
    A, B = (m.double() for m in sides())
    a, b = sparse(A), mixed(B)
    x = numbers(11, 2).double()
    given = [t.clone().requires_grad_() for t in (a.values, b.values, x)]

    def run(v: Tensor, w: Tensor, x: Tensor) -> Tensor:
        return plus(a.with_values(v), b.with_values(w), x)

    assert gradcheck(run, given, fast_mode=True)


def test_gradient_of_a_mean_over_everything() -> None:
    """All columns count where neither drives."""

    @tw.program
    def means(a: Any, b: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = tw.mean(j, (a[i, j] + b[i, j]) * x[j, f])

    A, B = (m.double() for m in sides())
    a, b, x = sparse(A), sparse(B), numbers(11, 2).double()
    given = [t.clone().requires_grad_() for t in (a.values, b.values, x)]
    torch.testing.assert_close(means(a, b, x), (A + B) @ x / 11)
    run = lambda v, w, x: means(a.with_values(v), b.with_values(w), x)
    assert gradcheck(run, given, fast_mode=True)


def test_only_what_is_known_to_be_in_order_is_followed() -> None:
    """While compiling nobody waits to ask for the order of entries: then all columns are visited."""
    A, B = sides()
    name, given, _ = plus.inputs(sparse(A), sparse(B), numbers(11, 3))
    asked = prepared(name, given)[0]
    assert [arg.ordered for arg in read_program(asked)[1]] == [True, True, False]
    unasked = arguments(name, given)[0]
    assert not any(arg.ordered for arg in read_program(unasked)[1])
    (step,) = entry(unasked, "c").steps
    assert "range(n_j)" in str(lower_to_position(step.bound.program))
