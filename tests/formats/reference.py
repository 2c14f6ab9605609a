"""The plain loop that defines every tree: one level after the other, one child after the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tilewright.formats import SparseTensor, Tree


def children(tree: Tree, depth: int, parent: int, at: list[int]) -> Iterator[tuple[int, int]]:
    """(position, coordinate) of the children of a position that exist."""
    level = tree.levels[depth]
    arrays = {name.rstrip("0123456789"): tree.arrays[name].tolist() for name in level.stored(depth)}
    if level.extent == "fixed":
        length = level.length
        if length is None:
            inner = 1
            for below in tree.levels[depth + 1 :]:
                if below.dim == level.dim:
                    inner *= below.radix or below.length
            length = -(-tree.shape[level.dim] // inner)
        span = range(parent * length, (parent + 1) * length)
    elif "indptr" in arrays:
        span = range(arrays["indptr"][parent], arrays["indptr"][parent + 1])
    else:
        span = range(len(arrays["indices"]))
    for place, position in enumerate(span):
        if level.kind == "sparse":
            crd = arrays["indices"][place if level.shared else position]
            if level.padded and crd == -1:
                continue
            if level.relative is not None:
                crd += at[level.relative]
        else:
            crd = place
            if level.kind == "bitmap" and not arrays["mask"][position]:
                continue
        yield position, crd


def entries(tree: Tree) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, coordinates) of every entry in storage order."""

    def descend(depth: int, parent: int, at: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        if depth == len(tree.levels):
            if all(0 <= crd < size for crd, size in zip(at, tree.shape, strict=True)):
                yield parent, tuple(at)
            return
        level = tree.levels[depth]
        radix = level.radix or level.length or 1
        for position, crd in children(tree, depth, parent, at):
            below = list(at)
            seen = any(above.dim == level.dim for above in tree.levels[:depth])
            below[level.dim] = below[level.dim] * radix + crd if seen else crd
            yield from descend(depth + 1, position, below)

    return descend(0, 0, [0] * len(tree.shape))


def dense(a: SparseTensor) -> Tensor:
    """Values in storage order, added up where the loop says."""
    tree = a.structure
    assert isinstance(tree, Tree)
    stored = a.stored_values()
    trailing = stored.shape[len(tree.values_shape) :]
    flat = stored.reshape(-1, *trailing)
    made = torch.zeros(*tree.shape, *trailing, dtype=flat.dtype)
    for position, at in entries(tree):
        made[at] += flat[position]
    return made
