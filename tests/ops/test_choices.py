"""What a choice leaves out is not read: it may lie outside of its tensor. Gradients neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from ops.matrices import close, leaf, randn
from ops.places import Place, at
from torch import Tensor

import tilewright as tw
from tilewright import driver
from tilewright.ir import tile
from tilewright.ir.expr import Var
from tilewright.ir.interp import run_tile
from tilewright.runtime import kernel


@tw.program
def before(x: Any, b: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] = tw.where(i > 0, -b[i] * tw.exp(x[i - 1]), b[i]) / 2.0


@tw.program
def beside(x: Any, b: Any, y: Any) -> None:
    """Either neighbour, and a condition with more dimensions than what is read."""
    i, f = tw.axes("i f")
    y[i, f] = tw.where((i > 0) & (b[i, f] > 0), tw.sin(x[i - 1]), b[i, f]) * b[i, f]


@tw.program
def named(x: Any, b: Any, at: Any, y: Any) -> None:
    """Through an index array, and beside what that names."""
    i, f = tw.axes("i f")
    y[i, f] = tw.where(f > 0, b[i, f] / x[at[i] + 1, f - 1], 1.0)


@tw.program
def within(x: Any, b: Any, y: Any) -> None:
    """Choices inside of a sum, one in another; the inner one depends on what only the outer one lets be read."""
    i, r = tw.axes("i r")
    inner = tw.where(x[i + r - 1] > 0, tw.minimum(x[i + r - 1], b[r]), b[r] ** 2)
    y[i] = tw.sum(r, tw.where((i + r > 0) & (i + r < 6), inner * b[r], 0.0)) * x[i]


@tw.program
def summed(x: Any, b: Any, y: Any) -> None:
    """A sum that is chosen, and one in the other branch; gradients need both again."""
    i, f, g = tw.axes("i f g")
    near = tw.tanh(tw.sum(f, x[i - 1, f] * b[f]))
    y[i] = tw.where(i > 0, near * x[i, 0], tw.exp(tw.sum(g, x[i + 1, g] * b[g])))


@tw.program
def largest(x: Any, b: Any, y: Any) -> None:
    """Reductions that are no sums, in a choice within a sum."""
    i, r, f = tw.axes("i r f")
    there = (i + r > 0) & (i + r < 5)
    y[i] = tw.sum(r, b[r] * tw.where(there, tw.max(f, x[i + r - 1, f]), b[r])) + x[i, 0]


@dataclass(frozen=True)
class Case:
    op: Callable[..., Tensor]
    same: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


NAMES = torch.tensor([1, 0, 1, 0])


def _beside(x: Tensor, b: Tensor) -> Tensor:
    near = torch.cat([x.new_zeros(1), x[:-1]]).sin()[:, None]
    own = (b > 0) & (torch.arange(len(b), device=b.device) > 0)[:, None]
    return torch.where(own, near, b) * b


def _named(x: Tensor, b: Tensor) -> Tensor:
    names = NAMES.to(x.device)
    return torch.cat([torch.ones_like(b[:, :1]), b[:, 1:] / x[names + 1, :-1]], 1)


def _within(x: Tensor, b: Tensor) -> Tensor:
    here = torch.cat([x.new_ones(1), x, x.new_ones(2)]).unfold(0, 3, 1)[:5]
    places = sum(torch.meshgrid(torch.arange(5), torch.arange(3), indexing="ij"))
    there = ((places > 0) & (places < 6)).to(x.device)
    inner = torch.where(here > 0, torch.minimum(here, b), b**2)
    return torch.where(there, inner * b, 0.0).sum(1) * x


def _summed(x: Tensor, b: Tensor) -> Tensor:
    dots = x @ b
    return torch.cat([dots[1:2].exp(), dots[:-1].tanh() * x[1:, 0]])


def _largest(x: Tensor, b: Tensor) -> Tensor:
    most = torch.cat([x.new_ones(1), x.amax(1), x.new_ones(1)]).unfold(0, 2, 1)[:4]
    places = sum(torch.meshgrid(torch.arange(4), torch.arange(2), indexing="ij")).to(x.device)
    there = (places > 0) & (places < 5)
    return (b * torch.where(there, most, b)).sum(1) + x[:, 0]


CASES = {
    "before": Case(
        before,
        lambda x, b: torch.cat([b[:1], -b[1:] * x[:-1].exp()]) / 2,
        ((5,), (5,)),
    ),
    "beside": Case(beside, _beside, ((4,), (4, 3))),
    "named": Case(lambda x, b: named(x, b, NAMES.to(x.device)), _named, ((3, 5), (4, 5))),
    "within": Case(within, _within, ((5,), (3,))),
    "summed": Case(summed, _summed, ((5, 4), (4,))),
    "largest": Case(largest, _largest, ((4, 3), (2,))),
}


def numbers(name: str, dtype: torch.dtype, device: Any) -> list[Tensor]:
    """Operands; in memory, the first has NaN on both sides."""
    x, b = (randn(*s, seed=n, dtype=dtype, device=device) for n, s in enumerate(CASES[name].shapes))
    around = torch.full((len(x) + 6, *x.shape[1:]), float("nan"), dtype=dtype, device=device)
    around[3:-3] = x
    return [around[3:-3].requires_grad_(), leaf(b)]


def agree(name: str, given: Sequence[Tensor]) -> None:
    """Results, gradients and their gradients are those of dense torch."""
    case, wide = CASES[name], [leaf(t.detach().clone()) for t in given]
    y, want = case.op(*given), case.same(*wide)
    close(y, want)
    back = randn(*y.shape, seed=9, dtype=y.dtype, device=y.device)
    got = torch.autograd.grad(y, given, back, create_graph=True)
    told = torch.autograd.grad(want, wide, back, create_graph=True)
    for a, b in zip(got, told, strict=True):
        close(a, b)
    for a, b in zip(
        torch.autograd.grad([t.sum() for t in got], given),
        torch.autograd.grad([t.sum() for t in told], wide),
        strict=True,
    ):
        close(a, b)


@pytest.mark.parametrize("name", CASES)
def test_agree(name: str, where: Place) -> None:
    agree(name, numbers(name, torch.float32, where.device))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tile.Program]]:
    """Triton programs are run by the interpreter of tile form, which refuses to read outside."""
    made, real = [], driver.to_tile

    def kept(*given: Any, **named: Any) -> tile.Program:
        made.append(real(*given, **named))
        return made[-1]

    monkeypatch.setattr(driver, "to_tile", kept)
    monkeypatch.setattr(kernel, "interpreted_caller", lambda fn, grid: caller(made[-1]))
    with at("triton"):
        yield made


def caller(p: tile.Program) -> Callable[..., None]:
    def call(tensors: Sequence[Tensor], where: Any, sizes: Any, scalars: Any) -> None:
        given = dict(zip(p.buffers, tensors, strict=True))
        ends = ((e, n) for b, t in given.items() for e, n in zip(b.shape, t.shape, strict=True))
        named = {e.name: n for e, n in ends if isinstance(e, Var)}
        named |= dict(zip((v.name for v in p.sizes), sizes, strict=True))
        arrays = {b.name: t.detach().numpy() for b, t in given.items()}
        outs = run_tile(p, arrays, named)
        for b, t in given.items():
            if b.role == "out":
                t.detach().copy_(torch.from_numpy(np.ascontiguousarray(outs[b.name])))

    return call


@pytest.mark.parametrize("name", CASES)
def test_nothing_outside_is_read(name: str, checked: list[tile.Program]) -> None:
    agree(name, numbers(name, torch.float64, "cpu"))
    assert len(checked) > 3
