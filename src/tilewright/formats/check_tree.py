"""Checking the arrays of a tree, once, at construction.

Owns: what a well-formed `Tree` is. In: the tree. Out: nothing, or the first error; and whether the
coordinates of a sparse root do not decrease. As in `check`, there is one wait for the device.

    check_tree(Tree("ell.2", ...), where="from_arrays(ell.2)")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tilewright.formats.check import Probe, check_kinds
from tilewright.formats.layout import parse
from tilewright.formats.level import Level, radices
from tilewright.support.errors import error

if TYPE_CHECKING:
    from tilewright.formats.tree import Tree


def check_tree(tree: Tree, where: str) -> bool:
    """Raise the first error of a tree; True if its root's coordinates do not decrease."""
    _check_shape(tree, where)
    _check_arrays(tree, where)
    probe, ordered = Probe([], []), list[int]()
    parents: int | None = 1
    for depth, level in enumerate(tree.levels):
        parents = _level(probe, tree, depth, level, parents, where)
    root = tree.arrays.get("indices0")
    if root is not None:
        probe.ask((root[1:] >= root[:-1]).all(), ordered.append)
    probe.answer()
    return bool(ordered and ordered[0] and _alone(tree))


def _alone(tree: Tree) -> bool:
    return all(level.dim != 0 for level in tree.levels[1:])


def _check_shape(tree: Tree, where: str) -> None:
    dims = 1 + max(level.dim for level in tree.levels)
    if len(tree.shape) != dims or min(tree.shape) < 0:
        expected = f"{dims} sizes >= 0 for {tree.format}"
        raise error("argument", where=where, name="shape", got=tree.shape, expected=expected)


def _check_arrays(tree: Tree, where: str) -> None:
    wanted = [n for depth, level in enumerate(tree.levels) for n in level.stored(depth)]
    for name in (*wanted, *tree.arrays):
        held = tree.arrays.get(name)
        if name not in wanted or not isinstance(held, Tensor):
            got = type(held).__name__
            expected = f"the arrays {', '.join(wanted)} for {tree.format}"
            raise error("argument", where=where, name=name, got=got, expected=expected)
    indices = [(n, a) for n, a in tree.arrays.items() if not n.startswith("mask")]
    if indices:
        check_kinds(indices, where)
    for name, mask in tree.arrays.items():
        if name.startswith("mask") and mask.dtype != torch.uint8:
            raise error("dtype", where=where, name=name, got=mask.dtype, expected="torch.uint8")


def _level(
    probe: Probe, tree: Tree, depth: int, level: Level, parents: int | None, where: str
) -> int | None:
    """Check one level; its number of positions, None if only the device knows."""
    length = tree.lengths[depth]
    indptr = tree.arrays.get(f"indptr{depth}")
    indices = tree.arrays.get(f"indices{depth}")
    mask = tree.arrays.get(f"mask{depth}")
    if indptr is not None:
        if parents is not None:
            _expect_length(indptr, parents + 1, where, f"indptr{depth}")
        _ask_pointer(probe, tree, depth, indptr, where)
        count = None if indices is None else indices.shape[0]
    elif length is not None:
        count = None if parents is None else parents * length
    else:
        count = None if indices is None else indices.shape[0]
    if count is not None and mask is not None:
        _expect_length(mask, count, where, f"mask{depth}")
    if indices is not None:
        size = length if level.shared else count
        if size is not None:
            _expect_length(indices, size, where, f"indices{depth}")
        _ask_range(probe, tree, depth, level, indices, where)
    return count


def _expect_length(array: Tensor, length: int, where: str, name: str) -> None:
    if tuple(array.shape) != (length,):
        raise error(
            "shape", where=where, name=name, got=tuple(array.shape), expected=f"({length},)"
        )


def _ask_range(
    probe: Probe, tree: Tree, depth: int, level: Level, indices: Tensor, where: str
) -> None:
    if level.relative is not None or not indices.shape[0]:
        return
    weight = radices(tree.levels)[depth]
    bound = level.radix or (tree.shape[level.dim] + weight - 1) // weight
    least = -1 if level.padded else 0

    def judge(value: int) -> None:
        if not least <= value < bound:
            name = f"indices{depth}"
            raise error("index-range", where=where, name=name, got=value, expected=bound - 1)

    low, high = torch.aminmax(indices)
    probe.ask(low, judge)
    probe.ask(high, judge)


def _ask_pointer(probe: Probe, tree: Tree, depth: int, indptr: Tensor, where: str) -> None:
    indices = tree.arrays.get(f"indices{depth}")
    below = tree.arrays.get(f"indptr{depth + 1}")
    end = indices.shape[0] if indices is not None else None
    end = below.shape[0] - 1 if end is None and below is not None else end
    dim = tree.levels[depth].dim
    width = tree.shape[dim] if indices is None else None
    probe.pointer(indptr, end, width, where, f"indptr{depth}")
    multiple = _multiple(tree, depth)
    if multiple > 1:

        def judge(value: int) -> None:
            if value:
                got, expected = "a row's length is not one", f"row lengths, multiples of {multiple}"
                raise error(
                    "index-pointer", where=where, name=f"indptr{depth}", got=got, expected=expected
                )

        probe.ask((indptr.diff() % multiple != 0).any(), judge)


def _multiple(tree: Tree, depth: int) -> int:
    """What the rows of a padded level count in."""
    family, parameters = parse(tree.format)
    return parameters[-1] if family in ("padded", "srbcrs") and depth == 1 else 1
