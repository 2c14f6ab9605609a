"""Stage I: coordinate space. Tensors are indexed by coordinates; where entries are stored is in their axes.

    program  := Program(name, tensors, scalars, body)
    stmt     := Assign(targets, values, adds)        targets[n][coords] = values[n], or += values[n]
              | Append(list, count, where, value, over)   the values that satisfy a predicate, compacted
    expr     := shared expressions | Reduce(monoid, over, args, part) | Stored(access) | Place(access) | Nth(indices)
              | Index
    Index    a name of the notation: i, j, f; or a part of a range: i within 8 of I
    Axis     {dense, sparse} x {fixed, variable}, with a parent: where coordinates are stored
    Tensor   a name, its logical shape, and its axes (none: plain dense), or parts that have axes each

A dimension's coordinate is a sum of axis coordinates times constants (`coords`): for CSR
((i, 1),), ((j, 1),); for blocks of B: ((I, B), (ii, 1)), ((J, B), (jj, 1)).

Meaning: a reduction over an index that addresses a sparse tensor runs over that tensor's stored entries;
over any other index, over its whole range. Nothing stored: the monoid's identity, finalised. Where several
structures meet, `ir.drive` says which one is followed; the others are looked up, and absent means 0.
Every entry of a tensor in parts belongs to one part: where it drives, its parts are followed one after the
other, folding into one state; a lookup is the sum of the lookups in the parts.

Its text (all forms: ir/text/program.py):

    y[i, f] = sum(j, a[i, j] * x[j, f])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ir.expr import Buffer, Expr, Load, Var, dtype_of
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import Node, named, node, walk


@named
class Index(Expr):
    """An index of the notation; its size comes from the tensors it addresses.

    within (I, 8): where I has a value, it runs over 8 * I, 8 * I + 1, ... 8 * I + 7 only, inside its own range.
    """

    name: str
    dtype: str = "i64"
    within: tuple[Index, int] | None = None


@named
class Axis(Node):
    """One storage axis. Variable axes have `indptr` over the parent; sparse ones have `indices`.

    padded: indices may be -1, no entry. shared: indices do not depend on the parent. mask: which positions of a
    dense axis exist. repeats: a coordinate may come several times, so that it cannot be searched. ordered:
    coordinates are known to increase under each parent, so that it can be followed and searched at once.
    """

    name: str
    kind: str
    extent: str
    length: Expr | None = None
    parent: Axis | None = None
    indptr: Buffer | None = None
    indices: Buffer | None = None
    padded: bool = False
    shared: bool = False
    mask: Buffer | None = None
    repeats: bool = False
    ordered: bool = False

    @property
    def arrays(self) -> tuple[Buffer, ...]:
        """The index arrays it stores."""
        return tuple(b for b in (self.indptr, self.indices, self.mask) if b is not None)


@node
class Met(Node):
    """The entry of a tensor at each entry of another: at[entry of the other], -1 where there is none.

    axis: the other's last stored axis. turned: the two indices of the other are these, swapped.
    """

    at: Buffer
    axis: Axis
    turned: bool = False


@named
class Tensor(Node):
    """A tensor of the program. `axes` empty: plain dense, read through `values` by its strides.

    Sparse: `axes` is the path from the root to the value; `values` None means all ones;
    `perm` maps a storage position to the position in the values' own (source) order; with `holes` it is -1
    where there is no entry. `parts`: other tensors over the same shape and values; then there are no own axes.
    `met` tells its entries at those of other tensors: nothing need be searched there.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    role: str = "in"
    axes: tuple[Axis, ...] = ()
    coords: tuple[tuple[tuple[Axis, int], ...], ...] = ()
    values: Buffer | None = None
    perm: Buffer | None = None
    holes: bool = False
    parts: tuple[Tensor, ...] = ()
    met: tuple[Met, ...] = ()

    @property
    def sparse(self) -> bool:
        return bool(self.axes or self.parts)

    @property
    def whole(self) -> tuple[Tensor, ...]:
        """Its parts, or itself: what has axes."""
        return self.parts or (self,)


