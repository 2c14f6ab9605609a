"""Drawn products over lists: any pattern, axis, dtype; forward and gradients; C, torch and Triton's interpreter."""

from __future__ import annotations

from fuzz.products import draw, judge
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.places import INTERPRETER

NUMBERS = st.integers(0, 10**6)


@settings(max_examples=24)
@given(NUMBERS)
def test_on_a_cpu(number: int) -> None:
    d = draw(0, number, where="c")
    assert judge(d) is None, d.words


@INTERPRETER
@settings(max_examples=6)
@given(NUMBERS)
def test_in_triton(number: int) -> None:
    d = draw(0, number, where="triton")
    assert judge(d) is None, d.words
