"""The parameters that a stage I program has once it is lowered: arrays and run-time sizes, in the order of its tensors.

buffers_of(spmm)   ->   a_indptr, a_indices, a, x, y          sizes_of(spmm)   ->   n_i, n_j, a_nnz, n_f
"""

from __future__ import annotations

from tilewright.ir import coord
from tilewright.ir.expr import Buffer, Var
from tilewright.ir.node import walk


def buffers_of(p: coord.Program) -> tuple[Buffer, ...]:
    """The flat list of arrays a program reads and writes, in the order of its parameters."""
    seen: dict[Buffer, None] = {}
    for t in (part for told in p.tensors for part in told.whole):
        for ax in t.axes:
            for b in ax.arrays:
                seen.setdefault(b)
        for held_ in (t.perm, *(m.at for m in t.met), t.values):
            if held_ is not None:
                seen.setdefault(held_)
    return tuple(seen)


def sizes_of(p: coord.Program) -> tuple[Var, ...]:
    """Every run-time size, in the order of the parameters."""
    seen: dict[Var, None] = {}
    for t in (part for told in p.tensors for part in told.whole):
        exprs = [*t.shape, *(ax.length for ax in t.axes if ax.length is not None)]
        for b in [t.values]:
            if b is not None:
                exprs += [*b.shape, *(b.strides or ())]
        for e in exprs:
            for n in walk(e):
                if isinstance(n, Var):
                    seen.setdefault(n)
    return tuple(seen)
