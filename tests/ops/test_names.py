"""Names of parameters that generated code needs for something else: results, gradients and messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.matrices import close, matrix, randn
from ops.places import Place

import tilewright as tw

SOURCE = """
@tw.program
def scaled({a}, {x}, {s}, {y}):
    i, j, f = tw.axes("i j f")
    {y}[i, f] = tw.sum(j, {a}[i, j] * {x}[j, f] * {s})
"""


def made(a: str, x: str, s: str, y: str) -> Any:
    held: dict[str, Any] = {"tw": tw}
    exec(SOURCE.format(a=a, x=x, s=s, y=y), held)
    return held["scaled"]


@pytest.mark.parametrize(
    "names",
    [
        "int default register float",
        "a int32_t INFINITY _Bool",
        "a tw_exp bool size_t",
        "a n_i n_j n_f",
        "a a_nnz a_rows a_indptr",
        "a a_indices a_perm y",
        "x x_0 x_ptr x_s0",
        "int int_ int__ y",
    ],
)
def test_names_are_kept_apart(names: str, where: Place) -> None:
    dense = matrix(device=where.device)
    a = tw.SparseTensor.from_dense(dense)
    x = randn(12, 3, device=where.device).requires_grad_()
    y = made(*names.split())(a, x, 2.0)
    close(y.detach(), 2 * dense @ x.detach())
    y.sum().backward()
    close(x.grad, 2 * dense.T @ torch.ones_like(y))


@tw.program
def of_axes(a: Any, x: Any, y: Any) -> None:
    p, o, i = tw.axes("p o i")
    y[p, i] = tw.sum(o, a[p, o] * x[o, i])


def test_axes_named_as_parts_of_loops(where: Place) -> None:
    """p_o is the place of an entry along o, and would be a part of the loop over p."""
    dense = matrix(device=where.device)
    a = tw.SparseTensor.from_dense(dense)
    x = randn(12, 20, device=where.device).requires_grad_()
    y = of_axes(a, x)
    close(y.detach(), dense @ x.detach())
    y.sum().backward()
    close(x.grad, dense.T @ torch.ones_like(y))


@tw.program
def summed_again(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = x[i, j] * tw.sum(j, a[i, j])


def test_axes_that_a_reduction_binds_once_more(where: Place) -> None:
    """The j that is summed over is not the j of the result: no entry at [i, j] drives there."""
    dense, x = matrix(device=where.device), randn(10, 12, device=where.device)
    y = summed_again(tw.SparseTensor.from_dense(dense), x)
    close(y, x * dense.sum(1, keepdim=True))


def total(x: Any) -> Any:
    (j,) = tw.axes("j")
    return tw.sum(j, x[j])


@tw.program
def of_two_lengths(x: Any, z: Any, y: Any) -> None:
    (j,) = tw.axes("j")
    y[j] = z[j] * total(x)


def test_axes_of_one_name(where: Place) -> None:
    x, z = (randn(n, device=where.device).requires_grad_() for n in (3, 70))
    y = of_two_lengths(x, z)
    close(y.detach(), (z * x.sum()).detach())
    y.sum().backward()
    close(x.grad, z.detach().sum().expand(3))


def test_messages_have_the_names_of_the_author() -> None:
    a = tw.SparseTensor.from_dense(matrix())
    with pytest.raises(tw.TilewrightError) as why:
        made("a", "default", "n_i", "y")(a, randn(12), 2.0)
    assert "default is indexed by 2 axes" in str(why.value)
    with pytest.raises(tw.TilewrightError) as why:
        made("a", "default", "n_i", "y")(a, torch.ones(12, 3, device="meta"), 2.0)
    assert "scaled(a, default)" in str(why.value)
    with pytest.raises(tw.TilewrightError, match="3: a, default, n_i"):
        made("a", "default", "n_i", "y")(a, randn(12, 3), 2.0, randn(3))


def test_plain_names_stay() -> None:
    program = made("a", "x_scale", "n_heads", "y")
    program(tw.SparseTensor.from_dense(matrix()), randn(12, 3), 2.0)
    assert next(iter(program.traced.values())).params == ("a", "x_scale", "n_heads", "y")
