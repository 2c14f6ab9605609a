"""Programs of a launch have one place each."""

from __future__ import annotations

import pytest

from tilewright.ir.parse import parse
from tilewright.lowering.tiles import lower_to_tile
from tilewright.support.errors import TilewrightError

BESIDE = """
@flat
def twice(x: f32[n_i], y: out[f32[n_i]], n_i, n_r):
    for r in serial(n_r):
        for i in grid(n_i):
            atomic(sum, y[i], x[i])
        for k in grid(n_i):
            atomic(sum, y[k], x[k])
"""


def test_programs_beside_each_other_are_refused() -> None:
    """Each would be run for all of the other's."""
    with pytest.raises(TilewrightError, match="programs over k stand beside it"):
        lower_to_tile(parse(BESIDE))
