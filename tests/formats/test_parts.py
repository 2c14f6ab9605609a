"""Tensors in parts: every entry is in one part, whatever the rules; values keep their order; the rest of the API."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formats.patterns import tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

import tilewright as tw
from tilewright.formats import SparseTensor
from tilewright.formats.parts import Parts
from tilewright.formats.rules import Left, Rule
from tilewright.support.errors import FormatError

R = tw.rules
RULES = st.lists(
    st.one_of(
        st.builds(R.hyb, st.integers(1, 3), st.integers(0, 3)),
        st.builds(R.column_parts, st.integers(1, 3), st.sampled_from(["dcsr", "csr", "ell"])),
        st.builds(R.blocks, st.sampled_from([1, 2, 4, (2, 3)]), st.sampled_from([0.0, 0.4, 1.0])),
        st.builds(R.srbcrs, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
        st.builds(R.padded, st.integers(1, 5)),
        st.builds(R.band, st.integers(0, 3)),
        st.builds(R.long_rows, st.integers(1, 5)),
    ),
    max_size=3,
)
RESTS = st.sampled_from(["csr", "dcsr", "ell", "dell", "padded.4", "dpadded.3"])


@settings(max_examples=150, deadline=None)
@given(tensors, RULES, RESTS)
def test_every_entry_is_in_one_part(a: SparseTensor, rules: list[Any], rest: str) -> None:
    made = a.decompose(*rules, rest=rest)
    s = made.structure
    assert isinstance(s, Parts)
    orders = torch.cat([part.order[part.order >= 0] for part in s.parts])
    assert torch.equal(orders.long().sort().values, torch.arange(a.nnz))
    assert (
        made.values is a.values and made.nnz == a.nnz and s.index_dtype == a.structure.index_dtype
    )
    rows, cols = a.structure.as_coordinates()[0]
    (r, c), perm = s.entries()
    assert torch.equal(r, rows[perm]) and torch.equal(c, cols[perm])
    assert torch.equal(made.to_dense(), a.to_dense())


@settings(max_examples=25, deadline=None)
@given(tensors, RULES)
def test_other_forms(a: SparseTensor, rules: list[Any]) -> None:
    made, dense = a.decompose(*rules), a.to_dense()
    for format in ("csr", "csc", "coo", "ell", "bitmap"):
        assert torch.equal(made.to_format(format).to_dense(), dense), format
    assert torch.equal(made.T.to_dense(), dense.transpose(0, 1))
    again = made.decompose(R.hyb(1, 1))
    assert torch.equal(again.to_dense(), dense)
    twice = made.map(lambda v: 2 * v)
    assert torch.equal(twice.to_dense(), 2 * dense) and twice.structure is made.structure
    leaves, spec = _pytree.tree_flatten(made)
    assert torch.equal(_pytree.tree_unflatten(leaves, spec).to_dense(), dense)


def test_torch_and_scipy() -> None:
    dense = torch.tensor([[1.0, 0, 2], [0, 0, 0], [3, 4, 5]])
    made = SparseTensor.from_dense(dense).decompose(R.long_rows(2))
    assert made.format == "parts+dpadded.2+csr"
    assert made.to_torch().layout == torch.sparse_csr
    assert torch.equal(made.to_torch().to_dense(), dense)
    assert (made.to_scipy().toarray() == dense.numpy()).all()
    assert torch.equal(made.prepare().to_dense(), dense) and made.structure.transposed is not None
    assert made.to(torch.float64).to_dense().dtype == torch.float64


def test_duplicates_do_not_share_a_place() -> None:
    """A block has one place for a coordinate: the second entry goes to the rest."""
    at = torch.tensor([0, 0, 1])
    a = SparseTensor.from_coo(at, at, torch.tensor([1.0, 2, 4]), (4, 4)).decompose(R.blocks(2, 0))
    held = a.structure
    assert isinstance(held, Parts) and [part.count for part in held.parts] == [2, 1]
    assert torch.equal(a.to_dense().diagonal(), torch.tensor([3.0, 4, 0, 0]))


def test_buckets_have_rows_of_their_length() -> None:
    lengths = torch.tensor([1, 2, 3, 4, 5, 9, 0])
    rows = torch.repeat_interleave(lengths)
    cols = torch.cat([torch.arange(int(n)) for n in lengths])
    a = SparseTensor.from_coo(rows, cols, None, (7, 9)).decompose(R.hyb(1, 2))
    assert a.format == "parts+dell.1+dell.2+dell.4+dpadded.4"
    held = a.structure
    assert isinstance(held, Parts)
    lists = [part.arrays["indices0"].tolist() for part in held.parts]
    assert lists == [[0], [1], [2, 3], [4, 5]]
    assert held.parts[3].arrays["indptr1"].tolist() == [0, 8, 20]


def test_only_dense_blocks_are_taken() -> None:
    dense = torch.zeros(6, 6)
    dense[:2, :2] = 1.0
    dense[2, 4] = dense[3, 5] = dense[4, 0] = 1.0
    parts = SparseTensor.from_dense(dense).decompose(R.blocks(2, 0.75)).structure
    assert isinstance(parts, Parts)
    assert [(p.structure.format, p.count, p.holes) for p in parts.parts] == [
        ("dbsr.2.2", 4, False),
        ("csr", 3, False),
    ]


def test_a_rule_of_ones_own() -> None:
    """Columns that many rows share, kept as blocks of one column."""

    def popular(left: Left) -> torch.Tensor:
        return left.along(1) > 2

    dense = torch.zeros(5, 4)
    dense[:, 1] = torch.arange(1.0, 6.0)
    dense[2, 3] = 7.0
    made = SparseTensor.from_dense(dense).decompose(Rule(popular, "dbsr.5.1"))
    assert made.format == "parts+dbsr.5.1+csr"
    x = torch.randn(4, 3)
    torch.testing.assert_close(tw.spmm(made, x), dense @ x)


def test_three_dimensions() -> None:
    dense = torch.zeros(2, 4, 5)
    dense[0, 1, :] = torch.arange(1.0, 6.0)
    dense[1, 3, 2] = dense[0, 0, 0] = dense[0, 0, 1] = 9.0
    a = SparseTensor.from_dense(dense, dims=3, format="csf.3")
    made = a.decompose(R.hyb(1, 1))
    assert made.format == "parts+bucket.1+bucket.2+bucket.2"
    assert torch.equal(made.to_dense(), dense)
    assert torch.equal(made.to_format("csf").to_dense(), dense)


@pytest.mark.parametrize(
    ("rules", "rest", "said"),
    [
        ((3,), "csr", "a rule = int"),
        ((Rule(lambda left: left.coords[0], "csr"),), "csr", "a rule's result = torch.int64"),
        ((Rule(lambda left: left.coords[0] == 0, "csf.2"),), "csr", "format = 'csf.2'"),
        ((), "dia", "rest = 'dia'"),
        ((), "zigzag", "format = 'zigzag'"),
    ],
)
def test_mistakes(rules: Any, rest: str, said: str) -> None:
    a = SparseTensor.from_dense(torch.eye(3))
    with pytest.raises(FormatError, match=said):
        a.decompose(*rules, rest=rest)


@pytest.mark.parametrize("rule", [R.blocks(2), R.band(0), R.srbcrs(2, 2)])
def test_blocks_need_two_dimensions(rule: Any) -> None:
    a = SparseTensor.from_dense(torch.ones(2, 2, 2), dims=3, format="csf.3")
    with pytest.raises(FormatError, match="two dimensions"):
        a.decompose(rule)


@pytest.mark.parametrize("make", [lambda: R.hyb(0, 1), lambda: R.blocks(0), lambda: R.band(-1)])
def test_rules_check_their_numbers(make: Any) -> None:
    with pytest.raises(FormatError, match="or more"):
        make()


def test_print() -> None:
    dense = torch.eye(4)
    dense[0] = 1.0
    said = str(SparseTensor.from_dense(dense).decompose(R.long_rows(2)))
    assert "dpadded.2: 4 entries (57.1 %), 0 % padding" in said
    assert "csr: 3 entries (42.9 %), 0 % padding" in said
