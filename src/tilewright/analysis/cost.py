"""What a loop nest moves and computes, counted from stage III and the sizes of its arguments.

In: an unscheduled flat program, its sizes, the mean step of pointer arrays and the lengths of buffers.
Out: `Cost`: bytes of each buffer (each element once), bytes read through index arrays, operations.

    cost_of(spmm, {"n_i": n, "n_f": f, ...}, {"a_indptr": nnz / n}).flops     # 2 * nnz * f

An expression counts once for every value of the loops that it depends on, as if it were computed at the
outermost place where it may stand. A loop whose bounds are read counts with the mean of its lengths.
Guards count as if they always held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, log2, prod
from typing import Any

from tilewright.ir import flat, loops, stmt
from tilewright.ir.expr import (
    FLOATS,
    Bin,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Un,
    Var,
    const,
    dtype_of,
)
from tilewright.ir.monoid import apply
from tilewright.ir.node import Node, is_named, parts

BYTES = {
    "b1": 1,
    "u8": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "f16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
}
ARITHMETIC = ("+", "-", "*", "/", "min", "max")


@dataclass
class Traffic:
    """Elements of one buffer: touched (each once), gathered (read through an index), all accesses."""

    buffer: Buffer
    length: float
    accesses: float = 0.0
    gathers: float = 0.0

    @property
    def bytes(self) -> int:
        return round(min(self.accesses, self.length)) * BYTES[self.buffer.dtype]

    @property
    def gathered(self) -> int:
        return round(self.gathers) * BYTES[self.buffer.dtype]

    @property
    def held(self) -> int:
        """The bytes of the whole buffer, as far as they are known."""
        size = self.length if self.length < inf else self.accesses
        return round(size) * BYTES[self.buffer.dtype]


@dataclass
class Cost:
    """Of one launch."""

    traffic: dict[str, Traffic] = field(default_factory=dict)
    flops: float = 0.0

    @property
    def compulsory(self) -> int:
        """Bytes that must move: every element that is read or written, once."""
        return sum(t.bytes for t in self.traffic.values())

    @property
    def gathered(self) -> int:
        """Bytes read at places that an index array names, as often as they are named."""
        return sum(t.gathered for t in self.traffic.values())


Deps = frozenset[Var]
NONE: Deps = frozenset()


def cost_of(
    p: flat.Program,
    sizes: Mapping[str, float],
    steps: Mapping[str, float] | None = None,
    lengths: Mapping[str, float] | None = None,
) -> Cost:
    """steps: the mean difference of neighbours in a pointer array; lengths: elements of a buffer."""
    made = _Count(sizes, steps or {}, lengths or {})
    made.block(p.body, NONE)
    return made.cost


class _Count:
    def __init__(
        self, sizes: Mapping[str, float], steps: Mapping[str, float], lengths: Mapping[str, float]
    ) -> None:
        self.sizes, self.steps, self.lengths = sizes, steps, lengths
        self.cost = Cost()
        self.trips: dict[Var, float] = {}
        self.deps: dict[Var, Deps] = {}  # the loops that a variable changes with
        self.means: dict[Var, float] = {}
        self.read: set[Var] = set()  # variables that hold what was read from memory
        self.opened: dict[Var, Deps] = {}  # states: the loops open at their Init
        self.seen: set[object] = set()

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: tuple[stmt.Stmt, ...], inside: Deps) -> None:
        for s in body:
            self.statement(s, inside)

    def statement(self, s: stmt.Stmt, inside: Deps) -> None:
        match s:
            case flat.Loop(var, lo, hi, _, body):
                self.loop(var, lo, hi)
                self.block(body, inside | {var})
            case stmt.Let(var, value):
                self.count(value)
                self.deps[var] = self.deps_of(value)
                self.means[var] = self.mean(value)
                if self.is_read(value):
                    self.read.add(var)
            case stmt.Init(state, _):
                self.opened.update(dict.fromkeys(state, inside))
                self.deps.update(dict.fromkeys(state, NONE))
            case stmt.Fold(state, m, args):
                self.fold(state, apply(m.combine, (*state, *apply(m.lift, args))))
            case stmt.Store(b, (at,), value) | stmt.Atomic(_, b, (at,), value):
                self.count(value)
                self.count(at)
                self.access(b, self.times(self.deps_of(at)), False)
            case stmt.Guard(cond, body):
                self.count(cond)
                self.block(body, inside)
            case stmt.If(cond, then, orelse):
                self.count(cond)
                self.block((*then, *orelse), inside)
            case stmt.Append(dst, count, group, _, cond, value):
                self.count(cond)
                self.count(value)
                self.access(dst, self.times(self.deps_of((cond, value))), False)
                self.access(count, self.times(self.deps_of(group)), False)

    def loop(self, var: Var, lo: Expr, hi: Expr) -> None:
        self.count(lo)
        self.count(hi)
        self.deps[var] = self.deps_of((lo, hi)) | {var}
        self.trips[var] = max(self.length(lo, hi), 0.0)
        self.means[var] = self.mean(lo) + max(self.trips[var] - 1, 0.0) / 2

    def length(self, lo: Expr, hi: Expr) -> float:
        """The mean number of iterations."""
        match lo, hi:
            case Load(a, (i,)), Load(b, (j,)) if a is b and j == i + const(1):
                return self.steps.get(a.name, 1.0)
        return self.mean(hi) - self.mean(lo)

    def fold(self, state: tuple[Var, ...], made: tuple[Expr, ...]) -> None:
        """A state changes with the folded loops while it is folded, and without them afterwards."""
        outer = self.opened.get(state[0], NONE)
        folded = self.deps_of(made) - outer
        for var in state:
            self.deps[var] = self.deps[var] | folded
        for _ in state:  # members may depend on each other
            for var, e in zip(state, made, strict=True):
                self.deps[var] = self.deps[var] | self.deps_of(e)
        for e in made:
            self.count(e)
        for var in state:
            self.deps[var] = self.deps[var] & outer

    # --- expressions ------------------------------------------------------------------------------

    def count(self, e: Any) -> None:
        """Loads and operations of an expression; what stands twice counts once."""
        if not isinstance(e, Node) or is_named(e) or e in self.seen:
            return
        self.seen.add(e)
        if isinstance(e, Load):
            through = any(self.is_read(i) for i in e.indices)
            self.access(e.buffer, self.times(self.deps_of(e.indices)), through)
        elif isinstance(e, loops.Lookup):
            tries = log2(max(self.length(e.lo, e.hi), 1.0)) + 1
            self.access(e.buffer, tries * self.times(self.deps_of(e)), True)
        elif isinstance(e, Un) or (isinstance(e, Bin) and e.op in ARITHMETIC):
            if dtype_of(e) in FLOATS:
                self.cost.flops += self.times(self.deps_of(e))
        for c in parts(e):
            self.count(c)

    def access(self, b: Buffer, times: float, gathered: bool) -> None:
        held = self.cost.traffic.get(b.name)
        if held is None:
            held = self.cost.traffic[b.name] = Traffic(b, self.size(b))
        held.accesses += times
        held.gathers += times if gathered else 0.0

    def size(self, b: Buffer) -> float:
        if b.name in self.lengths:
            return self.lengths[b.name]
        try:
            return prod(self.mean(e) for e in b.shape)
        except KeyError:
            return inf

    def times(self, deps: Deps) -> float:
        return prod((self.trips[v] for v in deps), start=1.0)

    def deps_of(self, e: object) -> Deps:
        return frozenset().union(*(self.deps.get(v, NONE) for v in variables(e)))

    def is_read(self, e: object) -> bool:
        """Whether a value comes from memory."""
        if isinstance(e, Load | loops.Lookup):
            return True
        if isinstance(e, Var):
            return e in self.read
        return isinstance(e, Node) and not is_named(e) and any(map(self.is_read, parts(e)))

    def mean(self, e: object) -> float:
        match e:
            case Const(value, _):
                return float(value)
            case Var(name, _):
                return self.means[e] if e in self.means else self.sizes[name]
            case Cast(_, a):
                return self.mean(a)
            case Bin(op, a, b) if op in _ARITHMETIC:
                return float(_ARITHMETIC[op](self.mean(a), self.mean(b)))
        return 0.0


_ARITHMETIC: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0.0,
    "%": lambda a, b: a % b if b else 0.0,
    "min": min,
    "max": max,
}


def variables(e: object) -> Iterator[Var]:
    """Every variable in an expression or a tuple of them."""
    if isinstance(e, tuple):
        for v in e:
            yield from variables(v)
    elif isinstance(e, Var):
        yield e
    elif isinstance(e, Node) and not is_named(e):
        for c in parts(e):
            yield from variables(c)
