"""A traced program and the formats of its arguments -> a stage I program.

In: `Traced` and one `Spec` for each input. Out: `Bound`: the program, and where each run-time size is read.

    bind(traced, {"a": Spec("csr", "f32", 2), "x": Spec("dense", "f32", 2)})

Formats: csr, csc, coo, bsr, bsc, bcoo, ragged, dense, and `like:NAME`: other values on another argument's structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.analysis.division import python_division
from tilewright.analysis.domain import size_of
from tilewright.formats.storage import Spec, inner_lengths, storage, stored_dims
from tilewright.ir import coord
from tilewright.ir.coord import Axis, Index, Met, Reduce, Stored, Tensor
from tilewright.ir.drive import held, key_of, lead, rank, stored, structure
from tilewright.ir.expr import (
    FLOATS,
    INTS,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    compute_dtype,
    promote,
)
from tilewright.ir.monoid import Monoid, monoids
from tilewright.ir.node import Node, is_named, parts, substitute, transform, walk
from tilewright.language.trace import Ref, Traced
from tilewright.support.errors import error

Trail = tuple[str, Expr]


@dataclass(frozen=True)
class SizeRule:
    """size = arrays[array].shape[dim] + offset, or a stride of it, or the n-th given integer."""

    size: str
    array: str
    dim: int
    offset: int = 0
    stride: bool = False


@dataclass(frozen=True)
class Bound:
    """A stage I program with its run-time contract."""

    program: coord.Program
    arrays: tuple[str, ...]
    rules: tuple[SizeRule, ...]
    given: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.program.name


def bind(traced: Traced, specs: Mapping[str, Spec]) -> Bound:
    """Give every reference its tensor; decide dtypes, output shapes and structures."""
    return _Bind(traced, dict(specs)).run()


class _Bind:
    def __init__(self, traced: Traced, specs: dict[str, Spec]) -> None:
        self.traced, self.specs = traced, specs
        self.tensors: dict[str, Tensor] = {}
        self.rules: list[SizeRule] = []
        self.given: list[str] = []
        self.sizes: dict[str, Var] = {}
        self.stored: dict[str, Expr] = {}
        self.met: dict[tuple[str, str, bool], Met] = {}
        self.home: dict[str, str] = {}

    def run(self) -> Bound:
        for name in sorted(self.specs, key=lambda n: self.specs[n].format[:5] == "like:"):
            self.tensors[name] = self.input(name, self.specs[name])
        for name, s in self.specs.items():
            if s.values and s.dtype not in INTS and self.only_indexes(name):
                raise error(
                    "dtype", name=name, got=s.dtype, expected="int32 or int64, for an index"
                )
            if s.met:
                met = tuple(self.meeting(name, *m) for m in s.met)
                self.tensors[name] = replace(self.tensors[name], met=met)
        self.acc = self.accumulator()
        body = tuple(self.statement(s) for s in self.traced.body)
        held = [n for n in self.specs if n not in self.traced.params]
        ordered = tuple(self.tensors[n] for n in (*held, *self.traced.params) if n in self.tensors)
        number = "f64" if self.acc in INTS else self.acc  # beside whole numbers it need not be one
        scalars = tuple(Var(v.name, number) for v in self.traced.scalars)
        body = substitute(body, dict(zip(self.traced.scalars, scalars, strict=True)))
        program = coord.Program(self.traced.name, ordered, scalars, body)
        arrays = tuple(
            b.name for n in (*held, *self.traced.inputs) for b in buffers_of_tensor(self.tensors[n])
        )
        return Bound(program, tuple(dict.fromkeys(arrays)), tuple(self.rules), tuple(self.given))

    # --- sizes ------------------------------------------------------------------------------------

    def size(self, name: str) -> Var:
        return self.sizes.setdefault(name, Var(name))

    def rule(self, size: str, array: str, dim: int, offset: int = 0, stride: bool = False) -> Var:
        if size not in {r.size for r in self.rules}:
            self.rules.append(SizeRule(size, array, dim, offset, stride))
        return self.size(size)

    def index_at(self, name: str, dim: int) -> Index | None:
        """The index that addresses a dimension, if one does so directly.

        An argument that only lends its structure has the indices of the one that borrows it.
        """
        name = self.home.get(name, name)
        if name not in self.traced.params:
            name = next((n for n, s in self.specs.items() if s.format == f"like:{name}"), name)
        for n in self.read.get(name, []):
            if len(n.indices) <= dim:
                expected = f"{dim + 1} or more, one for each dimension"
                raise error("rank", name=name, got=len(n.indices), expected=expected)
            found = n.indices[dim]
            if isinstance(found, Index):
                return found
        return None

    def dim_name(self, name: str, dim: int) -> str:
        ix = self.index_at(name, dim)
        return f"n_{ix.name}" if ix is not None else f"{name}_{dim}"

    # --- inputs -----------------------------------------------------------------------------------

    def input(self, name: str, s: Spec) -> Tensor:
        for n in self.read.get(name, []):
            if len(n.indices) != s.rank:
                expected = f"{s.rank} axes for its shape"
                raise error("rank", name=name, got=len(n.indices), expected=expected)
        if s.format.startswith("like:"):
            return self.like(name, s, self.tensors[s.format[5:]])
        return self.dense(name, s) if s.format == "dense" else self.sparse(name, s)

    def like(self, name: str, s: Spec, t: Tensor) -> Tensor:
        """Other values on the structure of another argument."""
        dims, held = rank(t), self.held(t)
        trail = self.trail(name, dims, s.rank, len(held))
        values = Buffer(name, s.dtype, (*held, *(n for _, n in trail)))
        return grown(name, s.dtype, t, trail, values)

    def held(self, t: Tensor) -> tuple[Expr, ...]:
        """The shape of the stored values without trailing dimensions."""
        if t.parts:
            return (self.stored[t.name],) if t.values is None else t.values.shape[:1]
        stored = t.values.shape[0] if t.values is not None else self.stored[t.name]
        return (stored, *inner_lengths(structure(t)))

    def trail(self, name: str, dims: int, rank: int, first: int) -> list[Trail]:
        """The labels and sizes of dimensions inside the entries; `first` dimensions of the values come before."""
        return [
            (self.label(name, d), self.rule(self.dim_name(name, d), name, d - dims + first))
            for d in range(dims, rank)
        ]

    def dense(self, name: str, s: Spec) -> Tensor:
        shape = tuple(self.rule(self.dim_name(name, d), name, d) for d in range(s.rank))
        strides = None
        if s.strided is not None:
            strides = tuple(
                Const(1, "i64")
                if d == s.strided
                else self.rule(f"{name}_s{d}", name, d, stride=True)
                for d in range(s.rank)
            )
        values = Buffer(name, s.dtype, shape, "in", strides)
        return Tensor(name, s.dtype, shape, values=values)

    @cached_property
    def read(self) -> dict[str, list[Load]]:
        """Where each argument is read."""
        made: dict[str, list[Load]] = {}
        for n in walk(self.traced.body):
            if isinstance(n, Load) and isinstance(n.buffer, Ref):
                made.setdefault(n.buffer.name, []).append(n)
        return made

    def sparse(self, name: str, s: Spec) -> Tensor:
        """The storage tree of a format, or of each part; logical sizes are given as integers."""
        shape: list[Expr] = []
        dims = stored_dims(s.format)
        for d in range(dims):
            label = self.dim_name(name, d)
            if label not in self.given:
                self.given.append(label)
            shape.append(self.size(label))
        if s.parts:
            bare = self.in_parts(name, s, shape)
        else:
            axes, coords, self.stored[name] = storage(self, name, s, shape)
            bare = Tensor(
                name, s.dtype, tuple(shape), "in", axes, coords, None, self.order(name, s)
            )
        held = self.held(bare)
        trail = self.trail(name, dims, s.rank, len(held))
        if s.perm and s.values:
            held = (self.rule(f"{name}_entries", name, 0), *held[1:])
        values = Buffer(name, s.dtype, (*held, *(n for _, n in trail))) if s.values else None
        return grown(name, s.dtype, bare, trail, values)

    def in_parts(self, name: str, s: Spec, shape: list[Expr]) -> Tensor:
        """Each part over the same shape; how many entries they have together is given as an integer."""
        made = []
        for nth, part in enumerate(s.parts):
            label = f"{name}_{nth}"
            self.home[label] = name
            axes, coords, self.stored[label] = storage(self, label, part, shape)
            order = self.order(label, part, inner_lengths(axes))
            made.append(
                Tensor(label, s.dtype, tuple(shape), "in", axes, coords, None, order, part.holes)
            )
        self.given.append(f"{name}_entries")
        self.stored[name] = self.size(f"{name}_entries")
        return Tensor(name, s.dtype, tuple(shape), parts=tuple(made))

    def order(self, name: str, s: Spec, inside: list[Expr] | None = None) -> Buffer | None:
        """The array that leads from a place to its value."""
        what = "holes" if s.holes else "perm"
        shape = (self.stored[name], *(inside or []))
        return Buffer(f"{name}_{what}", s.index, shape, "index") if s.perm else None

    def meeting(self, name: str, other: str, turned: bool) -> Met:
        """The entries of an argument (or of the one whose structure it has) at those of another."""
        home = self.specs[name].format.removeprefix("like:")
        home = home if home in self.specs else name
        if (home, other, turned) not in self.met:
            t = self.tensors[other]
            entries = t.values.shape[0] if t.values is not None else self.stored[other]
            label = met_name(other, turned)
            axis = [ax for ax in structure(t) if stored(ax)][-1]
            array = self.array(home, label, self.specs[home], entries)
            self.met[home, other, turned] = Met(array, axis, turned)
        return self.met[home, other, turned]

    def label(self, name: str, dim: int) -> str:
        ix = self.index_at(name, dim)
        return ix.name if ix is not None else f"{name}{dim}"

    def array(self, name: str, what: str, s: Spec, length: Expr) -> Buffer:
        return Buffer(f"{name}_{what}", s.index, (length,), "index")

    # --- statements and outputs -------------------------------------------------------------------

    def accumulator(self) -> str:
        """f64 if any input is, else f32 (integers count in i64)."""
        made = "b1"
        for n in self.typing():
            made = promote(made, self.specs[n].dtype)
        return {"b1": "f32", "i32": "i64", "u8": "i64"}.get(made, compute_dtype(made))

    def typing(self) -> list[str]:
        """The inputs whose dtypes count; as in torch those without dimensions do not, beside others with floats."""
        found = [n for n in self.traced.inputs if self.specs[n].values and not self.only_indexes(n)]
        whole = [n for n in found if self.specs[n].rank]
        return whole if any(self.specs[n].dtype in FLOATS for n in whole) else found

    @cached_property
    def inside(self) -> set[int]:
        """What is read inside of indices."""
        return {
            id(m)
            for n in walk(self.traced.body)
            if isinstance(n, Load | coord.Listed)
            for m in walk(n.indices if isinstance(n, Load) else (n.at, n.below))
            if isinstance(m, Load)
        }

    def only_indexes(self, name: str) -> bool:
        """Whether an argument is only used inside indices, as a list of rows is."""
        mine = self.read.get(name, [])
        return bool(mine) and all(id(n) in self.inside for n in mine)

    def result_dtype(self) -> str:
        made = "b1"
        for n in self.typing():
            if n not in self.traced.kept:
                made = promote(made, self.specs[n].dtype)
        return "f32" if made == "b1" else made

    def statement(self, s: coord.Stmt) -> coord.Stmt:
        s = transform(s, self.reduce_dtype)
        if isinstance(s, coord.Assign):
            for t, v in zip(s.targets, s.values, strict=True):
                if t.buffer.name not in self.tensors:
                    self.tensors[t.buffer.name] = self.output(s, t, v)
        elif isinstance(s, coord.Append):
            self.append_outputs(s)
        table = {r: self.tensors[r.name] for r in self.traced.refs if r.name in self.tensors}
        bound = transform(transform(substitute(s, table), driven), self.narrowed)
        read = {ix for a in loads(bound) for ix in a.indices}
        bound = transform(bound, lambda n: Const(1.0, n.dtype) if everywhere(n, read) else None)
        return transform(bound, python_division)

    def narrowed(self, n: Any) -> Any:
        """s[()] in f64 beside others in f32  ->  f32(s[()]), since its dtype does not count"""
        if isinstance(n, Load) and n.buffer.name in self.traced.inputs and not n.indices:
            wider = n.buffer.dtype in FLOATS and promote(self.acc, n.buffer.dtype) != self.acc
            return Cast(self.acc, n) if wider else None
        return None

    def reduce_dtype(self, n: Any) -> Any:
        if isinstance(n, Reduce) and n.monoid.name in monoids(self.acc):
            d = "i64" if all(map(self.counts, n.args)) else self.acc
            if n.monoid.name in ("max", "min") and self.result_dtype() == "i32":
                d = "i32"  # nothing stored gives the result's last number
            return Reduce(rebind(n.monoid, d), n.over, n.args, n.part)
        return None

    def counts(self, e: Expr) -> bool:
        """Whether a value is one of those that the program declared whole numbers, or 0."""
        match e:
            case Load(buffer):
                return dict(self.traced.typed).get(buffer.name) in INTS
            case Select(_, a, Const(0)):
                return self.counts(a)
        return False

    def output(self, s: coord.Assign, target: Load, value: Expr) -> Tensor:
        name = target.buffer.name
        like = self.tensors.get(dict(self.traced.likes).get(name, ""))
        dense = like is not None and not like.sparse
        lead = None if dense else self.structure_of(target, value)
        if lead is not None:
            t, trail = lead
            dtype = dict(self.traced.typed).get(name, self.result_dtype())
            shape = (*self.held(t), *(n for _, n in trail))
            return grown(name, dtype, t, trail, Buffer(name, dtype, shape, "out"), "out")
        hints = dict(self.traced.sized).get(name)
        sizes = self.extents(s)
        shape = tuple(
            self.out_dim(name, d, ix, hints, sizes) for d, ix in enumerate(target.indices)
        )
        wide = self.traced.wide or name in self.traced.kept
        dtype = self.acc if wide else self.result_dtype()
        if isinstance(value, Reduce) and value.monoid.name in ("argmax", "argmin"):
            dtype = "i64"
        if isinstance(value, Reduce) and value.part > 0:
            dtype = self.acc
        dtype = dict(self.traced.typed).get(name, dtype)
        return Tensor(name, dtype, shape, "out", values=Buffer(name, dtype, shape, "out"))

    def extents(self, s: coord.Stmt) -> dict[Index, Expr]:
        """The sizes of a statement's indices, those that count parts of others included."""
        found = [n for n in walk(s) if isinstance(n, Index)]
        known: dict[Index, Expr] = {
            n: self.sizes[f"n_{n.name}"] for n in found if f"n_{n.name}" in self.sizes
        }
        for a in (n for n in walk(s) if isinstance(n, Load) and n.buffer.name in self.tensors):
            shape = self.tensors[a.buffer.name].shape
            known |= {ix: n for ix, n in zip(a.indices, shape, strict=False) if ix in found}
        return coord.part_sizes((s,), known)

    def out_dim(self, name: str, d: int, ix: Expr, hints: Any, sizes: dict[Index, Expr]) -> Expr:
        if hints is not None:
            ref, dim = hints[d]
            return self.tensors[ref].shape[dim]
        if isinstance(ix, Index):
            if ix not in sizes:
                raise error("unknown-axis", name=ix.name)
            return sizes[ix]
        raise error(
            "unknown-axis", where=f"{name}[...] is written through an index array", name=str(ix)
        )

    def append_outputs(self, s: coord.Append) -> None:
        """A list with room for every candidate (or as it was `sized`): one for each group, or (start) one for all."""
        sizes = self.extents(s)
        group = tuple(size_of(g, sizes) for g in s.group)
        room: Expr = Const(1, "i64")
        for ix in s.over:
            outer, count = ix.within or (ix, 0)
            room = room * (Const(count, "i64") if outer in s.group else size_of(ix, sizes))
        held: tuple[Expr, ...] = (*group, room)
        if s.start is not None:
            for n in group:
                room = n * room
            held = (room,)
        if hints := dict(self.traced.sized).get(s.list.name):
            held = tuple(self.tensors[name].shape[dim] for name, dim in hints)
        for ref, shape in ((s.list, held), (s.count, group or (Const(1, "i64"),))):
            self.tensors[ref.name] = Tensor(
                ref.name, "i32", shape, "out", values=Buffer(ref.name, "i32", shape, "out")
            )

    def structure_of(self, target: Load, value: Expr) -> tuple[Tensor, list[Trail]] | None:
        """The sparse operand whose indices are the target's and which multiplies the whole value."""
        for f in factors(value):
            f = f.access if isinstance(f, Stored) else f
            if isinstance(f, Load) and f.buffer.name in self.specs:
                t = self.tensors[f.buffer.name]
                if t.sparse and held(Load(t, f.indices)) == target.indices[: rank(t)]:
                    return t, self.tail(target, rank(t))
        return None

    def tail(self, target: Load, dims: int) -> list[Trail]:
        trailing = [ix for ix in target.indices[dims:] if isinstance(ix, Index)]
        return [(ix.name, self.sizes[f"n_{ix.name}"]) for ix in trailing]


