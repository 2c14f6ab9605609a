"""tw.softmax of rows against dense torch: formats, heads, dtypes, gradients, empty and giant rows, -inf."""

from __future__ import annotations

import pytest
import torch
from ops.matrices import TOLERANCE, close, leaf, matrix, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright.support.errors import NoGradient, TilewrightError

FORMATS = ("csr", "coo", "csc", "bsr", "ell", "dcsr")


def scored(format: str, trailing: tuple[int, ...], dtype: torch.dtype, where: Place):  # type: ignore[no-untyped-def]
    """A matrix, and scores for its entries that want a gradient."""
    dense = matrix(device=where.device, dtype=dtype)
    if format == "bsr":
        A = tw.SparseTensor.from_dense(dense, format="bsr", block=(2, 4))
    else:
        A = tw.SparseTensor.from_dense(dense).to_format(format)
    size = A.explicit_values().shape
    return A, leaf(randn(*size, *trailing, dtype=dtype, device=where.device) * 3)


def dense_softmax(A: tw.SparseTensor, v: Tensor) -> Tensor:
    held = A.with_values(torch.ones_like(v)).to_dense() != 0
    scores = torch.where(held, A.with_values(v.double()).to_dense(), -torch.inf)
    return scores.softmax(1).nan_to_num(0)


@pytest.mark.parametrize(
    "format,trailing",
    [*((f, (3,)) for f in FORMATS), ("csr", ()), ("coo", (2, 3)), ("csr", (1,))],
    ids=str,
)
def test_against_torch(format: str, trailing: tuple[int, ...], where: Place) -> None:
    A, v = scored(format, trailing, torch.float64, where)
    got = tw.softmax(A.with_values(v))
    want = dense_softmax(A, v)
    close(got.to_dense(), want)
    g = randn(*want.shape, seed=4, dtype=torch.float64, device=where.device)
    mine, theirs = (torch.autograd.grad((t * g).sum(), v)[0] for t in (got.to_dense(), want))
    close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, where: Place) -> None:
    """One rounding: the sum of a row is kept in 32 bits."""
    A, v = scored("csr", (3,), dtype, where)
    got = tw.softmax(A.with_values(v)).values
    want = tw.softmax(A.with_values(v.double())).values
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, **TOLERANCE[dtype])
    assert torch.autograd.grad(got.sum(), v)[0].dtype == dtype


def test_large_scores_stay_finite(where: Place) -> None:
    A = tw.SparseTensor.from_dense(matrix(device=where.device))
    v = 1e4 * randn(A.nnz, device=where.device)
    got = tw.softmax(A.with_values(v))
    close(got.to_dense(), dense_softmax(A, v))


def test_minus_infinity_is_zero_and_rows_of_it_are_nan(where: Place) -> None:
    rows = torch.tensor([0, 0, 1, 3], device=where.device)
    cols = torch.tensor([0, 2, 1, 1], device=where.device)
    v = torch.tensor([1.0, -torch.inf, -torch.inf, 5.0], device=where.device)
    got = tw.softmax(tw.SparseTensor.from_coo(rows, cols, v, (4, 3))).values
    assert got[:2].tolist() == [1, 0] and got[2].isnan() and got[3] == 1


def test_order_and_duplicates_are_the_source_s(where: Place) -> None:
    edges = torch.tensor([[0, 1, 1, 3, 1], [2, 2, 0, 0, 2]], device=where.device)
    v = randn(5, 2, device=where.device)
    got = tw.softmax(tw.graph(edges, num_nodes=4, values=v)).values
    for target in (0, 2):
        mine = edges[1] == target
        close(got[mine], v[mine].softmax(0))


def test_ones_share_evenly(where: Place) -> None:
    G = tw.graph(torch.tensor([[0, 1, 1], [2, 2, 0]], device=where.device), num_nodes=3)
    assert tw.softmax(G).values.tolist() == [0.5, 0.5, 1.0]


def test_nothing_stored(where: Place) -> None:
    A = tw.SparseTensor.from_dense(torch.zeros(3, 4, device=where.device))
    assert tw.softmax(A).values.shape == (0,)
    assert tw.softmax(A.with_values(torch.zeros(0, 2, device=where.device))).values.shape == (0, 2)


def test_a_giant_row_of_a_prepared_structure(tiled: Place) -> None:
    dense = matrix(6, 700, 0.01, device=tiled.device)
    dense[1] = randn(700, seed=3, device=tiled.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    v = randn(A.nnz, 2, device=tiled.device)
    close(tw.softmax(A.with_values(v)).to_dense(), dense_softmax(A, v))


def test_gradcheck(fast: Place) -> None:
    A, v = scored("coo", (2,), torch.float64, fast)
    assert torch.autograd.gradcheck(lambda v: tw.softmax(A.with_values(v)).values, v)


def test_second_derivatives_are_refused(fast: Place) -> None:
    A, v = scored("csr", (), torch.float64, fast)
    (g,) = torch.autograd.grad(tw.softmax(A.with_values(v)).values[0], v, create_graph=True)
    with pytest.raises(NoGradient, match="softmax has no gradient"):
        g.sum().backward()


def test_compiled(fast: Place) -> None:
    A, v = scored("csr", (2,), torch.float32, fast)

    def attend(A: tw.SparseTensor, v: Tensor, x: Tensor) -> Tensor:
        return tw.spmm(tw.softmax(A.with_values(v)), x)

    x = randn(12, 2, 5, device=fast.device)
    g = randn(10, 2, 5, seed=4, device=fast.device)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    mine, theirs = (torch.autograd.grad(f(A, v, x), v, g)[0] for f in (compiled, attend))
    close(mine, theirs)


def test_integers_are_refused() -> None:
    A = tw.SparseTensor.from_dense(matrix().int())
    with pytest.raises(TilewrightError, match="floating point"):
        tw.softmax(A)
