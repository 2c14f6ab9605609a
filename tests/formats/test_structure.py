"""Structures: derived arrays, caches, checks."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from formats.patterns import KINDS, tensor

from tilewright.formats import SparseTensor, Structure, graph
from tilewright.support.errors import FormatError


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
@pytest.mark.parametrize("kind", KINDS)
def test_prepare_fills_rows_and_transpose(format: str, kind: str) -> None:
    a = tensor(kind, (7, 4)).to_format(format)
    s = a.prepare().structure
    assert s.transposed.format == "csr" and s.as_csr().format == "csr"
    assert torch.equal(SparseTensor(s.transposed, a.values).to_dense(), a.to_dense().T)
    by_row = torch.zeros(7, dtype=torch.float64).index_add(0, s.row_of, a.stored_values())
    assert torch.equal(by_row, a.to_dense().sum(1))


def test_prepare_of_blocks() -> None:
    a = tensor("mixed", (6, 4)).to_format("bsr", (2, 1)).prepare()
    assert a.structure.transposed.format == "bsr" and a.structure.transposed.block == (1, 2)
    assert a.structure.row_of.shape[0] == a.nnz


def test_transpose_is_a_view() -> None:
    s = tensor("mixed", (5, 3)).to_format("csr").structure
    assert s.T.format == "csc" and s.T.indptr is s.indptr and s.T.indices is s.indices
    assert s.T.T.format == "csr" and s.T.T.shape == s.shape
    assert s.T.transpose() is s


def test_transpose_of_prepared_is_prepared() -> None:
    s = tensor("mixed", (5, 3)).structure.prepare()
    assert s.T.as_csr() is s.transposed and s.T.transpose() is s.csr


def test_csr_is_kept() -> None:
    s = tensor("mixed", (5, 3)).structure
    assert s.as_csr() is s.as_csr() and s.transpose() is s.transpose()


def test_rows_in_order_need_no_permutation() -> None:
    rows, cols = torch.tensor([0, 0, 2]), torch.tensor([3, 1, 0])
    s = SparseTensor.from_coo(rows, cols, None, (3, 4)).structure
    assert s.ordered and s.as_csr().perm is None and s.as_csr().indices is s.indices


def test_copies() -> None:
    s = tensor("mixed", (5, 3)).structure.prepare()
    for made in (copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
        assert torch.equal(made.transposed.indices, s.transposed.indices)


def test_to_the_same_device_is_the_same_object() -> None:
    s = tensor("mixed", (5, 3)).structure
    assert s.to("cpu") is s


def test_to_another_device_takes_derived_arrays() -> None:
    s = tensor("mixed", (5, 3)).structure.prepare()
    made = s.to("meta")
    assert made.device.type == "meta" and made.transposed.indices.device.type == "meta"


def test_graph_row_is_target() -> None:
    g = graph(torch.tensor([[0, 1, 0], [2, 2, 1]]), num_nodes=3, values=torch.tensor([1.0, 2, 3]))
    assert g.to_dense().tolist() == [[0, 0, 0], [3, 0, 0], [1, 2, 0]]


def test_graph_sizes() -> None:
    edges = torch.tensor([[0, 4], [1, 0]])
    assert graph(edges).shape == (5, 5)
    assert graph(edges, num_nodes=(2, 7)).shape == (2, 7)
    assert graph(edges[:, :0]).shape == (0, 0)


def test_index_dtypes_are_joined() -> None:
    a = SparseTensor.from_coo(torch.tensor([0]).int(), torch.tensor([1]), None, (2, 2))
    assert a.structure.rows.dtype == a.structure.indices.dtype == torch.int64


I = torch.tensor


@pytest.mark.parametrize(
    ("entry", "said", "make"),
    [
        ("index-range", "rows holds 3", lambda: coo(I([3]), I([0]))),
        ("index-range", "cols holds -1", lambda: coo(I([0, 1]), I([0, -1]))),
        ("index-range", "edge_index[1] holds 9", lambda: graph(I([[0], [9]]), 3)),
        ("index-dtype", "rows has index dtype torch.float32", lambda: coo(I([0.0]), I([0]))),
        ("shape", "rows has shape (2,)", lambda: coo(I([0, 1]), I([0]))),
        ("shape", "rows has shape (1, 1)", lambda: coo(I([[0]]), I([[0]]))),
        ("shape", "edge_index has shape (3, 1)", lambda: graph(I([[0], [1], [2]]))),
        ("argument", "rows = list", lambda: coo([0], I([0]))),
        ("value-count", "values has 2", lambda: coo(I([0]), I([0]), I([1.0, 2.0]))),
        ("device", "values lives on meta", lambda: coo(I([0]), I([0]), I([1.0]).to("meta"))),
        ("index-pointer", "it starts at 1", lambda: csr(I([1, 1, 1]), I([0]))),
        ("index-pointer", "it steps by -1", lambda: csr(I([0, 2, 1]), I([0]))),
        ("index-pointer", "it ends at 2", lambda: csr(I([0, 1, 2]), I([0]))),
        ("shape", "indptr has shape (2,)", lambda: csr(I([0, 1]), I([0]))),
        ("dtype", "indices has dtype torch.int32", lambda: csr(I([0, 0, 1]), I([0]).int())),
        ("argument", "indices = NoneType", lambda: csr(I([0, 0, 0]), None)),
        ("argument", "format = 'ell'", lambda: Structure("ell", (2, 2))),
        ("argument", "shape = (-1, 2)", lambda: Structure("csr", (-1, 2), I([0]), I([0]))),
        ("block-size", "(0, 1)", lambda: csr(I([0]), I([0]), (0, 1))),
        ("block-size", "(2, 2)", lambda: csr(I([0, 1]), I([0]), (2, 2), (3, 2))),
        ("block-size", "(3, 1)", lambda: tensor("mixed", (4, 4)).to_format("bsr", (3, 1))),
        ("argument", "block = None", lambda: tensor("mixed", (4, 4)).to_format("bsr")),
        ("argument", "name = 'elk'", lambda: tensor("mixed", (4, 4)).to_format("elk")),
        ("layout", "ragged", lambda: Structure("ragged", (1, 1), I([0, 1])).T),
    ],
)
def test_errors(entry: str, said: str, make: object) -> None:
    with pytest.raises(FormatError) as caught:
        make()
    assert caught.value.entry == entry
    assert said in str(caught.value)


def coo(rows: object, cols: object, values: object = None) -> SparseTensor:
    return SparseTensor.from_coo(rows, cols, values, (2, 3))


def csr(
    indptr: object, indices: object, block: object = (1, 1), shape: object = (2, 3)
) -> Structure:
    return Structure("bsr" if block != (1, 1) else "csr", shape, indptr, indices, block=block)
