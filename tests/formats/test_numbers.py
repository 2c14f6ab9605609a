"""Sparse tensors with numbers: A * 2, 2 * A, A / 2, A - B, -A; nothing that would follow the order of entries."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw

DENSE = torch.tensor([[0.0, 2.0, 0.0], [4.0, 0.0, -1.0]])


def test_numbers() -> None:
    A = tw.SparseTensor.from_dense(DENSE)
    made = {"*": A * 3, "r*": 3 * A, "/": A / 4, "-": -A, "0-d": A * torch.tensor(3.0)}
    want = {"*": DENSE * 3, "r*": DENSE * 3, "/": DENSE / 4, "-": -DENSE, "0-d": DENSE * 3}
    for name, a in made.items():
        assert torch.equal(a.to_dense(), want[name]), name
    assert torch.equal((A - A * 2).to_dense(), -DENSE)


def test_a_difference_is_named_as_one() -> None:
    A = tw.SparseTensor.from_dense(DENSE)
    with pytest.raises(tw.TilewrightError, match="A - B"):
        A - DENSE


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2, 1), "two"])
def test_tensors_are_refused(other: object) -> None:
    A = tw.SparseTensor.from_dense(DENSE)
    for call in (lambda: A * other, lambda: A / other):
        with pytest.raises(tw.TilewrightError, match="a number or a SparseTensor"):
            call()


def test_heads_are_refused() -> None:
    A = tw.SparseTensor.from_dense(DENSE)
    B = A.with_values(torch.ones(3, 2))
    for call in (lambda: A + B, lambda: B * A, lambda: A - B):
        with pytest.raises(tw.TilewrightError, match=r"(?s)'s values.*one value for each entry"):
            call()
