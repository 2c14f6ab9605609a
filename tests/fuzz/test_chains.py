"""Drawn programs of several statements: gradcheck in C, and Triton's interpreter beside it."""

from __future__ import annotations

import pytest
import torch
from fuzz.chains import draw_chain, numbers
from ops.matrices import gradcheck
from torch import Tensor

from tilewright.ops.backend import backend


@pytest.mark.parametrize("number", range(10))
def test_gradcheck(number: int) -> None:
    chain = draw_chain(number)
    with backend("c"):
        assert gradcheck(chain.run, numbers(chain)), chain.source


def gradients(number: int) -> list[Tensor]:
    chain = draw_chain(number)
    given = numbers(chain)
    total = sum((k + 1) * o.square().sum() for k, o in enumerate(chain.run(*given)))
    assert isinstance(total, Tensor)
    found = torch.autograd.grad(total, given, allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


@pytest.mark.parametrize("number", range(16, 20))
def test_both_back_ends(number: int) -> None:
    with backend("c"):
        want = gradients(number)
    with backend("triton"):
        for a, b in zip(gradients(number), want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
