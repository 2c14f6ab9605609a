"""Gradients: gradcheck in f64, a dense autograd reference in 32 and 16 bits, and leaves of torch's own formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.matrices import KINDS, close, gradcheck, gradgradcheck, leaf, matrix, randn, reduced
from ops.places import Place

import tilewright as tw
from tilewright.ops.ready import served

F64 = torch.float64


def tensor(kind: str, place: Place, dtype: torch.dtype = F64) -> tw.SparseTensor:
    made = KINDS[kind](matrix(6, 8, 0.35, dtype=dtype, device=place.device))
    return made if isinstance(made, tw.SparseTensor) else tw.SparseTensor.from_torch(made)


def wide(*shape: int, seed: int, place: Place) -> torch.Tensor:
    return randn(*shape, seed=seed, dtype=F64, device=place.device).requires_grad_()


# --- gradcheck ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("kind", ["tensor", "tensor-coo", "tensor-csc"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_spmm(reduce: str, kind: str, prepared: bool, fast: Place) -> None:
    A = tensor(kind, fast)
    if prepared:
        A.prepare()
    v, x = leaf(A.values), wide(8, 3, seed=1, place=fast)

    def op(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = tw.spmm(A, x, values=v, reduce=reduce)
        return torch.where(y.isfinite(), y, 0)  # empty rows give infinities

    assert gradcheck(op, (v, x))


@pytest.mark.parametrize("kind", ["tensor-bsr"])
def test_spmm_blocks(kind: str, fast: Place) -> None:
    A = tensor(kind, fast)
    v, x = leaf(A.values), wide(8, 3, seed=1, place=fast)
    assert gradcheck(lambda v, x: tw.spmm(A, x, values=v), (v, x))


def test_spmm_heads(fast: Place) -> None:
    A = tensor("tensor-coo", fast)
    v, x = wide(A.nnz, 2, seed=2, place=fast), wide(8, 2, 3, seed=1, place=fast)
    assert gradcheck(lambda v, x: tw.spmm(A.with_values(v), x), (v, x))


def test_spmm_twice(fast: Place) -> None:
    """A gradient is a program too, so it has one."""
    A = tensor("tensor", fast)
    v, x = leaf(A.values), wide(8, 2, seed=1, place=fast)
    assert gradgradcheck(lambda v, x: tw.spmm(A, x, values=v), (v, x))


@pytest.mark.parametrize("kind", ["tensor", "tensor-coo"])
@pytest.mark.parametrize("op", ["dot", "add", "sub", "mul", "div"])
def test_sddmm(op: str, kind: str, fast: Place) -> None:
    A = tensor(kind, fast)
    v, x, z = leaf(A.values), wide(6, 3, seed=1, place=fast), wide(8, 3, seed=2, place=fast)
    z.data[z.abs() < 0.2] += 1.0
    assert gradcheck(lambda v, x, z: tw.sddmm(A.with_values(v), x, z, op=op).values, (v, x, z))


def test_linear(fast: Place) -> None:
    x, w, b = (wide(*s, seed=n, place=fast) for n, s in enumerate([(6, 5), (4, 5), (4,)]))
    rows = torch.tensor([5, 0, 2], device=fast.device)
    assert gradcheck(lambda x, w, b: tw.linear(x, w, b, sparse=rows), (x, w, b))


@pytest.mark.parametrize("kv", [1, 2])
def test_attention(kv: int, fast: Place) -> None:
    bits = torch.tensor([[1, 0], [0, 0], [1, 1]], device=fast.device)
    mask = tw.block_mask(bits, 4, (10, 7))
    q, k, v = (
        wide(*s, seed=n, place=fast) for n, s in enumerate([(2, 10, 3), (kv, 7, 3), (kv, 7, 2)])
    )
    assert gradcheck(lambda q, k, v: tw.attention(q, k, v, mask=mask, enable_gqa=True), (q, k, v))


def test_einsum(fast: Place) -> None:
    A = tensor("tensor", fast)
    v, x, w = leaf(A.values), wide(8, 3, seed=1, place=fast), wide(3, 2, seed=2, place=fast)
    assert gradcheck(lambda v, x, w: tw.einsum("ij,jf,fg->ig", A.with_values(v), x, w), (v, x, w))


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@tw.program
def graph_attention(a: Any, s: Any, t: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * tw.leaky_relu(s[i] + t[j], 0.25), x[j, f])


@tw.program
def scaled(a: Any, x: Any, c: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * tw.tanh(x[j, f])) * c


@tw.program
def smooth_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.logsumexp(j, a[i, j] * x[j, f])


@tw.program
def two_steps(a: Any, x: Any, h: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    h[i, f] = tw.sum(j, a[i, j] * x[j, f])
    y[i, f] = tw.sigmoid(h[i, f])


def full_rows(place: Place) -> tw.SparseTensor:
    dense = matrix(6, 8, 0.5, dtype=F64, device=place.device)
    dense[2, 1] = 0.75
    return tw.SparseTensor.from_dense(dense)


def test_program_max(fast: Place) -> None:
    A = full_rows(fast)
    v, x = leaf(A.values), wide(8, 3, seed=1, place=fast)
    assert gradcheck(lambda v, x: relu_max(A.with_values(v), x), (v, x))


def test_program_softmax(fast: Place) -> None:
    A = full_rows(fast)
    s, t, x = (wide(*z, seed=n, place=fast) for n, z in enumerate([(6,), (8,), (8, 3)]))
    v = leaf(A.values)
    assert gradcheck(lambda v, s, t, x: graph_attention(A.with_values(v), s, t, x), (v, s, t, x))


def test_program_scalar(fast: Place) -> None:
    A = full_rows(fast)
    v, x = leaf(A.values), wide(8, 3, seed=1, place=fast)
    assert gradcheck(lambda v, x: scaled(A.with_values(v), x, 1.5), (v, x))


def test_program_logsumexp(fast: Place) -> None:
    A = full_rows(fast)
    v, x = leaf(A.values), wide(8, 3, seed=1, place=fast)
    assert gradcheck(lambda v, x: smooth_max(A.with_values(v), x), (v, x))


@pytest.mark.parametrize("output", [0, 1])
def test_program_of_two_statements(output: int, fast: Place) -> None:
    """Differentiable, or an error that says so; never a wrong gradient."""
    A = full_rows(fast)
    v, x = leaf(A.values), wide(8, 3, seed=1, place=fast)
    try:
        assert gradcheck(lambda v, x: two_steps(A.with_values(v), x)[output], (v, x))
    except tw.TilewrightError as why:
        assert why.entry == "no-gradient"


def test_tiny_gradcheck_in_triton(tiled: Place) -> None:
    A = tw.SparseTensor.from_dense(torch.eye(2, dtype=F64, device=tiled.device))
    v, x = leaf(A.values), wide(2, 1, seed=1, place=tiled)
    assert gradcheck(lambda v, x: tw.spmm(A, x, values=v), (v, x))


# --- against dense autograd -----------------------------------------------------------------------------

DTYPES = [torch.float32, torch.bfloat16]


def grads(y: torch.Tensor, inputs: list[torch.Tensor], seed: int = 9) -> list[torch.Tensor]:
    g = randn(*y.shape, seed=seed, dtype=y.dtype, device=y.device)
    return [t.double() for t in torch.autograd.grad(y, inputs, g)]


def same(got: list[torch.Tensor], want: list[torch.Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(got, want, strict=True):
        close(a, b, torch.float32 if dtype == torch.float32 else torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_spmm_dtype(reduce: str, dtype: torch.dtype, where: Place) -> None:
    dense = matrix(6, 8, 0.35, dtype=dtype, device=where.device)
    dense[2, 3] = 1.0
    A = tw.SparseTensor.from_dense(dense)
    v, x = leaf(A.values), leaf(randn(8, 5, dtype=dtype, device=where.device))
    D, X = leaf(dense.double()), leaf(x.double())
    dv, dx = grads(tw.spmm(A, x, values=v, reduce=reduce), [v, x])
    dD, dX = grads(reduced(D, X, reduce), [D, X])
    rows, cols = dense.nonzero(as_tuple=True)
    same([dv, dx], [dD[rows, cols], dX], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sddmm_dtype(dtype: torch.dtype, where: Place) -> None:
    dense = matrix(6, 8, 0.35, dtype=dtype, device=where.device)
    A = tw.SparseTensor.from_dense(dense)
    rows, cols = dense.nonzero(as_tuple=True)
    v = leaf(A.values)
    x, z = (leaf(randn(n, 5, seed=n, dtype=dtype, device=where.device)) for n in (6, 8))
    V, X, Z = leaf(v.double()), leaf(x.double()), leaf(z.double())
    got = grads(tw.sddmm(A.with_values(v), x, z).values, [v, x, z])
    same(got, grads(V * (X[rows] * Z[cols]).sum(1), [V, X, Z]), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    rows = torch.tensor([5, 0, 2], device=where.device)
    x, w = (leaf(randn(n, 7, seed=n, dtype=dtype, device=where.device)) for n in (6, 4))
    X, W = leaf(x.double()), leaf(w.double())
    got = grads(tw.linear(x, w, sparse=rows), [x, w])
    kept = torch.zeros(6, 1, dtype=F64, device=where.device)
    kept[rows] = 1
    same(got, grads((X * kept) @ W.t(), [X, W]), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    bits = torch.tensor([[1, 0], [0, 0], [1, 1]], dtype=torch.bool, device=where.device)
    mask = tw.block_mask(bits, 4, (10, 7))
    dense = bits.repeat_interleave(4, 0).repeat_interleave(4, 1)[:10, :7]
    shapes = [(2, 10, 3), (2, 7, 3), (2, 7, 2)]
    q, k, v = (
        leaf(randn(*s, seed=n, dtype=dtype, device=where.device)) for n, s in enumerate(shapes)
    )
    Q, K, V = (leaf(t.double()) for t in (q, k, v))
    score = (Q @ K.transpose(1, 2) / 3**0.5).masked_fill(~dense, -1e9)
    y = torch.where(dense.any(1)[:, None], score.softmax(-1) @ V, 0)
    same(grads(tw.attention(q, k, v, mask=mask), [q, k, v]), grads(y, [Q, K, V]), dtype)


# --- leaves ---------------------------------------------------------------------------------------------


def test_csr_leaf_gets_a_csr_gradient(where: Place) -> None:
    dense = matrix(device=where.device)
    A = dense.to_sparse_csr().requires_grad_()
    x, g = randn(12, 5, device=where.device), randn(10, 5, seed=2, device=where.device)
    tw.spmm(A, x).backward(g)
    assert A.grad is not None and A.grad.layout == torch.sparse_csr
    assert torch.equal(A.grad.crow_indices(), A.crow_indices())
    assert torch.equal(A.grad.col_indices(), A.col_indices())
    close(A.grad.to_dense(), (g @ x.t()) * (dense != 0), torch.float32)


def test_csr_gradients_add_up(where: Place) -> None:
    A = matrix(device=where.device).to_sparse_csr().requires_grad_()
    x = randn(12, 5, device=where.device)
    tw.spmm(A, x).sum().backward()
    once = A.grad.values().clone()
    tw.spmm(A, x).sum().backward()
    close(A.grad.values(), 2 * once)


def test_csc_source_with_values(where: Place) -> None:
    """The gradient of values= follows the order of the source."""
    dense = matrix(device=where.device)
    A = dense.to_sparse_csc()
    v = A.values().clone().requires_grad_()
    x = randn(12, 5, device=where.device)
    tw.spmm(A, x, values=v).sum().backward()
    close(
        v.grad,
        x.sum(1)[
            torch.repeat_interleave(torch.arange(12, device=where.device), A.ccol_indices().diff())
        ],
    )


def test_only_what_is_asked(where: Place) -> None:
    A = tw.SparseTensor.from_dense(matrix(device=where.device))
    x = leaf(randn(12, 5, device=where.device))
    tw.spmm(A, x).sum().backward()
    assert A.values.grad is None and x.grad is not None


def test_no_grad_mode(where: Place) -> None:
    A = tw.SparseTensor.from_dense(matrix(device=where.device))
    x = leaf(randn(12, 5, device=where.device))
    with torch.no_grad():
        assert not tw.spmm(A, x).requires_grad


def test_strided_gradient(where: Place) -> None:
    """A gradient that comes as a view (here: of an expanded one)."""
    dense = matrix(device=where.device)
    A, x = tw.SparseTensor.from_dense(dense), leaf(randn(12, 5, device=where.device))
    tw.spmm(A, x).t().sum(0).sum().backward()
    close(x.grad, dense.sum(0)[:, None].expand(12, 5))


# --- what went wrong ------------------------------------------------------------------------------------


@tw.program
def used_twice(a: Any, t: Any, y: Any) -> None:
    """t in two places with different slopes: its gradient is the sum of two programs."""
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * (t[j] + tw.exp(t[j])))


def test_an_input_used_twice(fast: Place) -> None:
    A = full_rows(fast)
    v, t = leaf(A.values), wide(8, seed=1, place=fast)
    assert gradcheck(lambda v, t: used_twice(A.with_values(v), t), (v, t))


@pytest.mark.parametrize(
    "word", ["relu", "exp", "sigmoid", "tanh", "gelu", "silu", "leaky_relu", "abs", "sqrt", "log"]
)
def test_word(word: str, fast: Place) -> None:
    """The derivative of every scalar function."""

    def fn(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = tw.sum(j, a[i, j] * getattr(tw, word)(x[j, f]))

    fn.__name__ = f"word_{word}"
    made = tw.program(fn)
    A = full_rows(fast)
    x = wide(8, 2, seed=1, place=fast)
    if word in ("sqrt", "log"):
        x.data = x.data.abs() + 0.5
    v = leaf(A.values)
    assert gradcheck(lambda v, x: made(A.with_values(v), x), (v, x))


@tw.program
def shifted_max(a: Any, x: Any, b: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * x[j, f] + b[i, f] * x[j, f])


def test_the_maximum_is_found_again(where: Place) -> None:
    """Its reverse compares values that two kernels computed: they must agree to the last bit."""
    dense = randn(20, 15, device=where.device).relu()
    A = tw.SparseTensor.from_dense(dense)
    x, b = randn(15, 9, device=where.device), randn(20, 9, seed=3, device=where.device)
    x, b = x.requires_grad_(), b.requires_grad_()
    shifted_max(A, x, b).nan_to_num(neginf=0.0).sum().backward()
    z, c = (t.detach().double().requires_grad_() for t in (x, b))
    every = dense.double()[:, :, None] * z[None] + c[:, None, :] * z[None]
    none = torch.tensor(-torch.inf, dtype=torch.float64, device=where.device)
    torch.where((dense != 0)[:, :, None], every, none).amax(1).nan_to_num(
        neginf=0.0
    ).sum().backward()
    close(x.grad, z.grad)
    close(b.grad, c.grad)


@tw.program
def gated(x: Any, d_x: Any, kept0: Any, y: Any) -> None:
    i, f = tw.axes("i f")
    y[i, f] = x[i, f] * d_x[i, f] + kept0[i, f]


@tw.program
def named_as_gradients(a: Any, d_a: Any, d_y: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * d_a[j], d_y[j, f])


def test_names_of_gradients_are_free(where: Place) -> None:
    """A program may call its tensors d_x, d_y or kept0: the gradients have other names."""
    x, s, k = (torch.full((2, 3), n, device=where.device).requires_grad_() for n in (5.0, 7.0, 1.0))
    of_x, of_s, of_k = torch.autograd.grad(gated(x, s, k).sum(), (x, s, k))
    assert (of_x == 7).all() and (of_s == 5).all() and (of_k == 1).all()
    dense = matrix(6, 8, 0.5, device=where.device)
    dense[:, 0] = 0.5
    u, z = randn(8, device=where.device), randn(8, 3, seed=1, device=where.device)
    u.requires_grad_(), z.requires_grad_()
    got = torch.autograd.grad(
        named_as_gradients(tw.SparseTensor.from_dense(dense), u, z).square().sum(), (u, z)
    )
    scores = torch.where(dense != 0, dense * u, -torch.inf)
    want = torch.autograd.grad((torch.softmax(scores, 1) @ z).square().sum(), (u, z))
    for a, b in zip(got, want, strict=True):
        close(a, b)


@tw.program
def named_as_parts(a: Any, f_o: Any, f_i: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * f_o[j, f]) + f_i[f]


@pytest.mark.parametrize("width", [3, 600])
def test_names_of_parts_of_loops_are_free(width: int, where: Place) -> None:
    """Loops that are split have parts f_o and f_i; tensors of these names are no hindrance, nor is d_o beside d."""
    dense = matrix(5, 4, device=where.device)
    x, b = randn(4, width, device=where.device), randn(width, seed=1, device=where.device)
    close(named_as_parts(tw.SparseTensor.from_dense(dense), x, b), dense @ x + b)
    q = randn(1, 1, 16, 8, device=where.device).double().requires_grad_()
    v = randn(1, 1, 16, width, seed=2, device=where.device).double()
    mask = tw.block_mask(torch.ones(1, 1, dtype=torch.bool, device=where.device), block=16)
    (got,) = torch.autograd.grad(tw.attention(q, q.detach(), v, mask=mask).square().sum(), q)
    other = torch.nn.functional.scaled_dot_product_attention(q, q.detach(), v)
    close(got, torch.autograd.grad(other.square().sum(), q)[0])


@tw.program
def weighted(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j], x[j, f])


@tw.program
def weighted_twice(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = 2 * tw.softmax_sum(j, a[i, j], x[j, f])


@pytest.mark.parametrize(("program", "kept"), [(weighted, 2), (weighted_twice, 3)])
def test_a_weighted_sum_is_made_once(program: Any, kept: int, fast: Place) -> None:
    """Its gradient reads the output, where that is the sum itself: the scores alone are summed up again."""
    A, x = tensor("tensor", fast), wide(8, 3, seed=1, place=fast)
    v = leaf(A.values)
    with served() as kernels:
        y = program(A.with_values(v), x)
        torch.autograd.grad(y.sum(), (v, x), retain_graph=True)
    assert len(kernels) == 1 + kept + 2  # forward, intermediates, two gradients
    y.mul_(2)
    if program is weighted:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), (v, x))
    else:
        assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), (v, x)))