def grown(
    name: str,
    dtype: str,
    t: Tensor,
    trail: list[Trail],
    values: Buffer | None,
    role: str = "in",
) -> Tensor:
    """A tensor on the structure of another one, with its own values and dimensions inside the entries."""
    n = rank(t)
    inner = tuple(Axis(label, "dense", "fixed", size) for label, size in trail)
    shape = (*t.shape[:n], *(size for _, size in trail))

    def on(part: Tensor, called: str) -> Tensor:
        coords = (*part.coords[:n], *(((ax, 1),) for ax in inner))
        path = (*structure(part), *inner)
        return Tensor(called, dtype, shape, role, path, coords, values, part.perm, part.holes)

    if not t.parts:
        return on(t, name)
    parts = tuple(on(part, f"{name}_{nth}") for nth, part in enumerate(t.parts))
    return Tensor(name, dtype, shape, role, values=values, parts=parts)


def driven(n: Any) -> Expr | None:
    """stored(a[i, j]) within a reduction -> itself where a drives it, or is dense; 1 where a is only looked up"""
    if not isinstance(n, Stored) or n.within is None:
        return None
    first = lead(n.within.args, n.within.over)
    if n.access.buffer.sparse and (first is None or key_of(first) != key_of(n.access)):
        return Const(1.0, n.dtype)
    return Stored(n.access, n.dtype)


