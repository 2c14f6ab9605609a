"""Parameters whose names generated code needs for something else get other names.

In: a traced program. Out: the same program; `called` leads from the new names back to the author's.

    default, int              words of C
    n_i                       the size of an axis i
    a_nnz, a_indptr, x_s0     sizes and arrays of other parameters a and x
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.coord import Index
from tilewright.ir.expr import Var
from tilewright.ir.node import substitute, walk
from tilewright.language.trace import Ref, Traced
from tilewright.support.names import clean

WORDS = "indptr|indices|rows|perm|holes|mask|c|s|nnz|entries|block_rows|ptr"


def told_apart(t: Traced) -> Traced:
    """p(a, a_nnz, default) -> p(a, a_nnz_, default_)"""
    table = new_names(t)
    if not table:
        return t
    named = lambda n: table.get(n, n)
    every = lambda names: tuple(map(named, names))
    refs = {r: Ref(table[r.name], r.dtype) for r in t.refs if r.name in table}
    scalars = {v: Var(table[v.name], v.dtype) for v in t.scalars if v.name in table}
    return replace(
        t,
        params=every(t.params),
        inputs=every(t.inputs),
        outputs=every(t.outputs),
        scalars=tuple(scalars.get(v, v) for v in t.scalars),
        refs=tuple(refs.get(r, r) for r in t.refs),
        body=substitute(t.body, {**refs, **scalars}),
        sized=tuple((named(n), tuple((named(m), d) for m, d in dims)) for n, dims in t.sized),
        unique=every(t.unique),
        typed=tuple((named(n), d) for n, d in t.typed),
        called=tuple((new, n) for n, new in table.items()),
    )


def new_names(t: Traced) -> Mapping[str, str]:
    """The parameters that need another name, with that."""
    sizes = {f"n_{ix.name}" for ix in walk(t.body) if isinstance(ix, Index)}
    others = "|".join(map(re.escape, t.params))
    made = rf"({others})_(\d+|(\d+_)?({WORDS})\d*|(at|turned)_({others}))"
    table: dict[str, str] = {}
    for n in t.params:
        name = clean(n)
        taken = {*t.params, *table.values()} - {n}
        while name in taken or name in sizes or re.fullmatch(made, name):
            name += "_"
        if name != n:
            table[n] = name
    return table
