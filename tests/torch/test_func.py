"""torch.func and tensors that are more than their memory: right, or refused with a reason."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward
from ops.matrices import close, randn
from torch import Tensor

import tilewright as tw

DENSE = torch.tensor([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, -1.0, 0.0]])


@tw.program
def scaled(a, x, y):  # type: ignore[no-untyped-def]
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * tw.exp(x[j, f]))


def matrix() -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(DENSE)


# name -> (ours, dense), functions of x: [4, 3]
CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "spmm": (lambda x: tw.spmm(matrix(), x), lambda x: DENSE @ x),
    "program": (lambda x: scaled(matrix(), x), lambda x: DENSE @ x.exp()),
    "rows": (lambda x: tw.linear(x, W, sparse="rows"), lambda x: x @ W.T),
    "k": (lambda x: tw.linear(x, W, sparse="k"), lambda x: x @ W.T),
    "numbers": (lambda x: tw.linear(x, W, sparse=ROWS), lambda x: (x @ W.T) * KEPT),
    "auto": (lambda x: tw.linear(x, W, sparse="auto"), lambda x: x @ W.T),
}
W = randn(5, 3, seed=2)
ROWS, KEPT = torch.tensor([2, 0]), torch.tensor([1.0, 0.0, 1.0, 0.0])[:, None]


@pytest.mark.parametrize("name", CALLS)
def test_reverse_mode(name: str) -> None:
    ours, dense = CALLS[name]
    x = randn(4, 3)
    of = lambda fn: torch.func.grad(lambda t: fn(t).square().sum())(x)
    close(of(ours), of(dense))
    pull = torch.func.vjp(ours, x)[1]
    ones = torch.ones_like(dense(x))
    close(pull(ones)[0], torch.func.vjp(dense, x)[1](ones)[0])


@pytest.mark.parametrize("name", ["spmm", "program", "k", "auto"])
def test_again(name: str) -> None:
    """Derivatives of derivatives."""
    ours, dense = CALLS[name]
    of = lambda fn: torch.func.jacrev(torch.func.jacrev(lambda t: fn(t).pow(3).sum()))(randn(4, 3))
    close(of(ours), of(dense))


@pytest.mark.parametrize("name", CALLS)
def test_vmap(name: str) -> None:
    """Sample by sample; gradients of each sample too."""
    ours, dense = CALLS[name]
    x = randn(2, 4, 3)
    close(torch.vmap(ours)(x), torch.vmap(dense)(x))
    close(torch.vmap(ours, in_dims=1)(x.transpose(0, 1)), torch.vmap(dense)(x))
    of = lambda fn: torch.vmap(torch.func.grad(lambda t: fn(t).square().sum()))(x)
    close(of(ours), of(dense))


def test_vmap_over_values() -> None:
    values, x = randn(2, matrix().nnz), randn(4, 3)
    ours = torch.vmap(lambda v: tw.spmm(matrix().with_values(v), x))(values)
    close(ours, torch.stack([tw.spmm(matrix().with_values(v), x) for v in values]))


@pytest.mark.parametrize("name", [n for n in CALLS if n != "auto"])
def test_forward_mode_is_refused(name: str) -> None:
    """A tangent that is dropped would be a wrong derivative."""
    ours, x = CALLS[name][0], randn(4, 3)
    with pytest.raises(tw.TilewrightError, match="no derivative in forward mode"):
        torch.func.jvp(ours, (x,), (torch.ones_like(x),))
    with forward.dual_level():
        with pytest.raises(tw.TilewrightError, match="no derivative in forward mode"):
            ours(forward.make_dual(x, torch.ones_like(x)))
        close(ours(x), CALLS[name][1](x))


@pytest.mark.parametrize("name", CALLS)
def test_negated_when_read(name: str) -> None:
    """As the imaginary part of a conjugate is."""
    ours, dense = CALLS[name]
    x = torch.complex(randn(4, 3), randn(4, 3, seed=3)).conj().imag
    assert x.is_neg()
    close(ours(x), dense(x))
    leaf = randn(4, 3).requires_grad_()
    made = ours(leaf)
    made.backward(torch._neg_view(torch.ones_like(made)))
    close(leaf.grad, -torch.func.vjp(dense, leaf.detach())[1](torch.ones_like(made))[0])


def test_experts_under_autocast() -> None:
    x, w, ids = randn(6, 4), randn(3, 4, 5), torch.arange(12).reshape(6, 2) % 3
    index = tw.Index.from_choices(ids, 3)
    want = torch.einsum("tk,tskn->tsn", x, w[ids])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(tw.ops.grouped_matmul(x, w, index), want)
        close(tw.ops.grouped_matmul(x, w, index, weights=torch.ones(6, 2)), want.sum(1))
    mixed = tw.ops.grouped_matmul(x.bfloat16(), w, index)
    assert mixed.dtype == torch.float32
    close(mixed, torch.einsum("tk,tskn->tsn", x.bfloat16().float(), w[ids]))


@pytest.mark.parametrize("name", ["rows", "k", "numbers"])
def test_autocast_changes_no_dtype(name: str) -> None:
    ours, dense = CALLS[name]
    x = randn(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = ours(x)
    assert made.dtype == torch.float32
    close(made, dense(x))


@pytest.mark.parametrize("name", ["csr", "csc", "coo", "dcsr", "ell"])
def test_structures_outlive_transforms(name: str) -> None:
    """What is derived from a structure inside of a transform serves calls after it."""
    A = tw.SparseTensor.from_dense(DENSE).to_format(name)
    x = randn(4, 3)
    loss = lambda v, t: tw.spmm(A.with_values(v), t).sin().sum()
    first = torch.func.grad(loss, (0, 1))(A.values, x)
    torch.func.jacrev(torch.func.grad(loss, 1), 1)(A.values, x)
    close(torch.func.grad(loss, (0, 1))(A.values, x)[1], first[1])
    close(tw.spmm(A, x), DENSE @ x)
    leaf = x.clone().requires_grad_()
    tw.spmm(A, leaf).sin().sum().backward()
    close(leaf.grad, first[1])


@pytest.mark.parametrize("op", [operator.add, operator.matmul], ids=["+", "@"])
def test_arithmetic_of_many_entries(op: Callable[..., tw.SparseTensor]) -> None:
    """So many that their keys are sorted in parts of a number; the third time finds what the second kept."""
    a = tw.SparseTensor.from_dense(torch.ones(64, 64))
    for _ in range(3):
        made = torch.func.grad(lambda v: op(a.with_values(v), a).values.sum())(a.values)
    close(made, torch.full((64 * 64,), 1.0 if op is operator.add else 64.0))


def test_structures_of_a_transform() -> None:
    made = lambda t: tw.spmm(tw.SparseTensor.from_dense(DENSE), t).square().sum()
    x = randn(4, 3)
    close(torch.func.grad(made)(x), 2 * DENSE.T @ (DENSE @ x))


def test_gradients_of_a_batch_of_masked_products() -> None:
    x, w, mask = randn(3, 5, 4), randn(7, 4, seed=2), torch.arange(28).reshape(7, 4) % 3 > 0
    one = lambda t: tw.ops.masked_linear(t, w, mask).square()
    of = torch.func.grad(lambda t: torch.vmap(one)(t).sum())(x)
    close(of, torch.func.grad(lambda t: (t @ (w * mask).T).square().sum())(x))


def test_gradients_in_batches_are_refused() -> None:
    x = randn(4, 3).requires_grad_()
    y = tw.spmm(matrix(), x)
    with pytest.raises(tw.TilewrightError, match="several at once"):
        torch.autograd.grad(y, x, torch.eye(9).view(9, 3, 3), is_grads_batched=True)


@pytest.mark.parametrize("sparse", ["rows", "k", "auto"])
def test_without_memory(sparse: str) -> None:
    """Shapes and dtypes, as torch's own operators give on the meta device."""
    x, w = (torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((6, 4), (5, 4)))
    y = tw.linear(x, w, sparse=sparse)
    assert (y.shape, y.dtype, y.device.type) == ((6, 5), torch.bfloat16, "meta")
    h, index = tw.ops.linear_relu(x, w, x[:5, 0])
    assert h.shape == (6, 5) and index.positions.device.type == "meta"
    A = tw.SparseTensor.from_dense(torch.eye(6)).to("meta")
    assert tw.spmm(A, x.float()).shape == (6, 4)


@pytest.mark.parametrize("name", ["linear", "masked_linear", "grouped_matmul"])
def test_gradients_of_gradients_over_lists_are_refused_in_words(name: str) -> None:
    x, w = randn(6, 4).requires_grad_(), randn(5, 4)
    index = tw.Index.from_choices(torch.arange(12).reshape(6, 2) % 3, 3)
    made = {
        "linear": lambda: tw.linear(x, w, sparse=torch.tensor([0, 3])),
        "masked_linear": lambda: tw.ops.masked_linear(x, w, torch.ones(5, 4).bool()),
        "grouped_matmul": lambda: tw.ops.grouped_matmul(x, randn(3, 4, 5), index),
    }[name]()
    (g,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
    with pytest.raises(tw.TilewrightError, match=rf"^the gradient of tw.*{name}.* has no gradient"):
        g.sum().backward()
