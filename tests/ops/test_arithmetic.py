"""Sums and products of sparse matrices: dtypes, blocks and masks."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from ops.matrices import close, randn
from ops.places import Place

import tilewright as tw

NARROW = [torch.int8, torch.uint8, torch.int16, torch.bool]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["add", "multiply", "matmul"])
def test_arithmetic_of_narrow_whole_numbers(name: str, dtype: torch.dtype, where: Place) -> None:
    """As torch has it: of their own dtype, wrapped around where they do not fit."""
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-90, 90, (6, 6), generator=made).to(dtype) for _ in range(2))
    ops = {"add": operator.add, "multiply": operator.mul, "matmul": operator.matmul}
    A, B = (tw.SparseTensor.from_dense(t.to(where.device)) for t in (a, b))
    got = ops[name](A, B)
    assert got.dtype == dtype
    assert torch.equal(got.to_dense().cpu(), ops[name](a.long(), b.long()).to(dtype))
    wide = ops[name](A, B.to(torch.float32))
    assert wide.dtype == torch.float32
    close(wide.to_dense().cpu(), ops[name](a.float(), b.float()))


@pytest.mark.parametrize("name", ["A", "B"])
@pytest.mark.parametrize("op", ["*", "@"])
def test_dtypes_that_products_do_not_take(op: str, name: str) -> None:
    given = {n: tw.SparseTensor.from_dense(torch.eye(3)) for n in "AB"}
    given[name] = given[name].to(torch.complex64)
    with pytest.raises(tw.TilewrightError, match=rf"{name} has dtype torch\.complex64") as told:
        {"*": operator.mul, "@": operator.matmul}[op](given["A"], given["B"])
    assert f"in: A {op} B" in str(told.value)


def test_operators_say_a_dtype_in_the_users_name() -> None:
    A = tw.SparseTensor.from_dense(torch.eye(3)).to(torch.int8)
    x = torch.ones(3, 2)
    for call in (lambda: tw.spmm(A, x), lambda: tw.sddmm(A, x, x)):
        with pytest.raises(tw.TilewrightError, match=r"A has dtype torch\.int8"):
            call()


def test_ones_take_the_dtype_of_the_other_side(where: Place) -> None:
    many = torch.eye(2, dtype=torch.int64, device=where.device) * (2**53 + 1)
    A = tw.SparseTensor.from_dense(many)
    ones = A.with_values(None)
    for made in (A @ ones, ones @ A, A * ones, ones * A):
        assert made.dtype == torch.int64 and made.values.tolist() == [2**53 + 1] * 2
    assert (A + ones).values.tolist() == [2**53 + 2] * 2
    assert (ones @ ones).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "matmul"])
def test_blocks_and_masks(name: str, where: Place) -> None:
    """Their entries one by one, call after call."""
    ops = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
    op = ops.get(name, operator.matmul)
    dense = randn(6, 6, dtype=torch.float64, device=where.device)
    bits = torch.eye(3, device=where.device) > 0
    held = [
        tw.SparseTensor.from_dense(dense, format="bsr", block=(2, 3)),
        tw.SparseTensor.from_dense(dense.relu()),
        tw.block_mask(bits, block=2),
    ]
    for a in held:
        for b in held:
            for _ in range(3):
                got, want = op(a, b).to_dense(), op(a.to_dense().double(), b.to_dense().double())
                close(got.to(want.dtype), want)


def test_numpy_and_torch_on_the_left() -> None:
    A, ones = tw.SparseTensor.from_dense(torch.eye(2)), np.ones((2, 2))
    for wrong in (lambda: ones * A, lambda: A * ones):
        with pytest.raises(tw.TilewrightError, match=r"b = an array of \(2, 2\)"):
            wrong()
    with pytest.raises(tw.TilewrightError, match="dense tensor times"):
        ones @ A
    close((np.float64(2) * A).to_dense(), 2 * torch.eye(2))
    close((torch.eye(2).to_sparse_csr() - 3 * A).to_dense(), -2 * torch.eye(2))
    for other in (1, torch.ones(2, 2)):
        with pytest.raises(tw.TilewrightError, match="in: A - B"):
            other - A


def test_results_are_tensors_of_their_own() -> None:
    A, x = tw.SparseTensor.from_dense(torch.eye(2)), torch.ones(2, 2)
    for wrong in (lambda: torch.matmul(A, x, out=x), lambda: torch.mul(A, 2, out=x)):
        with pytest.raises(tw.TilewrightError, match="out = a tensor"):
            wrong()
    close(torch.matmul(input=A, other=x, out=None), x)
