"""What a drawn program means, evaluated over tables in NumPy; knows nothing of the package.

An iteration is a table: a column of coordinates for each index, a column of entries for each sparse access
that the iteration stands on. A reduction joins the table with the stored entries of the access that drives,
or with whole ranges, evaluates its argument in every row and folds rows by the row they came from.

    judged = Judge(program, arrays, {"i": 3, "j": 4}).run()
    judged.dense                  # the result; entries of a sparse result added up at their places
    judged.seen["x"]              # which elements of a dense operand count

Which access drives: the only sparse one over these indices; of several, the first that is a factor of the
whole; else none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz.grammar import Access, Call, Fold, Number, Program, children

EMPTY = {"sum": 0.0, "mean": 0.0, "max": -np.inf, "min": np.inf}
FN = {
    "relu": lambda a: np.maximum(a, 0),
    "abs": np.abs,
    "neg": np.negative,
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@dataclass(frozen=True)
class Entries:
    """A sparse operand: coordinates [n, rank] and values [n, *trailing] of all that counts as stored."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def dense(self) -> np.ndarray:
        made = np.zeros((*self.shape, *self.values.shape[1:]))
        np.add.at(made, tuple(self.coords.T), self.values)
        return made


@dataclass
class Table:
    """rows: how many; at: index -> coordinates; on: (operand, indices) -> entry; parent: the row it came from."""

    rows: int
    at: dict[str, np.ndarray]
    on: dict[tuple[Any, ...], np.ndarray]
    parent: np.ndarray

    def take(self, rows: np.ndarray) -> Table:
        at = {k: v[rows] for k, v in self.at.items()}
        on = {k: v[rows] for k, v in self.on.items()}
        return Table(len(rows), at, on, self.parent[rows])


@dataclass(frozen=True)
class Judged:
    dense: np.ndarray
    sparse: str | None
    seen: dict[str, np.ndarray]
    written_twice: bool


