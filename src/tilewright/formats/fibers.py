"""From coordinates to trees of any number of dimensions.

Owns: the writers of csf.n, bucket.w, grouped.n.d and ragged.n. In: a coordinate per dimension for
each entry in any order, and `perm` to the source's order. Out: a `Tree`. A fiber is the set of
entries that agree in all dimensions but the last; fibers are found by one stable sort, and not even
that if the entries are in order already. Each level waits for the device once.

    build(Entries((2, 3, 4), coords, None), "csf.3")
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.entries import Entries, limit, misfit
from tilewright.formats.layout import name_of, parse
from tilewright.formats.tree import Tree
from tilewright.support.errors import error


def build(entries: Entries, name: str) -> Tree:
    """The tree of a format's name."""
    family, given = parse(name)
    dims = len(entries.shape)
    depth = 3 if family == "bucket" else given[0] if given else dims
    bare = family == "grouped" and len(given) < 2
    if family not in ("csf", "bucket", "grouped", "ragged") or depth != dims or bare:
        known = f"csf.{dims}, csf.{dims}.dense, grouped.{dims}.0, ragged.{dims}"
        known += ", bucket.8" * (dims == 3)
        expected = f"one of {known} for {dims} dimensions"
        raise error("argument", where="to_format", name="name", got=repr(name), expected=expected)
    if family == "bucket":
        return bucket(entries, *given)
    if family == "grouped":
        return by_dimension(entries, given[1])
    if family == "ragged":
        return ragged(entries, name_of("ragged", dims))
    return csf(entries, name if given else name_of("csf", dims))


def csf(entries: Entries, name: str) -> Tree:
    """A level for each dimension; entries keep their order inside a fiber."""
    entries, dims = grouped(entries), len(entries.shape)
    dense_root = name.endswith(".dense")
    arrays: dict[str, Tensor] = {}
    dtype, count = entries.coords[0].dtype, entries.count
    changed: Tensor | None = None
    above: Tensor | None = None  # where the fibers of the level above start
    for depth, crd in enumerate(entries.coords[:-1]):
        here = index.starts(crd)
        changed = here if changed is None else changed | here
        first = changed.nonzero().squeeze(1)
        if depth or not dense_root:
            arrays[f"indices{depth}"] = crd.index_select(0, first)
        if depth == 1 and dense_root:
            rows = entries.coords[0].index_select(0, first)
            arrays["indptr1"] = index.ends(rows, entries.shape[0])
        elif above is not None:
            rank = torch.cumsum(changed, 0).sub_(1)
            arrays[f"indptr{depth}"] = index.closed(
                rank.index_select(0, above), first.shape[0], dtype
            )
        above = first
    last = dims - 1
    arrays[f"indices{last}"] = entries.coords[last]
    if dense_root and dims == 2:
        arrays["indptr1"] = index.ends(entries.coords[0], entries.shape[0])
    else:
        assert above is not None
        arrays[f"indptr{last}"] = index.closed(above, count, dtype)
    return Tree(
        name, entries.shape, arrays, perm=entries.perm, count=count, ordered=True, check=False
    )


def bucket(entries: Entries, width: int | None = None, sources: int | None = None) -> Tree:
    """Fibers in pieces of `width` places; a longer fiber has several pieces."""
    entries = grouped(entries)
    relation, row, column = entries.coords
    first = first_of_fibers(entries)
    starts = index.closed(first, entries.count, torch.int64)
    lengths = starts.diff()
    if width is None:
        width = max(int(lengths.max()), 1) if lengths.shape[0] else 1
    pieces = torch.div(lengths + (width - 1), width, rounding_mode="floor")
    ends = index.sums(pieces)
    total = int(ends[-1])
    name = name_of("bucket", width)
    limit(name, total * width, entries.count, "buckets(tensor), or csf.3", entries.dtype)
    shift = ends[:-1] * width - first
    place = torch.repeat_interleave(shift, lengths, output_size=entries.count)
    place = place.add_(torch.arange(entries.count, device=place.device))
    of_piece = torch.repeat_interleave(first, pieces, output_size=total)
    arrays = {
        "indptr1": index.ends(relation.index_select(0, of_piece), entries.shape[0]),
        "indices1": row.index_select(0, of_piece),
        "indices2": column.new_full((total * width,), -1).scatter_(0, place, column),
    }
    perm = column.new_zeros(total * width).scatter_(0, place, entries.order())
    return Tree(
        name,
        entries.shape,
        arrays,
        perm=perm,
        count=entries.count,
        sources=sources,
        check=False,
    )


