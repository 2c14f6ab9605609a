"""Memory that nobody has written: new tensors come filled with NaN and huge integers, and results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import leaf, matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.ops.choice import Choice


@tw.program
def two_steps(a: Any, x: Any, h: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    h[i, f] = tw.sum(j, a[i, j] * x[j, f])
    y[i, f] = tw.relu(h[i, f])


@tw.program
def doubled(a: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * 2.0


@tw.program
def on_the_diagonal(a: Any, e: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    e[i, i] = a[i, i] * 2.0
    y[i] = a[i, i] + tw.sum(j, a[i, j])


def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
    return spoil(EMPTY(*args, **kwargs))


def spoil(t: torch.Tensor) -> torch.Tensor:
    return t.fill_(
        float("nan") if t.is_floating_point() else (1 if t.dtype == torch.bool else 1 << 30)
    )


EMPTY, NEW = torch.empty, torch.Tensor.new_empty
CALLS: dict[str, Callable[[Place], Any]] = {}


def call(fn: Callable[[Place], Any]) -> Callable[[Place], Any]:
    CALLS[fn.__name__] = fn
    return fn


def wide(place: Place) -> torch.Tensor:
    dense = matrix(7, 600, 0.01, device=place.device)
    dense[1] = randn(600, seed=4, device=place.device)
    return dense


@call
def spmm(place: Place) -> Any:
    return tw.spmm(matrix(device=place.device).to_sparse_csr(), randn(12, 5, device=place.device))


@call
def spmm_max(place: Place) -> Any:
    A = matrix(device=place.device).to_sparse_csr()
    return tw.spmm(A, randn(12, 5, device=place.device), reduce="max")


@call
def spmm_listed(place: Place) -> Any:
    A = tw.SparseTensor.from_dense(wide(place)).prepare()
    setting = {"rows": 4, "unroll": 2, "long": 8, "chunk": 64, "warps": 1, "width": 8, "outer": 0}
    A.structure.plans["chosen", 5, torch.float32] = Choice(setting, "given")
    return tw.spmm(A, randn(600, 5, device=place.device))


@call
def spmm_backward(place: Place) -> Any:
    A = tw.SparseTensor.from_dense(matrix(device=place.device))
    v, x = leaf(A.values), leaf(randn(12, 5, device=place.device))
    tw.spmm(A, x, values=v).square().sum().backward()
    return v.grad, x.grad


@call
def spmm_blocks(place: Place) -> Any:
    return tw.spmm(
        matrix(device=place.device).to_sparse_bsr((2, 4)), randn(12, 5, device=place.device)
    )


@call
def sddmm(place: Place) -> Any:
    A = matrix(device=place.device).to_sparse_csr()
    return tw.sddmm(A, randn(10, 5, device=place.device), randn(12, 5, device=place.device)).values


@call
def blocks_beyond_the_matrix(place: Place) -> Any:
    """What blocks hold beside the matrix is 0, in results and in gradients."""
    A = tw.SparseTensor.from_dense(matrix(device=place.device)[:9, :11], format="dbsr.4.2")
    v, x = leaf(A.values), randn(11, 5, device=place.device)
    tw.spmm(A, x, values=v).square().sum().backward()
    e = tw.sddmm(A, randn(9, 5, device=place.device), x)
    return v.grad, e.values, doubled(A).values


@call
def linear(place: Place) -> Any:
    """Rows that are not named are written too."""
    rows = torch.tensor([5, 0], device=place.device)
    return tw.linear(
        randn(8, 6, device=place.device), randn(4, 6, device=place.device), sparse=rows
    )


@call
def attention(place: Place) -> Any:
    mask = tw.block_mask(torch.tensor([[1, 0], [0, 0]], device=place.device), 16, (20, 20))
    q = randn(2, 20, 8, device=place.device)
    return tw.attention(q, q, q, mask=mask)


@call
def attention_backward(place: Place) -> Any:
    mask = tw.block_mask(torch.tensor([[1, 0], [0, 0]], device=place.device), 4, (7, 7))
    q, k, v = (leaf(randn(2, 7, 3, seed=s, device=place.device)) for s in range(3))
    tw.attention(q, k, v, mask=mask).square().sum().backward()
    return q.grad, k.grad, v.grad


@call
def program(place: Place) -> Any:
    return two_steps(matrix(device=place.device).to_sparse_csr(), randn(12, 5, device=place.device))


@call
def diagonal(place: Place) -> Any:
    """Entries beside the diagonal are written too, in results and in gradients; rows may wait for work lists."""
    dense = matrix(device=place.device)[:10, :10] + torch.eye(10, device=place.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    v = leaf(A.values)
    e, y = on_the_diagonal(A.with_values(v))
    assert torch.allclose(y, dense.diagonal() + dense.sum(1), atol=1e-5)
    (grad,) = torch.autograd.grad(y.sum() + e.values.sum(), v)
    return e.values.detach(), y.detach(), grad


def flat(made: Any) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


@pytest.mark.parametrize("name", CALLS)
def test_poisoned(name: str, where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ops import entry

    want = flat(CALLS[name](where))
    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, *how, **k: spoil(NEW(t, *how, **k)))
    entry.entry.cache_clear()  # kernels keep the allocator they were made with
    once, twice = flat(CALLS[name](where)), flat(CALLS[name](where))
    monkeypatch.undo()
    entry.entry.cache_clear()
    for a, b, c in zip(want, once, twice, strict=True):
        assert torch.equal(a, b) and torch.equal(b, c)