def everywhere(n: Any, read: set[Any]) -> bool:
    """Whether it asks what is stored of a dense tensor, and tells no size that others do not."""
    return isinstance(n, Stored) and not n.access.buffer.sparse and {*n.access.indices} <= read


def loads(n: Any) -> Iterator[Load]:
    """What is read, and not only asked whether it is stored."""
    if isinstance(n, Load):
        yield n
    if isinstance(n, Node) and not isinstance(n, Stored) and not is_named(n):
        for c in parts(n):
            yield from loads(c)


def factors(e: Expr) -> list[Expr]:
    """The factors of a product; those under a sum multiply it as well."""
    if isinstance(e, Reduce) and e.monoid.name == "sum":
        return factors(e.args[0])
    from_bin = getattr(e, "op", None) == "*"
    return [*factors(e.a), *factors(e.b)] if from_bin else [e]  # type: ignore[attr-defined]


def rebind(m: Monoid, d: str) -> Monoid:
    """The same built-in monoid over another accumulator dtype."""
    return monoids(d).get(m.name, m)


def buffers_of_tensor(t: Tensor) -> list[Buffer]:
    made = [b for part in t.whole for ax in part.axes for b in ax.arrays]
    made += [part.perm for part in t.whole if part.perm is not None]
    made += [m.at for m in t.met]
    return made if t.values is None else [*made, t.values]


def met_name(other: str, turned: bool) -> str:
    """What the array of the places at another argument's entries is called."""
    return f"{'turned' if turned else 'at'}_{other}"
