"""Torch BSC, SciPy dia, DLPack, edge_index, offsets and nested tensors, in and out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from formats.patterns import KINDS, tensor
from formats.test_trees import TREES, matrix

from tilewright.formats import (
    SparseTensor,
    StructureCache,
    edge_index,
    from_nested,
    graph,
    ragged,
)
from tilewright.support.errors import FormatError

pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|nested|jagged).*:UserWarning")


@pytest.mark.parametrize("kind", KINDS)
def test_bsc_round_trip(kind: str) -> None:
    dense = tensor(kind, (6, 8)).to_dense()
    given = dense.to_sparse_bsc(blocksize=(2, 4))
    made = SparseTensor.from_torch(given)
    assert made.format == "bsr" and made.values.data_ptr() == given.values().data_ptr()
    assert torch.equal(made.to_dense(), dense) and torch.equal(made.T.to_dense(), dense.T)
    back = made.to_torch(torch.sparse_bsc)
    assert back.layout == torch.sparse_bsc and torch.equal(back.to_dense(), dense)
    assert torch.equal(made.to_torch(torch.sparse_csr).to_dense(), dense)


def test_bsc_is_remembered() -> None:
    cache, given = StructureCache(), torch.eye(4).to_sparse_bsc(blocksize=(2, 2))
    assert cache.lookup(given)[0] is cache.lookup(given)[0]
    with pytest.raises(FormatError, match="pass values="):
        SparseTensor.from_torch(given.requires_grad_())


@pytest.mark.parametrize("shape", [(5, 4), (4, 5), (3, 3), (1, 6), (0, 3)])
@pytest.mark.parametrize("offsets", [(), (0,), (1, -1, 2), (2, -3)])
def test_scipy_dia_round_trip(shape: tuple[int, int], offsets: tuple[int, ...]) -> None:
    data = np.arange(1.0, 1 + len(offsets) * shape[1]).reshape(len(offsets), shape[1])
    given = sp.dia_array((data, np.array(offsets, dtype=np.int64)), shape=shape)
    made = SparseTensor.from_scipy(given, dia=True)
    assert made.format == f"dia.{len(offsets)}"
    assert SparseTensor.from_scipy(given).format == "csr"
    assert torch.equal(made.to_dense(), torch.tensor(given.toarray()))
    back = made.to_scipy()
    assert back.format == "dia" and (back.toarray() == given.toarray()).all()


@pytest.mark.parametrize("name", (*TREES, "two_four"))
def test_trees_leave_as_csr(name: str) -> None:
    a = matrix("two of four", (6, 8), torch.int64, (), 3)
    made = a.to_format(name)
    assert torch.equal(made.to_torch().to_dense(), a.to_dense())
    assert (made.to_scipy().toarray() == a.to_dense().numpy()).all()


def test_dlpack_shares_memory() -> None:
    indptr, indices, values = np.array([0, 1, 2]), np.array([2, 0]), np.array([1.0, 2.0])
    arrays = {"indptr": torch.from_dlpack(indptr), "indices": torch.from_dlpack(indices)}
    made = SparseTensor.from_arrays("csr", (2, 3), torch.from_dlpack(values), **arrays)
    assert made.structure.indices.data_ptr() == indices.ctypes.data
    assert made.to_dense().tolist() == [[0, 0, 1], [2, 0, 0]]
    assert np.from_dlpack(made.values).ctypes.data == values.ctypes.data


@pytest.mark.parametrize("name", ["coo", "csr", "csc", "bsr", "ragged"])
def test_plain_formats_from_arrays(name: str) -> None:
    at = torch.tensor([0, 2, 3])
    dense = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    arrays = {"indptr": at, "indices": torch.tensor([0, 1, 0])}
    block, values = (1, 1), torch.tensor([1.0, 2.0, 3.0])
    if name == "coo":
        arrays = {"rows": torch.tensor([0, 0, 1]), "indices": arrays["indices"]}
    if name == "ragged":
        arrays = {"indptr": at}
    if name == "csc":
        values = torch.tensor([1.0, 3.0, 2.0])
    if name == "bsr":
        arrays = {"indptr": torch.tensor([0, 1]), "indices": torch.tensor([0])}
        block, values = (2, 2), dense[None]
    made = SparseTensor.from_arrays(name, (2, 2), values, block=block, **arrays)
    assert torch.equal(made.to_dense(), dense)


@pytest.mark.parametrize("name", ["coo", "csr", "csc", "dcsr", "ell", "padded.2"])
def test_edge_index_round_trip(name: str) -> None:
    edges = torch.tensor([[0, 3, 1, 3], [2, 2, 0, 2]])
    assert torch.equal(edge_index(graph(edges).to_format(name)), edges)


def test_nested_round_trip() -> None:
    r, y = ragged(lengths=[2, 0, 3]), torch.randn(5, 2, requires_grad=True)
    nested = r.nested(y)
    assert [row.shape[0] for row in nested.unbind()] == [2, 0, 3]
    again, values = from_nested(nested)
    assert torch.equal(again.offsets, r.offsets) and values.data_ptr() == y.data_ptr()
    assert torch.equal(again.pad(values), r.pad(y))


@pytest.mark.parametrize(
    ("entry", "make"),
    [
        ("layout", lambda: from_nested(torch.ones(3, 2))),
        ("layout", lambda: from_nested([1])),
        ("layout", lambda: from_nested(ragged(lengths=[2, 1]).nested(torch.ones(3, 2)).mT)),
        ("shape", lambda: ragged(lengths=[2, 1]).nested(torch.ones(4))),
        (
            "shape",
            lambda: edge_index(SparseTensor.from_dense(torch.ones(2, 2, 2), dims=3, format="csf")),
        ),
    ],
)
def test_errors(entry: str, make: object) -> None:
    with pytest.raises(FormatError) as caught:
        make()
    assert caught.value.entry == entry


@pytest.mark.parametrize("entries", [0, 30])
@pytest.mark.parametrize("source", ["coo", "csr", "csc", "dcsr"])
@pytest.mark.parametrize("name", ["csr", "csc", "bsr", "bsc", "coo"])
def test_torch_gets_each_place_once_in_order(name: str, source: str, entries: int) -> None:
    """Its products and gradients take that for granted and look at nothing."""
    draw = torch.Generator().manual_seed(0)
    rows, cols = (torch.randint(0, n, (entries,), generator=draw) for n in (6, 8))
    v = torch.randn(entries, dtype=torch.float64, generator=draw).requires_grad_()
    given = SparseTensor.from_coo(rows, cols, v, (6, 8)).to_format(source)
    given = given.to_format("bsr", (2, 2)) if name in ("bsr", "bsc") else given
    made, weight = given.to_torch(getattr(torch, f"sparse_{name}")), torch.randn(6, 8).double()
    if name in ("csr", "csc"):
        major, minor = ("crow", "col") if name == "csr" else ("ccol", "row")
        ptr, idx = (getattr(made, f"{n}_indices")() for n in (major, minor))
        torch._validate_sparse_compressed_tensor_args(
            ptr, idx, made.values(), made.shape, made.layout
        )
    assert torch.allclose(made.to_dense(), given.to_dense())
    (grad,) = torch.autograd.grad((made.to_dense() * weight).sum(), v)
    assert torch.allclose(grad, weight[rows, cols])


def test_blocks_in_no_order_for_torch() -> None:
    at = {"indptr": torch.tensor([0, 2]), "indices": torch.tensor([1, 0])}
    given = SparseTensor.from_arrays("bsr", (2, 4), torch.randn(2, 2, 2), block=(2, 2), **at)
    made = given.to_torch()
    assert made.col_indices().tolist() == [0, 1]
    assert torch.equal(made.to_dense(), given.to_dense())


def test_what_numpy_has_not() -> None:
    with pytest.raises(FormatError, match=r"A\.float\(\)"):
        tensor("random", (6, 8)).to(torch.bfloat16).to_scipy()
