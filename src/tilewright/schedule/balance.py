"""The primitive `balance`: threads share the turns of a grid by the work of each.

In: a stage III program with a grid loop over rows, and the array that says where the entries of each row begin.
Out: the same program, told to share by it.

    balance(p, "a_indptr")      # pieces of about as many entries, whatever the lengths of their rows
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, const
from tilewright.ir.flat import Loop
from tilewright.schedule.edit import illegal


def balance(p: flat.Program, array: str) -> flat.Program:
    """grid v in 0:n, by turns -> grid v in 0:n, by array[v + 1] - array[v]"""
    what = f"balance({array})"
    held = {b.name: b for b in p.buffers if b.role in ("index", "plan")}
    if array not in held:
        names = ", ".join(held) or "none"
        raise illegal(what, f"there is no such array of rows; there are {names}", ir=p)
    made = replace(p, balance=array)
    if not balanced(made):
        why = "no outermost grid loop has a turn for each of its rows"
        raise illegal(what, why, "make the loop over rows a grid loop first", ir=p)
    return made


def balanced(p: flat.Program) -> list[Loop]:
    """The grid loops that are shared by an array's work: at the top, from 0, a turn for each row of it.

    What is let before them all would not be known where a piece of them is.
    """
    if any(isinstance(s, stmt.Let) for s in p.body):
        return []
    held = [b for b in p.buffers if b.name == p.balance]
    grids = [s for s in p.body if isinstance(s, Loop) and s.kind == "grid"]
    return [x for x in grids if any(counts(b, x) for b in held)]


def counts(b: Buffer, loop: Loop) -> bool:
    """Whether an array has one number for each turn of a loop, and one more."""
    return loop.lo == const(0) and b.shape == (loop.hi + 1,)
