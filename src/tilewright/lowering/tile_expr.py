"""Expressions of stage III as tiles: broadcasts, masked loads, lane reductions, dots.

`Tiled` is a tile expression with its lanes in canonical order. `Tiler` holds the code made so far.

    a[p] * x[c * n_f + f]   ->   load(a + p)[:, None] * load(x + c[:, None] * n_f + f[None, :])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.ir import tile
from tilewright.ir.expr import (
    COMPARE,
    FLOATS,
    Bin,
    Buffer,
    Cast,
    Const,
    Expr,
    LaneReduce,
    LaneScan,
    LaneSplit,
    Load,
    Select,
    Un,
    Var,
    binary,
    cast,
    const,
    dtype_of,
    maximum,
    promote,
    unary,
)
from tilewright.ir.loops import Lookup
from tilewright.ir.node import parts, rebuild, walk
from tilewright.lowering.tile_address import Addresser, factors, product, strays
from tilewright.lowering.tiled import Lanes, Tiled
from tilewright.support.names import Names

HALF = ("f16", "bf16")
DOT_MIN = 16


class Tiler(Addresser):
    """Lowers expressions; statements are pushed on `out`."""

    def __init__(self, dims: dict[Var, int], streams: Sequence[str] = (), apiece: int = 0) -> None:
        self.dims, self.streams, self.apiece = dims, frozenset(streams), apiece
        self.rank = {v: n for n, v in enumerate(dims)}
        self.env: dict[Var, Tiled] = {}
        self.guards: list[Var] = []
        self.choices: list[Tiled] = []  # conditions of the branches that code is made for
        self.compared: dict[Var, tuple[str, Tiled, Tiled]] = {}
        self.zero_under: dict[Var, set[Var]] = {}
        self.sums: dict[Var, Expr] = {}
        self.moving: set[Var] = set()
        self.copies: set[Var] = set()
        self.copied: dict[Var, list[Expr]] = {}
        self.types: dict[Var, tuple[str, ...]] = {}
        self.names = Names()
        self.out: list[tile.Stmt] = []
        self.memo: dict[Expr, Tiled] = {}
        self.repeated: set[Expr] = set()
        self.why = ""  # why the last fold is no matrix product

    # --- code made so far -------------------------------------------------------------------------

    def push(self, s: tile.Stmt) -> None:
        self.out.append(s)

    def fresh(self, stem: str, dtype: str) -> Var:
        return Var(self.names.fresh(stem), dtype)

    def emit(self, stem: str, dtype: str, e: Expr, lanes: Lanes) -> Tiled:
        """A new variable set to e."""
        v = self.fresh(stem, dtype)
        self.types[v] = tuple(x.name for x in lanes)
        self.push(tile.Set(v, e))
        return Tiled(v, lanes)

    def guard(self, e: Expr) -> Tiled:
        """A condition as a variable; its sides are noted where they are names."""
        made = self.value(e)
        if not made.lanes or isinstance(made.e, Var):
            return made
        made = self.emit("in_", "b1", made.e, made.lanes)
        if isinstance(made.e, Var) and isinstance(e, Bin) and e.op in COMPARE:
            a, b = self.value(e.a), self.value(e.b)
            if all(isinstance(t.e, Var | Const) for t in (a, b)):
                self.compared[made.e] = (e.op, a, b)
        return made

    @contextmanager
    def into(self) -> Iterator[list[tile.Stmt]]:
        """Statements made inside go to a list of their own."""
        outer, self.out = self.out, []
        self.memo.clear()
        try:
            yield self.out
        finally:
            self.out = outer
            self.memo.clear()

    def let(self, v: Var, e: Expr) -> None:
        """A let keeps its name; constants and other variables are used as they are."""
        if isinstance(e, Load):
            made = self.load(e.buffer, e.indices[0], v.name)
            self.zero_under[v] = set(self.masking(made.lanes))
        else:
            made = self.value(e)
        if any(n in self.moving for n in walk(e) if isinstance(n, Var)):
            self.moving.add(v)
        self.note(v, e, made.lanes)
        if not isinstance(made.e, Const | Var):
            made = self.emit(v.name, v.dtype, made.e, made.lanes)
        self.env[v] = made

    # --- shapes -----------------------------------------------------------------------------------

    def sort(self, lanes: Any) -> Lanes:
        return tuple(sorted(set(lanes), key=lambda v: self.rank[v]))

    def broadcast(self, t: Tiled, want: Lanes) -> Expr:
        """t over more lanes. A guard compares again, after its sides are widened: Triton 3.6 loses the layout of one
        that is widened itself."""
        if not t.lanes or t.lanes == want:
            return t.e
        if isinstance(t.e, Var) and t.e in self.compared:
            op, a, b = self.compared[t.e]
            return Bin(op, self.broadcast(a, want), self.broadcast(b, want))
        return tile.Expand(t.e, tuple(v.name for v in t.lanes), tuple(v.name for v in want))

    def masking(self, lanes: Iterable[Var]) -> list[Var]:
        """The guards in force whose lanes are all among these."""
        held = set(lanes)
        return [g for g in self.guards if set(self.env[g].lanes) <= held]

    def mask(self, lanes: Lanes) -> Expr | None:
        made: Expr | None = None
        for g in self.masking(lanes):
            m = self.broadcast(self.env[g], lanes)
            made = m if made is None else Bin("&", made, m)
        return made

    # --- expressions ------------------------------------------------------------------------------

    def shared(self, exprs: Sequence[Expr]) -> list[Tiled]:
        """Several expressions; what occurs more than once is computed once."""
        self.memo.clear()
        count = Counter(
            n for e in exprs for n in walk(e) if isinstance(n, Bin | Un | Select | LaneReduce)
        )
        self.repeated = {n for n, k in count.items() if k > 1}
        made = [self.value(e) for e in exprs]
        self.repeated = set()
        return made

    def value(self, e: Expr) -> Tiled:
        if e in self.memo:
            return self.memo[e]
        made = self.make(e)
        if e in self.repeated and not isinstance(made.e, Var):
            stem = e.op if isinstance(e, Un | LaneReduce) else "t"
            made = self.emit(f"{stem}_", dtype_of(e), made.e, made.lanes)
        self.memo[e] = made
        return made

    def make(self, e: Expr) -> Tiled:
        match e:
            case Const():
                return Tiled(e, ())
            case Var():
                return self.env.get(e, Tiled(e, ()))
            case Load(b, (at,)):
                return self.load(b, at, f"{b.name}_v")
            case Bin("+", a, LaneReduce("sum", lanes, inner)):
                dot = self.dot(lanes, inner, a)
                if dot is not None:
                    return dot
            case LaneReduce(op, lanes, inner):
                dot = self.dot(lanes, inner, None) if op == "sum" else None
                return dot if dot is not None else self.reduce(op, lanes, inner)
            case LaneScan(op, lane, inner):
                t = self.value(inner)
                t = t if lane in t.lanes else self.spread(t, lane)
                return Tiled(self.scan(op, t, lane), t.lanes)
            case LaneSplit(a, lane, outer, first):
                return self.split(self.value(a), lane, (outer, first))
            case Select(c, a, b) if strays((a, b)):
                return self.choice(c, a, b)
            case Lookup(b, lo, hi, key, start):
                return self.search(b, lo, hi, key, start is not None)
        return self.pointwise(e)

    def pointwise(self, e: Expr) -> Tiled:
        """Arithmetic: all operands broadcast to the union of their lanes."""
        kids: list[Tiled] = []
        rebuild(e, lambda c: kids.append(self.value(c)) or c)  # type: ignore[func-returns-value]
        lanes = self.sort(v for k in kids for v in k.lanes)
        todo = iter(kids)
        return Tiled(rebuild(e, lambda c: self.broadcast(next(todo), lanes)), lanes)

    def choice(self, c: Expr, a: Expr, b: Expr) -> Tiled:
        """where(i > 0, x[i - 1], 0): what lies outside is not read where it is not chosen."""
        kids = [self.value(c), self.chosen(c, a), self.chosen(unary("not", c), b)]
        lanes = self.sort(v for k in kids for v in k.lanes)
        return Tiled(Select(*(self.broadcast(k, lanes) for k in kids)), lanes)

    def chosen(self, c: Expr, e: Expr) -> Tiled:
        """A value for the lanes where a condition holds; what is made for these alone is forgotten after it."""
        if not strays(e) or c in self.guards:
            return self.value(e)
        before = dict(self.memo)
        self.choices.append(self.guard(c))
        made = self.value(e)
        self.choices.pop()
        self.memo = before
        return made

    def reduce(self, op: str, lanes: Lanes, inner: Expr) -> Tiled:
        """The innermost lane first: threads hold most of it, so that they have little to exchange for the others."""
        t = self.value(inner)
        for ln in reversed(lanes):
            if ln not in t.lanes:
                t = self.spread(t, ln)
            t = Tiled(
                tile.Reduce(op, t.e, t.lanes.index(ln)), tuple(v for v in t.lanes if v is not ln)
            )
        return t

    def split(self, t: Tiled, lane: Var, into: Lanes) -> Tiled:
        """One lane of a value as two, which stand where it stood."""
        t = t if lane in t.lanes else self.spread(t, lane)
        at = t.lanes.index(lane)
        lanes = (*t.lanes[:at], *into, *t.lanes[at + 1 :])
        return Tiled(tile.Reshape(t.e, tuple(v.name for v in lanes)), lanes)

    def spread(self, t: Tiled, lane: Var) -> Tiled:
        """A value that does not depend on a lane, repeated along it."""
        lanes = self.sort({*t.lanes, lane})
        d = dtype_of(t.e)
        full = tile.Full(_zero(d), d, tuple(v.name for v in lanes))
        return Tiled(Bin("+", self.broadcast(t, lanes), full), lanes)

    # --- memory -----------------------------------------------------------------------------------

    def load(self, b: Buffer, at: Expr, stem: str) -> Tiled:
        offsets, own = self.offsets(at)
        choices = self.choices if strays(Load(b, (at,))) else []
        lanes = self.sort((*own, *(v for c in choices for v in c.lanes)))
        if lanes != own:
            offsets = [Tiled(self.spread_to(offsets[0], lanes), lanes), *offsets[1:]]
        at_each = tuple(self.broadcast(o, lanes) for o in offsets)
        mask = self.mask(lanes)
        for c in choices:
            asked = self.broadcast(c, lanes)
            mask = asked if mask is None else Bin("&", mask, asked)
        e = tile.Load(b, at_each, mask, _zero(b.dtype), once=b.name in self.streams)
        return self.emit(stem, b.dtype, e, lanes)

    def search(self, b: Buffer, lo: Expr, hi: Expr, key: Expr, near: bool) -> Tiled:
        """Binary search in every lane at once: as many halvings as the longest range needs (one more is harmless).

        Lanes have no order to follow: a guess of the place is not used."""
        parts_ = [self.value(cast("i64", e)) for e in (lo, hi, key)]
        lanes = self.sort(v for t in parts_ for v in t.lanes)
        mask = self.mask(lanes)
        first, last, want = (self.spread_to(t, lanes) for t in parts_)
        left, span = (self.fresh(n, "i64") for n in ("left", "span"))
        self.types |= dict.fromkeys((left, span), tuple(v.name for v in lanes))
        zero = tile.Full(_zero("i64"), "i64", tuple(v.name for v in lanes))
        self.push(tile.Set(left, Bin("+", first, zero)))
        self.push(tile.Set(span, Bin("-", last, left)))
        longest: Expr = span if mask is None else Select(mask, span, _zero("i64"))
        for axis in reversed(range(len(lanes))):
            longest = tile.Reduce("max", longest, axis)
        longest = self.emit("longest", "i64", longest, ()).e
        size = cast("f32", maximum(longest, const(1)))
        steps = self.emit("steps", "i32", cast("i32", unary("log2", size)) + 2, ()).e
        turn = self.fresh("turn", "i32")
        self.types[turn] = ()
        with self.into() as body:
            half = self.emit("half", "i64", Bin("//", span, const(2)), lanes).e
            live: Expr = Bin(">", span, const(0))
            live = live if mask is None else Bin("&", live, mask)
            probe = tile.Load(b, (left, half), live, _zero(b.dtype))
            seen = self.emit("seen", b.dtype, probe, lanes).e
            less = self.emit(
                "less", "b1", Bin("&", live, Bin("<", Cast("i64", seen), want)), lanes
            ).e
            self.push(tile.Set(left, Select(less, Bin("+", Bin("+", left, half), const(1)), left)))
            rest = Bin("-", Bin("-", span, half), const(1))
            self.push(tile.Set(span, Select(less, rest, half)))
        self.push(tile.For(turn, const(0), steps, tuple(body)))
        inside: Expr = Bin("<", left, last)
        inside = inside if mask is None else Bin("&", inside, mask)
        found = self.emit("seen", b.dtype, tile.Load(b, (left,), inside, _zero(b.dtype)), lanes).e
        hit = Bin("&", inside, Bin("==", Cast("i64", found), want))
        absent = Bin("-", const(-1), left) if near else const(-1)
        return self.emit("at", "i64", Select(hit, left, absent), lanes)

    def spread_to(self, t: Tiled, lanes: Lanes) -> Expr:
        """A value with all of these lanes."""
        for ln in lanes:
            if ln not in t.lanes:
                t = self.spread(t, ln)
        return t.e

    # --- products ---------------------------------------------------------------------------------

    def dot(self, lanes: Lanes, inner: Expr, acc: Expr | None) -> Tiled | None:
        """sum over k of a[m, k] * b[k, n]  ->  dot(a, b); else None, and `why` says what is in the way"""
        sides = self.sides(lanes, inner)
        if sides is None:
            return None
        (k,) = lanes
        state = self.sort(v for f in factors(inner) for v in self.value(f).lanes if v is not k)
        a, b = (self.side(side) for side in sides)
        a, b = self.agree(a, b, all(self.lone(side) for side in sides))
        made_a, made_b = self.oriented(a, (state[0], k)), self.oriented(b, (k, state[1]))
        start = None if acc is None else self.broadcast(self.value(acc), state)
        d = "f64" if dtype_of(a.e) == "f64" else "f32"
        return Tiled(tile.Dot(made_a, made_b, start, d), state)

    def sides(self, lanes: Lanes, inner: Expr) -> tuple[list[Expr], list[Expr]] | None:
        """The factors of two matrices that an expression multiplies, if lanes of it fold to a product."""
        terms = factors(inner)
        if len(lanes) != 1 or len(terms) < 2:
            self.why = "several lanes are folded" if len(lanes) != 1 else f"{inner} is no product"
            return None
        k, of = lanes[0], {f: self.lanes(f) for f in terms}
        state = self.sort(set().union(*of.values()) - {k})
        small = [v for v in (*state, k) if self.dims[v] < DOT_MIN]
        if len(state) != 2 or small:
            extent = (
                f"{small[0].name} has {self.dims[small[0]]} lanes, fewer than {DOT_MIN}"
                if small
                else ""
            )
            self.why = extent or f"the result has {len(state)} lanes, not 2"
            return None
        both = next((f for f in terms if of[f] >= {*state}), None)
        if both is not None:
            self.why = f"{both} depends on both sides"
            return None
        made = tuple([f for f in terms if (state[1] in of[f]) == n] for n in (False, True))
        if any(all(k not in of[f] for f in side) for side in made):
            self.why = f"one side does not depend on {k.name}"
            return None
        return made[0], made[1]

    def side(self, terms: list[Expr]) -> Tiled:
        """One operand: a lone 16-bit load stays 16-bit, anything else is computed."""
        if len(terms) == 1:
            f = terms[0]
            if isinstance(f, Cast) and dtype_of(f.a) in HALF:
                return self.value(f.a)
            return self.value(f)
        t = self.value(product(terms))
        half = {dtype_of(f.a) for f in terms if isinstance(f, Cast) and dtype_of(f.a) in HALF}
        e = Cast(half.pop(), t.e) if half else t.e
        return self.emit("side", dtype_of(e), e, t.lanes)

    def lone(self, terms: list[Expr]) -> bool:
        """Whether an operand is what memory holds, not computed."""
        f = terms[0].a if isinstance(terms[0], Cast) else terms[0]
        return len(terms) == 1 and (isinstance(f, Load) or f in self.zero_under)

    def agree(self, a: Tiled, b: Tiled, held: bool) -> tuple[Tiled, Tiled]:
        """Beside a 16-bit operand one that was computed becomes 16-bit too; what memory holds keeps all its bits."""
        da, db = dtype_of(a.e), dtype_of(b.e)
        if da in HALF and db not in HALF and not held:
            b = self.emit("side", da, Cast(da, b.e), b.lanes)
        elif db in HALF and da not in HALF and not held:
            a = self.emit("side", db, Cast(db, a.e), a.lanes)
        elif da != db:
            d = promote(da, db)
            a, b = (self.emit("side", d, cast(d, t.e), t.lanes) for t in (a, b))
        return a, b

    def oriented(self, t: Tiled, want: Lanes) -> Expr:
        if len(t.lanes) != 2:
            t = self.spread(t, next(v for v in want if v not in t.lanes))
        return t.e if t.lanes == want else tile.Trans(t.e)

    # --- masks ------------------------------------------------------------------------------------

    def vanishes(self, e: Expr, identity: Const, guard: Var) -> bool:
        """Whether e is the identity wherever the guard fails, because loads are filled with zeros."""
        made = self.outside(e, guard)
        return made is not None and made.value == identity.value

    def outside(self, e: Expr, guard: Var) -> Const | None:
        """The value of e where a guard fails, if it is known."""
        match e:
            case Const():
                return e
            case Load():
                return _zero(e.buffer.dtype) if guard in self.masking(self.lanes(e)) else None
            case Var():
                return _zero(e.dtype) if guard in self.zero_under.get(e, ()) else None
            case Select(c, _, b) if c is guard:
                return self.outside(b, guard)
            case Cast(d, a):
                inner = self.outside(a, guard)
                made = None if inner is None else cast(d, inner)
            case Un("neg" | "relu" | "abs" | "bits" as op, a):
                inner = self.outside(a, guard)
                return inner if inner is not None and inner.value == 0 and op else None
            case Bin(op, a, b):
                x, y = self.outside(a, guard), self.outside(b, guard)
                if op == "*" and (
                    (self.is_scalar(a) and _is_zero(y)) or (self.is_scalar(b) and _is_zero(x))
                ):
                    return _zero(dtype_of(e))
                made = None if x is None or y is None else binary(op, x, y)
            case _:
                return None
        return made if isinstance(made, Const) else None

    def is_scalar(self, e: Expr) -> bool:
        """A scalar parameter of the program: taken to be finite."""
        return isinstance(e, Var) and e not in self.env

    def lanes(self, e: Any) -> set[Var]:
        """The lanes of an expression, without making code."""
        if isinstance(e, Var):
            return set(self.env[e].lanes) if e in self.env else set()
        if isinstance(e, LaneSplit):
            return self.lanes(e.a) - {e.lane} | {e.outer, e.inner}
        inner = set().union(*(self.lanes(c) for c in parts(e)))
        return inner - set(e.lanes) if isinstance(e, LaneReduce) else inner


def _is_zero(c: Const | None) -> bool:
    return c is not None and c.value == 0


def _zero(dtype: str) -> Const:
    return Const(0.0 if dtype in FLOATS else 0, dtype)
