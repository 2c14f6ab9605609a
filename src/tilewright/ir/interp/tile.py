"""Tile form, interpreted: tiles are arrays whose axes are the declared dims. Strict where Triton is strict.

Checked: a Set has exactly the dims its variable declares; tiles meet only with equal rank; a mask fits its
pointers; dims are powers of two; dot operands have one dtype and at least 16 in each dim; a variable that is set
again keeps its dtype; one set only inside a loop or one branch is gone after it; counters are zero again at the end.
Workspaces (role work) start poisoned. Programs run whole, one after the other, in any `order`.

    run_tile(program, arrays, {"n_f": 48, "n_slots": 3, ...}, order="reverse")["y"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tilewright.ir import tile
from tilewright.ir.expr import Buffer, Expr, Var, dtype_of
from tilewright.ir.interp.common import NUMPY, REDUCE, Env, Fn, Maker, Value, convert, evaluate
from tilewright.ir.interp.flat import Order
from tilewright.ir.interp.memory import Memory

DOT_MIN = 16
FLOAT = ("f64", "f32", "f16", "bf16")


def run_tile(
    program: tile.Program,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    zeroed: Collection[str] = (),
    order: str = "forward",
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The outputs; those not named in `zeroed` start poisoned."""
    memory = Memory(program.buffers, arrays, sizes, zeroed, tile.starts(program.body))
    start: Env = {v: np.int64(sizes[v.name]) for v in program.sizes}
    start |= {v: convert((scalars or {})[v.name], v.dtype) for v in program.scalars}
    run = _Run(program, memory, evaluate(program.grid, sizes))
    with np.errstate(all="ignore"):
        for pid in Order(order, seed)(0, run.programs):
            run.env = {**start, tile.ProgramId: np.int32(pid)}
            run.block(program.body)
    run.finish()
    return memory.outputs()


