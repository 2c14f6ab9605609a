"""Ragged batches: packing, padding, gradients, errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.formats import SparseTensor, ragged
from tilewright.support.errors import FormatError


@settings(max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 2), st.booleans())
def test_pack_is_the_plain_loop(lengths: list[int], extra: int, narrow: bool) -> None:
    dtype = torch.int32 if narrow else torch.int64
    r = ragged(lengths=torch.tensor(lengths, dtype=dtype))
    x = torch.randn(len(lengths), r.max_len + extra, 2)
    expected = torch.cat([x[i, :n] for i, n in enumerate(lengths)] + [x.new_zeros(0, 2)])
    assert torch.equal(r.pack(x), expected)
    padded = r.pad(r.pack(x), length=x.shape[1])
    kept = torch.arange(x.shape[1])[None, :, None] < torch.tensor(lengths).reshape(-1, 1, 1)
    assert torch.equal(padded, torch.where(kept, x, 0.0))


def test_lengths_and_offsets_agree() -> None:
    a, b = ragged(lengths=[2, 0, 3]), ragged(offsets=torch.tensor([0, 2, 2, 5]))
    assert a.offsets.tolist() == b.offsets.tolist() and a.lengths.tolist() == b.lengths.tolist()
    assert (a.total, a.max_len) == (b.total, b.max_len) == (5, 3)


def test_gradients() -> None:
    r = ragged(lengths=[2, 0, 3], max_len=4)
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: r.pad(r.pack(x) ** 2, fill=7.0), x)


def test_structure_is_a_matrix() -> None:
    r = ragged(lengths=[2, 0, 1], max_len=3)
    y = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(SparseTensor(r.structure, y).to_dense(), r.pad(y))
    assert torch.equal(SparseTensor(r.structure, y).to_format("csc").to_dense(), r.pad(y))


def test_padding_may_hold_nan() -> None:
    r = ragged(lengths=[1, 2])
    x = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    assert r.pad(r.pack(x)).tolist() == [[1, 0], [2, 3]]


@pytest.mark.parametrize(
    ("entry", "make"),
    [
        ("argument", lambda: ragged()),
        ("argument", lambda: ragged(lengths=[1], offsets=[0, 1])),
        ("index-dtype", lambda: ragged(lengths=torch.tensor([1.0]))),
        ("index-dtype", lambda: ragged(lengths=[1.5, 2.0])),
        ("shape", lambda: ragged(lengths=torch.tensor([[1]]))),
        ("shape", lambda: ragged(offsets=[])),
        ("index-pointer", lambda: ragged(lengths=[1, -1])),
        ("index-pointer", lambda: ragged(offsets=[1, 2])),
        ("index-pointer", lambda: ragged(lengths=[5], max_len=4)),
        ("argument", lambda: ragged(lengths=[5], total=4)),
        ("shape", lambda: ragged(lengths=[2]).pack(torch.ones(1, 1))),
        ("shape", lambda: ragged(lengths=[2]).pad(torch.ones(3))),
        ("argument", lambda: ragged(lengths=[2]).pad(torch.ones(2), length=1)),
    ],
)
def test_errors(entry: str, make: object) -> None:
    with pytest.raises(FormatError) as caught:
        make()
    assert caught.value.entry == entry
