"""Tensors in parts, stage I -> stage I: a statement as several, each over one part, for one kernel each.

In: a program of one statement. Out: programs that run one after the other into the same outputs.

    e[i, j] = a[i, j] * sum(f, ...)        ->   one program for each part: each writes its own entries
    y[i, f] = sum(j, a[i, j] * x[j, f])    ->   y[i, f] = sum(j, a_1[i, j] * x[j, f])   (rows are dense in a_1)
                                                y[i, f] += sum(j, a_0[i, j] * x[j, f])  (over the rows of a_0 alone)

Why several kernels: each part has loops of its own shape (rows, blocks, rows of a list), and is scheduled as
such; one kernel around all of them would need the registers of the largest, and would search every list of
rows for every row. Only a sum is cut so, and only where the output holds what is summed without rounding. Every
other reduction stays one statement, whose rounds (`ir.drive`) fold into one state.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.analysis.domain import spatial_lead
from tilewright.ir import coord
from tilewright.ir.coord import Assign, Reduce, Tensor
from tilewright.ir.drive import lead, rounds, stored, structure
from tilewright.ir.expr import Load
from tilewright.ir.node import substitute, walk


def apart(p: coord.Program) -> tuple[coord.Program, ...]:
    """The programs that together do what a program does; most are their own only part."""
    if len(p.body) != 1 or not isinstance(p.body[0], Assign):
        return (p,)
    s = p.body[0]
    first = spatial_lead(s)
    if first is not None and first.buffer.parts:
        made = []
        for k, turn in enumerate(rounds((s.targets, s.values), first)):
            targets, values = turn.exprs
            made.append(_over(p, Assign(targets, values, s.where, listed=s.listed), k))
        return tuple(made)
    return _summed(p, s) or (p,)


def _summed(p: coord.Program, s: Assign) -> tuple[coord.Program, ...]:
    """y = sum over all parts -> y = sum over one, y += sum over the others"""
    value = s.values[0]
    if len(s.targets) != 1 or not isinstance(value, Reduce) or value.monoid.name != "sum":
        return ()
    first, out = lead(value.args, value.over), s.targets[0].buffer
    if first is None or not first.buffer.parts or out.dtype != value.dtype:
        return ()
    made = [
        (turn.first.buffer, Reduce(value.monoid, value.over, turn.exprs))
        for turn in rounds(value.args, first)
        if turn.first is not None
    ]
    made.sort(key=lambda pair: (not _rows_first(pair[0]), not _listed(pair[0])))
    whole = _rows_first(made[0][0])
    return tuple(
        _over(p, Assign(s.targets, (e,), s.where, adds=k > 0 or not whole, listed=s.listed), k)
        for k, (_, e) in enumerate(made)
    )


def _rows_first(t: Tensor) -> bool:
    """Whether the loops over a part visit every row."""
    return not stored(t.axes[0])


def _listed(t: Tensor) -> bool:
    """Whether it is a list of rows of their own lengths: those come first, since a row in pieces is stored once."""
    path = structure(t)
    return len(path) == 2 and path[1].extent == "variable"


def _over(p: coord.Program, s: Assign, nth: int) -> coord.Program:
    """A program of one of the statements; a part that is written is called by the output's name."""
    outs = {
        a.buffer: replace(a.buffer, name=whole.name)
        for a in s.targets
        for whole in p.outputs
        if a.buffer in whole.parts
    }
    s = substitute(s, dict(outs))
    used = dict.fromkeys(n.buffer for n in walk(s) if isinstance(n, Load))
    tensors = tuple(x for x in used if isinstance(x, Tensor) and x.role == "in")
    written = tuple(a.buffer for a in s.targets)
    return coord.Program(f"{p.name}_{nth}", (*tensors, *written), p.scalars, (s,))
