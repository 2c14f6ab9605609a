"""Stage III, interpreted: values are arrays over lanes, one NumPy axis for each lane of the program.

A value has size 1 along the lanes it does not depend on, so that broadcasting is the lane semantics. The
mask in force is the conjunction of the guards around. Loads read only where it holds (elsewhere 0), folds,
stores and appends happen only where it holds; along lanes that an address does not have, it is enough
that it holds somewhere. Lanes opened after a state's Init are folded one element at a time, in order.
Grid loops may run in any `order` ("forward", "reverse", "random"): results must not depend on it.

    run_flat(program, {"a": ..., "x": ..., "units": ...}, {"n_f": 48, ...}, order="random", seed=1)["y"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir import flat, stmt
from tilewright.ir.expr import (
    Buffer,
    Const,
    Expr,
    LaneReduce,
    LaneScan,
    LaneSplit,
    Load,
    Var,
    dtype_of,
)
from tilewright.ir.interp.common import NUMPY, REDUCE, Env, Fn, Maker, Value, convert
from tilewright.ir.interp.loops import place_of, step_of
from tilewright.ir.interp.memory import Memory
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk
from tilewright.ir.tile import starts


def run_flat(
    program: flat.Program,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    zeroed: Collection[str] = (),
    order: str = "forward",
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The outputs; those not named in `zeroed` start poisoned."""
    memory = Memory(program.buffers, arrays, sizes, zeroed, starts(program.body))
    env: Env = {v: np.int64(sizes[v.name]) for v in program.sizes}
    env |= {v: convert((scalars or {})[v.name], v.dtype) for v in program.scalars}
    run = _Run(program, memory, env, Order(order, seed))
    with np.errstate(all="ignore"):
        run.block(program.body)
    run.finish()
    return memory.outputs()


