"""Tile form: what Triton can say. Every shape, mask, pad and dot is decided here, before any text.

    program := Program(name, buffers, sizes, scalars, dims, types, grid, body)
    dims    := named tile dimensions with power-of-two sizes; a tile's dims follow one canonical order
    stmt    := Set(var, value) | For(var, lo, hi, body) | Unroll(var, count, body) | If(cond, then, orelse)
             | Store(buffer, offsets, value, mask) | Atomic(op, buffer, offsets, value, mask)
             | Arrive(var, buffer, offset) | FetchAdd(var, buffer, offset, value, mask)
             | Claim(var, counter, count, value) | Barrier()
    expr    := Const | Var | Bin | Un | Select | Cast (operands broadcast by Expand)
             | ProgramId() | Arange(dim) | Full(value, dtype, dims) | Expand(a, have, want)
             | Load(buffer, offsets, mask, fill, fresh, once) | Dot(a, b, acc) | Trans(a)
             | Reshape(a, dims) | Reduce(op, a, axis) | Scan(op, a, axis)

A variable set before a For and set again inside it is carried by the loop. `offsets` are added to the
pointer one after the other, so that an address stays (base + row part) + column part.

Its text (all forms: ir/text/expr.py and ir/text/stmt.py):

    acc = acc + v[:, None] * load(x + c[:, None] * n_f + f[None, :], mask=m, fill=0.0)
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import stmt
from tilewright.ir.expr import Buffer, Const, Expr, Var, dtype_of
from tilewright.ir.monoid import monoids
from tilewright.ir.node import Node, node, walk


@node
class ProgramId(Expr):
    """The flat program number."""

    dtype: str = "i32"


@node
class Arange(Expr):
    """0, 1, ... along one dim"""

    dim: str
    dtype: str = "i32"


@node
class Full(Expr):
    """A tile of one value."""

    value: Const
    dtype: str
    dims: tuple[str, ...]


@node
class Expand(Expr):
    """a, whose dims are `have`, with size-1 dims inserted to line up with `want`"""

    a: Expr
    have: tuple[str, ...]
    want: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return dtype_of(self.a)


@node
class Load(Expr):
    """buffer[sum of offsets] where mask, else fill; fresh: past the first-level cache; once: not needed again"""

    buffer: Buffer
    offsets: tuple[Expr, ...]
    mask: Expr | None
    fill: Const
    fresh: bool = False
    once: bool = False

    @property
    def dtype(self) -> str:
        return self.buffer.dtype


@node
class Dot(Expr):
    """acc + a @ b; a: [m, k], b: [k, n]"""

    a: Expr
    b: Expr
    acc: Expr | None
    dtype: str


@node
class Trans(Expr):
    """The transpose of a matrix."""

    a: Expr

    @property
    def dtype(self) -> str:
        return dtype_of(self.a)


@node
class Reshape(Expr):
    """The same elements in the same order, with other dims."""

    a: Expr
    dims: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return dtype_of(self.a)


@node
class Reduce(Expr):
    """op along one axis of a tile"""

    op: str
    a: Expr
    axis: int

    @property
    def dtype(self) -> str:
        return dtype_of(self.a)


@node
class Scan(Expr):
    """inclusive scan along one axis"""

    op: str
    a: Expr
    axis: int

    @property
    def dtype(self) -> str:
        return dtype_of(self.a)


class Stmt(Node):
    """A statement of tile form."""

    __slots__ = ()


@node
class Set(Stmt):
    """var = value"""

    var: Var
    value: Expr


@node
class For(Stmt):
    """for var in range(lo, hi, step)"""

    var: Var
    lo: Expr
    hi: Expr
    body: tuple[Stmt, ...]
    step: int = 1


@node
class Unroll(Stmt):
    """for var in unroll(count): copied out"""

    var: Var
    count: int
    body: tuple[Stmt, ...]


@node
class If(Stmt):
    """if cond: then, else: orelse"""

    cond: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@node
class Store(Stmt):
    """buffer[sum of offsets] = value where mask; fresh: past the first-level cache; once: not needed again"""

    buffer: Buffer
    offsets: tuple[Expr, ...]
    value: Expr
    mask: Expr | None
    fresh: bool = False
    once: bool = False


@node
class Atomic(Stmt):
    """buffer[sum of offsets] = op(what is there, value) where mask, across programs"""

    op: str
    buffer: Buffer
    offsets: tuple[Expr, ...]
    value: Expr
    mask: Expr | None


@node
class Arrive(Stmt):
    """var = buffer[offset]; buffer[offset] += 1, released and acquired across programs"""

    var: Var
    buffer: Buffer
    offset: Expr


@node
class FetchAdd(Stmt):
    """var = buffer[offset]; buffer[offset] += value, where mask"""

    var: Var
    buffer: Buffer
    offset: Expr
    value: Expr
    mask: Expr | None = None


@node
class Claim(Stmt):
    """var = what programs before this one claimed; the last of all leaves the whole in count[0], and the counter zero

    Every program comes here once. The counter holds how many did in its upper half, and what they claimed below.
    """

    var: Var
    counter: Buffer
    count: Buffer
    value: Expr


@node
class Barrier(Stmt):
    """All threads of the program have come this far."""


@node
class Program(Node):
    """A program in tile form. `grid` is the number of programs, over sizes."""

    name: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    scalars: tuple[Var, ...]
    dims: tuple[tuple[str, int], ...]
    types: tuple[tuple[Var, tuple[str, ...]], ...]
    grid: Expr
    body: tuple[Stmt, ...]


def loose(p: Program) -> tuple[str, ...]:
    """The buffers that may lie anywhere: index arrays, and what is only read one element at a time, as counts are."""
    lanes = {v for v, dims in p.types if dims}
    read = [n for n in walk(p.body) if isinstance(n, Load)]
    wide = {
        n.buffer for n in read if any(isinstance(m, Arange) or m in lanes for m in walk(n.offsets))
    }
    wide |= {n.buffer for n in walk(p.body) if isinstance(n, Store | Atomic | Arrive)}
    return tuple(b.name for b in p.buffers if b.role == "index" or b not in wide)


def claimed(body: Any) -> tuple[Buffer, ...]:
    """The outputs that the last program writes, if there is a program."""
    return tuple(s.count for s in walk(body) if isinstance(s, Claim))


def starts(body: Any) -> dict[Buffer, float | int | bool]:
    """What buffers hold before a program of stage III or tile form begins, where it adds to them."""
    found = (s for s in walk(body) if isinstance(s, stmt.Atomic | Atomic))
    return {s.buffer: monoids(s.buffer.dtype)[s.op].identity[0].value for s in found}
