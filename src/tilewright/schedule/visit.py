"""The primitive `visit`: rows take their turns in an order that was made at run time.

In: a stage III program with a loop over rows, whose entries lie between two numbers of an array. Out: the same rows in
the order of `visit_rows`, so that neighbours may share what they gather. Their entries are counted as they come:
`visit_begin` says where those of each turn begin, `visit_columns` has their columns, so that both are read one after
the other, and ahead; values lie where they lay, `visit_shift` further on (`runtime/visits.py`).

    visit(p, "i", "a_indices")
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Load, Var
from tilewright.ir.flat import Loop
from tilewright.ir.node import transform
from tilewright.schedule.balance import counts
from tilewright.schedule.edit import edit, find, illegal, splice
from tilewright.schedule.legal import carried, fresh, in_order, taken, unused, within

ARRAYS = ("visit_rows", "visit_shift", "visit_begin", "visit_columns")


def visit(p: flat.Program, rows: str, array: str) -> flat.Program:
    """for i: for p in ptr[i]:ptr[i+1]: j = idx[p] -> for v: i = rows[v]; for q in begin[v]:begin[v+1]: j = cols[q]"""
    what, loop = f"visit({rows}, {array})", find(p, rows)
    table = next((b for b in p.buffers if b.name == array and b.role == "index"), None)
    if table is None:
        raise illegal(what, f"there is no index array {array}", ir=p)
    if loop.kind not in ("serial", "grid") or carried(loop) or in_order(loop):
        why = in_order(loop) or f"it is a {loop.kind} loop, or carries a reduction"
        raise illegal(what, f"its turns do not stand alone: {why}", ir=loop)
    entries = [s for s in within(loop.body) if isinstance(s, Loop) and _gathers(s, table)]
    pointers = {s.lo.buffer for s in entries if _bounded(s, loop)}  # type: ignore[attr-defined]
    if len(pointers) != 1 or not all(_bounded(s, loop) for s in entries):
        why = f"what is read by {array} is not all between two numbers of one array of {rows}"
        raise illegal(what, why, ir=loop)
    unused(p, what, *ARRAYS)
    (pointer,) = pointers
    shapes = (loop.hi,), (loop.hi,), (loop.hi + 1,), table.shape
    made = [Buffer(n, pointer.dtype, s, "plan") for n, s in zip(ARRAYS, shapes, strict=True)]
    turned = edit(p, rows, lambda s: [_turned(p, s, table, made)])
    return replace(turned, buffers=(*p.buffers, *made))


def _gathers(s: Loop, table: Buffer) -> bool:
    return any(_column(x, s, table) for x in s.body)


def _column(x: stmt.Stmt, s: Loop, table: Buffer) -> bool:
    """let j = idx[p], for the loop's own p"""
    return isinstance(x, stmt.Let) and x.value == Load(table, (s.var,))


def _bounded(s: Loop, rows: Loop) -> bool:
    """Whether a loop runs from one number of an array of rows to the next."""
    lo, hi = s.lo, s.hi
    if not (isinstance(lo, Load) and isinstance(hi, Load) and lo.buffer is hi.buffer):
        return False
    ends = lo.indices == (rows.var,) and hi.indices == (rows.var + 1,)
    return ends and counts(lo.buffer, rows)


def _turned(p: flat.Program, loop: Loop, table: Buffer, arrays: list[Buffer]) -> Loop:
    rows, shift, begin, columns = arrays
    i, held = loop.var, taken(p)
    v = Var(fresh(p, f"{i.name}_v", held), i.dtype)
    moved = Var(fresh(p, f"{i.name}_shift", held), shift.dtype)

    def rule(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        if not isinstance(s, Loop) or not _gathers(s, table):
            return None
        q = Var(fresh(p, f"{s.var.name}_v", held), s.var.dtype)
        lo, hi = (Load(begin, (at,)) for at in (v, v + 1))
        was, now = Load(table, (s.var,)), Load(columns, (q,))
        body = transform(splice(s.body, rule), lambda n: now if n == was else None)
        return [replace(s, var=q, lo=lo, hi=hi, body=(stmt.Let(s.var, q + moved), *body))]

    turn = stmt.Let(i, Load(rows, (v,))), stmt.Let(moved, Load(shift, (v,)))
    return replace(loop, var=v, body=(*turn, *splice(loop.body, rule)))
