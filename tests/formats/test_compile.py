"""SparseTensor as an input of torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from formats.patterns import tensor
from torch._dynamo.utils import counters

from tilewright.formats import SparseTensor, ragged

SIZES = ((5, 7), (6, 9), (8, 3), (40, 50), (17, 17), (9, 9))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def product(a: SparseTensor, x: torch.Tensor) -> tuple[torch.Tensor, SparseTensor]:
    """A @ x and the transpose's row lengths, from the arrays of csr."""
    s = a.structure
    doubled = a.with_values(a.values * 2)
    rows = torch.repeat_interleave(
        torch.arange(s.shape[0]), s.indptr.diff(), output_size=s.indices.shape[0]
    )
    y = torch.zeros(s.shape[0], x.shape[1], dtype=x.dtype)
    y = y.index_add(0, rows, doubled.stored_values()[:, None] * x[s.indices])
    return y + s.transposed.indptr[-1] + s.shape[0] * s.shape[1], doubled


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [True, None])
def test_one_graph_for_all_structures(backend: str, dynamic: bool | None) -> None:
    compiled = torch.compile(product, backend=backend, fullgraph=True, dynamic=dynamic)
    count = []
    for n, m in SIZES:
        a = tensor("mixed", (n, m)).to_format("csr").prepare()
        a = a.with_values(a.values.requires_grad_())
        x = torch.randn(m, 4, dtype=torch.float64)
        y, doubled = compiled(a, x)
        assert torch.allclose(y, product(a, x)[0])
        assert doubled.structure is a.structure
        y.sum().backward()
        assert torch.allclose(a.values.grad, 2 * x.sum(1)[cols(a)])
        count.append(graphs())
    assert count[-1] == count[1] <= 2


def cols(a: SparseTensor) -> torch.Tensor:
    s = a.structure
    made = torch.empty_like(s.indices)
    made[s.perm] = s.indices
    return made


def test_conversion_and_construction_inside() -> None:
    def f(a: SparseTensor, x: torch.Tensor) -> torch.Tensor:
        b = SparseTensor.from_coo(a.structure.rows, a.structure.indices, a.values, a.shape)
        return b.T.to_format("csr").to_dense() @ x + a.to_format("csc").to_dense().T @ x

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for n, m in SIZES[:4]:
        a, x = tensor("mixed", (n, m)), torch.randn(n, 2, dtype=torch.float64)
        assert torch.allclose(compiled(a, x), 2 * a.to_dense().T @ x)
        assert a.structure.csr is None
    assert graphs() == 1


def test_ragged_inside() -> None:
    compiled = torch.compile(
        lambda r, x: r.pad(r.pack(x) * 2), backend="aot_eager", fullgraph=True, dynamic=True
    )
    for lengths in ([2, 7, 3, 4], [4, 0, 5], [2, 2, 2, 6, 2], [7, 3]):
        r = ragged(lengths=lengths)
        x = torch.ones(len(lengths), r.max_len)
        assert compiled(r, x).sum() == 2 * sum(lengths)
    assert graphs() == 1


@pytest.mark.parametrize("name", ["dcsr", "ell.30", "padded.3", "dia.90", "bitmap"])
def test_trees_inside(name: str) -> None:
    compiled = torch.compile(
        lambda a, x: a.with_values(a.values * 2).to_dense() @ x,
        backend="aot_eager",
        fullgraph=True,
        dynamic=True,
    )
    for n, m in SIZES[:3]:
        a = tensor("mixed", (n, m)).to_format(name)
        x = torch.randn(m, 2, dtype=torch.float64)
        assert torch.allclose(compiled(a, x), 2 * a.to_dense() @ x)
    assert graphs() == 1


def test_export() -> None:
    class Product(torch.nn.Module):
        def forward(self, a: SparseTensor, x: torch.Tensor) -> torch.Tensor:
            return product(a, x)[0]

    a = tensor("mixed", (5, 7)).to_format("csr").prepare()
    x = torch.randn(7, 4, dtype=torch.float64)
    program = torch.export.export(Product(), (a, x))
    fresh = a.with_values(a.values + 1)
    assert torch.allclose(program.module()(fresh, x), product(fresh, x)[0])


def test_export_saves(tmp_path: object) -> None:
    class Dense(torch.nn.Module):
        def forward(self, a: SparseTensor) -> torch.Tensor:
            return a.to_dense()

    a = tensor("mixed", (5, 7))
    path = f"{tmp_path}/dense.pt2"
    torch.export.save(torch.export.export(Dense(), (a,)), path)
    assert torch.equal(torch.export.load(path).module()(a), a.to_dense())