class Order:
    """In which order independent programs run."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.random = kind, np.random.default_rng(seed)

    def __call__(self, lo: int, hi: int) -> list[int]:
        made = list(range(lo, hi))
        if self.kind == "random":
            self.random.shuffle(made)
        return made[::-1] if self.kind == "reverse" else made


@dataclass
class Pieces:
    """What the programs that share a row have left so far."""

    total: int
    left: dict[int, list[Value]] = field(default_factory=dict)


class _Run(Maker):
    def __init__(self, p: flat.Program, memory: Memory, env: Env, order: Order) -> None:
        super().__init__()
        self.memory, self.env, self.order = memory, env, order
        self.axis, self.extent = _lanes(p)
        self.mask: Value = np.full((1,) * len(self.axis), True)
        self.open: list[Var] = []
        self.grid: list[Var] = []
        self.begun: dict[Var, tuple[int, int]] = {}
        self.steps: dict[int, Any] = {}
        self.joins: dict[int, stmt.Join] = {}
        self.work: dict[tuple[int, ...], Pieces] = {}
        published = (s for s in walk(p.body) if isinstance(s, stmt.Publish))
        self.across = {id(s): flat.made_of(p.body, s.slot, s.nth) for s in published}
        self.now: stmt.Stmt | None = None

    def finish(self) -> None:
        for key, pieces in self.work.items():
            raise ValueError(f"slot {key}: {len(pieces.left)} of {pieces.total} pieces arrived")

    # --- values -----------------------------------------------------------------------------------

    def of(self, e: Expr) -> Value:
        return self.value(e, self.env)

    def full(self, e: Expr) -> np.ndarray:
        return self.shaped(self.of(e))

    def shaped(self, v: Value) -> np.ndarray:
        return np.reshape(v, np.shape(v) or (1,) * len(self.axis))

    def scalar(self, e: Expr, what: str) -> Any:
        v = np.asarray(self.of(e))
        if v.size != 1:
            raise ValueError(f"{what} differs from lane to lane: {e} in: {self.now}")
        return v.reshape(())[()]

    def narrowed(self, shape: tuple[int, ...]) -> np.ndarray:
        """The mask, along the lanes of a value of this shape only."""
        extra = tuple(n for n, k in enumerate(shape) if k == 1)
        return self.mask.any(axis=extra, keepdims=True)

    def spread(self, v: Value, lanes: tuple[Var, ...]) -> np.ndarray:
        """v with its full extent along these lanes"""
        v = self.shaped(v)
        shape = list(v.shape)
        for ln in lanes:
            shape[self.axis[ln]] = self.extent[ln]
        return np.broadcast_to(v, shape)

    def special(self, e: Expr) -> Fn:
        match e:
            case Load(_, (at,)):
                index = self.make(at)
                return lambda env: self.load(e, self.shaped(index(env)))
            case Load():
                raise ValueError(f"{e}: stage III loads have one flat index")
            case LaneReduce(op, lanes, a):
                inner, d = self.make(a), dtype_of(e)
                return lambda env: convert(self.reduce(op, lanes, inner(env)), d)
            case LaneScan(op, lane, a):
                inner, d = self.make(a), dtype_of(e)
                return lambda env: convert(self.scan(op, lane, inner(env)), d)
            case LaneSplit(a, lane, outer, first):
                whole = self.make(a)
                return lambda env: self.split(whole(env), lane, outer, first)
            case Lookup(b, lo, hi, key, start):
                ends = [self.make(x) for x in (lo, hi, key)]
                near = start is not None
                return lambda env: self.search(b, [self.shaped(f(env)) for f in ends], near)
        return super().special(e)

    def search(self, b: Buffer, given: list[np.ndarray], near: bool) -> np.ndarray:
        """The position of each key in its range; lanes that are masked out search nothing."""
        lo, hi, key = np.broadcast_arrays(*given)
        live = np.broadcast_to(self.narrowed(lo.shape), lo.shape)
        made = np.full(lo.shape, -1, np.int64)
        for at in map(tuple, np.argwhere(live)):
            where = np.arange(int(lo[at]), int(hi[at]))
            held = self.memory.gather(b, where, np.full(where.shape, True), 0, str(self.now))
            made[at] = place_of(int(key[at]), held, int(lo[at]), near)
        return made

    def load(self, e: Load, at: np.ndarray) -> Value:
        mask = self.narrowed(at.shape)
        return self.memory.gather(e.buffer, at, mask, 0, f"{e} of {self.now}")

    def reduce(self, op: str, lanes: tuple[Var, ...], v: Value) -> Value:
        v = _wide(self.spread(v, lanes))
        axes = tuple(self.axis[ln] for ln in lanes)
        return REDUCE[op].reduce(v, axis=axes, keepdims=True, dtype=v.dtype)

    def scan(self, op: str, lane: Var, v: Value) -> Value:
        v = _wide(self.spread(v, (lane,)))
        return REDUCE[op].accumulate(v, axis=self.axis[lane], dtype=v.dtype)

    def split(self, v: Value, lane: Var, outer: Var, inner: Var) -> Value:
        """v at lane = outer * extent + inner"""
        if self.extent[lane] != self.extent[outer] * self.extent[inner]:
            raise ValueError(f"lane {lane.name} is not {outer.name} times {inner.name}")
        at = self.env[outer] * self.extent[inner] + self.env[inner]
        return np.take_along_axis(self.spread(v, (lane,)), at, axis=self.axis[lane])

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: tuple[stmt.Stmt, ...]) -> None:
        for s in body:
            self.now = s
            self.statement(s)

    def statement(self, s: Any) -> None:
        match s:
            case flat.Loop():
                self.loop(s)
            case stmt.Let(v, e):
                self.env[v] = convert(self.of(e), v.dtype)
            case stmt.Init(state, m):
                for v, c in zip(state, m.identity, strict=True):
                    self.env[v] = convert(c.value, v.dtype)
                    self.begun[v] = (len(self.open), len(self.grid))
            case stmt.Fold() | stmt.Join():
                self.fold(s)
            case stmt.Store(b, (at,), e):
                self.store(b, self.full(at), self.full(e), s)
            case stmt.Atomic(op, b, (at,), e):
                self.add(op, b, self.full(at), self.full(e), s)
            case stmt.Prefetch():
                pass
            case stmt.Guard(c, body):
                self.guard(c, body)
            case stmt.If(c, then, orelse):
                self.block(then if self.scalar(c, "the condition") else orelse)
            case stmt.Append():
                self.append(s)
            case stmt.Publish():
                self.publish(s)
            case _:
                raise TypeError(f"{type(s).__name__} is not a statement of stage III")

    def loop(self, s: flat.Loop) -> None:
        if s.kind == "lane":
            self.lane(s)
            return
        lo, hi = int(self.scalar(s.lo, "a bound")), int(self.scalar(s.hi, "a bound"))
        if s.kind == "grid":
            self.grid.append(s.var)
        for n in self.order(lo, hi) if s.kind == "grid" else range(lo, hi):
            self.env[s.var] = convert(n, s.var.dtype)
            self.block(s.body)
        if s.kind == "grid":
            self.grid.pop()

    def lane(self, s: flat.Loop) -> None:
        shape = [1] * len(self.axis)
        shape[self.axis[s.var]] = self.extent[s.var]
        self.env[s.var] = np.arange(self.extent[s.var], dtype=NUMPY[s.var.dtype]).reshape(shape)
        self.open.append(s.var)
        self.block(s.body)
        self.open.pop()

    def guard(self, c: Expr, body: tuple[stmt.Stmt, ...]) -> None:
        """A scalar condition skips its body; one with lanes masks it."""
        cond, before = self.full(c), self.mask
        if cond.size == 1 and not cond.any():
            return
        self.mask = before & cond
        self.block(body)
        self.mask = before

    def store(self, b: Any, at: np.ndarray, value: np.ndarray, where: Any) -> None:
        shape = np.broadcast_shapes(at.shape, value.shape)
        self.memory.scatter(b, np.broadcast_to(at, shape), value, self.narrowed(shape), where)

    def add(self, op: str, b: Any, at: np.ndarray, value: np.ndarray, where: Any) -> None:
        shape = np.broadcast_shapes(at.shape, value.shape)
        places, mask = np.broadcast_to(at, shape), self.narrowed(shape)
        self.memory.combine(op, b, places, value, mask, where)

    # --- reductions -------------------------------------------------------------------------------

    def fold(self, s: Any) -> None:
        """state = combine(state, lift(args)) where the mask holds, for each element of the folded lanes"""
        lanes, grids = self.begun[s.state[0]]
        if grids != len(self.grid):
            raise ValueError(f"a grid loop carries a state: {s}")
        args = [self.full(a) for a in (s.args if isinstance(s, stmt.Fold) else s.other)]
        self.combine(s, args, tuple(dict.fromkeys(self.open[lanes:])))

    def combine(self, s: Any, args: list[np.ndarray], lanes: tuple[Var, ...]) -> None:
        if id(s) not in self.steps:
            self.steps[id(s)] = (s, *step_of(s))
        _, given, step = self.steps[id(s)]
        for at in np.ndindex(*(self.extent[ln] for ln in lanes)):
            chosen = dict(zip((self.axis[ln] for ln in lanes), at, strict=True))
            env: Env = {v: self.shaped(self.env[v]) for v in s.state}
            env.update((v, _pick(a, chosen)) for v, a in zip(given, args, strict=True))
            mask = _pick(self.mask, chosen)
            for v, e in zip(s.state, step, strict=True):
                new = convert(self.value(e, env), v.dtype)
                self.env[v] = np.where(mask, new, env[v]) if not mask.all() else new

    def publish(self, s: stmt.Publish) -> None:
        """Leave the state; the last piece to arrive combines all of them in index order."""
        slot, nth, total = (int(self.scalar(e, "a piece")) for e in (s.slot, s.nth, s.pieces))
        others = (int(self.env[g]) for g in self.grid if g not in self.across[id(s)])
        key = (*others, slot)
        pieces = self.work.setdefault(key, Pieces(total))
        if nth in pieces.left or not 0 <= nth < total or total != pieces.total:
            raise ValueError(f"piece {nth} of {total} does not fit slot {key} in: {s}")
        pieces.left[nth] = [self.shaped(self.env[v]) for v in s.state]
        if len(pieces.left) == total:
            del self.work[key]
            self.last(s, pieces)

    def last(self, s: stmt.Publish, pieces: Pieces) -> None:
        for v, c in zip(s.state, s.monoid.identity, strict=True):
            self.env[v] = convert(c.value, v.dtype)
        join = self.joins.setdefault(id(s), stmt.Join(s.state, s.monoid, s.state))
        for n in range(pieces.total):
            self.combine(join, pieces.left[n], ())
        self.block(s.body)

    def append(self, s: stmt.Append) -> None:
        """In the order of the lanes, outermost lane slowest."""
        parts = [self.full(e) for e in (s.where, s.group, s.slot, s.value)]
        shape = np.broadcast_shapes(*(v.shape for v in parts))
        keep = np.broadcast_to(self.narrowed(shape), shape) & parts[0]
        places = np.full(shape, -1)
        for at in map(tuple, np.argwhere(keep)):
            group, slot, value = (np.broadcast_to(v, shape)[at] for v in parts[1:])
            self.memory.check(s.count, np.array([group]), s)
            places[at] = int(slot) + int(self.memory.data[s.count][group])
            self.memory.check(s.list, places[at].reshape(1), s)
            self.memory.data[s.list][places[at]] = convert(value, s.list.dtype)
            self.memory.data[s.count][group] += 1
        if s.at is not None:
            self.env[s.at] = convert(places, s.at.dtype)


def _lanes(p: flat.Program) -> tuple[dict[Var, int], dict[Var, int]]:
    """Each lane's NumPy axis and extent, in the order of opening."""
    extent: dict[Var, int] = {}
    for s in walk(p.body):
        if isinstance(s, flat.Loop) and s.kind == "lane":
            if not isinstance(s.hi, Const) or s.lo != Const(0, "i64"):
                raise ValueError(f"lane {s.var.name} must run over 0:constant")
            if extent.setdefault(s.var, int(s.hi.value)) != s.hi.value:
                raise ValueError(f"lane {s.var.name} is opened with two extents")
    return {v: n for n, v in enumerate(extent)}, extent


def _wide(v: np.ndarray) -> np.ndarray:
    return v.astype(np.float32) if v.dtype == np.float16 else v


def _pick(v: np.ndarray, at: dict[int, int]) -> np.ndarray:
    """One element along some axes; size-1 axes stay."""
    for axis, n in at.items():
        if v.shape[axis] > 1:
            v = v.take([n], axis=axis)
    return v