class _Run(Maker):
    def __init__(self, p: tile.Program, memory: Memory, programs: int) -> None:
        super().__init__()
        self.memory, self.programs = memory, programs
        self.dims, self.types = dict(p.dims), dict(p.types)
        self.env: Env = {}
        self.held: dict[Var, str] = {}  # the dtypes of what variables were set to
        self.now: tile.Stmt | None = None
        for d, n in p.dims:
            if n & (n - 1) or n < 1:
                raise ValueError(f"dim {d} = {n} is not a power of two")

    def finish(self) -> None:
        for b, data in self.memory.data.items():
            if b.role == "counter" and data.any():
                raise ValueError(f"{b.name} is not zero at the end: {data}")

    def of(self, e: Expr) -> Value:
        return self.value(e, self.env)

    def shape(self, dims: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.dims[d] for d in dims)

    def fail(self, why: str) -> ValueError:
        return ValueError(f"{why} in: {self.now}")

    def meet(self, *values: Value) -> tuple[Value, ...]:
        if len({np.ndim(v) for v in values} - {0}) > 1:
            raise self.fail(f"tiles of shapes {[np.shape(v) for v in values]} meet")
        return values

    # --- expressions ------------------------------------------------------------------------------

    def special(self, e: Expr) -> Fn:
        match e:
            case tile.ProgramId():
                return lambda env: env[tile.ProgramId]
            case tile.Arange(dim, d):
                return lambda env: np.arange(self.dims[dim], dtype=NUMPY[d])
            case tile.Full(c, d, dims):
                return lambda env: convert(np.full(self.shape(dims), c.value), d)
            case tile.Expand():
                return self.expand(e)
            case tile.Load():
                return self.load(e)
            case tile.Dot():
                return self.dot(e)
            case tile.Trans(a):
                inner = self.make(a)
                return lambda env: self.matrix(inner(env)).T
            case tile.Reshape(a, dims):
                inner = self.make(a)
                return lambda env: np.reshape(inner(env), self.shape(dims))
            case tile.Reduce(op, a, axis):
                return self.along(e, lambda v: REDUCE[op].reduce(v, axis=axis, dtype=v.dtype))
            case tile.Scan(op, a, axis):
                return self.along(e, lambda v: REDUCE[op].accumulate(v, axis=axis, dtype=v.dtype))
        return super().special(e)

    def expand(self, e: tile.Expand) -> Fn:
        inner = self.make(e.a)
        if [d for d in e.want if d in e.have] != list(e.have):
            raise self.fail(f"{e.have} is not in the order of {e.want}")

        def run(env: Env) -> Value:
            v = inner(env)
            if np.shape(v) != self.shape(e.have):
                raise self.fail(f"{e.a} has shape {np.shape(v)}, not {e.have}")
            return v.reshape([self.dims[d] if d in e.have else 1 for d in e.want])

        return run

    def along(self, e: tile.Reduce | tile.Scan, fn: Any) -> Fn:
        inner, d = self.make(e.a), dtype_of(e)

        def run(env: Env) -> Value:
            v = inner(env)
            if not 0 <= e.axis < np.ndim(v):
                raise self.fail(f"{e.a} has no axis {e.axis}")
            return convert(fn(v.astype(np.float32) if d == "f16" else v), d)

        return run

    def matrix(self, v: Value) -> np.ndarray:
        if np.ndim(v) != 2:
            raise self.fail(f"a tile of shape {np.shape(v)} is not a matrix")
        return v

    def dot(self, e: tile.Dot) -> Fn:
        """Products of 16-bit operands are taken in f32."""
        if dtype_of(e.a) != dtype_of(e.b):
            raise self.fail(f"a dot of {dtype_of(e.a)} with {dtype_of(e.b)}")
        a, b = self.make(e.a), self.make(e.b)
        acc = None if e.acc is None else self.make(e.acc)

        def run(env: Env) -> Value:
            x, y = self.matrix(a(env)), self.matrix(b(env))
            if min(*x.shape, *y.shape) < DOT_MIN or x.shape[1] != y.shape[0]:
                raise self.fail(f"a dot of {x.shape} with {y.shape}")
            made = convert(x, e.dtype) @ convert(y, e.dtype)
            if acc is None:
                return made
            start = acc(env)
            if np.shape(start) != made.shape:
                raise self.fail(f"a dot of shape {made.shape} is added to {np.shape(start)}")
            return convert(start, e.dtype) + made

        return run

    def load(self, e: tile.Load) -> Fn:
        offsets = [self.make(o) for o in e.offsets]
        mask = None if e.mask is None else self.make(e.mask)

        def run(env: Env) -> Value:
            at = self.pointers([o(env) for o in offsets])
            where = self.fitting(True if mask is None else mask(env), at, "a mask")
            return self.memory.gather(e.buffer, at, where, e.fill.value, f"{e} of {self.now}")[()]

        return run

    def pointers(self, offsets: list[Value]) -> np.ndarray:
        total = offsets[0]
        for o in offsets[1:]:
            total, o = self.meet(total, o)
            total = np.add(total, o, dtype=np.int64)
        return np.asarray(total)

    def fitting(self, v: Value, at: np.ndarray, what: str) -> np.ndarray:
        """v, which may only be smaller than the pointers it goes with."""
        self.meet(v, at)
        if np.broadcast_shapes(np.shape(v), at.shape) != at.shape:
            raise self.fail(f"{what} of shape {np.shape(v)} for pointers {at.shape}")
        return np.broadcast_to(v, at.shape)

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: tuple[tile.Stmt, ...]) -> None:
        for s in body:
            self.now = s
            self.statement(s)

    def statement(self, s: Any) -> None:
        match s:
            case tile.Set(v, e):
                self.set(v, self.of(e), dtype_of(e))
            case tile.For(v, lo, hi, body, step):
                self.loop(v, range(self.number(lo), self.number(hi), step), body)
            case tile.Unroll(v, count, body):
                for n in range(count):
                    self.env[v] = convert(n, v.dtype)
                    self.block(body)
            case tile.If(c, then, orelse):
                self.branch(then if self.number(c) else orelse, orelse if self.number(c) else then)
            case tile.Store() | tile.Atomic():
                self.store(s)
            case tile.Arrive(v, b, at):
                self.env[v] = self.fetch_add(b, at, 1, True)
            case tile.FetchAdd(v, b, at, by, mask):
                keep = True if mask is None else self.of(mask)
                self.env[v] = self.fetch_add(b, at, self.of(by), keep)
            case tile.Claim(v, counter, count, by):
                self.env[v] = self.claim(counter, count, by)
            case tile.Barrier():
                pass
            case _:
                raise TypeError(f"{type(s).__name__} is not a statement of tile form")

    def claim(self, counter: Buffer, count: Buffer, by: Expr) -> Value:
        held, whole = self.memory.data[counter], self.memory.data[count]
        came, before = divmod(int(held[0]), 1 << 32)
        held[0] += (1 << 32) + self.number(by)
        if came + 1 == self.programs:
            whole[0], held[0] = before + self.number(by), 0
        return convert(before, count.dtype)

    def number(self, e: Expr) -> int:
        v = self.of(e)
        if np.ndim(v):
            raise self.fail(f"{e} has shape {np.shape(v)}, but must be a scalar")
        return int(v)

    def set(self, v: Var, value: Value, dtype: str) -> None:
        want = self.types.get(v)
        if want is not None and np.shape(value) != self.shape(want):
            raise self.fail(f"{v.name} is declared {want} but has shape {np.shape(value)}")
        if dtype in FLOAT and v.dtype not in FLOAT:
            raise self.fail(f"{v.name} is {v.dtype} but gets {dtype}")
        if v in self.env and dtype != self.held.get(v, dtype):
            raise self.fail(f"{v.name} is {self.held[v]} and is set again to {dtype}")
        self.held[v] = dtype
        made = convert(value, v.dtype)
        if dtype == "i64" and not np.array_equal(made, value):
            raise self.fail(f"{v.name} is {v.dtype} and cannot hold {value}")
        self.env[v] = made

    def loop(self, v: Var, counts: range, body: tuple[tile.Stmt, ...]) -> None:
        """What is first set inside is gone after it."""
        before = set(self.env)
        for n in counts:
            self.env[v] = convert(n, v.dtype)
            self.block(body)
        self.env = {k: x for k, x in self.env.items() if k in before}

    def branch(self, taken: tuple[tile.Stmt, ...], other: tuple[tile.Stmt, ...]) -> None:
        before = set(self.env) | {s.var for s in other if isinstance(s, tile.Set)}
        self.block(taken)
        self.env = {k: x for k, x in self.env.items() if k in before}

    def store(self, s: tile.Store | tile.Atomic) -> None:
        at = self.pointers([self.of(o) for o in s.offsets])
        value = self.fitting(self.of(s.value), at, "a value")
        mask = self.fitting(True if s.mask is None else self.of(s.mask), at, "a mask")
        if isinstance(s, tile.Atomic):
            self.memory.combine(s.op, s.buffer, at, value, mask, s)
        else:
            self.memory.scatter(s.buffer, at, value, mask, s)

    def fetch_add(self, b: Any, at: Expr, by: Value, keep: Value) -> Value:
        """One element after the other, as if the tile were a list."""
        places = np.asarray(self.of(at))
        keep = self.fitting(keep, places, "a mask")
        self.memory.check(b, places[keep], self.now)
        old = np.zeros(places.shape, NUMPY[b.dtype])
        for where in map(tuple, np.argwhere(keep)):
            old[where] = self.memory.data[b][places[where]]
            self.memory.data[b][places[where]] += np.broadcast_to(by, places.shape)[where]
        return old[()]
