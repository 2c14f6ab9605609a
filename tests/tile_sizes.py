"""How much a thread holds: the largest value of a program in tile form.

largest(program, warps=4)  ->  (512, "x_v[:, None] * w_v[None, :]")       bytes for each thread
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.analysis.cost import BYTES
from tilewright.ir import tile
from tilewright.ir.expr import Expr, Var, dtype_of
from tilewright.ir.node import parts, walk

MOST = (
    1024  # Triton takes minutes for several times as much; a thread has registers for as many bytes
)


def largest(p: tile.Program, warps: int) -> tuple[int, str]:
    """The bytes of a thread's part in the largest value, and that value."""
    known: dict[int, tuple[int, ...]] = {}
    every = [e for e in walk(p.body) if isinstance(e, Expr)]
    held = [(_bytes(e, _shape(e, p, known)) // (32 * warps), e) for e in every]
    most, e = max(held, key=lambda k: k[0], default=(0, ""))
    return most, str(e)


def _bytes(e: Expr, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * BYTES[dtype_of(e)]


def _shape(e: Any, p: tile.Program, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    if id(e) not in known:
        known[id(e)] = _made(e, p, known)
    return known[id(e)]


def _made(e: Any, p: tile.Program, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    dims = dict(p.dims)
    of = lambda x: _shape(x, p, known)
    match e:
        case Var():
            return tuple(dims[d] for d in dict(p.types).get(e, ()))
        case tile.Arange(d):
            return (dims[d],)
        case tile.Full(_, _, held) | tile.Reshape(_, held):
            return tuple(dims[d] for d in held)
        case tile.Expand(_, have, want):
            return tuple(dims[d] if d in have else 1 for d in want)
        case tile.Dot(a, b):
            return (of(a)[0], of(b)[1])
        case tile.Trans(a):
            return of(a)[::-1]
        case tile.Reduce(_, a, axis):
            return (*of(a)[:axis], *of(a)[axis + 1 :])
        case tile.Load(_, offsets):
            return _together([of(o) for o in offsets])
    return _together([of(c) for c in parts(e) if isinstance(c, Expr)])


def _together(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """What tiles meet in, where some have size 1."""
    rank = max(map(len, shapes), default=0)
    return tuple(max(s[n] for s in shapes if len(s) == rank) for n in range(rank))