@node
class Reduce(Expr):
    """monoid over indices of args; `part` picks one of the finalised results"""

    monoid: Monoid
    over: tuple[Index, ...]
    args: tuple[Expr, ...]
    part: int = 0

    @property
    def dtype(self) -> str:
        return dtype_of(self.monoid.finalise.body[self.part])


@node
class Stored(Expr):
    """1 where the access is stored: it drives an iteration, whatever the values are

    within: as far as the access drives this reduction; binding, which knows the formats, decides.
    """

    access: Load
    dtype: str = "f32"
    within: Reduce | None = None


@node
class Place(Expr):
    """Which of its matrix's entries in order an access reads; where there is none, -1 - (the first that comes after it)

    It drives nothing. Of matrices with rows first, whose columns are in order.
    """

    access: Load
    dtype: str = "i64"


@node
class Nth(Expr):
    """The number of a combination of indices, the last one fastest: nth(i, j) is i * n_j + j"""

    indices: tuple[Index, ...]
    dtype: str = "i64"


class Stmt(Node):
    """A statement of stage I."""

    __slots__ = ()


@node
class Listed(Node):
    """A compacted axis: index runs over what a list names, `tile` values for each of its entries at list[..., place].

    below: how many entries count; without it all do. What is not named is skipped. Indices of the list before its place
    are groups: each has a list of its own. k = listed(ks[I, p], place=p, below=count[I]), for i within 32 of I.
    The place may be an index as well: packed[p, i] = x[i, k] lists values as the list lists k's. What lies behind the
    entries of such an output is not defined.
    """

    index: Index
    at: Load
    place: Index
    below: Load | None = None
    tile: int = 1


@node
class Assign(Stmt):
    """targets[n] = values[n]; several targets share their reductions. adds: values are added to what is there.
    listed: axes that are compacted"""

    targets: tuple[Load, ...]
    values: tuple[Expr, ...]
    where: str = ""
    adds: bool = False
    listed: tuple[Listed, ...] = ()


@node
class Append(Stmt):
    """count[group] = 0; for over, in order: if where: list[group..., count[group]++] = value

    start: all groups share one list; count[group] begins at start, and ends where the group's entries end.
    Not ordered: entries may come in any order. What lies behind the entries of a list is not defined.
    """

    list: Any
    count: Any
    group: tuple[Index, ...]
    over: tuple[Index, ...]
    where: Expr
    value: Expr
    source: str = ""
    start: Expr | None = None
    ordered: bool = True


@node
class Program(Node):
    """A stage I program."""

    name: str
    tensors: tuple[Tensor, ...]
    scalars: tuple[Var, ...]
    body: tuple[Stmt, ...]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "out")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "in")


def spatial(s: Assign) -> tuple[Index, ...]:
    """The indices of the targets, in the order they appear, and those of groups that have lists of their own; last, the
    index that a list names, where a target has its place."""
    groups = tuple(g for n in s.listed for g in groups_of(n))
    places = {n.place: n.index for n in s.listed}
    seen: dict[Index, None] = {}
    last: list[Index] = []
    for n in walk(tuple(t.indices for t in s.targets)):
        if n in places:
            last.append(places[n])
        elif isinstance(n, Index):
            if n.within is not None and n.within[0] in groups:
                seen.setdefault(n.within[0])
            seen.setdefault(n)
    return tuple(dict.fromkeys([*(g for g in groups if g not in seen), *seen, *last]))


def groups_of(n: Listed) -> tuple[Index, ...]:
    """The indices that say which list it is."""
    found = walk((n.at.indices, n.below.indices if n.below is not None else ()))
    return tuple(dict.fromkeys(g for g in found if isinstance(g, Index) and g is not n.place))


def part_sizes(body: tuple[Stmt, ...], sizes: Mapping[Index, Expr]) -> dict[Index, Expr]:
    """The sizes of indices, with those that count parts of others: n_I = (n_i + 7) // 8 for i within 8 of I."""
    made: dict[Index, Expr] = dict(sizes)
    found = [n for n in walk(body) if isinstance(n, Index) and n.within is not None]
    while todo := [n for n in found if n in made and n.within and n.within[0] not in made]:
        for n in todo:
            assert n.within is not None
            outer, count = n.within
            made[outer] = (made[n] + (count - 1)) // count
    return made
