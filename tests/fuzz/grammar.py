"""Random programs of index notation: drawn, written as source, and kept as a small tree for the judge.

    p = draw_program(rng)
    p.source          # y[i, k] = tw.sum((j,), a[i, j] * tw.relu(b[j, k]))
    p.operands["a"]   # Operand("a", ("i", "j"), sparse=True, ...)

Every index of the value is either in the target or in a reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MONOIDS = ("sum", "sum", "sum", "max", "min", "mean")
MATRIX = (
    *("csr", "csr", "csc", "coo", "bsr", "block_mask", "dcsr", "dbsr", "ell", "padded"),
    *("srbcrs", "dia", "two_four", "bitmap", "ragged", "csf.2"),
)
CHOICE = {"maximum": ">", "minimum": "<"}
CUBE = ("csf", "csf.3.dense", "bucket", "ragged.3")


@dataclass(frozen=True)
class Access:
    name: str
    at: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.at)}]"


@dataclass(frozen=True)
class Number:
    """A constant, a scalar argument (name), or an index used as a number (name)."""

    value: float
    name: str = ""

    def __str__(self) -> str:
        return self.name or repr(self.value)


@dataclass(frozen=True)
class Call:
    """relu, abs, neg, +, -, *, maximum, minimum"""

    fn: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        if self.fn in "+-*":
            return f"({self.args[0]} {self.fn} {self.args[1]})"
        if self.fn == "neg":
            return f"(-{self.args[0]})"
        if self.fn in CHOICE:
            a, b = self.args
            return f"tw.where({a} {CHOICE[self.fn]} {b}, {a}, {b})"
        return f"tw.{self.fn}({self.args[0]})"


@dataclass(frozen=True)
class Fold:
    """A reduction."""

    monoid: str
    over: tuple[str, ...]
    arg: Any

    def __str__(self) -> str:
        return f"tw.{self.monoid}(({', '.join(self.over)},), {self.arg})"


@dataclass(frozen=True)
class Operand:
    """rank: how many of its indices belong to the structure; 0 for dense ones."""

    name: str
    at: tuple[str, ...]
    format: str = "dense"
    rank: int = 0
    ones: bool = False

    @property
    def sparse(self) -> bool:
        return self.rank > 0


@dataclass(frozen=True)
class Program:
    operands: dict[str, Operand]
    target: tuple[str, ...]
    value: Any
    scalars: tuple[str, ...] = ()
    indices: tuple[str, ...] = field(default=())

    @property
    def source(self) -> str:
        params = ", ".join((*self.operands, *self.scalars, "y"))
        names = " ".join(self.indices)
        left = ", ".join(self.indices)
        return (
            f"def drawn({params}):\n"
            f'    {left}, = tw.axes("{names}")\n'
            f"    y[{', '.join(self.target)}] = {self.value}\n"
        )

    @property
    def formats(self) -> str:
        return ", ".join(f"{o.name}: {o.format}" for o in self.operands.values())


def accesses(e: Any) -> Iterator[Access]:
    """All accesses, those inside reductions too."""
    if isinstance(e, Access):
        yield e
    for child in children(e):
        yield from accesses(child)


def children(e: Any) -> Sequence[Any]:
    return e.args if isinstance(e, Call) else (e.arg,) if isinstance(e, Fold) else ()


# --- drawing ----------------------------------------------------------------------------------------


def draw_program(rng: np.random.Generator) -> Program:
    while True:
        made = _attempt(rng)
        if made is not None:
            return made


def _attempt(rng: np.random.Generator) -> Program | None:
    count = int(rng.integers(1, 4)) + 1
    names = tuple("ijkl"[:count])
    outer = names[: int(rng.integers(1, min(count, 2) + 1))]
    inner = names[len(outer) : len(outer) + 2]
    held = outer + inner
    operands = _operands(rng, outer, held)
    used = {ix for o in operands for ix in o.at}
    if used != set(held):
        return None
    scalars = ("s",) if rng.random() < 0.2 else ()
    value = _value(rng, operands, outer, inner, bool(scalars))
    if scalars and "s" not in str(value).replace("tw.sum", "").replace("abs", ""):
        scalars = ()
    table = {o.name: o for o in operands}
    order = tuple(rng.permutation(outer)) if rng.random() < 0.2 else outer
    return Program(table, tuple(map(str, order)), value, scalars, held)


def _operands(rng: np.random.Generator, outer: Any, held: Any) -> list[Operand]:
    count = int(rng.choice([1, 2, 2, 3]))
    made = []
    for n, name in enumerate("abc"[:count]):
        sparse = n == 0 or rng.random() < 0.35
        if sparse and len(held) > 1:
            made.append(_sparse(rng, name, outer if n == 0 else (), held))
        else:
            rank = int(rng.integers(1, min(3, len(held)) + 1))
            at = tuple(map(str, rng.permutation(held)[:rank]))
            made.append(Operand(name, at))
    return made


def _sparse(rng: np.random.Generator, name: str, outer: Any, held: Any) -> Operand:
    if len(held) > 2 and rng.random() < 0.15:
        at = tuple(map(str, rng.permutation(held)[:3]))
        at = tuple(sorted(at)) if rng.random() < 0.7 else at
        return Operand(name, at, str(rng.choice(CUBE)), 3)
    if len(outer) == 2 and rng.random() < 0.5:
        at = tuple(outer)
    else:
        at = tuple(map(str, rng.permutation(held)[:2]))
        at = tuple(sorted(at)) if rng.random() < 0.6 else at
    format = str(rng.choice(MATRIX))
    ones = format == "block_mask" or (format in ("csr", "coo", "csc") and rng.random() < 0.15)
    if len(held) > 2 and format in ("csr", "coo", "ell") and not ones and rng.random() < 0.12:
        extra = [ix for ix in held if ix not in at]
        at = (*at, str(rng.choice(extra)))
    return Operand(name, at, format, 2, ones)


def _value(rng: np.random.Generator, operands: Any, outer: Any, inner: Any, scalar: bool) -> Any:
    leaves = [_dressed(rng, Access(o.name, o.at), scalar) for o in operands]
    if not inner:
        return _combined(rng, leaves)
    last = inner[-1]
    inside = [e for e, o in zip(leaves, operands, strict=True) if last in o.at]
    outside = [e for e, o in zip(leaves, operands, strict=True) if last not in o.at]
    if outside and inside and rng.random() < 0.5:
        bound = {ix for o in operands if last not in o.at for ix in o.at}
        first = tuple(ix for ix in inner[:-1] if ix in bound)
        rest = tuple(ix for ix in inner if ix not in first)
        made = Fold(_monoid(rng), rest, _combined(rng, inside))
        whole = _combined(rng, [*outside, made])
        return Fold(_monoid(rng), first, whole) if first else whole
    order = tuple(map(str, rng.permutation(inner)))
    made_: Any = Fold(_monoid(rng), order, _combined(rng, leaves))
    return _dressed(rng, made_, scalar) if rng.random() < 0.2 else made_


def _monoid(rng: np.random.Generator) -> str:
    return str(rng.choice(MONOIDS))


def _dressed(rng: np.random.Generator, e: Any, scalar: bool) -> Any:
    """An expression, sometimes inside a scalar function."""
    pick = rng.random()
    if pick < 0.7:
        return e
    if pick < 0.8:
        return Call(str(rng.choice(["relu", "abs", "neg"])), (e,))
    number = Number(0, "s") if scalar else Number(float(rng.choice([0.5, 2.0, -1.0, 1.0])))
    if pick < 0.9:
        return Call(str(rng.choice(["+", "-", "*"])), (e, number))
    return Call(str(rng.choice(["maximum", "minimum"])), (e, number))


def _combined(rng: np.random.Generator, leaves: list[Any]) -> Any:
    order = rng.permutation(len(leaves)) if rng.random() < 0.3 else range(len(leaves))
    parts = [leaves[n] for n in order]
    made = parts[0]
    for e in parts[1:]:
        op = str(rng.choice(["*", "*", "*", "*", "+", "-", "maximum"]))
        made = Call(op, (made, e))
    return made
