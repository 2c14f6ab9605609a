"""Operators on tensors in parts: the same results, gradients and value order as on the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.matrices import close, gradcheck, leaf, matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.ops.ready import served

F64 = torch.float64
R = tw.rules
RULES = {
    "blocks": (R.blocks(2, 0.5), R.hyb(1, 1)),
    "columns": (R.hyb(2, 0),),
    "band": (R.band(1), R.long_rows(2)),
}


@tw.program
def scores(a: Any, x: Any, z: Any, w: Any, y: Any) -> None:
    """Fused attention over the entries: scores inside the reduction."""
    i, j, k, f = tw.axes("i j k f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * tw.sum(k, x[i, k] * z[j, k]), w[j, f])


@tw.program
def gated(a: Any, x: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = tw.tanh(a[i, j]) * x[j]


def pair(rules: str, place: Place, dtype: torch.dtype = F64) -> tuple[Any, Any]:
    """A matrix whose entries are in no order, whole and in parts."""
    whole = matrix(7, 8, 0.4, dtype=dtype, device=place.device).to_sparse_coo().coalesce()
    order = torch.randperm(whole.values().shape[0], generator=torch.Generator().manual_seed(3))
    (rows, cols), values = whole.indices()[:, order], whole.values()[order]
    a = tw.SparseTensor.from_coo(rows.contiguous(), cols.contiguous(), values, (7, 8))
    return a, a.decompose(*RULES[rules])


def wide(*shape: int, seed: int, place: Place) -> torch.Tensor:
    return randn(*shape, seed=seed, dtype=F64, device=place.device).requires_grad_()


def finite(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y.isfinite(), y, 0)  # empty rows give infinities


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_spmm_gradients(reduce: str, rules: str, fast: Place) -> None:
    _, a = pair(rules, fast)
    v, x = leaf(a.values), wide(8, 3, seed=1, place=fast)
    assert gradcheck(
        lambda v, x: finite(tw.spmm(a, x, values=v, reduce=reduce)), (v, x), fast_mode=True
    )


@pytest.mark.parametrize("op", ["dot", "add"])
def test_sddmm_gradients(op: str, fast: Place) -> None:
    _, a = pair("blocks", fast)
    v, x, z = leaf(a.values), wide(7, 3, seed=1, place=fast), wide(8, 3, seed=2, place=fast)
    assert gradcheck(
        lambda v, x, z: tw.sddmm(a.with_values(v), x, z, op=op).values, (v, x, z), fast_mode=True
    )


def test_program_gradients(fast: Place) -> None:
    _, a = pair("blocks", fast)
    v, x = leaf(a.values), wide(7, 2, seed=1, place=fast)
    z, w = wide(8, 2, seed=2, place=fast), wide(8, 3, seed=3, place=fast)
    fused = lambda v, x, z, w: scores(a.with_values(v), x, z, w)
    assert gradcheck(fused, (v, x, z, w), fast_mode=True)
    assert gradcheck(lambda v, x: gated(a.with_values(v), x[:, 0]), (v, z), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_same_as_whole(dtype: torch.dtype, where: Place) -> None:
    """Calls that come again, values of ones, products by einsum and @; 16 bits are rounded once."""
    whole, a = pair("blocks", where, dtype)
    x = randn(8, 5, seed=1, dtype=dtype, device=where.device)
    close: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    for _ in range(3):
        torch.testing.assert_close(tw.spmm(a, x), tw.spmm(whole, x), **close)
    torch.testing.assert_close(a @ x, whole @ x, **close)
    torch.testing.assert_close(tw.einsum("ij,jf->if", a, x), tw.spmm(whole, x), **close)
    bare, ones = a.with_values(None), whole.with_values(None)
    torch.testing.assert_close(tw.spmm(bare, x), tw.spmm(ones, x), **close)
    y = randn(7, 5, seed=2, dtype=dtype, device=where.device)
    torch.testing.assert_close(tw.sddmm(bare, y, x).values, tw.sddmm(ones, y, x).values, **close)


def test_kernels(where: Place) -> None:
    """A sum is a kernel for the blocks and one for all rows; 16 bits and other reductions are one for all."""
    _, a = pair("blocks", where, torch.float32)
    x = randn(8, 5, seed=1, dtype=torch.float32, device=where.device)
    assert len(a.structure.parts) > 2
    for given, reduce, count in ((x, "sum", 2), (x, "max", 1), (x.bfloat16(), "sum", 1)):
        with served() as kernels:
            tw.spmm(a.to(given.dtype), given, reduce=reduce)
        assert len(kernels) == count, (reduce, given.dtype)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_duplicates_are_separate_entries(reduce: str, where: Place) -> None:
    rows, cols = torch.tensor([[0, 0, 0, 1, 2, 2], [1, 1, 3, 0, 2, 2]], device=where.device)
    values = torch.tensor([1.0, -2, 3, 4, 5, 6], device=where.device)
    whole = tw.SparseTensor.from_coo(rows, cols, values, (4, 4))
    a = whole.decompose(R.blocks(2, 0.5), R.hyb(1, 0))
    x = randn(4, 3, seed=1, dtype=torch.float32, device=where.device)
    got, want = (tw.spmm(t, x, reduce=reduce) for t in (a, whole))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("rules", ["columns", "band"])
def test_plans_can_be_replayed(rules: str, where: Place) -> None:
    """With and without a part that visits every row; nothing is left of the launch before."""
    whole, a = pair(rules, where, torch.float32)
    x = randn(8, 5, seed=1, dtype=torch.float32, device=where.device)
    plan = tw.spmm.plan(a, x)
    for _ in range(2):
        plan.launch()
        torch.testing.assert_close(plan.out, tw.spmm(whole, x))


def test_explained(fast: Place) -> None:
    _, a = pair("blocks", fast, torch.float32)
    said = str(tw.explain(tw.spmm, a, torch.ones(8, 5, device=fast.device)))
    assert "parts+dbsr.2.2" in said and "padding" in said


def test_pairs_of_sparse(fast: Place) -> None:
    """In parts and looked up, multiplied, added."""
    whole, a = pair("band", fast)
    dense = whole.to_dense()
    torch.testing.assert_close((a * a).to_dense(), dense * dense)
    torch.testing.assert_close((a + whole).to_dense(), 2 * dense)
    torch.testing.assert_close((a @ a.T).to_dense(), dense @ dense.T)


def test_compiled(fast: Place) -> None:
    whole, a = pair("blocks", fast, torch.float32)
    x = randn(8, 4, seed=1, dtype=torch.float32, device=fast.device).requires_grad_()
    torch._dynamo.reset()
    made = torch.compile(tw.spmm, fullgraph=True, backend="aot_eager")(a, x)
    torch.testing.assert_close(made, tw.spmm(whole, x))
    (got,) = torch.autograd.grad(made.square().sum(), x)
    (want,) = torch.autograd.grad(tw.spmm(whole, x).square().sum(), x)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("width", [6, 40])
@pytest.mark.parametrize("word", ["logsumexp", "softmax_sum"])
def test_functions_of_all_that_is_in_a_row(word: str, width: int, where: Place) -> None:
    """Over two axes, where a part has places without entries: what waits in lanes is read behind the question."""

    @tw.program
    def of_rows(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        e = a[i, j] * x[j, f]
        y[i] = (
            tw.logsumexp((j, f), e) if word == "logsumexp" else tw.softmax_sum((j, f), e, x[j, f])
        )

    dense, x = matrix(9, 11, 0.4, device=where.device), randn(11, width, device=where.device)
    A = tw.SparseTensor.from_dense(dense).decompose(tw.rules.band(1), tw.rules.long_rows(3))
    scores = torch.where(dense[:, :, None] != 0, dense[:, :, None] * x, -torch.inf).flatten(1)
    weighted = (torch.softmax(scores, 1).nan_to_num() * x.flatten()).sum(1)
    close(of_rows(A, x), scores.logsumexp(1) if word == "logsumexp" else weighted)
