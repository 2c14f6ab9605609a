"""Stage III: loops over flat buffers, each loop with a kind. All schedule primitives work here.

    program := Program(name, buffers, sizes, scalars, body, divisors)
    stmt    := Loop(var, lo, hi, kind, body) | statements of ir/stmt.py
    kind    := grid    independent programs (Triton program ids, OpenMP threads)
             | lane    a named dimension of on-chip values: its variable is the whole range at once
             | serial  one after the other
             | unroll  serial, constant extent, copied out
    expr    := shared expressions; loads have one flat index; LaneReduce, LaneScan, LaneSplit, Lookup

Values are arrays over the lanes they depend on; statements act on all lanes at once. A state has the lanes
that its arguments depend on, less those opened (or opened again) after its Init: they are folded away.
`divisors` are facts about sizes (the width class): {n_f: 16} lets a split by 16 drop its guard. `order` and `swizzle`
say how the grid is walked; `tensor` names lanes that must be folded by a matrix product, or not at all.
`streams` are buffers whose elements are touched once and need not stay in caches. `scan`: numbers of a running total
that a thread adds up by itself before threads meet (0: none). `balance`: the array that says where the work of each
turn of the grid loop begins, by which threads share them.

Its text (all forms: ir/text/stmt.py):

    for i in grid(n_i):
        for f in lane(32):
            acc = init(sum)
            for p in serial(a_indptr[i], a_indptr[i + 1]):
                acc = fold(sum, acc, a[p] * x[a_indices[p] * n_f + f])
            y[i * n_f + f] = acc
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.node import Node, node, walk
from tilewright.ir.stmt import Let, Stmt


@node
class Loop(Stmt):
    """for var in kind(lo, hi)"""

    var: Var
    lo: Expr
    hi: Expr
    kind: str
    body: tuple[Stmt, ...]


@node
class Program(Node):
    """A stage III program."""

    name: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    scalars: tuple[Var, ...]
    body: tuple[Stmt, ...]
    divisors: tuple[tuple[Var, int], ...] = ()
    order: tuple[str, ...] = ()
    swizzle: int = 0
    tensor: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    scan: int = 0
    balance: str = ""


def made_of(body: Any, *exprs: Expr) -> set[Var]:
    """Every variable that expressions are made of, be it through lets."""
    lets = {s.var: s.value for s in walk(body) if isinstance(s, Let)}
    todo, seen = list(exprs), set[Var]()
    while todo:
        for v in walk(todo.pop()):
            if isinstance(v, Var) and v not in seen:
                seen.add(v)
                todo += [lets[v]] if v in lets else []
    return seen
