"""Parts of a buffer that turns of a loop have for themselves."""

from __future__ import annotations

import pytest

from tilewright.ir import flat
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.ir.parse import parse
from tilewright.lowering.own import own
from tilewright.schedule.edit import find

READS = {
    "h[i * m + j]": True,
    "h[j + i * m]": True,
    "h[i * m + (j + 1)]": True,
    "h[i * m - j]": True,
    "h[j - i * m]": False,
    "h[i * n + j]": False,
    "h[j * m + i]": False,
    "h[i * m + i]": False,
    "h[(i + 1) * m + j]": False,
    "h[j]": False,
}


@pytest.mark.parametrize("read", READS)
def test_own(read: str) -> None:
    p = parse(
        f"""
@flat
def moved(h: out[f32[n, m]], y: out[f32[n, m]], n, m):
    for i in serial(n):
        for j in serial(m):
            at = i * m
            h[at + j] = 1.0
            y[i * m + j] = {read}
"""
    )
    assert isinstance(p, flat.Program)
    loop = find(p, "i")
    (store, _), (load,) = (
        [n for n in walk(p.body) if type(n).__name__ == kind] for kind in ("Store", "Load")
    )
    assert isinstance(load, Load)
    touched = [(store.indices[0], loop), (load.indices[0], loop)]
    assert own(touched) is READS[read]
