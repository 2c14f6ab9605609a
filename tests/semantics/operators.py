"""Every operator of the project called with small inputs, forward and backward, for the programs that it runs.

    with backend("c"), recorder: OPERATORS["spmm"]()

Operands are thin: lists are shorter than what they list, and differ from row to row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tilewright as tw
from tilewright.bench import profile  # noqa: F401  # its product is a program too
from tilewright.ops.again import again
from tilewright.ops.args import dense_text
from tilewright.ops.bsr_matmul import _kind
from tilewright.ops.found import _packed_lists, found_lists, found_rows
from tilewright.ops.index import _name
from tilewright.ops.library import run

ROWS, COLUMNS = 5, 6


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def thin(*shape: int) -> Tensor:
    """A few numbers that are not 0; the first row and the first column are empty."""
    made = torch.randn(*shape) * (torch.rand(*shape) < 0.4)
    made[0], made[:, 0] = 0, 0
    made[1, -1] = 1.0
    return made


def tall(columns: int) -> Tensor:
    """The same of 36 rows, of which the last four hold something in one column only."""
    made = thin(36, columns)
    made[32:, 2:] = 0
    made[33, 1] = 1.0
    return made


def matrix(rows: int = ROWS, columns: int = COLUMNS, **how: Any) -> tw.SparseTensor:
    made = tw.SparseTensor.from_dense(thin(rows, columns), **how)
    return made.with_values(made.values.clone().requires_grad_())


def back(*outs: Tensor) -> None:
    """The gradients of all inputs."""
    sum(torch.where(y.isfinite(), y, 0).square().sum() for y in outs).backward()


def spmm() -> None:
    a = matrix()
    for how in ("sum", "mean", "max", "min"):
        for heads in ((), (2,)):
            for batch in ((), (2,)):
                x, v = torch.randn(*batch, COLUMNS, *heads, 2), torch.randn(a.nnz, *heads)
                tw.spmm(a, x, values=v, reduce=how)
        back(tw.spmm(a, randn(2, COLUMNS, 2, 2), values=randn(a.nnz, 2), reduce=how))
        back(tw.spmv(a, randn(COLUMNS), values=randn(a.nnz), reduce=how))
    back(tw.spmm(a, randn(COLUMNS, 2)))


def sddmm() -> None:
    a = matrix()
    for op in ("dot", "add", "sub", "mul", "div", "max", "min"):
        for weights in ((), (3,)):
            tail = (3, 2) if op == "dot" else (3,)
            x, z = randn(ROWS, *tail), randn(COLUMNS, *tail)
            back(tw.sddmm(a.with_values(randn(a.nnz, *weights)), x, z, op=op).values)
    back(tw.sddmm(a, randn(ROWS, 2), randn(COLUMNS, 2)).values)


def softmax() -> None:
    a = matrix()
    back(tw.softmax(a.with_values(randn(a.nnz, 2))).values)


def bsr_matmul() -> None:
    values = thin(8, 6)
    values[2:4] = 0  # a row of blocks without any
    a = tw.SparseTensor.from_dense(values, format="bsr", block=(2, 3))
    for batch in ((), (2,)):
        back(tw.bsr_matmul(a.with_values(randn(*a.values.shape)), randn(*batch, 6, 3)))
    recipe, moving = _kind(a, torch.randn(6, 3), {"tall": 2})
    recipe(moving)


def attention() -> None:
    bits = torch.tensor([[0, 0, 0], [0, 1, 1]], dtype=torch.bool)
    q, k, v = randn(2, 2, 4, 2), randn(2, 1, 6, 2), randn(2, 1, 6, 3)
    back(tw.attention(q, k, v, mask=tw.block_mask(bits, block=2), enable_gqa=True))


def linear() -> None:
    held = thin(ROWS, COLUMNS)
    held[2:4] = 0
    x = held.clone().requires_grad_()
    patterns: list[Any] = [
        torch.tensor([3, 1]),
        held[:, 1] != 0,
        tw.Index.from_values(held, (1, None)),
        tw.Index.from_values(held, (2, None)),
        tw.Index.from_values(held, (None, 1)),
        tw.Index.from_values(held, (2, 1), grouped=True),
    ]
    for b in (None, randn(4)):
        for sparse in patterns:
            back(tw.linear(x, randn(4, COLUMNS), b, sparse=sparse))
        back(tw.linear(randn(2, 3, 6), randn(4, 6), b, sparse=torch.tensor([1, 2])))


def found() -> None:
    """What is 0 is looked for by the program itself, of 32 rows at a time."""
    for b in (None, randn(3)):
        x, w = tall(4).requires_grad_(), randn(3, 4)
        back(tw.linear(x, w, b, sparse="rows"), tw.linear(x, w, b, sparse="k"))
        found_rows(x.detach(), w.detach(), b)
    back(tw.ops.matmul(randn(4, 5), thin(5, 4).requires_grad_(), sparse="columns"))
    found_lists(tall(4))
    again(_packed_lists(), {"x": tall(4)}, lambda *_: [])
    torch.use_deterministic_algorithms(True)
    try:
        back(tw.linear(x, w, sparse="rows"))
    finally:
        torch.use_deterministic_algorithms(False)


def linear_relu() -> None:
    for layout in ("rows", "k"):
        for b in (None, torch.full((4,), -0.5, requires_grad=True)):
            for ordered in (True, False):
                how: Any = {"tile": (2, 1), "layout": layout, "ordered": ordered}
                x, w = torch.eye(6, 3), 3 * torch.eye(4, 3) - torch.rand(4, 3)
                back(tw.ops.linear_relu(x, w.requires_grad_(), b, **how)[0])


def masked_linear() -> None:
    bits = torch.tensor([[0, 1], [1, 1], [0, 0]], dtype=torch.bool)
    for b in (None, randn(36)):
        back(tw.ops.masked_linear(randn(2, 20), randn(36, 20), bits, b, block=(16, 16)))
        mask = tall(4) != 0
        back(tw.ops.masked_linear(randn(2, 4), randn(36, 4), mask, b))
    mask = (tall(3) != 0).t()
    back(tw.ops.masked_linear(randn(2, 36), randn(3, 36), mask))


def grouped_matmul() -> None:
    ids = torch.tensor([[0, 1], [2, -1], [1, 1], [0, 2]])
    for slots in (1, 2):
        index = tw.Index.from_choices(ids[:, :slots].contiguous(), 4)
        gates = randn(4, slots)
        back(tw.ops.grouped_matmul(randn(4, 3), randn(4, 3, 4), index, weights=gates))


def arithmetic() -> None:
    a, b, c = matrix(), matrix(), matrix(COLUMNS, 4)
    back((a + b).values, (a * b).values, (a @ c).values)
    for dtype in (torch.int32, torch.int64):
        places = thin(ROWS, COLUMNS).nonzero().to(dtype).T
        d = tw.SparseTensor.from_coo(*places, randn(places.shape[1]), (ROWS, COLUMNS))
        back((d + d).values)


def einsum() -> None:
    a = matrix()
    back(tw.einsum("ij,jf->if", a, randn(COLUMNS, 2)))
    back(tw.einsum("ij,ik,kj->ij", a, randn(ROWS, 2), randn(2, COLUMNS)).values)


def index() -> None:
    x = thin(6, 6)
    x[2:4, :4], x[3, 5] = 0, 1.0
    x[4:], x[5, 1] = 0, 1.0
    tw.Index.from_values(tall(4), (32, 1), grouped=True)
    tw.Index.from_values(torch.cat([thin(64, 3), torch.zeros(2, 3)]), (None, 1))
    for tile in ((1, 1), (2, 1), (2, 4), (1, None), (None, 1)):
        tw.Index.from_values(x, tile)
        tw.Index.from_values(x, tile, ordered=False)
        if None not in tile:
            tw.Index.from_values(x, tile, grouped=True)
    again(_name("tiles", 1, 1, False, True, 4), {"x": x}, lambda *_: [])  # parts, as of large ones
    again(_name("raised", 4), {"seen": (x != 0).byte().flatten()}, lambda *_: [])
    tw.Index.from_values(x, (1, 1), threshold=0.5)
    tw.Index.from_mask(x[:, 1] != 0, (1, None))
    tw.Index.from_lengths(torch.tensor([3, 0, 2]), 4)


def users() -> None:
    @tw.program
    def relu_max(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))

    back(relu_max(matrix(), randn(COLUMNS, 2)))


def timed() -> None:
    """What `tilewright profile` times."""
    given = {"x": torch.randn(3, 5), "w": torch.randn(4, 5)}
    run(dense_text("tile_product", given), list(given.values()), [])


OPERATORS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        spmm,
        sddmm,
        softmax,
        bsr_matmul,
        attention,
        linear,
        found,
        linear_relu,
        masked_linear,
        grouped_matmul,
        arithmetic,
        einsum,
        index,
        users,
        timed,
    )
}
# Where they run other programs than on a CPU
ON_GPU = ("linear", "found", "linear_relu", "masked_linear", "index")
