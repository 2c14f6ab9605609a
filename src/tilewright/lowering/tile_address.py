"""Addresses in tile form: the terms of an index, grouped so that little of them is computed again.

In: an index of stage III. Out: its terms as tiles, each over as few lanes as it has.

    b * 128 * d + n * d + k        ->   b * 128 * d,  (n * d)[:, None],  k[None, :]
    p = start + t, t = t_o * 8 + q ->   t_o * 8,  start,  q

What unrolled copies differ in comes last: an address that all of them share, and a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.expr import Bin, Cast, Const, Expr, Load, Var, binary, const, dtype_of
from tilewright.ir.node import walk
from tilewright.lowering.tile_scan import Scanner
from tilewright.lowering.tiled import Lanes, Tiled

WIDE = 16


class Addresser(Scanner):
    """sums: variables that stand for sums of lanes; moving: those that a loop changes; copies: the loops that are
    copied out; copied: variables that stand for a sum with the number of a copy, as terms."""

    sums: dict[Var, Expr]
    moving: set[Var]
    copies: set[Var]
    copied: dict[Var, list[Expr]]

    def value(self, e: Expr) -> Tiled:
        raise NotImplementedError

    def lanes(self, e: Any) -> set[Var]:
        raise NotImplementedError

    def sort(self, lanes: Any) -> Lanes:
        raise NotImplementedError

    def turn(self, v: Var, copied: bool) -> None:
        """The variable of a loop, which is copied out or not: it stands for itself."""
        self.forget(v)
        self.moving.add(v)
        if copied:
            self.copies.add(v)

    def forget(self, v: Var) -> None:
        self.sums.pop(v, None)
        self.copied.pop(v, None)

    def note(self, v: Var, e: Expr, lanes: Lanes) -> None:
        """What a variable stands for, where addresses had better be made of that."""
        self.forget(v)
        if isinstance(e, Bin) and e.op == "+" and lanes and self.is_sum(e):
            self.sums[v] = e
        terms = self.by_copy(e)
        if terms is not None:
            self.copied[v] = terms

    def by_copy(self, e: Expr) -> list[Expr] | None:
        """The terms of a sum of which one is the number of a copy, or a multiple of it."""
        match e:
            case Var() if e in self.copies:
                return [e]
            case Var() if e in self.copied:
                return self.copied[e]
            case Bin("+", a, b):
                x, y = self.by_copy(a), self.by_copy(b)
                return None if x is None and y is None else [*(x or [a]), *(y or [b])]
            case Bin("*", a, Const() as b):
                x = self.by_copy(a)
                return None if x is None else [binary("*", t, b) for t in x]
        return None

    def is_copy(self, e: Expr) -> bool:
        return e in self.copies or (
            isinstance(e, Bin) and e.op == "*" and e.a in self.copies and isinstance(e.b, Const)
        )

    def offsets(self, at: Expr) -> tuple[list[Tiled], Lanes]:
        """The terms of an index, grouped by lanes: scalars first, copies last."""
        groups: dict[Lanes, Expr] = {}
        copies: list[Tiled] = []
        for term in self.terms(at):
            if self.is_copy(term):
                copies.append(self.value(term))
                continue
            t = self.wide(term)
            groups[t.lanes] = binary("+", groups[t.lanes], t.e) if t.lanes in groups else t.e
        made = sorted(groups.items(), key=lambda kv: (len(kv[0]), [self.rank[v] for v in kv[0]]))
        if len(made) > 1 and made[0] == ((), const(0)):
            made = made[1:]
        lanes = self.sort(v for ls, _ in made for v in ls)
        return [*(Tiled(e, ls) for ls, e in made), *copies], lanes

    def is_sum(self, e: Expr) -> bool:
        """Whether e is scalars plus lanes times scalars: cheap to write out again."""
        match e:
            case Bin("+", a, b):
                return self.is_sum(a) and self.is_sum(b)
            case Bin("*", a, b) if not self.lanes(b):
                return self.is_sum(a)
        return (
            e in self.dims or e in self.sums or (isinstance(e, Var | Const) and not self.lanes(e))
        )

    def terms(self, e: Expr, deep: bool = False) -> list[Expr]:
        """A sum, multiplied out as far as that parts scalars from lanes: (b * 128 + n) * d -> b * 128 * d + n * d

        A variable that stands for a sum is written out where that helps: under a product, and in a loop that
        moves its scalar part; or everywhere (deep). One that stands for a copy's place is written out always.
        """
        match e:
            case Bin("+", a, b):
                return [*self.terms(a, deep), *self.terms(b, deep)]
            case Var() if e in self.copied:
                return [u for t in self.copied[e] for u in self.terms(t, deep)]
            case Var() if e in self.sums and (deep or e in self.moving):
                return self.terms(self.sums[e], deep)
            case Bin("*", a, b) if not self.lanes(b):
                inner = self.terms(a, deep=True)
                if len({frozenset(self.lanes(t)) for t in inner}) > 1:
                    return [binary("*", t, b) for t in inner]
        return [e]

    def wide(self, term: Expr) -> Tiled:
        """A term of an address; a coordinate times a 32-bit extent may pass 32 bits, a lane may not."""
        match term:
            case Bin("*", _, Const(value)) if value < WIDE:
                return self.value(term)
            case Bin("*", a, Bin("*") as b) if dtype_of(b) == "i32" and not self.lanes(b):
                t = self.value(a)
                made: Expr = Cast("i64", t.e)
                for f in factors(b):
                    made = Bin("*", made, self.value(f).e)
                return Tiled(made, t.lanes)
            case Bin("*", Var() as a, _) if a in self.dims:
                return self.value(term)
            case Bin("*", a, (Const() | Var()) as b) if dtype_of(b) == "i32" or isinstance(
                b, Const
            ):
                t, u = self.value(a), self.value(b)
                lanes = self.sort({*t.lanes, *u.lanes})
                return Tiled(
                    Bin("*", Cast("i64", self.broadcast(t, lanes)), self.broadcast(u, lanes)), lanes
                )
        return self.value(term)


def factors(e: Expr) -> list[Expr]:
    """a * b * c -> a, b, c"""
    if isinstance(e, Cast) and isinstance(e.a, Bin):
        e = e.a
    return [*factors(e.a), *factors(e.b)] if isinstance(e, Bin) and e.op == "*" else [e]


def product(terms: Sequence[Expr]) -> Expr:
    """a, b, c -> a * b * c"""
    made = terms[0]
    for f in terms[1:]:
        made = made * f
    return made


def strays(e: Any) -> bool:
    """Whether something is read elsewhere than where loops are: next to it, or where an index array says."""
    return any(isinstance(n, Load) and not _in_place(n.indices[0]) for n in walk(e))


def _in_place(at: Expr) -> bool:
    """Whether an index is a variable, or some times what is known at run time: i * n_f + f, but not 2 * i + r"""
    match at:
        case Var():
            return True
        case Bin("*", a, b):
            return _in_place(a) and not isinstance(b, Const)
        case Bin("+", Bin("*") as a, b):
            return _in_place(a) and _in_place(b)
    return False
