"""Stage II: position space. Coordinates have become positions; bounds, lookups and inits are explicit.

program := Program(name, buffers, sizes, scalars, body)
stmt    := For(var, lo, hi, body) | statements of ir/stmt.py
expr    := shared expressions, loads by position (one index for each dimension of the buffer)
         | Lookup(buffer, lo, hi, key, start)   position of key in a sorted range; start: a guess (or None)

Its text (all forms: ir/text/stmt.py):

for i in range(n_i):
    for p in range(a_indptr[i], a_indptr[i + 1]):
        j = a_indices[p]
"""

from __future__ import annotations

from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.node import Node, node
from tilewright.ir.stmt import Stmt


@node
class For(Stmt):
    """for var in range(lo, hi)"""

    var: Var
    lo: Expr
    hi: Expr
    body: tuple[Stmt, ...]


@node
class Lookup(Expr):
    """The position of key in buffer[lo:hi] (sorted), or -1 when it is not there.

    start is where the search begins: it changes the time, not the position. A search that began somewhere says
    more of what is not there: -1 - (the first position whose coordinate is not below key).
    """

    buffer: Buffer
    lo: Expr
    hi: Expr
    key: Expr
    start: Expr | None = None

    @property
    def dtype(self) -> str:
        return "i64"


@node
class Program(Node):
    """A stage II program."""

    name: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    scalars: tuple[Var, ...]
    body: tuple[Stmt, ...]
