"""Tensors taken apart: rules applied in order, each to what is left.

Owns: `decompose`. In: a structure, its values, rules, and the format of the rest. Out: `Parts`, and the values in
the source's order. Every entry is in one part: that of the first rule that takes it, and has a place for it.

    decompose(csr, values, (*blocks(4, 0.5), *hyb(1, 3)), "csr")

A format that has one place for a coordinate (blocks, strips, diagonals) takes one entry for it; duplicates are
left to later rules. A conversion waits for the device for each part, as `to_format` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilewright.formats import fibers, index, lists, slots, walk
from tilewright.formats.entries import Entries, entries_of
from tilewright.formats.layout import name_of, parse
from tilewright.formats.parts import Part, Parts
from tilewright.formats.rules import WHERE, Left, Rule
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.support.errors import error


def decompose(
    s: Structure, values: Tensor | None, rules: Iterable[Rule], rest: str
) -> tuple[Parts, Tensor | None]:
    """The structure in parts, and the values that all of them share."""
    entries, values = entries_of(s, values)
    left = Entries(entries.shape, entries.coords, entries.order())
    made: list[Part] = []
    for rule in rules:
        left = _take(left, rule, made)
    if parse(rest)[0] in SLOTS:
        expected = f"a list of entries: {', '.join(LISTS)}"
        raise error("argument", where=WHERE, name="rest", got=repr(rest), expected=expected)
    if left.count or not made:
        made.append(_part(left, rest)[0])
    return Parts(s.shape, tuple(made)), values


def _take(left: Entries, rule: Any, made: list[Part]) -> Entries:
    """Add the part of a rule; what is left after it."""
    if not isinstance(rule, Rule):
        got, expected = type(rule).__name__, "rules, such as tw.rules.hyb(1, 4)"
        raise error("argument", where=WHERE, name="a rule", got=got, expected=expected)
    taken = rule.takes(Left(left))
    if not isinstance(taken, Tensor) or taken.dtype != torch.bool or taken.shape != (left.count,):
        got = f"{taken.dtype} of {tuple(taken.shape)}" if isinstance(taken, Tensor) else taken
        expected = f"a boolean for each of the {left.count} entries that are left"
        raise error("argument", where=WHERE, name="a rule's result", got=got, expected=expected)
    at = taken.nonzero().squeeze(1)
    if not at.shape[0]:
        return left
    part, kept = _part(left.select(at), rule.format)
    if part.count:
        made.append(replace(part, columns=rule.columns))
    if kept is not None:
        taken = taken.index_put((at,), kept)
    return left.select((~taken).nonzero().squeeze(1))


def _part(entries: Entries, format: str) -> tuple[Part, Tensor | None]:
    """A part of all entries, or of those that `kept` tells: a place has room for one."""
    family, given = parse(format)
    if family not in SLOTS:
        made = _listed(entries, format, family, given)
        order = made.perm
        assert order is not None
        if isinstance(made, Tree):
            alive = walk.places(made)[1]
            order = order if alive is None else torch.where(alive, order, -1)
        return Part(made, order, entries.count), None
    if len(entries.shape) != 2:
        expected = f"two dimensions for {format}"
        raise error("shape", where=WHERE, name="tensor", got=entries.shape, expected=expected)
    tree = SLOTS[family](Entries(entries.shape, entries.coords), *given)
    assert tree.slots is not None
    here = torch.arange(entries.count, device=entries.device)
    places = torch.full((tree.positions,), entries.count, device=entries.device)
    places.scatter_reduce_(0, tree.slots, here, "amin")
    kept = places.index_select(0, tree.slots) == here
    sources = torch.cat((entries.order(), entries.order().new_full((1,), -1)))
    bare = Tree(tree.format, tree.shape, tree.arrays, count=0, wide=tree.wide, check=False)
    return Part(bare, sources.index_select(0, places), int(kept.sum())), kept


def _listed(entries: Entries, format: str, family: str, given: tuple[int, ...]) -> Structure:
    """A list of entries, with `perm` to the source; of three and more dimensions, a bucket or csf."""
    if len(entries.shape) != 2:
        name = name_of("bucket", *given) if family in ("dell", "dpadded") else format
        return fibers.build(entries, "csf" if format == "csr" else name)
    if family not in LISTS:
        expected = f"one of {', '.join((*LISTS, *SLOTS))}"
        raise error("argument", where=WHERE, name="format", got=repr(format), expected=expected)
    rows, order = index.grouped(entries.coords[0])
    entries = entries.select(order)
    starts = index.ends(rows, entries.shape[0])
    perm = entries.perm
    csr = Structure("csr", entries.shape, starts, entries.coords[1], perm=perm, check=False)
    return LISTS[family](csr, *given)


LISTS: dict[str, Callable[..., Structure]] = {
    "csr": lambda csr: csr,
    "dcsr": lambda csr: lists.dcsr(csr, "dcsr"),
    "ell": lists.ell,
    "dell": lists.dell,
    "padded": lists.padded,
    "dpadded": lists.dpadded,
}
SLOTS: dict[str, Callable[..., Tree]] = {
    "dbsr": slots.dbsr,
    "srbcrs": slots.srbcrs,
    "dia": slots.dia,
    "two_four": slots.two_four,
    "bitmap": slots.bitmap,
}
