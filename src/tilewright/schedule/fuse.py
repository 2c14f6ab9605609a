"""The primitive `fuse`: two loops, one inside the other, become one.

    for v in 0:n: for w in 0:4: body   ->   for v_w in 0:n*4: v = v_w // 4, w = v_w % 4, body

What stands between them (values that depend on the outer loop, guards) is computed again in every iteration.
Used on lanes: several blocks of a row and the inside of a block as one dimension of a product.
"""

from __future__ import annotations

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Const, Var, const
from tilewright.ir.flat import Loop
from tilewright.schedule.edit import edit, find, illegal

Body = tuple[stmt.Stmt, ...]


def fuse(p: flat.Program, outer: str, inner: str) -> flat.Program:
    """for v in 0:n: lets: for w in 0:k: body -> for v_w in 0:n*k: v = v_w // k, w = v_w % k, lets, body"""
    a, b = find(p, outer), find(p, inner)
    what = f"fuse({outer}, {inner})"
    if a.lo != const(0) or b.lo != const(0):
        raise illegal(what, "both loops must start at 0", "split the one that does not", ir=a)
    if not isinstance(b.hi, Const):
        raise illegal(what, f"the extent of {inner} is not a constant", "split it", ir=a)
    if a.kind != b.kind:
        raise illegal(what, f"{outer} is {a.kind}, {inner} is {b.kind}", "make them alike", ir=a)
    both = Var(f"{outer}_{inner}", "i32" if isinstance(a.hi, Const) else "i64")
    body: Body = (
        stmt.Let(a.var, both // b.hi),
        stmt.Let(b.var, both % b.hi),
        *_around(a, a.body, b, what),
    )
    return edit(p, outer, lambda _: [Loop(both, const(0), a.hi * b.hi, a.kind, body)])


def _around(loop: Loop, body: Body, inner: Loop, what: str) -> Body:
    """The block with the inner loop replaced by its body; nothing but lets and guards may stand around it."""
    *before, last = body
    if not all(isinstance(s, stmt.Let) for s in before):
        raise illegal(what, "more than values stands between them", ir=loop)
    if last is inner:
        return (*before, *inner.body)
    if isinstance(last, stmt.Guard):
        return (*before, stmt.Guard(last.cond, _around(loop, last.body, inner, what)))
    raise illegal(what, f"{inner.var.name} is not the last inside {loop.var.name}", ir=loop)
