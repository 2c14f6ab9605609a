"""Reverse mode on stage I: the gradient of a statement is a list of statements.

In: a traced program of one statement. Out: `Gradient`: intermediates to compute first, and for each input
the statements whose sum is its gradient. Programs again, so that they lower, schedule and compile alike.

    y[i, f] = sum(j, a[i, j] * x[j, f])
 -> d_a[i, j] = stored(a[i, j]) * sum(f, d_y[i, f] * x[j, f])
    d_x[j, f] = sum(i, a[i, j] * d_y[i, f])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.coord import Assign, Index, Reduce, Stored
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


@dataclass(frozen=True)
class Gradient:
    """`first`: intermediates, in order. `of`: for each input, programs whose results are added.

    saved: outputs of the forward program that these programs read.
    """

    first: tuple[Traced, ...]
    of: dict[str, tuple[Traced, ...]]
    saved: tuple[str, ...] = ()


def d_of(t: Traced, name: str) -> str:
    """The name of a tensor's gradient, d_x; the program's own names are taken."""
    return _free(t, f"d_{name}")


def _free(t: Traced, name: str) -> str:
    taken = {*t.params, *(r.name for r in t.refs)}
    while name in taken:
        name += "_"
    return name


def gradient(t: Traced) -> Gradient:
    """The reverse of a traced program; NoGradient names the statement that has none."""
    if len(t.body) != 1 or not isinstance(t.body[0], Assign):
        raise error("no-gradient", name=t.name, got="it has several statements")
    s = t.body[0]
    if s.listed:
        raise error("no-gradient", name=t.name, got="it has a compacted axis")
    back = _Back(t)
    for target, value in list(zip(s.targets, s.values, strict=True))[:1]:
        seed = Load(back.ref(d_of(t, target.buffer.name)), target.indices)
        axes = tuple(dict.fromkeys(n for n in walk(target.indices) if isinstance(n, Index)))
        back.order, back.outside = axes, tuple(_outside(value))
        back.visit(value, seed, axes, ())
    return Gradient(tuple(back.first), back.programs())


@dataclass
class _Back:
    t: Traced
    order: tuple[Index, ...] = ()
    first: list[Traced] = field(default_factory=list)
    refs: dict[str, Ref] = field(default_factory=dict)
    kept: dict[Reduce, Load] = field(default_factory=dict)
    outside: tuple[Load, ...] = ()
    found: list[tuple[Load, Expr, tuple[Index, ...], tuple[Stored, ...]]] = field(
        default_factory=list
    )

    def ref(self, name: str) -> Ref:
        known = {r.name: r for r in self.t.refs}
        return known.get(name) or self.refs.setdefault(name, Ref(name))

    # --- the walk ---------------------------------------------------------------------------------

    def visit(self, e: Expr, g: Expr, axes: tuple[Index, ...], held: tuple[Stored, ...]) -> None:
        """g is the adjoint of e; axes are all indices in scope; held are accesses that may drive it."""
        match e:
            case Const() | Index() | Var() | Stored():
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
                self.visit(b, -g, axes, held)
            case Bin("*", a, b):
                self.visit(a, g * self.settled(b, axes), axes, held)
                self.visit(b, g * self.settled(a, axes), axes, held)
            case Bin("/", a, b):
                x, y = self.settled((a, b), axes)
                self.visit(a, g / y, axes, held)
                self.visit(b, -(g * x / (y * y)), axes, held)
            case Bin("max" | "min" as op, a, b):
                x, y = self.settled((a, b), axes)
                first = x >= y if op == "max" else x <= y
                self.visit(a, select(first, g, ZERO), axes, held)
                self.visit(b, select(first, ZERO, g), axes, held)
            case Select(c, a, b):
                c = self.settled(c, axes)
                self.visit(a, select(c, g, ZERO), axes, held)
                self.visit(b, select(c, ZERO, g), axes, held)
            case Bin("pow", a, b):
                x, y = self.settled((a, b), axes)
                self.visit(a, g * (y * power(x, y - 1.0)), axes, held)
                if not isinstance(b, Const):
                    grown = select(x > 0.0, unary("log", x), ZERO)
                    self.visit(b, g * (power(x, y) * grown), axes, held)
            case Bin(op) if op in (*COMPARE, "&", "|"):
                return
            case Un(op) if op in FLAT:
                return
            case Un(op, a):
                self.visit(a, g * self.slope(op, *self.settled((e, a), axes)), axes, held)
            case Reduce():
                self.reduction(e, g, axes, held)
            case _:
                raise self.refuse(f"{e} is not differentiable")

    def settled(self, e: Any, axes: tuple[Index, ...]) -> Any:
        """Reductions outside of every other one, computed once: tanh(sum(...)) needs the sum again.

        Not where an input has two of its indices: that may be sparse, and the intermediate would be dense.
        """
        if axes != self.order:
            return e
        if isinstance(e, Reduce):
            free = set(free_indices(e))
            if any(len(free & set(a.indices)) > 1 for a in self.outside):
                return e
            if e not in self.kept:
                self.kept[e] = self.keep(e)
            return self.kept[e]
        return rebuild(e, lambda c: self.settled(c, axes))

    def slope(self, op: str, e: Expr, a: Expr) -> Expr:
        """The derivative of e = op(a), from the value where that is shorter."""
        if op not in SLOPES:
            raise self.refuse(f"{op} has no derivative here")
        return SLOPES[op](e, a)

    def refuse(self, why: str) -> Exception:
        return error("no-gradient", name=self.t.name, got=f"{why}, in {self.t.body[0]}")

    def reduction(
        self, e: Reduce, g: Expr, axes: tuple[Index, ...], held: tuple[Stored, ...]
    ) -> None:
        fresh = {ix: Index(ix.name) for ix in e.over}
        e = Reduce(e.monoid, tuple(fresh.values()), substitute(e.args, dict(fresh)), e.part)
        wide = (*axes, *e.over)
        drives = (*held, *(Stored(a, within=e) for a in _accesses(e.args)))
        if e.monoid.name in ("softmax_sum", "softmax2_sum"):
            score, value = e.args
            if e.monoid.name == "softmax2_sum":
                score = score * Const(math.log(2.0), "f32")
            top = self.keep(Reduce(monoids("f32")["logsumexp"], e.over, (score,)))
            p = unary("exp", score - top)
            mean = self.keep(e)
            self.visit(value, g * p, wide, drives)
            rest = tuple(ix for ix in axes if ix in free_indices(score))
            extra = tuple(ix for ix in axes if ix not in rest)
            pull = self.over(extra, g * value) - self.keep_over(extra, g * mean)
            self.visit(score, p * pull, (*rest, *e.over), drives)
            return
        if e.monoid.reverse is not None:
            given = (*e.args, self.keep(e), g)
            for arg, inner in zip(e.args, apply(e.monoid.reverse, given), strict=True):
                self.visit(arg, inner, wide, drives)
            return
        arg = e.args[0]
        match e.monoid.name:
            case "sum":
                inner = g
            case "mean":
                ones = _product(Stored(a, within=e) for a in _accesses(e.args) or _loads(e.args))
                count = self.keep(Reduce(monoids("f32")["sum"], e.over, (ones,)))
                inner = g / count
            case "max" | "min":
                best = self.keep(e)
                hit = select(eq(arg, best), ONE, ZERO)
                ties = self.keep(Reduce(monoids("f32")["sum"], e.over, (hit,)))
                inner = g * hit / ties
            case "logsumexp":
                inner = g * unary("exp", arg - self.keep(e))
            case "prod":
                none = eq(arg, ZERO)
                zeros = self.keep(Reduce(monoids("f32")["sum"], e.over, (select(none, ONE, ZERO),)))
                others = self.keep(Reduce(e.monoid, e.over, (select(none, ONE, arg),)))
                alone = select(eq(zeros, ONE), others, ZERO)
                inner = g * select(none, alone, select(eq(zeros, ZERO), others / arg, ZERO))
            case _:
                raise self.refuse(f"{e.monoid.name} has no derivative")
        self.visit(arg, inner, wide, drives)

    def rank(self, ix: Index) -> int:
        """Intermediates have their axes in the order of the output."""
        return self.order.index(ix) if ix in self.order else len(self.order)

    def over(self, axes: tuple[Index, ...], e: Expr) -> Expr:
        """The sum over axes, which are renamed so that nothing outside captures them."""
        fresh = {ix: Index(ix.name) for ix in axes}
        return (
            Reduce(monoids("f32")["sum"], tuple(fresh.values()), (substitute(e, dict(fresh)),))
            if axes
            else e
        )

    def keep_over(self, axes: tuple[Index, ...], e: Expr) -> Expr:
        made = self.over(axes, e)
        return self.keep(made) if isinstance(made, Reduce) else made

    def keep(self, e: Reduce) -> Load:
        """An intermediate: the reduction as a program of its own, read back by its free indices."""
        axes = tuple(sorted(dict.fromkeys(free_indices(e)), key=self.rank))
        name = _free(self.t, f"kept{len(self.first)}")
        target = Load(self.ref(name), axes)
        self.first.append(self.program(f"{self.t.name}_{name}", name, Assign((target,), (e,))))
        return target

    # --- programs ---------------------------------------------------------------------------------

    def programs(self) -> dict[str, tuple[Traced, ...]]:
        made: dict[str, list[Traced]] = {}
        for load, g, axes, held in self.merged():
            name = load.buffer.name
            if not all(isinstance(ix, Index) for ix in load.indices) and not self.unique(load):
                raise error(
                    "no-gradient", name=self.t.name, got=f"{load} is read through an index array"
                )
            inside = {n for n in walk(load.indices) if isinstance(n, Index)}
            over = tuple(ix for ix in axes if ix not in inside)
            present = {n for n in walk(g) if isinstance(n, Load)}
            missing = [s for s in dict.fromkeys(held) if s.access not in present | {load}]
            body = g * _product(missing)
            if over:
                body = Reduce(monoids("f32")["sum"], over, (body,))
            if len(load.indices) > 1:
                body = Stored(load) * body
            own = d_of(self.t, name)
            target = Load(self.ref(own), load.indices)
            nth = len(made.get(name, ()))
            label = f"{self.t.name}_d_{name}{nth or ''}"
            made.setdefault(name, []).append(
                self.program(label, own, Assign((target,), (body,)), name)
            )
        return {n: tuple(ps) for n, ps in made.items()}

    def merged(self) -> list[tuple[Load, Expr, tuple[Index, ...], tuple[Stored, ...]]]:
        """Contributions to the same access under the same axes, added up."""
        total: dict[tuple[Load, tuple[Index, ...]], tuple[Expr, tuple[Stored, ...]]] = {}
        for load, g, axes, held in self.found:
            before = total.get((load, axes))
            total[load, axes] = (
                (g, held) if before is None else (before[0] + g, (*before[1], *held))
            )
        return [(load, g, axes, held) for (load, axes), (g, held) in total.items()]

    def unique(self, load: Load) -> bool:
        """Whether an indirect access names every element at most once (declared by the program)."""
        lists = [n.buffer.name for ix in load.indices for n in walk(ix) if isinstance(n, Load)]
        return all(n in self.t.unique for n in lists)

    def program(self, label: str, out: str, s: Assign, like: str | None = None) -> Traced:
        refs = {n.buffer.name: n.buffer for n in walk(s) if isinstance(n, Load)}
        inputs = tuple(n for n in refs if n != out)
        scalars = tuple(v for v in self.t.scalars if any(n is v for n in walk(s)))
        sized: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
        found = {ix for n in walk(s.values) if isinstance(n, Load) for ix in n.indices}
        if like is not None and not all(
            isinstance(ix, Index) and ix in found for ix in s.targets[0].indices
        ):
            rank = len(s.targets[0].indices)
            sized = ((out, tuple((like, d) for d in range(rank))),)
            if like not in inputs:
                inputs = (*inputs, like)
                refs[like] = self.ref(like)
        params = (*inputs, *(v.name for v in scalars), out)
        return Traced(
            label,
            params,
            inputs,
            (out,),
            scalars,
            tuple(refs.values()),
            (s,),
            sized,
            self.t.unique,
            wide=like is None,
        )


def _accesses(args: Iterable[Expr]) -> tuple[Load, ...]:
    """Accesses of two or more indices, outside inner reductions: what may drive a sparse iteration."""
    made = [n for a in args for n in _outside(a) if isinstance(n.buffer, Ref)]
    return tuple(dict.fromkeys(a for a in made if len(a.indices) > 1))


def _outside(e: Any) -> Iterator[Load]:
    """Accesses that stand in no reduction."""
    if isinstance(e, Load):
        yield e
    elif isinstance(e, Node) and not is_named(e) and not isinstance(e, Reduce):
        for c in parts(e):
            yield from _outside(c)


def _loads(args: Iterable[Expr]) -> tuple[Load, ...]:
    return tuple(n for a in args for n in walk(a) if isinstance(n, Load))


def _product(es: Iterable[Expr]) -> Expr:
    made: Expr = ONE
    for e in es:
        made = made * e
    return made
