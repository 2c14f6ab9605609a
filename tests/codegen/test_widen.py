"""Two bf16 of a word become two f32 by one instruction each, where a thread holds both."""

from __future__ import annotations

import pytest

from tilewright.codegen.triton import emit_triton
from tilewright.ir.parse import parse

COPY = """
@tile(grid=1, dims={r: 8, f: 32})
def widened(x: bf16[n_r, n_f], y: out[f32[n_r, n_f]]):
    r = arange(r)
    f = arange(f)
    x_v = load(x + (r * 32)[:, None] + f[None, :])
    store(y + (r * 32)[:, None] + f[None, :], f32(x_v))
"""


@pytest.mark.parametrize(("threads", "paired"), [(0, False), (32, True), (128, True), (256, False)])
def test_pairs(threads: int, paired: bool) -> None:
    """threads: none in an interpreter, which knows no instruction; many hold one number each."""
    code = emit_triton(parse(COPY), threads=threads)
    assert ("tw_widen(x_v)" in code) == paired and ("and.b32" in code) == paired
