"""The memory of an interpreted program: every buffer as one line of elements, with shape and strides.

In: buffers, the caller's arrays and sizes. Out: checked reads and writes, and the outputs as arrays.
Outputs start poisoned, so that an element nobody writes shows; `zeroed` names those that start at zero. An output
that is given goes on from there.

    m = Memory(buffers, {"x": x}, {"n_i": 4}, zeroed=());  m.at(x_buffer, (1, 2), "load") -> 1 * n_f + 2
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.ir.expr import Buffer, Expr
from tilewright.ir.interp.common import NUMPY, REDUCE, Value, convert, evaluate, poison

MADE = ("out", "work", "counter")
EMPTY: Mapping[Buffer, Any] = {}


class Memory:
    """Buffers by identity."""

    def __init__(
        self,
        buffers: Iterable[Buffer],
        arrays: Mapping[str, np.ndarray],
        sizes: Mapping[str, int],
        zeroed: Collection[str] | None,
        starts: Mapping[Buffer, Any] = EMPTY,
    ) -> None:
        self.sizes = sizes
        self.shape: dict[Buffer, tuple[int, ...]] = {}
        self.step: dict[Buffer, tuple[int, ...]] = {}
        self.data: dict[Buffer, np.ndarray] = {}
        for b in buffers:
            self.shape[b] = self.ints(b.shape)
            self.step[b] = row_major(self.shape[b]) if b.strides is None else self.ints(b.strides)
            given = b.role not in MADE or (b.role == "out" and b.name in arrays)
            zero = b.role == "counter" or (b.role == "out" and (zeroed is None or b.name in zeroed))
            start = starts.get(b, 0 if zero else poison(b.dtype))
            self.data[b] = self.line(b, arrays[b.name]) if given else self.blank(b, start)
            if given and b.role == "out":
                self.data[b] = self.data[b].copy()

    def ints(self, exprs: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(evaluate(e, self.sizes) for e in exprs)

    def length(self, b: Buffer) -> int:
        """Elements from the first to the last that belongs to the buffer."""
        if 0 in self.shape[b]:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape[b], self.step[b], strict=True))

    def blank(self, b: Buffer, start: Any) -> np.ndarray:
        return np.full(self.length(b), start, NUMPY[b.dtype])

    def line(self, b: Buffer, a: np.ndarray) -> np.ndarray:
        """The caller's array as a line; a view with strides is read in place."""
        if b.strides is None:
            made = np.asarray(a).reshape(-1)
        else:
            a = np.asarray(a)
            steps = tuple(s // a.itemsize for s in a.strides)
            if tuple(a.shape) != self.shape[b] or steps != self.step[b]:
                raise ValueError(f"{b.name}: strides {steps} of the array are not {self.step[b]}")
            made = as_strided(a, (self.length(b),), (a.itemsize,), writeable=False)
        if len(made) != self.length(b):
            raise ValueError(f"{b.name}: {len(made)} elements, but its shape is {self.shape[b]}")
        return convert(made, b.dtype) if len(made) else made.astype(NUMPY[b.dtype])

    def at(self, b: Buffer, index: Sequence[int], where: Any) -> int:
        """The offset of a multi-dimensional index, checked in each dimension."""
        if len(index) != len(self.shape[b]) or any(
            not 0 <= i < n for i, n in zip(index, self.shape[b], strict=False)
        ):
            raise outside(b, tuple(map(int, index)), self.shape[b], where)
        return int(sum(int(i) * s for i, s in zip(index, self.step[b], strict=True)))

    def gather(self, b: Buffer, at: np.ndarray, mask: Value, fill: Value, where: Any) -> Value:
        """data[at] where mask, else fill"""
        mask = np.broadcast_to(mask, at.shape)
        self.check(b, at[mask], where)
        out = np.full(at.shape, fill, NUMPY[b.dtype])
        out[mask] = self.data[b][at[mask]]
        return out

    def scatter(self, b: Buffer, at: np.ndarray, values: Value, mask: Value, where: Any) -> None:
        """data[at] = values where mask; one element may not get two different values at once"""
        mask = np.broadcast_to(mask, at.shape)
        places, new = at[mask], convert(np.broadcast_to(values, at.shape), b.dtype)[mask]
        self.check(b, places, where)
        self.data[b][places] = new
        same = np.array_equal(self.data[b][places], new, equal_nan=new.dtype.kind == "f")
        if not same:
            raise ValueError(f"{where}: two values for one element of {b.name}")

    def combine(self, op: str, b: Buffer, at: np.ndarray, v: Value, mask: Value, s: Any) -> None:
        """data[at] = op(data[at], values) where mask, one element after the other"""
        mask = np.broadcast_to(mask, at.shape)
        places, new = at[mask], convert(np.broadcast_to(v, at.shape), b.dtype)[mask]
        self.check(b, places, s)
        REDUCE[op].at(self.data[b], places, new)

    def check(self, b: Buffer, places: np.ndarray, where: Any) -> None:
        bad = places[(places < 0) | (places >= len(self.data[b]))]
        if bad.size:
            raise outside(b, int(bad[0]), len(self.data[b]), where)

    def outputs(self) -> dict[str, np.ndarray]:
        return {b.name: self.array(b) for b in self.data if b.role == "out"}

    def array(self, b: Buffer) -> np.ndarray:
        d = self.data[b]
        return as_strided(d, self.shape[b], tuple(s * d.itemsize for s in self.step[b])).copy()


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    made = [1]
    for n in reversed(shape[1:]):
        made.insert(0, n * made[0])
    return tuple(made) if shape else ()


def outside(b: Buffer, index: Any, bound: Any, where: Any) -> IndexError:
    return IndexError(f"{b.name}[{index}] is outside {bound} in: {where}")