def by_dimension(entries: Entries, dim: int) -> Tree:
    """The entries of each index of one dimension, in the order they have: one stable sort."""
    order = _order(entries.coords[dim])
    entries = entries.select(order)
    arrays = {"indptr1": index.ends(entries.coords[dim], entries.shape[dim])}
    others = [crd for d, crd in enumerate(entries.coords) if d != dim]
    arrays |= {f"indices{n}": crd for n, crd in enumerate(others, 1)}
    name = name_of("grouped", len(entries.shape), dim)
    return Tree(name, entries.shape, arrays, perm=entries.perm, count=entries.count, check=False)


def ragged(entries: Entries, name: str) -> Tree:
    """Rows as long as their largest coordinate says; the last level must have no gaps."""
    dtype = entries.coords[0].dtype
    arrays: dict[str, Tensor] = {}
    node, nodes = entries.coords[0].long(), entries.shape[0]
    for depth in range(1, len(entries.shape) - 1):
        crd = entries.coords[depth].long()
        lengths = torch.zeros(nodes, dtype=torch.int64, device=crd.device)
        lengths = lengths.scatter_reduce_(0, node, crd + 1, "amax")
        starts = index.sums(lengths)
        node, nodes = starts.index_select(0, node) + crd, int(starts[-1])
        limit(name, nodes, entries.count, name_of("csf", len(entries.shape)), dtype)
        arrays[f"indptr{depth}"] = starts.to(dtype)
    last, width = len(entries.shape) - 1, entries.shape[-1]
    key = index.joined(node, entries.coords[last], width, nodes * width)
    order = _order(key)
    entries = entries.select(order)
    indptr = index.pointers(node, nodes).to(dtype)
    wanted = torch.arange(entries.count, dtype=dtype, device=indptr.device)
    wanted -= torch.repeat_interleave(indptr[:-1], indptr.diff(), output_size=entries.count)
    if not torch.equal(wanted, entries.coords[last]):
        raise misfit(name, "a row with gaps or duplicates", "rows that hold 0, 1, 2, ... once each")
    arrays[f"indptr{last}"] = indptr
    return Tree(name, entries.shape, arrays, perm=entries.perm, count=entries.count, check=False)


def first_of_fibers(entries: Entries) -> Tensor:
    """The place of the first entry of each fiber of grouped entries."""
    changed = index.starts(entries.coords[0])
    for crd in entries.coords[1:-1]:
        changed |= index.starts(crd)
    return changed.nonzero().squeeze(1)


def grouped(entries: Entries) -> Entries:
    """Entries sorted by all dimensions but the last, stable."""
    sizes, outer = entries.shape[:-1], entries.coords[:-1]
    bound = prod(sizes)
    if bound <= index.INT64:
        key, seen = outer[0], sizes[0]
        for crd, size in zip(outer[1:], sizes[1:], strict=True):
            key, seen = index.joined(key, crd, size, seen * size), seen * size
        return entries.select(_order(key))
    for dim in reversed(range(len(outer))):
        entries = entries.select(_order(entries.coords[dim]))
    return entries


def _order(key: Tensor) -> Tensor | None:
    """The stable order that sorts; None if they are sorted."""
    if bool((key[1:] >= key[:-1]).all()):
        return None
    return index.sort(key)[1]
