"""Gradients run over what the forward runs over: the entries of what drives, be it sums, two operands or no operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright.support.errors import NoGradient

FORMATS = ["csr", "padded.4"]
ONE = torch.tensor([[0, 1.0, 0], [2.0, 0, 0], [0, 0, 0]], dtype=torch.float64)
A = torch.tensor([[1.0, 2, 0], [3, 0, 0]], dtype=torch.float64)
B = torch.tensor([[1.0, 0, 5], [0, 0, 7]], dtype=torch.float64)


def number(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=draw, dtype=torch.float64) + 0.2


def plus_number(a: Any, c: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] + c


def plus_row(a: Any, s: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] + s[i]


def plus_column(a: Any, s: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] - tw.exp(s[j])


def plus_matrix(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] + x[i, j]


def wider(a: Any, s: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, j, f] = a[i, j] + s[f]


def turned(a: Any, c: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[j, i] = a[i, j] + c


def plus_sum(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, j] = a[i, j] + tw.sum(f, x[j, f])


def mean_of_sums(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i] = tw.mean(j, tw.sum(f, a[i, j] * x[j, f]))


def sum_of_greatest(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i] = tw.sum(j, tw.max(f, a[i, j] + x[j, f]))


def sums_at_entries(a: Any, s: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, j] = tw.sum(f, a[i, j] + s[f])


def sums_on_entries(a: Any, x: Any, e: Any) -> None:
    """The sum, which its factor's gradient reads, is on the structure."""
    i, j, f = tw.axes("i j f")
    e[i, j] = tw.sum(f, a[i, j] * x[j, f]) * tw.tanh(x[i, 0])


SINGLE: dict[Callable[..., None], tuple[int, ...]] = {
    plus_number: (),
    plus_row: (3,),
    plus_column: (3,),
    plus_matrix: (3, 3),
    wider: (2,),
    turned: (),
    plus_sum: (3, 2),
    mean_of_sums: (3, 2),
    sum_of_greatest: (3, 2),
    sums_at_entries: (2,),
    sums_on_entries: (3, 2),
}


def check(program: Callable[..., None], sparse: list[tw.SparseTensor], *dense: Tensor) -> None:
    """Against numbers."""
    run, n = tw.program(program), len(sparse)

    def call(*given: Tensor) -> Tensor:
        held = [s.with_values(v) for s, v in zip(sparse, given[:n], strict=True)]
        made = run(*held, *given[n:])
        return made.to_dense() if isinstance(made, tw.SparseTensor) else made

    values = [s.explicit_values() for s in sparse]
    assert torch.autograd.gradcheck(call, [t.clone().requires_grad_() for t in (*values, *dense)])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("program", SINGLE, ids=lambda p: p.__name__)
def test_one_sparse_operand(program: Callable[..., None], format: str) -> None:
    given = tw.SparseTensor.from_dense(ONE).to_format(format)
    check(program, [given], number(*SINGLE[program]))


def test_rows_without_entries() -> None:
    @tw.program
    def greatest(a: Any, w: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i] = tw.max(j, tw.sum(f, a[i, j] + w[f]))

    got = greatest(tw.SparseTensor.from_dense(ONE), torch.ones(2, dtype=torch.float64))
    assert got.tolist() == [4.0, 6.0, -torch.inf]


def softmax_of_product(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.softmax_sum(j, a[i, j] * b[i, j], x[j])


def softmax_of_more(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.softmax_sum(j, a[i, j] * (b[i, j] + 1.0), x[j])


def softmax_of_one(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.softmax_sum(j, a[i, j] * x[j], (b[i, j] + 1.0) * x[j])


def product(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.prod(j, a[i, j] * (b[i, j] + x[j]))


def greatest_of_two(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.max(j, -a[i, j] * (b[i, j] + x[j]))


def mean_of_two(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.mean(j, a[i, j] * tw.exp(b[i, j] + x[j]))


def at_entries(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] * tw.exp(b[i, j] * x[j])


TWO = [
    softmax_of_product,
    softmax_of_more,
    softmax_of_one,
    product,
    greatest_of_two,
    mean_of_two,
    at_entries,
]


@pytest.mark.parametrize("program", TWO, ids=lambda p: p.__name__)
def test_two_sparse_operands(program: Callable[..., None]) -> None:
    check(program, [tw.SparseTensor.from_dense(t) for t in (A, B)], number(3))


def scaled(x: Any, c: Any, y: Any) -> None:
    y[()] = x * c


def loss(a: Any, c: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[()] = tw.sum((i, j), a[i, j]) + c * c


def by_their_number(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * x[j]) / tw.sum(j, 1.0)


def by_a_constant(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * x[j]) * tw.exp(tw.max(j, 0.5))


def power_of_rows(a: Any, x: Any, s: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * x[j]) * tw.prod(j, s[i]) * tw.exp(tw.sum(j, s[i]))


@pytest.mark.parametrize(
    ("program", "dense"),
    [
        (loss, [()]),
        (by_their_number, [(3,)]),
        (by_a_constant, [(3,)]),
        (power_of_rows, [(3,), (2,)]),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_reductions_of_what_has_not_their_axis(program: Any, dense: Any) -> None:
    check(program, [tw.SparseTensor.from_dense(A)], *(number(*shape) for shape in dense))


def test_rows_beside_their_entries(where: Place) -> None:
    """An axis of the gradient is summed up once more: entries are found by row."""

    def shares(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = tw.sum(j, a[i, j] * x[j, f] / tw.sum(j, a[i, j] * a[i, j]))

    given = tw.SparseTensor.from_dense(A.to(where.device))
    check(shares, [given], number(3, 2).to(where.device))


def test_numbers_alone() -> None:
    check(scaled, [], number(), number())


@pytest.mark.parametrize("format", ["csf", "hyb", "bucket.2", "grouped.3.0"])
def test_results_on_three_dimensions(format: str) -> None:
    def scores(a: Any, u: Any, v: Any, e: Any) -> None:
        r, i, j, f = tw.axes("r i j f")
        e[r, i, j] = a[r, i, j] * tw.sum(f, u[r, i, f] * v[j, f])

    at = torch.tensor([[0, 0, 0, 2, 2], [1, 1, 3, 0, 0], [0, 4, 2, 1, 5]])
    given = tw.SparseTensor.from_coords(at, number(5), (3, 4, 6))
    made = given.decompose(tw.rules.hyb(1, 1)) if format == "hyb" else given.to_format(format)
    check(scores, [made], number(3, 4, 2), number(6, 2))


def test_what_no_loop_can_write_has_no_gradient() -> None:
    """Entries of one column: the program of the gradient is refused, and the statement named."""

    @tw.program
    def column(a: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y[i] = a[i, 0]

    A = tw.SparseTensor.from_dense(torch.eye(4) + 1)
    v = A.values.clone().requires_grad_()
    y = column(A.with_values(v))
    torch.testing.assert_close(y, A.to_dense()[:, 0])
    with pytest.raises(NoGradient, match=r"it needs d_a\[i, 0\]"):
        y.sum().backward()
