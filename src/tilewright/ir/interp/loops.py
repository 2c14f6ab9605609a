"""Stage II, interpreted: scalar loops over positions, loads checked in each dimension, lookups by search.

In: stage II and arrays by buffer name. Out: the outputs by buffer name.

    run_loops(program, {"a_indptr": ..., "a": ..., "x": ...}, {"n_i": 3, ...})["y"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tilewright.ir import loops, stmt
from tilewright.ir.expr import Expr, Load, Var, dtype_of
from tilewright.ir.interp.common import Env, Fn, Maker, convert
from tilewright.ir.interp.memory import Memory
from tilewright.ir.monoid import apply


def run_loops(
    program: loops.Program,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    zeroed: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """The outputs; those not named in `zeroed` start poisoned."""
    memory = Memory(program.buffers, arrays, sizes, zeroed)
    env: Env = {v: np.int64(sizes[v.name]) for v in program.sizes}
    env |= {v: convert((scalars or {})[v.name], v.dtype) for v in program.scalars}
    with np.errstate(all="ignore"):
        _Run(memory, env).block(program.body)
    return memory.outputs()


class _Run(Maker):
    def __init__(self, memory: Memory, env: Env) -> None:
        super().__init__()
        self.memory, self.env = memory, env
        self.steps: dict[int, tuple[stmt.Stmt, tuple[Var, ...], tuple[Expr, ...]]] = {}
        self.now: stmt.Stmt | None = None

    def block(self, body: tuple[stmt.Stmt, ...]) -> None:
        for s in body:
            self.now = s
            self.statement(s)

    def of(self, e: Expr) -> Any:
        return self.value(e, self.env)

    def statement(self, s: Any) -> None:
        match s:
            case loops.For(v, lo, hi, body):
                for n in range(int(self.of(lo)), int(self.of(hi))):
                    self.env[v] = convert(n, v.dtype)
                    self.block(body)
            case stmt.Let(v, e):
                self.env[v] = convert(self.of(e), v.dtype)
            case stmt.Init(state, m):
                for v, c in zip(state, m.identity, strict=True):
                    self.env[v] = convert(c.value, v.dtype)
            case stmt.Fold() | stmt.Join():
                self.fold(s)
            case stmt.Store(b, ix, e):
                at = self.memory.at(b, [int(self.of(i)) for i in ix], s)
                self.memory.data[b][at] = convert(self.of(e), b.dtype)
            case stmt.Guard(c, body):
                if self.of(c):
                    self.block(body)
            case stmt.If(c, then, orelse):
                self.block(then if self.of(c) else orelse)
            case stmt.Append():
                self.append(s)
            case _:
                raise TypeError(f"{type(s).__name__} is not a statement of stage II")

    def fold(self, s: Any) -> None:
        """state = combine(state, lift(args)): all members at once"""
        if id(s) not in self.steps:
            given, step = step_of(s)
            self.steps[id(s)] = (s, given, step)
        _, given, step = self.steps[id(s)]
        args = s.args if isinstance(s, stmt.Fold) else s.other
        self.env.update((v, self.of(a)) for v, a in zip(given, args, strict=True))
        new = [convert(self.of(e), v.dtype) for e, v in zip(step, s.state, strict=True)]
        self.env.update(zip(s.state, new, strict=True))

    def append(self, s: stmt.Append) -> None:
        at = -1
        if self.of(s.where):
            group = int(self.of(s.group))
            self.memory.check(s.count, np.array([group]), s)
            at = int(self.of(s.slot)) + int(self.memory.data[s.count][group])
            self.memory.check(s.list, np.array([at]), s)
            self.memory.data[s.list][at] = convert(self.of(s.value), s.list.dtype)
            self.memory.data[s.count][group] += 1
        if s.at is not None:
            self.env[s.at] = convert(at, s.at.dtype)

    def special(self, e: Expr) -> Fn:
        match e:
            case Load(b, ix):
                index = [self.make(i) for i in ix]
                return lambda env: self.memory.data[b][
                    self.memory.at(b, [int(i(env)) for i in index], f"{e} of {self.now}")
                ]
            case loops.Lookup(b, lo, hi, key, start):
                ends = self.make(lo), self.make(hi), self.make(key)
                near = start is not None
                return lambda env: self.find(b, near, *(int(f(env)) for f in ends))
        return super().special(e)

    def find(self, b: Any, near: bool, lo: int, hi: int, key: int) -> Any:
        held = [int(self.memory.data[b][self.memory.at(b, [p], self.now)]) for p in range(lo, hi)]
        return place_of(key, np.array(held, np.int64), lo, near)


def place_of(key: int, held: np.ndarray, lo: int, near: bool) -> np.int64:
    """The position of a key among coordinates that begin at lo; absent: -1, or -1 - (where it would be)."""
    hits = np.flatnonzero(held == key)
    if len(hits):
        return np.int64(lo + hits[0])
    return np.int64(-1 - (lo + np.count_nonzero(held < key)) if near else -1)


def step_of(s: stmt.Fold | stmt.Join) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """(stand-ins for the arguments, the new state as expressions over state and stand-ins)"""
    args = s.args if isinstance(s, stmt.Fold) else s.other
    given = tuple(Var(f"arg{n}", dtype_of(a)) for n, a in enumerate(args))
    lifted = apply(s.monoid.lift, given) if isinstance(s, stmt.Fold) else given
    return given, apply(s.monoid.combine, (*s.state, *lifted))