class Judge:
    def __init__(
        self,
        p: Program,
        arrays: dict[str, np.ndarray | Entries],
        sizes: dict[str, int],
        scalars: dict[str, float] | None = None,
    ) -> None:
        self.p, self.arrays, self.sizes = p, arrays, sizes
        self.scalars = scalars or {}
        self.sums = {n: a.dense() for n, a in arrays.items() if isinstance(a, Entries)}
        self.seen = {
            n: np.zeros(a.shape, bool) for n, a in arrays.items() if not isinstance(a, Entries)
        }

    def run(self) -> Judged:
        p = self.p
        start = Table(1, {}, {}, np.zeros(1, np.int64))
        sparse = self.structure()
        first = Access(sparse, p.operands[sparse].at) if sparse else self.lead(p.value, p.target)
        table = self.expand(start, p.target, first)
        values = self.value(p.value, table)
        shape = tuple(self.sizes[ix] for ix in p.target)
        made, where = np.zeros(shape), tuple(table.at[ix] for ix in p.target)
        count = np.zeros(shape, np.int64)
        np.add.at(count, where, 1)
        if sparse:
            np.add.at(made, where, values)
        else:
            made[where] = values
        twice = not sparse and bool((count > 1).any())
        return Judged(made, sparse, self.seen, twice)

    def structure(self) -> str | None:
        """The operand whose structure the result has: a factor with the target's indices."""
        for f in _product(self.p.value):
            if isinstance(f, Access):
                o = self.p.operands[f.name]
                if o.sparse and f.at[: o.rank] == self.p.target[: o.rank]:
                    return f.name
        return None

    # --- iterations -------------------------------------------------------------------------------

    def lead(self, e: Any, over: tuple[str, ...]) -> Access | None:
        found = [a for a in self.outside(e) if self.binds(a, over)]
        if len({(a.name, a.at[: self.rank(a)]) for a in found}) <= 1:
            return found[0] if found else None
        return next((a for a in self.factors(e) if self.binds(a, over)), None)

    def rank(self, a: Access) -> int:
        return self.p.operands[a.name].rank

    def binds(self, a: Access, over: tuple[str, ...]) -> bool:
        return bool(set(over) & set(a.at[: self.rank(a)]))

    def outside(self, e: Any) -> Iterator[Access]:
        """Sparse accesses, but of inner reductions none that these run over."""
        if isinstance(e, Access) and self.rank(e):
            yield e
        elif isinstance(e, Fold):
            yield from (a for a in self.outside(e.arg) if not self.binds(a, e.over))
        else:
            for c in children(e):
                yield from self.outside(c)

    def factors(self, e: Any) -> Iterator[Access]:
        """Sparse accesses without which the whole is 0."""
        if isinstance(e, Access) and self.rank(e):
            yield e
        elif isinstance(e, Call) and e.fn in ("*", "relu", "abs", "neg"):
            for c in e.args:
                yield from self.factors(c)
        elif isinstance(e, Fold) and e.monoid in ("sum", "mean"):
            yield from (a for a in self.factors(e.arg) if not self.binds(a, e.over))

    def expand(self, t: Table, todo: tuple[str, ...], first: Access | None) -> Table:
        """A row for each combination of the indices with each row of the table."""
        t = Table(t.rows, t.at, t.on, np.arange(t.rows))
        while todo:
            if first is not None and todo[0] in first.at[: self.rank(first)]:
                t = self.join(t, first)
                todo = tuple(ix for ix in todo if ix not in first.at[: self.rank(first)])
                first = None
                continue
            n = self.sizes[todo[0]]
            rows = np.repeat(np.arange(t.rows), n)
            new = np.tile(np.arange(n), t.rows)
            t = t.take(rows)
            t.at[todo[0]] = new
            todo = todo[1:]
        return t

    def join(self, t: Table, a: Access) -> Table:
        """The entries that agree with the coordinates fixed so far."""
        held = a.at[: self.rank(a)]
        e = self.arrays[a.name]
        assert isinstance(e, Entries)
        fixed = [n for n, ix in enumerate(held) if ix in t.at]
        mine, theirs = np.zeros(t.rows, np.int64), np.zeros(len(e.coords), np.int64)
        for n in fixed:
            mine = mine * (e.shape[n] + 1) + t.at[held[n]]
            theirs = theirs * (e.shape[n] + 1) + e.coords[:, n]
        order = np.argsort(theirs, kind="stable")
        lo = np.searchsorted(theirs[order], mine, "left")
        hi = np.searchsorted(theirs[order], mine, "right")
        rows = np.repeat(np.arange(t.rows), hi - lo)
        begin = np.repeat(np.cumsum(hi - lo) - (hi - lo), hi - lo)
        entry = order[np.arange(len(rows)) - begin + np.repeat(lo, hi - lo)]
        made = t.take(rows)
        for n, ix in enumerate(held):
            made.at[ix] = e.coords[entry, n]
        made.on[a.name, held] = entry
        return made

    # --- values -----------------------------------------------------------------------------------

    def value(self, e: Any, t: Table) -> np.ndarray:
        if isinstance(e, Access):
            return self.read(e, t)
        if isinstance(e, Number):
            return np.full(t.rows, self.scalars.get(e.name, e.value))
        if isinstance(e, Call):
            made: np.ndarray = FN[e.fn](*(self.value(a, t) for a in e.args))
            return made
        return self.fold(e, t)

    def read(self, a: Access, t: Table) -> np.ndarray:
        held = self.arrays[a.name]
        index = tuple(t.at[ix] for ix in a.at)
        if not isinstance(held, Entries):
            self.seen[a.name][index] = True
            made: np.ndarray = held[index]
            return made
        n = self.rank(a)
        entry = t.on.get((a.name, a.at[:n]))
        found: np.ndarray = (
            self.sums[a.name][index] if entry is None else held.values[(entry, *index[n:])]
        )
        return found

    def fold(self, e: Fold, t: Table) -> np.ndarray:
        inner = self.expand(t, e.over, self.lead(e.arg, e.over))
        values = self.value(e.arg, inner)
        made = np.full(t.rows, EMPTY[e.monoid])
        how = {"max": np.maximum, "min": np.minimum}.get(e.monoid, np.add)
        how.at(made, inner.parent, values)
        if e.monoid == "mean":
            made /= np.maximum(np.bincount(inner.parent, minlength=t.rows), 1)
        return made


def _product(e: Any) -> Iterator[Any]:
    """The factors of a product, those under a sum too."""
    if isinstance(e, Fold) and e.monoid == "sum":
        yield from _product(e.arg)
    elif isinstance(e, Call) and e.fn == "*":
        for c in e.args:
            yield from _product(c)
    else:
        yield e
