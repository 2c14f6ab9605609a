"""Mistakes inside of torch.compile are told in the catalogue's words, whole graph or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.support.errors import TilewrightError, made, said


@tw.program
def one_axis(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * x[j])


@tw.program
def ends_in_no_output(a: Any, x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    a[i] = x[i]


@tw.program
def no_size(a: Any, x: Any, y: Any) -> None:
    i, j, f, g = tw.axes("i j f g")
    y[i, g] = tw.sum((j, f), a[i, j] * x[j, f])


A = tw.SparseTensor.from_dense(torch.eye(5, 6))
MASK = tw.block_mask(torch.ones(2, 2, dtype=torch.bool), block=4)
Q = torch.randn(1, 2, 8, 4)

MISTAKES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda x: tw.spmm(A, x),
    "dtype": lambda x: tw.spmm(A, torch.ones(6, 2, dtype=torch.complex64)),
    "choice": lambda x: tw.spmm(A, x, reduce="most"),
    "not-sparse": lambda x: tw.softmax(x),
    "sizes": lambda x: tw.attention(Q, Q[:, :, : x.shape[0]], Q, mask=MASK),
    "sparse": lambda x: tw.linear(x, x, sparse="columns"),
    "sums": lambda x: A + A.T,
    "number": lambda x: A + 1,
    "values": lambda x: A.with_values(x),
    "format": lambda x: A.to_format("dense"),
    "subscripts": lambda x: tw.einsum("ijf->if", A, x),
    "axes": lambda x: one_axis(A, x),
    "inputs": lambda x: one_axis(A),
    "output": lambda x: ends_in_no_output(A, x),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def parts(text: str) -> list[str]:
    """What, in, expected, got and hint; the place is another one in each call."""
    lines = text.splitlines()
    return [lines[0], *(n for n in lines if n.startswith(("  in:", "  exp", "  got", "  hint")))]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MISTAKES)
def test_the_whole_text_is_shown(name: str, dynamic: bool) -> None:
    op, x = MISTAKES[name], torch.randn(3, 4)
    with pytest.raises(TilewrightError) as eager:
        op(x)
    with pytest.raises(Exception) as told:
        torch.compile(op, fullgraph=True, backend="eager", dynamic=dynamic)(x)
    assert parts(str(told.value).partition("\n\nfrom user code")[0]) == parts(str(eager.value))
    assert __file__ in str(told.value)
    cause = told.value.__cause__
    assert isinstance(cause, type(eager.value))
    assert cause.entry == eager.value.entry


@pytest.mark.parametrize("name", MISTAKES)
def test_in_parts_the_error_is_itself(name: str) -> None:
    op, x = MISTAKES[name], torch.randn(3, 4)
    with pytest.raises(TilewrightError) as eager:
        op(x)
    with pytest.raises(TilewrightError) as told:
        torch.compile(op, backend="eager")(x)
    assert parts(str(told.value)) == parts(str(eager.value))


def test_statements_are_quoted() -> None:
    with pytest.raises(Exception, match=r"axis g has no size") as told:
        torch.compile(lambda x: no_size(A, x), fullgraph=True, backend="eager")(torch.ones(6, 2))
    assert "y[i, g] = tw.sum((j, f), a[i, j] * x[j, f])" in str(told.value.__cause__)


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.vmap])
def test_transforms_are_refused(transform: Callable[..., Any]) -> None:
    op = lambda x: transform(lambda x: tw.spmm(A, x))(x)
    with pytest.raises(Exception, match=r"is under a transform of torch\.func"):
        torch.compile(op, fullgraph=True, backend="eager")(torch.ones(1, 6, 2))


def test_export_shows_the_error_itself() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return tw.spmm(A, x)

    with pytest.raises(TilewrightError, match=r"x has shape \(3, 4\)"):
        torch.export.export(Model(), (torch.randn(3, 4),), strict=False)


@pytest.mark.parametrize("value", [(), (3,), (3, 4), 5, "x", torch.float32])
def test_values_are_said_as_python_does(value: object) -> None:
    assert said(value) == str(value)


def test_made_keeps_the_catalogues_place() -> None:
    assert made("no-compiler", "", "", {"got": "cc"}).where == "building a C kernel"
