"""Stage III -> tile form: lanes become tile dimensions; masks, pads, broadcasts and dots are decided here.

In: a scheduled stage III program. Out: tile form.

    lane r, lane f:  fold acc: sum(a[p] * x[c * n_f + f]) where p < stop
 -> acc = acc + load(a + p, where p < stop)[:, None] * load(x + c[:, None] * n_f + f[None, :], where ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import flat, stmt, tile
from tilewright.ir.expr import (
    FLOATS,
    Bin,
    Buffer,
    Const,
    Expr,
    LaneReduce,
    Load,
    Var,
    cast,
    const,
    dtype_of,
    eq,
    minimum,
    select,
)
from tilewright.ir.flat import Loop
from tilewright.ir.monoid import Monoid, apply, fitting, fold_lanes, join_lanes
from tilewright.ir.node import walk
from tilewright.lowering.early import early
from tilewright.lowering.hoist import hoist
from tilewright.lowering.lanes import lane_extents, value_lanes
from tilewright.lowering.tile_address import product
from tilewright.lowering.tile_append import append
from tilewright.lowering.tile_expr import Tiler
from tilewright.lowering.tile_order import lane_order
from tilewright.lowering.tile_rules import check_reads, check_splits, pow2, reads, refuse, strided
from tilewright.lowering.tiled import Lanes, Tiled

N_SLOTS = Var("n_slots")


def lower_to_tile(p: flat.Program) -> tile.Program:
    """Stage III -> tile form."""
    check_reads(p)
    check_splits(p)
    if p.balance:
        raise refuse("balance", "Triton's programs are one row or tile each", "use work_list")
    lower = _Lower(p)
    lower.grid_vars()
    lower.block(p.body)
    for name in p.tensor:
        if name not in lower.dotted:
            why = "it is not a lane that a reduction folds"
            raise refuse(f"tensorise({name})", why, "keep it a lane")
    body = early(hoist(tuple(lower.t.out)), lower.t.types)
    dims = tuple((v.name, n) for v, n in lower.t.dims.items())
    used = {b for b in walk(body) if isinstance(b, Buffer)}
    buffers = tuple(b for b in (*p.buffers, *lower.extra) if b in used)
    held = (body, lower.total, tuple(e for b in lower.extra for e in b.shape))
    read = {v for v in walk(held) if isinstance(v, Var)}
    sizes = tuple(v for v in (*p.sizes, N_SLOTS) if v in read)
    types = tuple(lower.t.types.items())
    return tile.Program(p.name, buffers, sizes, p.scalars, dims, types, lower.total, body)


class _Lower:
    def __init__(self, p: flat.Program) -> None:
        self.p = p
        self.table = value_lanes(p)
        self.extents = lane_extents(p)
        dims = {v: pow2(self.extents[v]) for v in lane_order(p, self.table)}
        self.t = Tiler(dims, p.streams, p.scan)
        self.open: list[Var] = []
        self.begun: dict[Var, tuple[int, int]] = {}
        self.grids: list[Loop] = []
        self.total: Expr = const(1)
        self.extra: list[Buffer] = []
        self.dotted: set[str] = set()
        self.deep = (
            0  # loops and branches around a statement: programs may come to it twice, or not
        )

    # --- the grid ---------------------------------------------------------------------------------

    def grid_vars(self) -> None:
        """program id -> the variables of the grid loops, last one fastest"""
        found = [s for s in walk(self.p.body) if isinstance(s, Loop) and s.kind == "grid"]
        rank = {n: k for k, n in enumerate(self.p.order)}
        self.grids = sorted(found, key=lambda g: rank.get(g.var.name, len(rank)))
        for n, g in enumerate(found):
            inside = [x for x in walk(g.body) if isinstance(x, Loop) and x.kind == "grid"]
            apart = [x for x in found[n + 1 :] if x not in inside]
            if apart:
                why = f"programs over {apart[0].var.name} stand beside it in one launch"
                raise refuse(f"grid loop {g.var.name}", why, "compile each on its own", g)
        for g in self.grids:
            if not all(v in self.p.sizes for v in walk(g.hi) if isinstance(v, Var)) or reads(g.hi):
                why = f"its extent {g.hi} is not known before the launch"
                raise refuse(f"grid loop {g.var.name}", why, "keep it serial", g)
            self.total = self.total * g.hi
        pid = self.t.emit("pid", "i32", tile.ProgramId(), ()).e
        if self.p.swizzle and len(self.grids) >= 2:
            pid = self.outer_grids(pid, self.grids[:-2], self.grids[-2].hi * self.grids[-1].hi)
            self.swizzled(pid, *self.grids[-2:])
        else:
            self.outer_grids(pid, self.grids, const(1))

    def outer_grids(self, pid: Expr, grids: list[Loop], per: Expr) -> Expr:
        """Peel grid variables off a program number; what is left runs inside `per` programs."""
        if not grids:
            return pid
        left = self.t.value(pid // per).e
        for g in reversed(grids[1:]):
            self.bind(g.var, left % g.hi)
            left = left // g.hi
        self.bind(grids[0].var, left)
        return self.t.value(pid % per).e

    def bind(self, v: Var, e: Expr) -> None:
        self.t.env[v] = self.t.emit(v.name, "i32", self.t.value(e).e, ())

    def swizzled(self, pid: Expr, gm: Loop, gn: Loop) -> None:
        """Groups of `swizzle` row tiles share the column tiles they read."""
        group = self.p.swizzle
        first = self.t.emit("first", "i32", self.t.value(pid // (gn.hi * group) * group).e, ()).e
        size = self.t.emit("size", "i32", self.t.value(minimum(gm.hi - first, group)).e, ()).e
        at = self.t.emit("at", "i32", self.t.value(pid % (gn.hi * group)).e, ()).e
        self.bind(gm.var, first + at % size)
        self.bind(gn.var, at // size)

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: tuple[stmt.Stmt, ...]) -> None:
        read, written = set[Any](), set[Any]()
        for s in body:
            loads = {(n.buffer, n.indices) for n in walk(s) if isinstance(n, Load)}
            stores = {(n.buffer, n.indices) for n in walk(s) if isinstance(n, stmt.Store)}
            late = {b for b, _ in written} & {b for b, _ in loads}
            if late or any(b is c and i != j for b, i in stores for c, j in read | written):
                self.t.push(tile.Barrier())  # other threads may have written it, or have to read it
                read, written = set(), set()
            self.t.memo.clear()
            self.statement(s)
            read, written = read | loads, written | stores

    def statement(self, s: Any) -> None:
        match s:
            case Loop(kind="grid"):
                self.block(s.body)
            case Loop(kind="lane"):
                self.lane(s)
            case Loop():
                self.serial(s)
            case stmt.Let(v, e):
                self.t.let(v, e)
            case stmt.Guard(c, body):
                self.guard(c, body)
            case stmt.If(c, then, orelse):
                self.branch(c, then, orelse)
            case stmt.Init(state, m):
                self.init(state, m)
            case stmt.Fold(state, m, args):
                self.fold(state, m, args)
            case stmt.Join(state, m, other):
                self.meet(state, m, other)
            case stmt.Store(b, (at,), v):
                self.store(b, at, v)
            case stmt.Atomic(op, b, (at,), v):
                self.atomic(op, b, at, v)
            case stmt.Publish():
                self.publish(s)
            case stmt.Append():
                append(self.t, s, self.claims(s))
            case stmt.Prefetch():
                raise refuse("prefetch", "Triton pipelines its loads itself", "leave it out", s)
            case _:
                raise refuse(type(s).__name__, "it has no tile form yet", "use the CPU back end", s)

    def lane(self, s: Loop) -> None:
        if not self.extents[s.var]:  # rows of no places
            return
        if s.var not in self.t.env:
            self.t.env[s.var] = self.t.emit(s.var.name, "i32", tile.Arange(s.var.name), (s.var,))
        self.open.append(s.var)
        if self.extents[s.var] != self.t.dims[s.var]:
            self.guard(s.var < const(self.extents[s.var]), s.body)
        else:
            self.block(s.body)
        self.open.pop()

    def serial(self, s: Loop) -> None:
        s, step = strided(s)
        lo, hi = self.t.value(s.lo), self.t.value(s.hi)
        if lo.lanes or hi.lanes:
            raise refuse(
                f"loop {s.var.name}", "its bounds differ from lane to lane", "pad the rows"
            )
        v = self.t.fresh(s.var.name, s.var.dtype)
        self.t.types[v] = ()
        self.t.env[s.var] = Tiled(v, ())
        self.t.turn(s.var, s.kind == "unroll")
        self.deep += 1
        with self.t.into() as body:
            self.block(s.body)
            if self.rereads(s.body):
                self.t.push(tile.Barrier())  # before the next turn
        self.deep -= 1
        if s.kind == "unroll":
            assert isinstance(s.hi, Const)
            self.t.push(tile.Unroll(v, int(s.hi.value), tuple(body)))
            return
        made = tile.For(v, lo.e, hi.e, tuple(body), step)
        self.t.push(tile.If(lo.e < hi.e, (made,)) if self.may_pass(s, made) else made)

    def may_pass(self, s: Loop, made: tile.For) -> bool:
        """Whether a loop of products over a whole dimension might have no turn. It is asked for that first: else its
        sums, on the way out, are merged with what they begin as, and the assembler waits for every product in it.
        """
        read = {v for v in walk((s.lo, s.hi)) if isinstance(v, Var)}
        steady = bool(read) and read <= {*self.p.sizes} and not (reads(s.lo) or reads(s.hi))
        return steady and any(isinstance(n, tile.Dot) for n in walk(made.body))

    def rereads(self, body: tuple[stmt.Stmt, ...]) -> bool:
        """Whether something is read that is written elsewhere than there."""
        at: dict[Buffer, set[Any]] = {}
        for n in walk(body):
            if isinstance(n, stmt.Store):
                at.setdefault(n.buffer, set()).add(n.indices)
        loads = (n for n in walk(body) if isinstance(n, Load) and n.buffer in at)
        return any(at[n.buffer] != {n.indices} for n in loads)

    def guard(self, c: Expr, body: tuple[stmt.Stmt, ...]) -> None:
        made = self.t.guard(self.lane_bound(c))
        if not made.lanes:
            self.branch(c, body, ())
            return
        g = Var("in_", "b1")
        self.t.env[g] = made
        self.t.guards.append(g)
        self.block(body)
        self.t.guards.pop()

    def lane_bound(self, c: Expr) -> Expr:
        """base + lane < n  ->  lane < min(n - base, extent): one 32-bit comparison for each lane"""
        if not (isinstance(c, Bin) and c.op == "<") or self.t.lanes(c.b):
            return c
        terms = self.t.terms(c.a, deep=True)
        mine = [t for t in terms if t in self.t.dims]
        rest = [t for t in terms if t not in self.t.dims]
        if len(mine) != 1 or not rest or any(self.t.lanes(t) for t in rest):
            return c
        extent = Const(self.t.dims[mine[0]], "i64")
        return mine[0] < cast("i32", minimum(c.b - sum(rest, const(0)), extent))

    def branch(self, c: Expr, then: tuple[stmt.Stmt, ...], orelse: tuple[stmt.Stmt, ...]) -> None:
        cond = self.t.value(c)
        if cond.lanes:
            raise refuse("if", f"{c} differs from lane to lane", "use a guard")
        outside = dict(self.t.env)
        self.deep += 1
        with self.t.into() as yes:
            self.block(then)
        self.t.env = dict(outside)  # lanes that were opened there are not here
        with self.t.into() as no:
            self.block(orelse)
        self.t.env = outside
        self.deep -= 1
        self.t.push(tile.If(cond.e, tuple(yes), tuple(no)))

    # --- reductions -------------------------------------------------------------------------------

    def init(self, state: tuple[Var, ...], m: Monoid) -> None:
        for v, d, ident in zip(state, m.dtypes, m.identity, strict=True):
            lanes = self.t.sort(self.table[v])
            self.t.env[v] = self.t.emit(v.name, d, _full(ident, d, lanes), lanes)
            self.begun[v] = (len(self.open), len(self.t.guards))

    def fold(self, state: tuple[Var, ...], m: Monoid, args: Sequence[Expr]) -> None:
        at, masks = self.begun[state[0]]
        lanes, guards = tuple(self.open[at:]), self.t.guards[masks:]
        asked = [v.name for v in lanes if v.name in self.p.tensor]
        self.t.why, before = f"{m.name} folds no product of tiles", len(self.t.out)
        if m.name == "sum":
            args = [self.by_side(args[0], lanes, guards)]
        self.folded(state, m, args, lanes, guards)
        if asked and not any(isinstance(n, tile.Dot) for n in walk(tuple(self.t.out[before:]))):
            raise refuse(f"tensorise({asked[0]})", self.t.why, "change the lanes, or leave it out")
        self.dotted.update(asked)

    def folded(
        self,
        state: tuple[Var, ...],
        m: Monoid,
        args: Sequence[Expr],
        lanes: Lanes,
        guards: list[Var],
    ) -> None:
        if m.fold is not None and lanes:
            made = fold_lanes(m, state, self.neutral(m, args, guards), lanes)
            assert made is not None
            self.assign(state, made)
            return
        if not m.laned and not lanes:
            self.step(state, apply(m.combine, (*state, *apply(m.lift, args))), guards)
            return
        lifted = [
            self.keep(e, ident, guards)
            for e, ident in zip(apply(m.lift, args), m.identity, strict=True)
        ]
        self.combine(state, m, lanes, lifted)

    def step(self, state: tuple[Var, ...], made: Sequence[Expr], guards: list[Var]) -> None:
        """The new state where the guards hold: users' identities may be neutral for finite numbers only."""
        for g in guards:
            made = [select(g, new, v) for new, v in zip(made, state, strict=True)]
        self.assign(state, made)

    def combine(
        self, state: tuple[Var, ...], m: Monoid, lanes: Lanes, values: Sequence[Expr]
    ) -> None:
        """The state with a lane of other states."""
        if m.join is not None and lanes:
            self.assign(state, join_lanes(m, state, values, lanes))
        else:
            self.assign(state, apply(m.combine, (*state, *self.over(m, lanes, values))))

    def over(self, m: Monoid, lanes: Lanes, values: Sequence[Expr]) -> list[Expr]:
        """Each member reduced over the folded lanes."""
        if not lanes:
            return list(values)
        if m.lane is None:
            raise refuse(f"lane {lanes[-1].name}", f"{m.name} has no lane form", "keep it serial")
        return [LaneReduce(op, lanes, e) for op, e in zip(m.lane, values, strict=True)]

    def keep(self, e: Expr, identity: Const, guards: list[Var]) -> Expr:
        """e where the guards hold, else the identity; nothing to do where masked loads give it already."""
        for g in guards:
            if not self.t.vanishes(e, identity, g):
                e = select(g, fitting(e, identity), identity)
        return e

    def by_side(self, e: Expr, lanes: Lanes, guards: list[Var]) -> Expr:
        """where(g, a * b, 0) -> where(g, a, 0) * where(g, b, 0), so that a product of matrices stays one"""
        zero = Const(0.0 if dtype_of(e) in FLOATS else 0, dtype_of(e))
        sides = self.t.sides(lanes, e)
        for g in guards:
            if sides is None or self.t.vanishes(e, zero, g):
                continue
            made = [product(side) for side in sides]
            if not all(set(self.t.env[g].lanes) <= self.t.lanes(side) for side in made):
                return e
            made = [a if self.t.vanishes(a, zero, g) else select(g, a, zero) for a in made]
            e, sides = product(made), ([made[0]], [made[1]])
        return e

    def neutral(self, m: Monoid, args: Sequence[Expr], guards: list[Var]) -> list[Expr]:
        """Where a guard fails the first argument (a score) becomes its identity, the others 0."""
        first = args[0]
        for g in guards:
            first = select(g, first, m.identity[0])
        return [first, *(self.keep(a, Const(0.0, m.dtypes[0]), guards) for a in args[1:])]

    def meet(self, state: tuple[Var, ...], m: Monoid, other: tuple[Var, ...]) -> None:
        at, masks = self.begun[state[0]]
        lanes, guards = tuple(self.open[at:]), self.t.guards[masks:]
        kept = [self.keep(v, i, guards) for v, i in zip(other, m.identity, strict=True)]
        if m.join is not None and lanes:
            self.assign(state, join_lanes(m, state, kept, lanes))
            return
        whole = self.over(m, lanes, kept)
        self.assign(state, whole if self.untouched(state) else apply(m.combine, (*state, *whole)))

    def untouched(self, state: tuple[Var, ...]) -> bool:
        """Whether the state was begun just now: then its beginning is not needed."""
        homes = [self.t.env[v].e for v in state]
        begun = self.t.out[-len(state) :]
        begun_now = [
            s.var for s in begun if isinstance(s, tile.Set) and isinstance(s.value, tile.Full)
        ]
        if begun_now != homes:
            return False
        del self.t.out[-len(state) :]
        return True

    def assign(self, state: tuple[Var, ...], made: Sequence[Expr]) -> None:
        """All new members first, then the state."""
        homes = [self.t.env[v] for v in state]
        values = self.t.shared(made)
        if len(values) > 1:
            values = [
                self.t.emit(f"{v.name}_new", v.dtype, t.e, t.lanes)
                for v, t in zip(state, values, strict=True)
            ]
        for home, value in zip(homes, values, strict=True):
            assert isinstance(home.e, Var)
            self.t.push(tile.Set(home.e, self.t.broadcast(value, home.lanes)))
        self.t.memo.clear()

    # --- memory -----------------------------------------------------------------------------------

    def store(self, b: Buffer, at: Expr, v: Expr) -> None:
        self.t.push(tile.Store(b, *self.placed(at, v), once=b.name in self.p.streams))

    def atomic(self, op: str, b: Buffer, at: Expr, v: Expr) -> None:
        if op != "sum" and b.dtype in FLOATS:
            why = f"an atomic {op} of floats would pass over NaN"
            raise refuse(f"atomic {op}", why, "split the reduction in order")
        self.t.push(tile.Atomic(op, b, *self.placed(at, v)))

    def placed(self, at: Expr, v: Expr) -> tuple[tuple[Expr, ...], Expr, Expr | None]:
        """Offsets, value and mask of what is written, over the same lanes."""
        value = self.t.value(v)
        offsets, lanes = self.t.offsets(at)
        lanes = self.t.sort({*lanes, *value.lanes})
        parts = tuple(self.t.broadcast(o, lanes) for o in offsets)
        return parts, self.t.broadcast(value, lanes), self.t.mask(lanes)

    def claims(self, s: stmt.Append) -> Buffer | None:
        """A counter for the count of an append that every program comes to once."""
        others = [n for n in walk(self.p.body) if isinstance(n, stmt.Append) and n.count is s.count]
        alone = s.group == const(0) and s.count.shape == (const(1),) and others == [s]
        if not alone or self.deep or s.count.role != "out":
            return None
        return self.workspace(f"{s.count.name}_claims", "i64", const(1), "counter")

    def publish(self, s: stmt.Publish) -> None:
        """Leave the state in the workspace; the last piece to arrive combines all of them in order."""
        tiles, which = const(1), const(0)
        across = flat.made_of(self.p.body, s.slot, s.nth)
        for g in self.grids:
            if g.var not in across:
                which, tiles = which * g.hi + g.var, tiles * g.hi
        slots = N_SLOTS if s.slots is None else s.slots
        done = self.workspace("done", "i32", slots * tiles, "counter")
        works = [
            self.workspace(f"work_{v.name}", d, slots * tiles * self.cells(v), "work")
            for v, d in zip(s.state, s.monoid.dtypes, strict=True)
        ]
        for v, w in zip(s.state, works, strict=True):
            at = self.cell(v, s.slot + s.nth, tiles, which)
            self.t.push(tile.Store(w, at, self.t.env[v].e, None, fresh=True))
        self.t.push(tile.Barrier())
        counter = self.t.emit("counter", "i64", self.t.value(s.slot * tiles + which).e, ()).e
        arrived = self.t.fresh("arrived", "i32")
        self.t.types[arrived] = ()
        self.t.push(tile.Arrive(arrived, done, counter))
        with self.t.into() as last:
            self.combine_pieces(s, works, tiles, which)
            self.block(s.body)
            self.t.push(tile.Store(done, (counter,), Const(0, "i32"), None))
        self.t.push(tile.If(eq(arrived, self.t.value(s.pieces - 1).e), tuple(last)))

    def combine_pieces(
        self, s: stmt.Publish, works: list[Buffer], tiles: Expr, which: Expr
    ) -> None:
        for v, ident, d in zip(s.state, s.monoid.identity, s.monoid.dtypes, strict=True):
            home = self.t.env[v]
            assert isinstance(home.e, Var)
            self.t.push(tile.Set(home.e, _full(ident, d, home.lanes)))
        piece = self.t.fresh("piece", "i32")
        self.t.types[piece] = ()
        with self.t.into() as body:
            loaded = []
            for v, w in zip(s.state, works, strict=True):
                at = self.cell(v, s.slot + piece, tiles, which)
                got = Var(f"{v.name}_piece", v.dtype)
                load = tile.Load(w, at, None, Const(0.0, v.dtype), fresh=True)
                self.t.env[got] = self.t.emit(got.name, v.dtype, load, self.t.env[v].lanes)
                loaded.append(got)
            self.assign(s.state, apply(s.monoid.combine, (*s.state, *loaded)))
        self.t.push(tile.For(piece, const(0), self.t.value(s.pieces).e, tuple(body)))

    def cells(self, v: Var) -> int:
        n = 1
        for ln in self.t.env[v].lanes:
            n *= self.t.dims[ln]
        return n

    def cell(self, v: Var, row: Expr, tiles: Expr, which: Expr) -> tuple[Expr, ...]:
        """Where a member of the state lies in its workspace: the tiles of one piece side by side."""
        lanes, step = self.t.env[v].lanes, self.cells(v)
        start, at = self.t.wide(row * (tiles * step)), which * step
        for ln in lanes:
            step //= self.t.dims[ln]
            at = at + ln * step
        return (start.e, self.t.broadcast(self.t.value(at), lanes))

    def workspace(self, name: str, dtype: str, size: Expr, role: str) -> Buffer:
        made = Buffer(name, dtype, (size,), role)
        self.extra.append(made)
        return made


def _full(ident: Const, d: str, lanes: Lanes) -> Expr:
    return tile.Full(ident, d, tuple(v.name for v in lanes))
