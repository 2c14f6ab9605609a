"""Numbers that change inside torch.compile: one graph for all values, and the results of eager code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ops.matrices import close, leaf, randn
from ops.places import Place
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import tilewright as tw

VALUES = {
    "floats": [0.5, 1.5, -2.25, 0.0, 3.0],
    "whole": [2, 3, 5, 0, 7],
    "tensors": [torch.tensor(v) for v in (0.5, 1.5, 0.0, 3.0)],
}


@tw.program
def scaled(a: Any, x: Any, c: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f]) * c + c


@tw.program
def counted(t: Any, c: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] = t[i] * c


A = tw.SparseTensor.from_torch(torch.eye(16).to_sparse_csr())
BITS = torch.ones(2, 2, dtype=torch.bool).tril()


def attended(x: Tensor, c: Any) -> Tensor:
    q = x[None, :, :16]
    return tw.attention(q, q, q, mask=tw.block_mask(BITS, block=8), scale=c)


USES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "program": lambda x, c: scaled(A, x, c),
    "list": lambda x, c: tw.Index.from_values(x, (2, 4), threshold=c, grouped=True).counts.float(),
    "rows": lambda x, c: tw.Index.from_values(x, (1, None), threshold=c).counts.float(),
    "attention": attended,
    "values": lambda x, c: (A * c).values * x[0, 0],
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", USES)
def test_one_graph_for_all_values(name: str, kind: str) -> None:
    """The first value that is seen is a constant, as torch.compile has it; the second makes a graph for all."""
    count = CompileCounterWithBackend("aot_eager")
    made = torch.compile(USES[name], fullgraph=True, backend=count)
    x = randn(16, 20)
    for c in VALUES[kind]:
        close(made(x, c), USES[name](x, c))
    assert count.frame_count <= 2


def test_literals_stay_constants() -> None:
    count = CompileCounterWithBackend("aot_eager")
    x = randn(16, 20)
    made = torch.compile(lambda x: scaled(A, x, 0.5), fullgraph=True, backend=count)
    close(made(x), scaled(A, x, 0.5))
    assert not any("ones" in str(n) for g in count.graphs for n in g.graph.nodes)


def test_beside_whole_numbers_results_stay_whole() -> None:
    """A tensor of floats would widen them, so that the number is a constant of the graph."""
    made = torch.compile(counted, fullgraph=True, backend="aot_eager")
    t = torch.tensor([1, -3, 2**40])
    for c in (2, 3, 0.5):
        assert torch.equal(made(t, c), counted(t, c))


def test_gradients_beside_a_number_that_changes(fast: Place) -> None:
    a, x = A.to(fast.device), leaf(randn(16, 20, device=fast.device))
    made = torch.compile(lambda x, c: scaled(a, x, c), fullgraph=True, backend="aot_eager")
    for c in VALUES["floats"]:
        got, want = made(x, c).square().sum(), scaled(a, x, c).square().sum()
        close(torch.autograd.grad(got, x)[0], torch.autograd.grad(want, x)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["program", "attention"])
def test_inductor(name: str) -> None:
    made = torch.compile(USES[name], fullgraph=True)
    x = randn(16, 20)
    for c in VALUES["floats"]:
        close(made(x, c), USES[name](x, c))
