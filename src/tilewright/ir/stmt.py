"""Statements that stages II and III share.

    stmt := Let(var, value) | Init(state, monoid) | Fold(state, monoid, args) | Join(state, monoid, other)
          | Store(buffer, indices, value) | Atomic(op, buffer, indices, value) | Guard(cond, body)
          | If(cond, then, orelse) | Append(list, count, group, slot, where, value) | Prefetch(buffer, indices, span)
          | Publish(state, monoid, slot, nth, pieces, body)

A reduction is Init, then Fold inside loops, then a Let of the finalised state. Join combines two states.
Guard is the mask in force: its body happens only where cond holds, lane by lane.
"""

from __future__ import annotations

from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import Node, node


class Stmt(Node):
    """A statement of stage II or III."""

    __slots__ = ()


@node
class Let(Stmt):
    """var = value, once"""

    var: Var
    value: Expr


@node
class Init(Stmt):
    """state = identity"""

    state: tuple[Var, ...]
    monoid: Monoid


@node
class Fold(Stmt):
    """state = combine(state, lift(args))"""

    state: tuple[Var, ...]
    monoid: Monoid
    args: tuple[Expr, ...]


@node
class Join(Stmt):
    """state = combine(state, other), over the lanes that state does not have"""

    state: tuple[Var, ...]
    monoid: Monoid
    other: tuple[Var, ...]


@node
class Store(Stmt):
    """buffer[indices] = value"""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node
class Atomic(Stmt):
    """buffer[indices] = op(buffer[indices], value), whole, whoever else does the same; op: sum, max, min.

    The buffer holds the identity of op before the program begins.
    """

    op: str
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node
class Guard(Stmt):
    """with where(cond): body"""

    cond: Expr
    body: tuple[Stmt, ...]


@node
class If(Stmt):
    """if cond (a scalar): then, else: orelse"""

    cond: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@node
class Prefetch(Stmt):
    """buffer[indices], and `span` elements from there on, will be read soon; means nothing"""

    buffer: Buffer
    indices: tuple[Expr, ...]
    span: int = 1


@node
class Append(Stmt):
    """if where: list[slot + count[group]++] = value; at: the place that was taken, -1 for none

    shared: independent programs add to one list, so that its entries come in any order.
    """

    list: Buffer
    count: Buffer
    group: Expr
    slot: Expr
    where: Expr
    value: Expr
    at: Var | None = None
    shared: bool = False


@node
class Publish(Stmt):
    """Ordered combine over programs: leave state as piece nth; the last of `pieces` to arrive combines
    all in index order into state and runs body. slot: first workspace row; slots: how many there are, where they
    are not those of a work list."""

    state: tuple[Var, ...]
    monoid: Monoid
    slot: Expr
    nth: Expr
    pieces: Expr
    body: tuple[Stmt, ...]
    slots: Expr | None = None
