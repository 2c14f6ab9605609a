"""Primitives of stage I: fuse and reorder.

In: a stage I program, the names of tensors and indices. Out: a program that means the same, stored or walked
otherwise; lowering then makes other loops of it.

    fuse(p, "a")            b[i, j] = a[i, j] * sum(k, x[i, k] * z[j, k])    one loop over the entries of a
    reorder(p, "j", "k")    sum((j, k), ...)  ->  sum((k, j), ...)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.ir import coord
from tilewright.ir.coord import Axis, Index, Tensor, spatial
from tilewright.ir.drive import held
from tilewright.ir.expr import Buffer, Const, Load
from tilewright.ir.node import substitute, transform, walk
from tilewright.schedule.edit import illegal


def fuse(p: coord.Program, tensor: str) -> coord.Program:
    """i = dense(n), j = sparse(under=i, indptr, indices) -> i = sparse(nnz, indices=a_rows), j = sparse(1, under=i)

    Both coordinates of an entry are read at its position: `a_rows`, the row of each entry, is a new index array.
    Legal where every statement computes its entries one by one: both indices are of the target.
    """
    what = f"fuse({tensor})"
    t = next((x for x in p.tensors if x.name == tensor), None)
    if t is None or not t.sparse:
        raise illegal(what, "there is no such sparse tensor", "name a sparse tensor of the program")
    if len(t.axes) < 2 or not _is_rows(*t.axes[:2]) or t.values is None:
        raise illegal(what, "it is not stored by rows of entries", "convert it to csr")
    i, j = t.axes[:2]
    _entrywise(p, what, i)
    nnz = t.values.shape[0]
    rows = Buffer(f"{tensor}_rows", j.indices.dtype, (nnz,), "index")  # type: ignore[union-attr]
    row = Axis(i.name, "sparse", "fixed", nnz, None, None, rows, repeats=True)
    column = Axis(
        j.name, "sparse", "fixed", Const(1, "i64"), row, None, j.indices, repeats=j.repeats
    )
    axes = {i: row, j: column}
    tensors: dict[Any, Any] = {x: _moved(x, axes) for x in p.tensors if i in x.axes}
    made = tuple(tensors.get(x, x) for x in p.tensors)
    return replace(p, tensors=made, body=substitute(p.body, tensors))


def _is_rows(i: Axis, j: Axis) -> bool:
    dense = (i.kind, i.extent, i.parent, i.mask) == ("dense", "fixed", None, None)
    return dense and (j.kind, j.extent, j.parent) == ("sparse", "variable", i)


def _entrywise(p: coord.Program, what: str, i: Axis) -> None:
    for s in p.body:
        over = set(spatial(s)) if isinstance(s, coord.Assign) else set()
        for a in walk(s):
            if isinstance(a, Load) and isinstance(a.buffer, Tensor) and i in a.buffer.axes:
                if not set(held(a)) <= over:
                    why = f"{a} is not computed entry by entry: its rows are reduced or searched"
                    raise illegal(what, why, "leave it stored by rows", ir=s)


def _moved(t: Tensor, axes: dict[Axis, Axis]) -> Tensor:
    """The tensor on other axes; inner axes stay."""
    coords = tuple(tuple((axes.get(ax, ax), k) for ax, k in dim) for dim in t.coords)
    return replace(t, axes=tuple(axes.get(ax, ax) for ax in t.axes), coords=coords)


def reorder(p: coord.Program, first: str, second: str) -> coord.Program:
    """sum((j, k), ...) -> sum((k, j), ...)"""
    what = f"reorder({first}, {second})"

    def rule(n: Any) -> Any:
        names = [ix.name for ix in n.over] if isinstance(n, coord.Reduce) else []
        if first not in names or second not in names:
            return None
        if not n.monoid.laned:
            raise illegal(what, f"{n.monoid.name} is folded in order: it has no lane form")
        a, b = names.index(first), names.index(second)
        over: list[Index] = list(n.over)
        over[a], over[b] = over[b], over[a]
        return replace(n, over=tuple(over))

    made = transform(p.body, rule)
    if made == p.body:
        raise illegal(what, "no reduction runs over both", "name two indices of one reduction")
    return replace(p, body=made)
