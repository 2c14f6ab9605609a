"""Block masks with values: blocks of them, as a bsr matrix has, also where the last ones stick out of the matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import close, randn
from ops.places import Place

import tilewright as tw

SHAPES = [(8, 6), (7, 5)]
BITS = [[1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 1]]


def mask(shape: tuple[int, int], where: Place) -> tw.SparseTensor:
    bits = torch.tensor(BITS, dtype=torch.bool, device=where.device)
    return tw.block_mask(bits, block=2, shape=shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_scaled_and_converted(shape: tuple[int, int], where: Place) -> None:
    m = mask(shape, where)
    x, y = (randn(n, 3, seed=n, device=where.device) for n in reversed(shape))
    kept = m.to_dense().float()
    for made, scale in ((2.0 * m, 2.0), (m.float(), 1.0), (m.to(torch.float32), 1.0)):
        close(made.to_dense(), scale * kept)
        close(tw.spmm(made, x), scale * kept @ x)
        close(tw.spmm(made.T, y), scale * kept.T @ y)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "ell", "bitmap", "bsr"])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_in_other_formats(shape: tuple[int, int], format: str, where: Place) -> None:
    m = mask(shape, where)
    q, z = (randn(n, 3, seed=n, device=where.device) for n in shape)
    made, dense = tw.sddmm(m, q, z), m.to_dense() * (q @ z.T)
    assert made.format == "block_mask"
    if format == "bsr" and shape[0] % 2:
        with pytest.raises(tw.TilewrightError, match="block size"):
            made.to_format(format)
        return
    for a, want in ((made, dense), (made.T, dense.T), (made.T.T, dense)):
        close(a.to_dense(), want)
        close(a.to_format(format).to_dense(), want)
    close(made.to_format(format).to_torch().to_dense(), dense)


OPERATORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda e, x, f: (e + e).to_dense(),
    "product": lambda e, x, f: (e * e).to_dense(),
    "spmm": lambda e, x, f: f(tw.spmm, torch.matmul)(e, x),
    "spmv": lambda e, x, f: f(tw.spmv, torch.mv)(e, x[:, 0]),
    "einsum": lambda e, x, f: f(tw.einsum, torch.einsum)("ij,jk->ik", e, x),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_operators(shape: tuple[int, int], name: str, where: Place) -> None:
    m, x = mask(shape, where), randn(shape[1], 3, device=where.device)
    q, z = (randn(n, 3, seed=n, device=where.device) for n in shape)
    made = tw.sddmm(m, q, z)
    dense = tw.SparseTensor.from_dense(made.to_dense()) if name in ("sum", "product") else None
    got = OPERATORS[name](made, x, lambda ours, _: ours)
    want = OPERATORS[name](dense or made.to_dense(), x, lambda _, theirs: theirs)
    close(got, want)


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_of_scores(shape: tuple[int, int], where: Place) -> None:
    m = mask(shape, where)
    q, z = (randn(n, 3, seed=n, device=where.device) for n in shape)
    want = torch.softmax(torch.where(m.to_dense(), q @ z.T, -torch.inf), 1).nan_to_num()
    close(tw.softmax(tw.sddmm(m, q, z)).to_dense(), want)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape: tuple[int, int], where: Place) -> None:
    m, x = mask(shape, where), randn(shape[1], 3, device=where.device).requires_grad_()
    v = randn(m.nnz, 2, 2, device=where.device).requires_grad_()
    a = m.with_values(v)
    got = torch.autograd.grad((tw.spmm(a, x) ** 2).sum(), (v, x))
    for g, w in zip(got, torch.autograd.grad(((a.to_dense() @ x) ** 2).sum(), (v, x)), strict=True):
        close(g, w)


def test_what_masks_refuse(where: Place) -> None:
    m = mask((8, 6), where)
    with pytest.raises(tw.TilewrightError, match=r"expected: \(6, 2, 2, \.\.\.\)"):
        m.with_values(torch.ones(m.nnz, device=where.device))
    with pytest.raises(tw.TilewrightError, match=r"A\.float\(\)"):
        -m
    q, k = (randn(1, n, 4, device=where.device) for n in (8, 6))
    with pytest.raises(tw.TilewrightError, match="without values"):
        tw.attention(q, k, k, mask=m.float())
