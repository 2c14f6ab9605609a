"""Parts of a buffer that turns of a loop have for themselves."""

from __future__ import annotations

import pytest

from tilewright.ir import flat
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.ir.parse import parse
from tilewright.ir.stmt import Store
from tilewright.lowering.own import own
from tilewright.schedule.edit import find

READS = {
    "h[i * m + j]": True,
    "h[j + i * m]": True,
    "h[i * m]": True,
    "h[i * m + t]": True,  # t = a * 4 + b, in tiles
    "h[i * m + g]": True,  # where g < m
    "h[i * m + (j + 1)]": False,
    "h[i * m + j + m]": False,
    "h[i * m - j]": False,
    "h[j - i * m]": False,
    "h[i * n + j]": False,
    "h[j * m + i]": False,
    "h[i * m + i]": False,
    "h[(i + 1) * m + j]": False,
    "h[i * m + u]": False,
    "h[i * m + a]": False,
    "h[j]": False,
    "c[i]": True,
    "c[i + 1]": False,
    "c[j]": False,
}


@pytest.mark.parametrize("read", READS)
def test_own(read: str) -> None:
    p = parse(
        f"""
@flat
def moved(h: out[f32[n, m]], c: out[f32[n]], y: out[f32[n, m]], n, m):
    for i in serial(n):
        c[i] = 2.0
        for j in serial(m):
            at = i * m
            h[at + j] = 1.0
            u = j + j
            for a in serial((m + 3) // 4):
                for b in serial(4):
                    t = a * 4 + b
                    g = a + b
                    with where(g < m):
                        y[i * m + j] = {read}
"""
    )
    assert isinstance(p, flat.Program)
    loop = find(p, "i")
    (load,) = (n for n in walk(p.body) if isinstance(n, Load))
    stores = [n for n in walk(p.body) if isinstance(n, Store) and n.buffer is load.buffer]
    touched = [(n.indices[0], loop) for n in (load, *stores)]
    assert own(touched) is READS[read]
