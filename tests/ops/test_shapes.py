"""tw.spmm, tw.spmv and tw.sddmm on batches, heads and vectors, with gradients; ties; the transpose."""

from __future__ import annotations

import pytest
import torch
from ops.matrices import close, leaf, matrix, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright.ops.sddmm import OPS as EDGE_OPS

REDUCE = ("sum", "mean", "max", "min")
SHAPES = {
    "vector": ((), (12,)),
    "batch": ((), (3, 12, 5)),
    "batches": ((), (2, 2, 12, 5)),
    "heads": ((2,), (12, 2, 5)),
    "batch-heads": ((2,), (3, 12, 2, 5)),
    "no-batch": ((), (0, 12, 5)),
}


PAIRS = [
    *((shape, "sum") for shape in SHAPES),
    *((shape, "max") for shape in ("vector", "batch", "heads")),
    ("heads", "min"),
    ("batch-heads", "mean"),
]


def reduced(dense: Tensor, held: Tensor, x: Tensor, reduce: str) -> Tensor:
    """By dense torch: dense [n, m, *heads], x [..., m, *heads, f]."""
    heads = dense.dim() == 3
    terms = dense[..., None] * x.unsqueeze(-4 if heads else -3)
    at = -3 if heads else -2
    held = (held[:, :, None] if heads else held)[..., None].expand(terms.shape)
    if reduce in ("sum", "mean"):
        total = torch.where(held, terms, 0).sum(at)
        return total / held.sum(at).clamp(min=1) if reduce == "mean" else total
    empty = float("-inf") if reduce == "max" else float("inf")
    return getattr(torch.where(held, terms, empty), f"a{reduce}")(at)


@pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("shape,reduce", PAIRS, ids=str)
def test_shape(shape: str, reduce: str, prepared: bool, where: Place) -> None:
    """Values and gradients, of A's values and of x."""
    trailing, size = SHAPES[shape]
    made = matrix(device=where.device, dtype=torch.float64)
    A = tw.SparseTensor.from_dense(made)
    A = A.prepare() if prepared else A
    v = leaf(randn(A.nnz, *trailing, seed=3, dtype=torch.float64, device=where.device))
    x = leaf(randn(*size, dtype=torch.float64, device=where.device))
    got = tw.spmm(A, x, values=v, reduce=reduce)
    vector = x.dim() == 1
    wide = x[:, None] if vector else x
    want = reduced(A.with_values(v).to_dense(), made != 0, wide, reduce)
    want = want[:, 0] if vector else want
    close(got, want)
    g = torch.where(
        want.isfinite(),
        torch.cos(torch.arange(want.numel(), device=want.device).view(want.shape)),
        0,
    )
    g = g.to(got)
    for mine, theirs in zip(
        torch.autograd.grad(got, (x, v), g), torch.autograd.grad(want, (x, v), g), strict=True
    ):
        close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["vector", "batch", "batch-heads"])
def test_dtype(shape: str, dtype: torch.dtype, where: Place) -> None:
    trailing, size = SHAPES[shape]
    made = matrix(device=where.device, dtype=dtype)
    A = tw.SparseTensor.from_dense(made)
    v = randn(A.nnz, *trailing, seed=3, dtype=dtype, device=where.device)
    x = randn(*size, dtype=dtype, device=where.device)
    got = tw.spmm(A, x, values=v)
    assert got.dtype == dtype
    wide = x.double()[:, None] if x.dim() == 1 else x.double()
    want = reduced(A.with_values(v.double()).to_dense(), made != 0, wide, "sum")
    close(got, want[:, 0] if x.dim() == 1 else want)


@pytest.mark.parametrize("reduce", REDUCE)
def test_a_vector_is_one_feature(reduce: str, where: Place) -> None:
    A, x = matrix(device=where.device).to_sparse_csr(), randn(12, device=where.device)
    got = tw.spmv(A, x, reduce=reduce)
    close(got, tw.spmm(A, x[:, None], reduce=reduce)[:, 0])
    assert torch.equal(got, tw.spmm(A, x, reduce=reduce))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_share_as_in_torch(reduce: str, where: Place) -> None:
    """Three equal products in row 0, two in row 1: a third and a half for each, as amax and amin give."""
    made = torch.tensor([[1.0, 1, 1, 0], [0, 2, 2, 0]], dtype=torch.float64, device=where.device)
    x = leaf(torch.ones(4, 3, dtype=torch.float64, device=where.device))
    y = leaf(x)
    tw.spmm(tw.SparseTensor.from_dense(made), x, reduce=reduce).sum().backward()
    reduced(made, made != 0, y, reduce).sum().backward()
    close(x.grad, y.grad)
    assert x.grad[0, 0].item() == pytest.approx(1 / 3)


def test_a_prepared_transpose_converts_nothing(where: Place) -> None:
    made = matrix(device=where.device)
    A = tw.SparseTensor.from_dense(made).prepare()
    assert A.T.structure.as_csr() is A.structure.transposed
    x = randn(2, 10, 4, device=where.device)
    close(tw.spmm(A.T, x), made.t() @ x)


KINDS = [
    *((op, t, w) for op in ("dot", "add") for t in ((), (5,), (2, 5)) for w in ("none", "entry")),
    *((op, (5,), "entry") for op in EDGE_OPS[2:]),
    ("dot", (2, 5), "head"),
    ("add", (5,), "head"),
]


@pytest.mark.parametrize("op,trailing,weights", KINDS, ids=str)
def test_edges(op: str, trailing: tuple[int, ...], weights: str, where: Place) -> None:
    """Values and gradients of every function of two rows."""
    heads = trailing[:1] if len(trailing) == (2 if op == "dot" else 1) else ()
    made = matrix(device=where.device, dtype=torch.float64)
    A = tw.SparseTensor.from_dense(made)
    i, j = made.nonzero(as_tuple=True)
    x = leaf(randn(10, *trailing, dtype=torch.float64, device=where.device))
    z = leaf(randn(12, *trailing, seed=2, dtype=torch.float64, device=where.device))
    leaves, v = [x, z], None
    if weights != "none":
        size = heads if weights == "head" else ()
        v = leaf(randn(A.nnz, *size, seed=3, dtype=torch.float64, device=where.device))
        leaves.append(v)
    got = tw.sddmm(A.with_values(v), x, z, op=op).values
    a, b = (x[:, None][i], z[:, None][j]) if op == "dot" and not trailing else (x[i], z[j])
    named = {"max": torch.maximum, "min": torch.minimum}
    want = (a * b).sum(-1) if op == "dot" else named.get(op, getattr(torch, op, None))(a, b)
    if v is not None:
        want = want * v.view(*v.shape, *[1] * (want.dim() - v.dim()))
    close(got, want)
    g = randn(*got.shape, seed=4, dtype=torch.float64, device=where.device)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
