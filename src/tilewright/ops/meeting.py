"""Pairs of structures that meet again: the entry of one at each entry of the other, found once and kept.

In: the pairs of a program (`Step.pairs`) and the structures of its arguments. Out: the program's text and tensors with
one array more for each pair that has come a second time.

    positions(a, b, turned=False)      # None, then [entries of a]: where b has the same place, or -1
    terms(a, b)                        # the places of a @ b and their terms; what comes again is not found again

What was found belongs to the pair: it is kept with the driving structure, found by the other object (weakly: not by its
address), and is gone as soon as one of the two is. Positions are found without waiting for the device, terms are not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.bind import met_name
from tilewright.formats.convert import source_coordinates
from tilewright.formats.meet import Terms, product
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside
from tilewright.ops.args import names_of, program_text, read_program

T = TypeVar("T")
Pair = tuple[str, str, bool]  # searched, driving, by swapped indices


def of_pair(a: Structure, b: Structure, what: Hashable, make: Callable[[], T]) -> T | None:
    """What belongs to a pair, kept from its second use on; None at the first."""
    kept = a.plans.setdefault("met", WeakKeyDictionary()).setdefault(b, {})
    if what not in kept:
        kept[what] = None
    elif kept[what] is None:
        kept[what] = make()
    made: T | None = kept[what]
    return made


def positions(a: Structure, b: Structure, turned: bool) -> Tensor | None:
    """The entry of b (rows in order, each place once) at every entry of a, or -1; None at a pair's first use."""
    return of_pair(a, b, turned, lambda: _found(a, b, turned))


def terms(a: Structure, b: Structure) -> Terms:
    """What is added up where in a @ b."""
    if torch.compiler.is_compiling():
        return product(a, b)
    return of_pair(a, b, "terms", lambda: product(a, b)) or product(a, b)


@outside
def _found(a: Structure, b: Structure, turned: bool) -> Tensor:
    assert b.indptr is not None and b.indices is not None
    rows, cols = source_coordinates(a)[:: -1 if turned else 1]
    if b.nnz == 0:
        return torch.full_like(rows, -1, dtype=b.index_dtype)
    held = index.expand(b.indptr, b.nnz).long() * b.shape[1] + b.indices
    keys = rows.long() * b.shape[1] + cols
    at = torch.searchsorted(held, keys).clamp_(max=b.nnz - 1)
    entry = at if b.perm is None else b.perm.long().index_select(0, at)
    return torch.where(held.index_select(0, at) == keys, entry, -1).to(b.index_dtype)


def with_positions(
    text: str, tensors: list[Tensor], held: dict[str, Structure], pairs: Iterable[Pair]
) -> tuple[str, list[Tensor]]:
    """The same call, with the arrays of the pairs that have come before."""
    have: dict[str, Tensor] = {}
    for b, a, turned in pairs:
        found = positions(held[a], held[b], turned)
        if found is not None:
            have[f"{b}.{met_name(a, turned)}"] = found
    if not have:
        return text, tensors
    made, names = _with_arrays(text, tuple(have))
    have |= zip(names_of(text), tensors, strict=True)
    return made, [have[n] for n in names]


@cache
def _with_arrays(text: str, more: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    template, args = read_program(text)
    made = program_text(
        template,
        tuple(
            replace(
                a, arrays=(*a.arrays, *(n[len(a.name) + 1 :] for n in more if owner(n) == a.name))
            )
            for a in args
        ),
    )
    return made, names_of(made)


def owner(name: str) -> str:
    """The argument that an array belongs to."""
    return name.partition(".")[0]
