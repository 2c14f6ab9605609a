"""Every format against the dense loop; values stay in the order that was given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from formats.patterns import dense_of, tensor, tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.formats import SparseTensor, Structure, index, layout
from tilewright.formats.convert import source_coordinates
from tilewright.formats.walk import coordinates

PLAIN = ("csr", "csc", "coo")
QUICK = settings(max_examples=60)


def judge(a: SparseTensor) -> torch.Tensor:
    s = a.structure
    assert s.rows is not None and s.indices is not None and a.values is not None
    return dense_of(s.rows, s.indices, a.values, a.shape)


@QUICK
@given(tensors)
def test_coo_to_dense(a: SparseTensor) -> None:
    assert torch.equal(a.to_dense(), judge(a))


@QUICK
@given(tensors, st.lists(st.sampled_from((*PLAIN, "T")), min_size=1, max_size=4))
def test_chain_of_formats_keeps_matrix_and_value_order(a: SparseTensor, steps: list[str]) -> None:
    expected, made = judge(a), a
    for step in steps:
        made = made.T if step == "T" else made.to_format(step)
        expected = expected.transpose(0, 1) if step == "T" else expected
        assert made.values is a.values
        assert made.structure.index_dtype == a.structure.index_dtype
    assert torch.equal(made.to_dense(), expected)


@QUICK
@given(tensors, st.sampled_from(PLAIN))
def test_new_values_flow_into_an_old_structure(a: SparseTensor, name: str) -> None:
    assert a.values is not None
    fresh = a.values * 3 + 1
    expected = judge(a.with_values(fresh))
    assert torch.equal(a.to_format(name).with_values(fresh).to_dense(), expected)


@QUICK
@given(tensors, st.sampled_from(PLAIN))
def test_source_coordinates_are_those_given(a: SparseTensor, name: str) -> None:
    rows, cols = source_coordinates(a.to_format(name).structure)
    assert torch.equal(rows, a.structure.rows) and torch.equal(cols, a.structure.indices)


@QUICK
@given(tensors, st.data())
def test_blocks(a: SparseTensor, data: st.DataObject) -> None:
    n, m = a.shape
    block = (
        data.draw(st.sampled_from([b for b in range(1, n + 1) if n % b == 0])),
        data.draw(st.sampled_from([b for b in range(1, m + 1) if m % b == 0])),
    )
    made = a.to_format("bsr", block)
    expected = judge(a)
    assert made.values is not None and a.values is not None
    assert tuple(made.values.shape[:3]) == (made.nnz, *block)
    assert torch.equal(made.to_dense(), expected)
    assert torch.equal(made.T.to_dense(), expected.transpose(0, 1))
    assert torch.equal(made.with_entries(a.values * 2).to_dense(), expected * 2)
    for name in PLAIN:
        assert torch.equal(made.to_format(name).to_dense(), expected)
        assert torch.equal(made.T.to_format(name).T.to_dense(), expected)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", ["mixed", "empty", "giant"])
def test_dense_reconstruction_loop(name: str, kind: str) -> None:
    """The docstrings of layout, word for word."""
    a = tensor(kind, (6, 5)).to_format(name)
    s, v = a.structure, a.stored_values().tolist()
    dense = torch.zeros(6, 5, dtype=torch.float64)
    if name == "coo":
        for p in range(s.nnz):
            dense[s.rows[p], s.indices[p]] += v[p]
    else:
        for outer in range(s.indptr.shape[0] - 1):
            for p in range(s.indptr[outer], s.indptr[outer + 1]):
                at = (outer, s.indices[p]) if name == "csr" else (s.indices[p], outer)
                dense[at] += v[p]
    assert torch.equal(a.to_dense(), dense)


def test_dense_reconstruction_loop_of_blocks() -> None:
    a = tensor("mixed", (6, 8)).to_format("bsr", (2, 4)).T.T
    s, v = a.structure, a.stored_values()
    dense = torch.zeros(6, 8, dtype=torch.float64)
    for bi in range(3):
        for p in range(s.indptr[bi], s.indptr[bi + 1]):
            for r in range(2):
                for c in range(4):
                    dense[bi * 2 + r, s.indices[p] * 4 + c] += v[p, r, c]
    assert torch.equal(a.to_dense(), dense)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr"])
def test_from_dense(format: str) -> None:
    dense = tensor("mixed", (6, 8)).to_dense()
    made = SparseTensor.from_dense(dense, format=format, block=(3, 2) if format == "bsr" else None)
    assert made.format == format
    assert torch.equal(made.to_dense(), dense)


@pytest.mark.parametrize("format", ["csr", "bsr"])
def test_from_dense_with_mask_keeps_zeros_and_drops_the_rest(format: str) -> None:
    dense = torch.arange(16.0).reshape(4, 4)
    mask = torch.eye(4, dtype=torch.bool)
    made = SparseTensor.from_dense(dense, mask, format, (2, 2) if format == "bsr" else None)
    assert made.nnz == (2 if format == "bsr" else 4)
    assert torch.equal(made.to_dense(), dense * mask)


def test_from_dense_with_trailing_dimensions_is_differentiable() -> None:
    dense = tensor("mixed", (4, 5), trailing=(3,)).to_dense().requires_grad_()
    made = SparseTensor.from_dense(dense)
    made.to_dense().sum().backward()
    assert torch.equal(dense.grad, (dense != 0).any(2, keepdim=True).expand(4, 5, 3).double())


def test_gradient_of_to_dense_with_duplicates() -> None:
    a = tensor("duplicates", (5, 5))

    def f(v: torch.Tensor) -> torch.Tensor:
        made = a.with_values(v)
        blocks = made.to_format("bsr", (5, 1)).to_dense()
        return made.to_format("csc").to_dense() ** 2 + blocks

    assert torch.autograd.gradcheck(f, a.values.requires_grad_())


def test_pattern_to_blocks_has_ones_at_entries_only() -> None:
    rows, cols = torch.tensor([0, 3]), torch.tensor([1, 2])
    a = SparseTensor.from_coo(rows, cols, None, (4, 4))
    assert torch.equal(a.to_format("bsr", (2, 2)).to_dense(), a.to_dense())


def test_zero_rows() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    a = SparseTensor.from_coo(none, none, torch.zeros(0), (0, 4))
    for name in PLAIN:
        assert a.to_format(name).to_dense().shape == (0, 4)
    assert a.to_format("bsr", (2, 2)).T.shape == (4, 0)


def test_conversion_is_stable() -> None:
    rows = torch.tensor([1, 0, 1, 0])
    a = SparseTensor.from_coo(rows, torch.tensor([2, 2, 0, 1]), torch.arange(4.0), (2, 3))
    s = a.to_format("csr").structure
    assert s.perm.tolist() == [1, 3, 0, 2] and s.indices.tolist() == [2, 1, 2, 0]


def test_levels_say_which_arrays_are_stored() -> None:
    for name in ("csr", "csc", "coo", "ragged"):
        made = layout(name)
        stored = {x for i, level in enumerate(made.levels) for x in level.arrays(i == 0)}
        expected = {"coo": {"rows", "indices"}, "ragged": {"indptr"}}
        assert stored == expected.get(name, {"indptr", "indices"})


def test_coordinates_of_ragged() -> None:
    s = Structure("ragged", (3, 2), torch.tensor([0, 2, 2, 3]))
    rows, cols = coordinates(s)
    assert rows.tolist() == [0, 0, 2] and cols.tolist() == [0, 1, 0]
    assert s.as_csr().indices.tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("runs", ["even", "giant", "one"])
def test_pairs_in_runs_are_sorted_a_part_at_a_time(
    runs: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same distinct pairs and places as in one sort."""
    size = (50, 70_000)
    high = torch.arange(1000) // {"even": 20, "giant": 1, "one": 1000}[runs] % 50
    high = (
        torch.sort(high).values if runs != "giant" else torch.where(high < 9, 3, 40).sort().values
    )
    low = torch.from_numpy(np.random.default_rng(0).integers(0, size[1], 1000))
    low[::7] = low[0]
    pairs = high.to(dtype), low.to(dtype), size
    whole = index.distinct_pairs(*pairs)
    monkeypatch.setattr(index, "PART", 64)
    assert index.runs_apart(pairs[0], size)
    for got, want in zip(index.distinct_pairs(*pairs), whole, strict=True):
        assert torch.equal(got.long(), want.long())
    assert not index.runs_apart(pairs[0].flip(0), size) or runs == "one"


@pytest.mark.parametrize("most", [3, 1 << 40, 1 << 62])
def test_the_stable_order_of_keys(most: int) -> None:
    """In one number with their places, where both fit."""
    keys = torch.randint(0, most, (index.FEW + 7,), generator=torch.Generator().manual_seed(0))
    ordered, order = index.sort(keys)
    want = torch.sort(keys, stable=True)
    assert torch.equal(ordered, want.values) and torch.equal(order, want.indices)
