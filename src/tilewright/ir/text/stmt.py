"""Statements of every stage as text.

In: statements. Out: lines of Python. Stages II and III:

    for i in range(n_i):                     stage II;  stage III: grid, lane, serial, unroll
    for f in lane(32, i32):                  loop variables are i64 unless told
    for p in serial(a_indptr[i], a_indptr[i + 1]):
    j = a_indices[p]                         a let;  j: i64 = ... where the dtype is not the value's
    acc = init(sum)                          then: acc = fold(sum, acc, a[p]);  acc = join(sum, acc, part)
    y[i] = acc                               a store
    with where(i < n_i):                     a guard, lane by lane;  if c: ... else: ... for scalars
    atomic(sum, y[i], acc)                   added to what is there, whoever else does
    prefetch(x[j])
    at = append(list[slot], count[group], value, where=c)
    if publish(sum, acc, slot=s, nth=n, pieces=k):     the last piece runs the body

Stage I: `y[i, f], z[i] = ..., ...`, `y[i, f] += ...` and `append(list, count, value, group=(), over=(j,), where=c)`,
which may also say `start=...` and `ordered=False`. A compacted axis is told before its statement:
`i = listed(rows[p], place=p)`.
Tile form: `x = value`, `for t in range(lo, hi, step)`, `for q in unroll(4)`, `if`,
`store(y + i * n + f, value, mask=m)`, `atomic(sum, y + i, value, mask=m)`,
`n = arrive(done + 3)`, `n = fetch_add(count + g, 1)`, `barrier()`.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import coord, flat, loops, stmt, tile
from tilewright.ir.expr import Const, Var, dtype_of
from tilewright.ir.monoid import Monoid
from tilewright.ir.stmt import Append
from tilewright.ir.text.expr import Exprs, dims_of, monoid_text, tupled

ZERO = Const(0, "i64")
INDENT = "    "


class Stmts(Exprs):
    """Statements; `types` are the declared dims of tiles, `known` those that the reader has worked out."""

    def __init__(self, plain: bool = False, surface: bool = False) -> None:
        super().__init__(plain, surface)
        self.types: dict[Any, tuple[str, ...]] = {}
        self.known: dict[Any, tuple[str, ...]] = {}

    def target(self, v: Var, dtype: str, dims: tuple[str, ...] = ()) -> str:
        """A variable that is set; what its value does not tell stands behind it."""
        if self.plain or v in self.names:
            return self.name(v)
        made, want = self.claim(v), self.types.get(v, dims)
        self.known[v] = want
        if want != dims:
            return f"{made}: {v.dtype}[{', '.join(want) or '()'}]"
        return made if v.dtype == dtype else f"{made}: {v.dtype}"

    def block(self, head: str, body: tuple[Any, ...]) -> list[str]:
        lines = [line for s in body for line in self.stmt(s)] or ["pass"]
        return [f"{head}:", *(INDENT + line for line in lines)]

    def loop(self, v: Var, kind: str, *span: str, body: tuple[Any, ...]) -> list[str]:
        if not self.plain and v not in self.names:
            self.claim(v)
            self.known[v] = ()
        span = span if v.dtype == "i64" else (*span, v.dtype)
        return self.block(f"for {self.name(v)} in {kind}({', '.join(span)})", body)

    def span(self, lo: Any, hi: Any) -> list[str]:
        return [self.expr(hi)] if lo == ZERO else [self.expr(lo), self.expr(hi)]

    def branch(self, cond: str, then: tuple[Any, ...], orelse: tuple[Any, ...]) -> list[str]:
        return self.block(f"if {cond}", then) + (self.block("else", orelse) if orelse else [])

    def stmt(self, s: Any) -> list[str]:
        match s:
            case stmt.Let(v, e):
                made = self.expr(e)
                return [f"{self.target(v, dtype_of(e))} = {made}"]
            case stmt.Init(state, m):
                return [*self.init(state, m)]
            case stmt.Fold(state, m, args):
                made = ", ".join([monoid_text(m), self.listed(state), *map(self.expr, args)])
                return [f"{self.state(state)} = fold({made})"]
            case stmt.Join(state, m, other):
                made = f"join({monoid_text(m)}, {self.listed(state)}, {self.listed(other)})"
                return [f"{self.state(state)} = {made}"]
            case stmt.Store(b, ix, v):
                return [f"{b.name}[{self.index(ix)}] = {self.expr(v)}"]
            case stmt.Atomic(op, b, ix, v):
                return [f"atomic({op}, {b.name}[{self.index(ix)}], {self.expr(v)})"]
            case stmt.Prefetch(b, ix, span):
                return [f"prefetch({b.name}[{self.index(ix)}]{f', {span}' if span > 1 else ''})"]
            case stmt.Guard(c, body):
                return self.block(f"with where({self.expr(c)})", body)
            case stmt.If(c, then, orelse) | tile.If(c, then, orelse):
                return self.branch(self.expr(c), then, orelse)
            case stmt.Append():
                return [self.append(s)]
            case stmt.Publish(state, m, slot, nth, pieces, body, slots):
                told = (("slot", slot), ("nth", nth), ("pieces", pieces), ("slots", slots))
                at = ((n, self.expr(e)) for n, e in told if e is not None)
                made = ", ".join([monoid_text(m), self.listed(state), *(f"{n}={e}" for n, e in at)])
                return self.block(f"if publish({made})", body)
            case loops.For(v, lo, hi, body):
                return self.loop(v, "range", *self.span(lo, hi), body=body)
            case flat.Loop(v, lo, hi, kind, body):
                return self.loop(v, kind, *self.span(lo, hi), body=body)
            case coord.Assign(targets, values, _, adds, listed):
                lists = [f"{self.name(n.index)} = {self.listing(n)}" for n in listed]
                sign = "+=" if adds else "="
                return [*lists, f"{self.many(targets)} {sign} {self.many(values)}"]
            case coord.Append(dst, count, group, over, where, value, _, start, ordered):
                held = (("group", group), ("over", over))
                lists = [f"{n}={tupled(map(self.name, vs))}" for n, vs in held]
                lists += [f"where={self.expr(where)}"]
                lists += [] if start is None else [f"start={self.expr(start)}"]
                lists += [] if ordered else ["ordered=False"]
                return [f"append({', '.join([dst.name, count.name, self.expr(value), *lists])})"]
        return self.tile_stmt(s)

    def listing(self, n: Any) -> str:
        said = [self.expr(n.at), f"place={self.name(n.place)}"]
        said += [] if n.below is None else [f"below={self.expr(n.below)}"]
        said += [] if n.tile == 1 else [f"tile={n.tile}"]
        return f"listed({', '.join(said)})"

    def state(self, state: tuple[Var, ...]) -> str:
        return ", ".join(self.name(v) for v in state)

    def init(self, state: tuple[Var, ...], m: Monoid) -> list[str]:
        """Members whose dtype is not the monoid's are declared above."""
        for v, d in zip(state, m.dtypes, strict=True):
            if not self.plain and v not in self.names and v.dtype == d:
                self.claim(v)
        return [f"{self.state(state)} = init({monoid_text(m)})"]

    def append(self, s: Append) -> str:
        where = f"{s.list.name}[{self.expr(s.slot)}], {s.count.name}[{self.expr(s.group)}]"
        shared = ", shared=True" if s.shared else ""
        made = f"append({where}, {self.expr(s.value)}, where={self.expr(s.where)}{shared})"
        return made if s.at is None else f"{self.target(s.at, 'i64')} = {made}"

    def tile_stmt(self, s: Any) -> list[str]:
        match s:
            case tile.Set(v, e):
                made = self.expr(e)
                return [f"{self.target(v, dtype_of(e), dims_of(e, self.known))} = {made}"]
            case tile.For(v, lo, hi, body, step):
                span = self.span(lo, hi) if step == 1 else [self.expr(lo), self.expr(hi), str(step)]
                return self.loop(v, "range", *span, body=body)
            case tile.Unroll(v, count, body):
                return self.loop(v, "unroll", str(count), body=body)
            case tile.Store(b, offsets, v, mask, fresh, once):
                extra = self.masked(b, mask, None, fresh, once)
                return [f"store({self.pointer(b, offsets)}, {self.expr(v)}{extra})"]
            case tile.Atomic(op, b, offsets, v, mask):
                extra = self.masked(b, mask, None, False)
                return [f"atomic({op}, {self.pointer(b, offsets)}, {self.expr(v)}{extra})"]
            case tile.Arrive(v, b, at):
                made = self.pointer(b, (at,))
                return [f"{self.target(v, b.dtype, dims_of(at, self.known))} = arrive({made})"]
            case tile.FetchAdd(v, b, at, by, mask):
                made = f"{self.pointer(b, (at,))}, {self.expr(by)}"
                made += self.masked(b, mask, None, False)
                return [f"{self.target(v, b.dtype, dims_of(at, self.known))} = fetch_add({made})"]
            case tile.Claim(v, counter, count, by):
                made = f"{self.pointer(counter, ())}, {self.pointer(count, ())}, {self.expr(by)}"
                return [f"{self.target(v, count.dtype, ())} = claim({made})"]
            case tile.Barrier():
                return ["barrier()"]
        raise TypeError(f"no text for {type(s).__name__}")
