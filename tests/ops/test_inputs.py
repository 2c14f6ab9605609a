"""Every operator on odd input, one table: a clear error, or the defined result, in every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import close, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright.support.errors import TilewrightError

N, M = 6, 8  # two block rows of 3, two block columns of 4


def entries(where: Place) -> tw.SparseTensor:
    """In no order, one place twice, row 1 and column 7 empty."""
    rows = torch.tensor([5, 0, 2, 5, 0, 3, 4, 5], device=where.device)
    cols = torch.tensor([2, 1, 6, 0, 1, 4, 3, 5], device=where.device)
    return tw.SparseTensor.from_coo(rows, cols, randn(8, device=where.device), (N, M))


def blocks(where: Place) -> tw.SparseTensor:
    dense = randn(N, M, device=where.device)
    dense[:3, :4] = 0
    return tw.SparseTensor.from_dense(dense, format="bsr", block=(3, 4))


def dense_sddmm(a: tw.SparseTensor, x: Tensor, z: Tensor) -> Tensor:
    return a.to_dense() * (x @ z.t())


def dense_softmax(a: tw.SparseTensor) -> Tensor:
    """By entries: a place that is stored twice takes part twice."""
    s, v = a.structure, a.values.exp()
    total = v.new_zeros(N).index_add(0, s.rows, v)
    return a.with_values(v / total[s.rows]).to_dense()


class Op:
    """An operator: its matrix, its dense operands, and what it means."""

    def __init__(
        self,
        call: Callable[..., Any],
        make: Callable[[Place], tw.SparseTensor],
        shapes: tuple[tuple[int, ...], ...],
        means: Callable[..., Tensor],
    ) -> None:
        self.call, self.make, self.shapes, self.means = call, make, shapes, means

    def operands(self, where: Place) -> list[Tensor]:
        return [randn(*s, seed=k, device=where.device) for k, s in enumerate(self.shapes)]

    def run(self, *args: Any) -> Tensor:
        made = self.call(*args)
        return made.to_dense() if isinstance(made, tw.SparseTensor) else made


OPS = {
    "spmm": Op(tw.spmm, entries, ((M, 5),), lambda a, x: a.to_dense() @ x),
    "spmm-batch": Op(tw.spmm, entries, ((2, M, 5),), lambda a, x: a.to_dense() @ x),
    "spmv": Op(tw.spmv, entries, ((M,),), lambda a, x: a.to_dense() @ x),
    "sddmm": Op(tw.sddmm, entries, ((N, 5), (M, 5)), dense_sddmm),
    "softmax": Op(tw.softmax, entries, (), dense_softmax),
    "bsr_matmul": Op(tw.bsr_matmul, blocks, ((M, 5),), lambda a, x: a.to_dense() @ x),
    "einsum": Op(
        lambda a, x: tw.einsum("ij,jf->if", a, x),
        entries,
        ((M, 5),),
        lambda a, x: a.to_dense() @ x,
    ),
}
TAKES_DENSE = [name for name, op in OPS.items() if op.shapes]


@pytest.mark.parametrize("name", OPS)
def test_any_order_and_duplicates(name: str, where: Place) -> None:
    op = OPS[name]
    a, dense = op.make(where), op.operands(where)
    close(op.run(a, *dense), op.means(a, *dense))


@pytest.mark.parametrize("name", OPS)
def test_views_are_read_through_their_strides(name: str, where: Place) -> None:
    op = OPS[name]
    a, dense = op.make(where), op.operands(where)
    spread = [torch.stack([t, t + 9], -1)[..., 0] for t in dense]
    v = torch.stack([a.values, a.values + 9], -1)[..., 0]
    close(op.run(a.with_values(v), *spread), op.means(a, *dense))


@pytest.mark.parametrize("name", OPS)
def test_nothing_stored(name: str, where: Place) -> None:
    op = OPS[name]
    block = {"format": "bsr", "block": (3, 4)} if name == "bsr_matmul" else {}
    a = tw.SparseTensor.from_dense(torch.zeros(N, M, device=where.device), **block)  # type: ignore[arg-type]
    got = op.run(a, *op.operands(where))
    assert torch.equal(got, torch.zeros_like(got))


@pytest.mark.parametrize("name", OPS)
def test_deterministic_mode(name: str, where: Place) -> None:
    op = OPS[name]
    a, dense = op.make(where).prepare(), op.operands(where)
    torch.use_deterministic_algorithms(True)
    try:
        first = op.run(a, *dense)
        assert torch.equal(op.run(a, *dense), first)
    finally:
        torch.use_deterministic_algorithms(False)
    close(first, op.means(a, *dense))


def replaced(dense: list[Tensor], make: Callable[[Tensor], Any]) -> list[Any]:
    """The last operand is the bad one."""
    return [*dense[:-1], make(dense[-1])]


BAD = {
    "a row too many": (lambda t: torch.cat([t, t], -1 if t.dim() == 1 else -2), "shape|size"),
    "another device": (lambda t: t.to("meta"), "device|on meta"),
    "integers": (lambda t: t.to(torch.int32), "dtype|int32"),
    "complex numbers": (lambda t: t.to(torch.complex64), "dtype|complex"),
    "a sparse operand": (lambda t: t.to_sparse_coo(), "."),
    "a list": (lambda t: t.tolist(), "list|layout|sparse"),
    "a number": (lambda t: 3.0, "float|layout|sparse"),
    "no dimension": (lambda t: t.sum(), "shape|dimension|axes"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", TAKES_DENSE)
def test_bad_operands_are_told(name: str, bad: str, where: Place) -> None:
    make, said = BAD[bad]
    if name == "einsum" and bad in ("integers", "a sparse operand"):
        pytest.skip("einsum takes them")
    op = OPS[name]
    with pytest.raises(TilewrightError, match=f"(?s){said}") as why:
        op.run(op.make(where), *replaced(op.operands(where), make))
    assert "expected" in str(why.value)


@pytest.mark.parametrize("name", OPS)
def test_a_dense_matrix_is_refused(name: str, where: Place) -> None:
    op = OPS[name]
    if name == "einsum":
        pytest.skip("einsum takes dense operands")
    with pytest.raises(TilewrightError, match="sparse"):
        op.run(torch.ones(N, M, device=where.device), *op.operands(where))


@pytest.mark.parametrize("name", ["spmm", "spmm-batch", "spmv", "bsr_matmul"])
def test_other_values_have_to_fit(name: str, where: Place) -> None:
    op = OPS[name]
    with pytest.raises(TilewrightError, match="values"):
        op.call(op.make(where), *op.operands(where), values=torch.ones(3, device=where.device))


SPECIAL = {
    "vectors have one dimension": lambda a: tw.spmv(a, torch.ones(M, 1)),
    "heads need as many in x": lambda a: tw.spmm(
        a, torch.ones(M, 3, 2), values=torch.ones(a.nnz, 2)
    ),
    "heads need a dimension of x": lambda a: tw.spmm(a, torch.ones(M), values=torch.ones(a.nnz, 2)),
    "a vector has no heads": lambda a: tw.spmv(a, torch.ones(M), values=torch.ones(a.nnz, 2)),
    "a reduction that is not there": lambda a: tw.spmm(a, torch.ones(M, 2), reduce="median"),
    "a function that is not there": lambda a: tw.sddmm(
        a, torch.ones(N, 2), torch.ones(M, 2), op="xor"
    ),
    "rows of two widths": lambda a: tw.sddmm(a, torch.ones(N, 2), torch.ones(M, 3)),
    "values of other heads": lambda a: tw.sddmm(
        a.with_values(torch.ones(a.nnz, 3)), torch.ones(N, 2), torch.ones(M, 2), op="add"
    ),
    "a product needs blocks": lambda a: tw.bsr_matmul(a, torch.ones(M, 2)),
    "an index outside": lambda a: tw.SparseTensor.from_coo(
        torch.tensor([0]), torch.tensor([M]), None, (N, M)
    ),
}


@pytest.mark.parametrize("mistake", SPECIAL)
def test_mistakes_are_told(mistake: str) -> None:
    with pytest.raises(TilewrightError) as why:
        SPECIAL[mistake](entries(Place("c")))
    assert all(part in str(why.value) for part in ("in:", "expected", "hint"))
