"""Which tensor drives an iteration, how large an index is, and whether an output is written whole.

In: stage I. Out: facts that lowering, the interpreter and the runtime share.

    driver(y[i, f] = sum(j, a[i, j] * x[j, f]))  ->  a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilewright.ir import coord, flat, loops, stmt, tile
from tilewright.ir.coord import Index, Nth, Reduce, Tensor, spatial
from tilewright.ir.drive import followed, held, lead, root, stored, united
from tilewright.ir.expr import FLOATS, Bin, Const, Expr, Load, Var, dtype_of
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import Node, is_named, parts, walk
from tilewright.support.errors import error


def accesses(s: coord.Stmt) -> Iterator[Load]:
    """Every load and target of a statement."""
    for n in walk(s):
        if isinstance(n, Load):
            yield n


def drivers(s: coord.Stmt) -> list[Load]:
    """The sparse accesses of a statement, targets first; the first one drives the iteration."""
    return [a for a in accesses(s) if isinstance(a.buffer, Tensor) and a.buffer.sparse]


def spatial_lead(s: coord.Assign) -> Load | None:
    """The access that the loops of the targets follow: a sparse target, else one outside every reduction."""
    todo = spatial(s)
    first = lead(s.targets, todo)
    return lead(s.values, todo) if first is None else first


def leading(p: coord.Program) -> set[str]:
    """The names of sparse tensors that some loop follows; the others are looked up."""
    found: list[Load | None] = []
    for s in p.body:
        if isinstance(s, coord.Assign):
            found.append(spatial_lead(s))
            inner = [n for n in walk(s) if isinstance(n, coord.Reduce)]
            found += [lead(n.args, n.over) for n in inner]
            found += [a for n in inner for a in followed(n)]
    roots = {root(a.buffer) for a in found if a is not None}
    return {t.name for t in p.tensors if t.sparse and root(t) in roots}


def unions(p: coord.Program) -> set[str]:
    """The names of sparse tensors whose union a sum would follow, were they in order."""
    inner = [n for s in p.body for n in walk(s) if isinstance(n, coord.Reduce)]
    roots = {root(a.buffer) for n in inner if lead(n.args, n.over) is None for a in united(n)}
    return {t.name for t in p.tensors if t.sparse and root(t) in roots}


def overwritten(p: coord.Program) -> set[str]:
    """The names of sparse tensors at whose entries a dense output is written: of several for one place the last one
    would stay."""
    roots: set[Any] = set()
    for s in p.body:
        if isinstance(s, coord.Assign) and not s.adds:
            first = spatial_lead(s)
            if first is not None and any(_at_entries(t, first) for t in s.targets):
                roots.add(root(first.buffer))
    return {t.name for t in p.tensors if t.role == "in" and t.sparse and root(t) in roots}


def _at_entries(target: Load, first: Load) -> bool:
    return not target.buffer.sparse and {*held(first)} <= {*target.indices}


def index_sizes(p: coord.Program) -> dict[Index, Expr]:
    """The size of every index that addresses a tensor directly."""
    sizes: dict[Index, Expr] = {}
    for s in p.body:
        for a in accesses(s):
            for ix, n in zip(a.indices, a.buffer.shape, strict=True):
                if isinstance(ix, Index) and (ix not in sizes or isinstance(n, Const)):
                    sizes[ix] = n
    return coord.part_sizes(p.body, sizes)


def size_of(ix: Index, sizes: dict[Index, Expr]) -> Expr:
    if ix not in sizes:
        raise error("unknown-axis", name=ix.name)
    return sizes[ix]


def compares(p: coord.Program | loops.Program | flat.Program | tile.Program) -> bool:
    """Whether values are found again by comparing them (the reverse of max and min): no product may then be
    fused with a sum in one kernel and not in another."""
    return any(_compares(s) for s in p.body)


def _compares(n: Node) -> bool:
    if isinstance(n, coord.Reduce | stmt.Fold) and n.monoid.dtypes[0] in FLOATS:
        if n.monoid.name in ("max", "min") or n.monoid.reverse:
            return True
    if isinstance(n, Bin) and n.op == "==" and dtype_of(n.a) in FLOATS:
        return True
    if is_named(n) or isinstance(n, Monoid):  # a monoid's own comparisons find nothing again
        return False
    return any(_compares(c) for c in parts(n) if isinstance(c, Node))


def covers(p: coord.Program, out: Tensor, unique: tuple[str, ...] = ()) -> bool:
    """Whether some statement writes every element of a dense output, so that nothing need be zeroed.

    unique: index lists that name nothing twice; one that is as long as a dimension names all of it."""
    lists = [s for s in p.body if isinstance(s, coord.Append)]
    if any(s.list is out or (s.count is out and s.ordered) for s in lists):
        return True
    sizes = index_sizes(p)

    def through(ix: Expr, size: Expr) -> Expr:
        """t[i] -> i, where t names all of a dimension, each place once"""
        match ix:
            case Load(t, (Index() as i,)) if t.name in unique and sizes.get(i) == size:
                return i
        return ix

    return any(_covers(s, out, through) for s in p.body if isinstance(s, coord.Assign))


def beyond(out: Tensor) -> list[tuple[Expr, int]]:
    """The sizes of a sparse output that its blocks may pass, with the blocks' sides: no statement writes what lies
    there."""
    dims = zip(out.shape, out.coords, strict=False)
    return [(size, axes[0][1]) for size, axes in dims if len(axes) > 1]


def _covers(s: coord.Assign, out: Tensor, through: Callable[[Expr, Expr], Expr]) -> bool:
    places = {n.place for n in s.listed}
    if any(t.buffer is out and places & {*t.indices} for t in s.targets):
        return True  # a list: what lies behind its entries is not defined
    if s.adds or any(n.index in spatial(s) for n in s.listed):
        return False
    first = spatial_lead(s)
    sparse = set() if first is None else set(_sparse_indices(first))
    for t in s.targets:
        if t.buffer is out:
            own = [*map(through, t.indices, out.shape)]
            if not all(isinstance(ix, Index) for ix in own) or len({*own}) < len(own):
                return False  # a row, a diagonal: of a structure's entries, too
            if out.sparse and not out.parts:
                return not any(ax.padded or ax.shared or ax.mask is not None for ax in out.axes)
            return bool(out.parts) or sparse.isdisjoint(own)
    return False


def _sparse_indices(a: Load) -> list[Expr]:
    """The indices of a sparse access that run over stored entries only."""
    return [
        ix
        for n, ix in enumerate(a.indices)
        if any(stored(ax) for t in a.buffer.whole for ax, _ in t.coords[n])
    ]


def strays(e: Any) -> bool:
    """Whether something is read through an index array, or at a place that was computed."""
    own = Index | Nth | Var | Const
    loads = (n for n in walk(e) if isinstance(n, Load))
    return any(not isinstance(ix, own) for n in loads for ix in n.indices)


def ahead(e: Any) -> bool:
    """Whether statements before a value read what may lie outside: sums and searches at places that were computed."""
    return any(strays(n) for n in walk(e) if isinstance(n, Reduce) or _searched(n))


def _searched(n: Any) -> bool:
    """Whether this reads a sparse tensor."""
    return isinstance(n, Load) and isinstance(n.buffer, Tensor) and n.buffer.sparse
