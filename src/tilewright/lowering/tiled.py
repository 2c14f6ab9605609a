"""A tile expression with the lanes that it has, in canonical order: what expressions of stage III become.

Owns: the pair that the lowering to tile form hands around.

    Tiled(x_v, (r, f))        # [rows, features]
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Expr, Var

Lanes = tuple[Var, ...]


@dataclass(frozen=True)
class Tiled:
    """A tile expression and its lanes."""

    e: Expr
    lanes: Lanes


def names(lanes: Lanes) -> tuple[str, ...]:
    return tuple(v.name for v in lanes)
