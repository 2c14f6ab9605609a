"""Reverse mode, expression by expression: what the adjoint of a value says of the accesses it is made of.

In: an expression and its adjoint. Out: accesses with theirs, in `found`; reductions that are needed again are
intermediates, which the heir makes (`keep`).

    y[i, f] = sum(j, a[i, j] * x[j, f])      a[i, j] has d_y[i, f] * x[j, f] for all i, j, f
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.analysis.domain import strays
from tilewright.ir.coord import Assign, Index, Listed, Nth, Place, Reduce, Stored, groups_of
from tilewright.ir.expr import (
    COMPARE,
    Bin,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Un,
    Var,
    binary,
    eq,
    power,
    select,
    unary,
)
from tilewright.ir.monoid import apply, monoids
from tilewright.ir.node import Node, is_named, parts, rebuild, substitute, walk
from tilewright.language.trace import Ref, Traced, free_indices
from tilewright.support.errors import error

ONE = Const(1.0, "f32")
ZERO = Const(0.0, "f32")
FLAT = ("floor", "ceil", "sign", "not")  # slope 0 wherever there is one
SLOPES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "neg": lambda e, a: Const(-1.0, "f32"),
    "relu": lambda e, a: select(a > 0.0, ONE, ZERO),
    "exp": lambda e, a: e,
    "exp2": lambda e, a: e * math.log(2.0),
    "expm1": lambda e, a: unary("exp", a),
    "log": lambda e, a: ONE / a,
    "log2": lambda e, a: math.log2(math.e) / a,
    "log1p": lambda e, a: ONE / (a + ONE),
    "sqrt": lambda e, a: 0.5 / e,
    "rsqrt": lambda e, a: -0.5 * (e / a),
    "sin": lambda e, a: unary("cos", a),
    "cos": lambda e, a: -unary("sin", a),
    "abs": lambda e, a: unary("sign", a),
    "sigmoid": lambda e, a: e * (ONE - e),
    "tanh": lambda e, a: ONE - e * e,
    "softplus": lambda e, a: unary("sigmoid", a),
    "erf": lambda e, a: 2.0 / math.sqrt(math.pi) * unary("exp", -(a * a)),
}

SOFTMAX = {"softmax_sum": 1.0, "softmax2_sum": math.log(2.0)}  # what makes scores those of exp
Found = tuple[Load, Expr, tuple[Index, ...], tuple[Stored, ...]]


@dataclass
class Rules:
    """The walk over one statement's value."""

    t: Traced
    s: Assign
    order: tuple[Index, ...] = ()
    kept: dict[Expr, Load] = field(default_factory=dict)
    outside: tuple[Load, ...] = ()
    found: list[Found] = field(default_factory=list)
    listed: dict[Index, Listed] = field(default_factory=dict)
    origin: dict[Index, Index] = field(default_factory=dict)
    inner: dict[Index, Index] = field(default_factory=dict)
    choices: tuple[Expr, ...] = ()  # what holds where the walk is

    def keep(self, e: Reduce) -> Load:
        """An intermediate: the reduction, computed once and read back by its free indices."""
        raise NotImplementedError

    def result(self, e: Reduce) -> Load | None:
        """The output, where it holds nothing but this reduction."""
        raise NotImplementedError

    def visit(self, e: Expr, g: Expr, axes: tuple[Index, ...], held: tuple[Stored, ...]) -> None:
        """g is the adjoint of e; axes are all indices in scope; held are accesses that may drive it."""
        match e:
            case Const() | Index() | Nth() | Var() | Stored() | Place():
                return
            case Load():
                self.found.append((e, g, axes, held))
            case Cast(_, a):
                self.visit(a, g, axes, held)
            case Bin("+", a, b):
                self.visit(a, g, axes, held)
                self.visit(b, g, axes, held)
            case Bin("-", a, b):
                self.visit(a, g, axes, held)
                self.visit(b, inside(g, b, lambda h: -h), axes, held)
            case Bin("*", a, b):
                self.visit(a, times(g, self.settled(b, axes)), axes, held)
                self.visit(b, times(g, self.settled(a, axes)), axes, held)
            case Bin("/", a, b):
                x, y = self.settled((a, b), axes)
                self.visit(a, inside(g, y, lambda h: h / y), axes, held)
                self.visit(b, inside(g, (x, y), lambda h: -(h * x / (y * y))), axes, held)
            case Bin("max" | "min" as op, a, b):
                x, y = self.settled((a, b), axes)
                self.either(x >= y if op == "max" else x <= y, a, b, g, axes, held)
            case Select(c, a, b):
                self.either(self.settled(c, axes), a, b, g, axes, held, lazy=True)
            case Bin("pow", a, b):
                x, y = self.settled((a, b), axes)
                self.visit(a, times(g, y * power(x, y - 1.0)), axes, held)
                if not isinstance(b, Const):
                    grown = select(x > 0.0, unary("log", x), ZERO)
                    self.visit(b, times(g, power(x, y) * grown), axes, held)
            case Bin(op) if op in (*COMPARE, "&", "|"):
                return
            case Un(op) if op in FLAT:
                return
            case Un(op, a):
                slope = self.slope(op, *self.settled((e, a), axes))
                self.visit(a, times(g, slope), axes, held)
            case Reduce():
                self.reduction(e, g, axes, held)
            case _:
                raise self.refuse(f"{e} is not differentiable")

    def either(
        self,
        c: Expr,
        a: Expr,
        b: Expr,
        g: Expr,
        axes: tuple[Index, ...],
        held: tuple[Stored, ...],
        lazy: bool = False,
    ) -> None:
        """where(c, a, b); lazy: what is not chosen is not made."""
        before = self.choices
        for asked, e, made in (
            (c, a, lambda h: select(c, h, ZERO)),
            (unary("not", c), b, lambda h: select(c, ZERO, h)),
        ):
            self.choices = (*before, asked) if lazy else before
            self.visit(e, inside(g, c, made), axes, held)
        self.choices = before

    def where(self, e: Reduce) -> Expr:
        """A reduction, only where it is chosen if it may read outside of its tensors elsewhere."""
        mine = {*self.free(e)}
        made: Expr = e
        for c in self.choices if strays(e) else ():
            made = select(c, made, ZERO) if {*self.free(c)} <= mine else made
        return made

    def settled(self, e: Any, axes: tuple[Index, ...]) -> Any:
        """Reductions outside of every other one, computed once: tanh(sum(...)) needs the sum again.

        Not where an input has two of its indices: that may be sparse, and the intermediate would be dense.
        """
        if axes != self.order or isinstance(e, Stored):
            return e
        if isinstance(e, Reduce):
            free, read = set(self.free(e)), {ix for a in _loads(e.args) for ix in a.indices}
            if any(len(free & set(a.indices)) > 1 for a in self.outside) or {*e.over} - read:
                return e  # alone, nothing would say how far its axes go
            made = self.where(e)
            if made not in self.kept:
                self.kept[made] = self.keep(e)
            return self.kept[made]
        return rebuild(e, lambda c: self.settled(c, axes))

    def found_again(self, e: Reduce) -> Reduce:
        """The same with the reductions inside computed once: another kernel may add up in another order.

        Not where an operand beside them has two of their indices: that may be sparse, as in `settled`.
        """
        beside = tuple(outside(e.args))

        def once(n: Any) -> Any:
            if not isinstance(n, Reduce):
                return rebuild(n, once)
            free = {*self.free(n)}
            return n if any(len(free & {*a.indices}) > 1 for a in beside) else self.keep(n)

        return Reduce(e.monoid, e.over, rebuild(e.args, once), e.part)

    def slope(self, op: str, e: Expr, a: Expr) -> Expr:
        """The derivative of e = op(a), from the value where that is shorter."""
        if op not in SLOPES:
            raise self.refuse(f"{op} has no derivative here")
        return SLOPES[op](e, a)

    def refuse(self, why: str) -> Exception:
        return error("no-gradient", name=self.t.name, got=f"{why}, in {self.s}")

    def reduction(
        self, e: Reduce, g: Expr, axes: tuple[Index, ...], held: tuple[Stored, ...]
    ) -> None:
        if e.part:
            self.visit(self.second(e), g, axes, held)
            return
        result, table = self.result(e), self.anew(e.over)
        over = tuple(table[ix] for ix in e.over)
        e = Reduce(e.monoid, over, substitute(e.args, dict(table)), e.part)
        wide = (*axes, *e.over)
        own = tuple(Stored(a, within=e) for a in accesses(e.args) if {*over} & {*a.indices})
        drives = (*held, *own)
        if e.monoid.name in SOFTMAX:
            self.softmax(e, g, axes, drives, result)
            return
        if e.monoid.reverse is not None:
            same = self.found_again(e)
            given = (*same.args, self.keep(same), g)
            for arg, inner in zip(e.args, apply(e.monoid.reverse, given), strict=True):
                self.visit(arg, inner, wide, drives)
            return
        arg, there = e.args[0], product(own)
        match e.monoid.name:
            case "sum":
                inner = g
            case "mean":
                ones = product(own or [Stored(a, within=e) for a in _loads(e.args)])
                count = self.keep(Reduce(monoids("f32")["sum"], e.over, (ones,)))
                inner = g / count
            case "max" | "min":
                same = self.found_again(e)
                hit = select(eq(same.args[0], self.keep(same)), ONE, ZERO)
                ties = self.keep(Reduce(monoids("f32")["sum"], e.over, (hit * there,)))
                inner = inside(g, hit, lambda h: h * hit / ties)
            case "logsumexp":
                inner = times(g, unary("exp", arg - self.keep(e)))
            case "prod":
                none = eq(arg, ZERO)
                nothing = select(none, ONE, ZERO) * there
                zeros = self.keep(Reduce(monoids("f32")["sum"], e.over, (nothing,)))
                others = self.keep(Reduce(e.monoid, e.over, (select(none, ONE, arg) * there,)))
                alone = select(eq(zeros, ONE), others, ZERO)
                rest = select(eq(zeros, ZERO), others / arg, ZERO)
                inner = times(g, select(none, alone, rest))
            case _:
                raise self.refuse(f"{e.monoid.name} has no derivative")
        self.visit(arg, inner, wide, drives)

    def softmax(
        self,
        e: Reduce,
        g: Expr,
        axes: tuple[Index, ...],
        drives: tuple[Stored, ...],
        result: Load | None,
    ) -> None:
        """sum(j, p * value), where p = exp(score - logsumexp(j, score))"""
        lse, value = self.second(e), e.args[1]
        score = lse.args[0]
        p = unary("exp", score - self.keep(lse))
        mean = self.keep(e) if result is None else result
        self.visit(value, times(g, p), (*axes, *e.over), drives)
        rest = tuple(ix for ix in axes if ix in self.free(score))
        extra = tuple(ix for ix in axes if ix not in rest)
        for n in (self.listed[ix] for ix in extra if ix in self.listed):
            if not {*self.groups(n)} <= {*rest}:
                raise self.refuse(
                    f"the score is one for all groups that have lists of {n.index.name}"
                )
        pull = self.over(extra, g * value) - self.keep_over(extra, g * mean)
        self.visit(score, p * pull, (*rest, *e.over), drives)

    def second(self, e: Reduce) -> Reduce:
        """The second result of a softmax-weighted sum as a reduction of its own."""
        if e.monoid.name not in SOFTMAX or e.part > 1:
            raise self.refuse(f"result {e.part} of {e.monoid.name} has no derivative")
        score = e.args[0] * Const(SOFTMAX[e.monoid.name], "f32")
        return Reduce(monoids("f32")["logsumexp"], e.over, (score,))

    def rank(self, ix: Index) -> int:
        """Intermediates have their axes in the order of the output."""
        return self.order.index(ix) if ix in self.order else len(self.order)

    def anew(self, over: tuple[Index, ...]) -> dict[Index, Index]:
        """Other indices that run over the same, with lists of their own: nothing outside captures them."""
        table = {ix: Index(ix.name) for ix in over if ix.within is None}
        for ix in over:
            if ix.within is not None:
                outer, count = ix.within
                if outer in self.inner:  # it only says which list
                    table[outer] = Index(outer.name)
                table[ix] = Index(ix.name, within=(table.get(outer, outer), count))
                self.inner |= {table[outer]: table[ix]} if outer in self.inner else {}
        for ix in over:
            self.origin[table[ix]] = self.origin.get(ix, ix)
            if ix in self.listed:
                place = self.listed[ix].place
                table[place] = Index(place.name)
                self.listed[table[ix]] = substitute(self.listed[ix], dict(table))
        return table

    def free(self, e: Any) -> tuple[Index, ...]:
        """The indices that a value depends on, each once: of groups that have lists, and of parts of ranges, too."""
        places = {n.place: n.index for n in self.listed.values()}
        found = free_indices(substitute(e, dict(places)))
        lists = (self.listed[n] for n in walk(e) if isinstance(n, Index) and n in self.listed)
        found += [g for n in lists for g in self.groups(n)]
        bound = [ix for n in walk(e) if isinstance(n, Reduce) for ix in n.over]
        outer = [ix.within[0] for ix in bound if ix.within is not None]
        known = {*self.order, *self.origin} - {*bound}
        return tuple(dict.fromkeys([*found, *(ix for ix in outer if ix in known)]))

    def groups(self, n: Listed) -> tuple[Index, ...]:
        """The axes whose values have lists of their own."""
        return tuple(self.inner.get(g, g) for g in groups_of(n))

    def over(self, axes: tuple[Index, ...], e: Expr) -> Expr:
        """The sum over axes."""
        if not axes:
            return e
        table = self.anew(axes)
        over = tuple(table[ix] for ix in axes)
        return Reduce(monoids("f32")["sum"], over, (substitute(e, dict(table)),))

    def keep_over(self, axes: tuple[Index, ...], e: Expr) -> Expr:
        made = self.over(axes, e)
        return self.keep(made) if isinstance(made, Reduce) else made


