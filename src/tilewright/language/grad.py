"""Reverse mode on stage I: the gradient of a statement is a list of statements.

In: a traced program of one statement. Out: `Gradient`: intermediates to compute first, and for each input
the statements whose sum is its gradient. Programs again, so that they lower, schedule and compile alike.

    y[i, f] = sum(j, a[i, j] * x[j, f])
 -> d_a[i, j] = stored(a[i, j]) * sum(f, d_y[i, f] * x[j, f])
    d_x[j, f] = sum(i, a[i, j] * d_y[i, f])
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.ir.coord import Assign, Index, Reduce, Stored
from tilewright.ir.expr import Bin, Cast, Const, Expr, Load, Select, Un, Var, eq, select, unary
from tilewright.ir.monoid import monoids
from tilewright.ir.node import substitute, walk
from tilewright.language.trace import Ref, Traced, free_indices
from tilewright.support.errors import error

ONE = Const(1.0, "f32")
ZERO = Const(0.0, "f32")


@dataclass(frozen=True)
class Gradient:
    """`first`: intermediates, in order. `of`: for each input, programs whose results are added."""

    first: tuple[Traced, ...]
    of: dict[str, tuple[Traced, ...]]


def gradient(t: Traced) -> Gradient:
    """The reverse of a traced program; NoGradient names the statement that has none."""
    if len(t.body) != 1 or not isinstance(t.body[0], Assign):
        raise error("no-gradient", name=t.name, got="it has several statements")
    s = t.body[0]
    back = _Back(t)
    for target, value in list(zip(s.targets, s.values, strict=True))[:1]:
        seed = Load(back.ref(f"d_{target.buffer.name}"), target.indices)
        axes = tuple(dict.fromkeys(n for n in walk(target.indices) if isinstance(n, Index)))
        back.order = axes
        back.visit(value, seed, axes, ())
    return Gradient(tuple(back.first), back.programs())


@dataclass
class _Back:
    t: Traced
    order: tuple[Index, ...] = ()
    first: list[Traced] = field(default_factory=list)
    refs: dict[str, Ref] = field(default_factory=dict)
    found: list[tuple[Load, Expr, tuple[Index, ...], tuple[Load, ...]]] = field(
        default_factory=list
    )

    def ref(self, name: str) -> Ref:
        known = {r.name: r for r in self.t.refs}
        return known.get(name) or self.refs.setdefault(name, Ref(name))

    # --- the walk ---------------------------------------------------------------------------------

    def visit(self, e: Expr, g: Expr, axes: tuple[Index, ...], held: tuple[Load, ...]) -> None:
        """g is the adjoint of e; axes are all indices in scope; held are accesses that drive it."""
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
                self.visit(a, g * b, axes, held)
                self.visit(b, g * a, axes, held)
            case Bin("/", a, b):
                self.visit(a, g / b, axes, held)
                self.visit(b, -(g * a / (b * b)), axes, held)
            case Bin("max" | "min" as op, a, b):
                first = a >= b if op == "max" else a <= b
                self.visit(a, select(first, g, ZERO), axes, held)
                self.visit(b, select(first, ZERO, g), axes, held)
            case Select(c, a, b):
                self.visit(a, select(c, g, ZERO), axes, held)
                self.visit(b, select(c, ZERO, g), axes, held)
            case Un(op, a):
                self.visit(a, g * self.slope(op, a), axes, held)
            case Reduce():
                self.reduction(e, g, axes, held)
            case _:
                raise error("no-gradient", name=self.t.name, got=f"{e} is not differentiable")

    def slope(self, op: str, a: Expr) -> Expr:
        """The derivative of a scalar function."""
        s = unary("sigmoid", a)
        table = {
            "neg": Const(-1.0, "f32"),
            "relu": select(a > 0.0, ONE, ZERO),
            "exp": unary("exp", a),
            "log": ONE / a,
            "sqrt": Const(0.5, "f32") / unary("sqrt", a),
            "abs": unary("sign", a),
            "sigmoid": s * (ONE - s),
            "tanh": ONE - unary("tanh", a) * unary("tanh", a),
            "erf": Const(2.0 / math.sqrt(math.pi), "f32") * unary("exp", -(a * a)),
        }
        if op not in table:
            raise error("no-gradient", name=self.t.name, got=f"{op} has no derivative here")
        return table[op]

    def reduction(
        self, e: Reduce, g: Expr, axes: tuple[Index, ...], held: tuple[Load, ...]
    ) -> None:
        fresh = {ix: Index(ix.name) for ix in e.over}
        e = Reduce(e.monoid, tuple(fresh.values()), substitute(e.args, dict(fresh)), e.part)
        wide = (*axes, *e.over)
        drives = (*held, *_accesses(e.args))
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
        arg = e.args[0]
        match e.monoid.name:
            case "sum":
                inner = g
            case "mean":
                ones = _product(Stored(a) for a in _accesses(e.args))
                count = self.keep(Reduce(monoids("f32")["sum"], e.over, (ones,)))
                inner = g / count
            case "max" | "min":
                best = self.keep(e)
                hit = select(eq(arg, best), ONE, ZERO)
                ties = self.keep(Reduce(monoids("f32")["sum"], e.over, (hit,)))
                inner = g * hit / ties
            case "logsumexp":
                inner = g * unary("exp", arg - self.keep(e))
            case _:
                raise error("no-gradient", name=self.t.name, got=f"{e.monoid.name} has no reverse")
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
        name = f"kept{len(self.first)}"
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
            missing = [a for a in dict.fromkeys(held) if a not in present and a != load]
            body = g * _product(Stored(a) for a in missing)
            if over:
                body = Reduce(monoids("f32")["sum"], over, (body,))
            if len(load.indices) > 1:
                body = Stored(load) * body
            target = Load(self.ref(f"d_{name}"), load.indices)
            nth = len(made.get(name, ()))
            label = f"{self.t.name}_d_{name}{nth or ''}"
            made.setdefault(name, []).append(
                self.program(label, f"d_{name}", Assign((target,), (body,)), name)
            )
        return {n: tuple(ps) for n, ps in made.items()}

    def merged(self) -> list[tuple[Load, Expr, tuple[Index, ...], tuple[Load, ...]]]:
        """Contributions to the same access under the same axes, added up."""
        total: dict[tuple[Load, tuple[Index, ...]], tuple[Expr, tuple[Load, ...]]] = {}
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
        if like is not None and not all(isinstance(ix, Index) for ix in s.targets[0].indices):
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
    """Accesses of two or more indices: what may drive a sparse iteration."""
    made = [n for a in args for n in walk(a) if isinstance(n, Load) and isinstance(n.buffer, Ref)]
    return tuple(dict.fromkeys(a for a in made if len(a.indices) > 1))


def _product(es: Iterable[Expr]) -> Expr:
    made: Expr = ONE
    for e in es:
        made = made * e
    return made
