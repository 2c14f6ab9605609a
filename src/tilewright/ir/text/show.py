"""The text of any node: programs as `ir.parse` reads them, statements and expressions as people do.

In: a node. Out: its text; `str(node)` calls it. The text of a size expression may be evaluated by Python.

    text(program)        # @flat / def spmm(...): ...
    text(n * 2 + 1)      # n * 2 + 1
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import coord, flat, loops, stmt, tile
from tilewright.ir.expr import Buffer
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import _PRINTERS
from tilewright.ir.text.expr import Exprs
from tilewright.ir.text.program import Programs
from tilewright.ir.text.stmt import Stmts


def text(n: Any) -> str:
    """The text of any node."""
    if isinstance(n, coord.Program):
        return "\n".join(Programs(surface=True).coord(n))
    if isinstance(n, loops.Program | flat.Program | tile.Program):
        return "\n".join(Programs().nest(n))
    if isinstance(n, stmt.Stmt | coord.Stmt | tile.Stmt):
        return "\n".join(Stmts(plain=True, surface=isinstance(n, coord.Stmt)).stmt(n))
    if isinstance(n, coord.Axis):
        return f"{n.name}: {n.kind} {n.extent}"
    if isinstance(n, coord.Tensor | Buffer | Monoid):
        return n.name
    return Exprs(plain=True).expr(n)


_PRINTERS.append(text)
