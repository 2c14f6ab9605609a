"""Whether two structures have one pattern, so that the values of one fit the other.

In: structures. Out: True where format, shape and all index arrays are equal, in one order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree

HELD = ("indptr", "indices", "rows", "perm", "slots")


def same(a: Structure, b: Structure) -> bool:
    """The host waits for what it compares."""
    if a is b:
        return True
    told = [(type(s), s.format, s.shape, s.block) for s in (a, b)]
    mine, other = _arrays(a), _arrays(b)
    if told[0] != told[1] or mine.keys() != other.keys():
        return False
    return all(torch.equal(t, other[n].to(t.device, t.dtype)) for n, t in mine.items())


def _arrays(s: Structure) -> dict[str, Tensor]:
    own = {n: t for n in HELD if isinstance(t := getattr(s, n, None), Tensor)}
    return own | (s.arrays if isinstance(s, Tree) else {})
