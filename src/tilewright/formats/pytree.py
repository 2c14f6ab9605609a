"""Pytree registration, so that torch.export, torch.func and tree_map see the tensors inside.

Owns: all use of torch's private pytree names. In: the classes. Out: nothing; importing this module
registers. Leaves are tensors (or None), ints and strings are context; rebuilding checks nothing.
`plans` are not carried: they belong to one object. Sizes are context, so a program exported by
torch.export is for one shape of the matrix; under torch.compile sizes are symbols.

    leaves, spec = tree_flatten(A)       # key paths: .structure.indptr, ..., .values
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree

from tilewright.formats.level import Level
from tilewright.formats.parts import Part, Parts
from tilewright.formats.ragged import Ragged
from tilewright.formats.structure import ARRAYS, DERIVED, Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.tree import Tree

Context = list[Any]
CHILDREN: dict[type, tuple[str, ...]] = {
    Structure: (*ARRAYS, *DERIVED),
    Tree: ("arrays", "perm", "slots", "row_of", *DERIVED),
    Parts: ("held", *DERIVED),
    SparseTensor: ("structure", "values"),
    Ragged: ("structure", "lengths"),
}


def _context(held: Any) -> Context:
    if isinstance(held, Parts):
        return [list(held.shape), [part.count for part in held.parts]]
    if isinstance(held, Tree):
        counted = [held.count, held.sources, held.ordered, held.wide]
        return [held.format, list(held.shape), *counted]
    if isinstance(held, Structure):
        return [held.format, list(held.shape), list(held.block), held.ordered]
    return []


def _rebuild_structure(children: Iterable[Any], context: Context) -> Structure:
    format, shape, block, ordered = context
    made = Structure(format, tuple(shape), block=tuple(block), ordered=ordered, check=False)
    for name, child in zip(CHILDREN[Structure], children, strict=True):
        setattr(made, name, child)
    return made


def _rebuild_tree(children: Iterable[Any], context: Context) -> Tree:
    format, shape, count, sources, ordered, wide = context
    arrays, *rest = children
    made = Tree(
        format,
        tuple(shape),
        arrays,
        count=count,
        sources=sources,
        ordered=ordered,
        wide=wide,
        check=False,
    )
    for name, child in zip(CHILDREN[Tree][1:], rest, strict=True):
        setattr(made, name, child)
    return made


def _rebuild_parts(children: Iterable[Any], context: Context) -> Parts:
    shape, counts = context
    held, *rest = children
    parts = [Part(s, order, n) for (s, order), n in zip(held, counts, strict=True)]
    made = Parts(tuple(shape), tuple(parts))
    for name, child in zip(CHILDREN[Parts][1:], rest, strict=True):
        setattr(made, name, child)
    return made


def _register(cls: type, rebuild: Any) -> None:
    names = CHILDREN[cls]

    def flatten(held: Any) -> tuple[list[Any], Context]:
        return [getattr(held, name) for name in names], _context(held)

    def flatten_with_keys(held: Any) -> tuple[list[tuple[Any, Any]], Context]:
        return [(_pytree.GetAttrKey(name), getattr(held, name)) for name in names], _context(held)

    _pytree.register_pytree_node(
        cls,
        flatten,
        rebuild,
        serialized_type_name=f"tilewright.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
    )


_register(Structure, _rebuild_structure)
_register(Tree, _rebuild_tree)
_register(Parts, _rebuild_parts)
_register(SparseTensor, lambda children, context: SparseTensor(*children))
_register(Ragged, lambda children, context: Ragged(*children))
# torch.export.load and torch.load(weights_only=True) read only classes they were told of.
torch.serialization.add_safe_globals([*CHILDREN, Level, Part])