def times(g: Expr, f: Expr) -> Expr:
    """g * f"""
    return inside(g, f, lambda h: h * f)


def inside(g: Expr, read: Any, made: Callable[[Expr], Expr]) -> Expr:
    """What is made of an adjoint; of where(c, h, 0) inside of it, where what is read along may lie outside else.

    y = where(i > 0, exp(x[i - 1]), 0)      x[i - 1] has where(i > 0, d_y[i] * exp(x[i - 1]), 0)
    """
    if not strays(read):
        return made(g)
    match g:
        case Select(c, h, Const(0)):
            return select(c, inside(h, read, made), ZERO)
        case Select(c, Const(0), h):
            return select(c, ZERO, inside(h, read, made))
        case Bin("*" | "/" as op, h, f):
            return inside(h, read, lambda h: made(binary(op, h, f)))
        case Un("neg", h):
            return inside(h, read, lambda h: made(-h))
    return made(g)


def accesses(args: Iterable[Expr]) -> tuple[Load, ...]:
    """Accesses of two or more indices, none of them one that an inner reduction runs over: what may drive a sparse
    iteration."""
    made = [n for a in args for n in free_accesses(a) if isinstance(n.buffer, Ref)]
    return tuple(dict.fromkeys(a for a in made if len(a.indices) > 1))


def free_accesses(e: Any) -> Iterator[Load]:
    """Accesses whose indices are free."""
    if isinstance(e, Load):
        yield e
    elif isinstance(e, Node) and not is_named(e):
        bound = {*e.over} if isinstance(e, Reduce) else set()
        for c in e.args if isinstance(e, Reduce) else parts(e):
            yield from (a for a in free_accesses(c) if not bound & {*walk(a.indices)})


def outside(e: Any) -> Iterator[Load]:
    """Accesses that stand in no reduction."""
    if isinstance(e, Load):
        yield e
    elif isinstance(e, Node) and not is_named(e) and not isinstance(e, Reduce):
        for c in parts(e):
            yield from outside(c)


def _loads(args: Iterable[Expr]) -> tuple[Load, ...]:
    return tuple(n for a in args for n in walk(a) if isinstance(n, Load))


def product(es: Iterable[Expr], made: Expr = ONE) -> Expr:
    for e in es:
        made = made * e
    return made
