"""The shape of a stage III nest: which loops are spatial, which reduce, which rows have their own length.

In: an unscheduled stage III program with one nest. Out: `Nest`, which the default schedulers read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Const, Expr, Load, Var
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk
from tilewright.schedule.edit import uses

DOT_ROWS = 16


@dataclass(frozen=True)
class Reduction:
    """A loop of a reduction; depth 0: of an outermost reduction, 1: nested in another one ..."""

    loop: Loop
    depth: int
    folds: tuple[stmt.Fold, ...]

    @property
    def name(self) -> str:
        return self.loop.var.name

    @property
    def variable(self) -> bool:
        return isinstance(self.loop.lo, Load)

    @property
    def constant(self) -> bool:
        return isinstance(self.loop.hi, Const)


@dataclass(frozen=True)
class Nest:
    """spatial: outermost first. rows: the spatial loop whose variable bounds a reduction."""

    spatial: tuple[Loop, ...]
    reductions: tuple[Reduction, ...]
    made_of: dict[Var, tuple[Expr, ...]] = field(default_factory=dict)

    def steers(self, v: Var, loop: Loop) -> bool:
        """Whether a variable decides the bounds of a loop, be it through others."""
        return self.enters(v, loop.lo, loop.hi)

    def enters(self, v: Var, *given: Expr) -> bool:
        """Whether expressions depend on a variable, be it through others."""
        todo, seen = list(given), set[Var]()
        while todo:
            for n in walk(todo.pop()):
                if n is v:
                    return True
                if isinstance(n, Var) and n not in seen:
                    seen.add(n)
                    todo += self.made_of.get(n, ())
        return False

    def fits_lanes(self, s: Loop, but: Reduction | None = None) -> bool:
        """Whether a loop may become lanes: all its lanes then have the same bounds inside (but one: it is padded)."""
        inner = [r.loop for r in self.reductions if r is not but]
        return not any(self.steers(s.var, x) for x in (*self.spatial, *inner))

    def alone(self, r: Reduction) -> bool:
        """Whether no other reduction decides the bounds of this one."""
        return not any(self.steers(o.loop.var, r.loop) for o in self.reductions if o is not r)

    @cached_property
    def rows(self) -> tuple[Loop, Reduction] | None:
        """Rows of their own length and what runs over them. Of several loops that bound it, the inner one: all others
        are known where its lanes ask for their bounds. It begins at 0: entries of another structure are no rows."""
        for r in self.reductions:
            for s in reversed(self.spatial):
                if r.variable and r.depth == 0 and uses(r.loop.lo, s.var):
                    whole = isinstance(s.lo, Const) and self.fits_lanes(s, r) and self.alone(r)
                    return (s, r) if whole else None
        return None

    @property
    def gathers(self) -> bool:
        """Whether a reduction runs over stored entries."""
        return any(r.variable for r in self.reductions)

    @cached_property
    def edges(self) -> tuple[Loop, Loop] | None:
        """(rows, entries): something done for each stored entry of a row."""
        for e in self.spatial:
            for s in self.spatial:
                if isinstance(e.lo, Load) and uses(e.lo, s.var) and is_steady(s):
                    others = (*self.spatial, *(r.loop for r in self.reductions))
                    held = [x for x in others if x is not e and self.steers(s.var, x)]
                    below = [x for x in others if self.steers(e.var, x)]
                    return None if held or below else (s, e)
        return None

    @cached_property
    def blocks(self) -> tuple[Loop, ...]:
        """Spatial loops of constant extent: the inside of a block."""
        return tuple(s for s in self.spatial if isinstance(s.hi, Const))

    @cached_property
    def free(self) -> tuple[Loop, ...]:
        """Spatial loops over a whole dense dimension."""
        rows = self.rows
        held = {rows[0].var} if rows is not None else set()
        return tuple(
            s
            for s in self.spatial
            if s.var not in held and not isinstance(s.hi, Const) and is_steady(s)
        )


def nest_of(p: flat.Program) -> Nest:
    """The loops of the first nest of a program."""
    spatial: list[Loop] = []
    found: list[Reduction] = []
    made_of: dict[Var, tuple[Expr, ...]] = {}

    def block(body: tuple[stmt.Stmt, ...], depth: int, reducing: bool) -> None:
        inits = 0
        for s in body:
            if isinstance(s, stmt.Init):
                inits += 1
            elif isinstance(s, stmt.Let):
                made_of[s.var] = (s.value,)
            elif isinstance(s, Loop):
                made_of[s.var] = (s.lo, s.hi)
                loop(s, depth + (1 if reducing and inits else 0), reducing or bool(inits))
            elif isinstance(s, stmt.Guard):
                block(s.body, depth + (1 if reducing and inits else 0), reducing or bool(inits))

    def loop(s: Loop, depth: int, reducing: bool) -> None:
        if reducing:
            folds = tuple(n for n in walk(s.body) if isinstance(n, stmt.Fold))
            found.append(Reduction(s, depth, folds))
        else:
            spatial.append(s)
        block(s.body, depth, reducing)

    block(p.body, 0, False)
    return Nest(tuple(spatial), tuple(found), made_of)


def is_steady(s: Loop) -> bool:
    """Whether a loop starts at 0 and its end is known before the launch."""
    return isinstance(s.lo, Const) and not any(isinstance(n, Load) for n in walk(s.hi))


def bounds_another(nest: Nest, r: Reduction) -> bool:
    """Whether a loop's variable bounds another loop: then it cannot be a lane."""
    return any(nest.steers(r.loop.var, o.loop) for o in nest.reductions)


def inside_blocks(nest: Nest) -> tuple[Reduction, Reduction] | None:
    """(the loop over the blocks of a row, the one inside a block) of a reduction over blocks."""
    outer = [r for r in nest.reductions if r.variable and r.depth == 0]
    inner = [r for r in nest.reductions if r.constant and r.depth == 0]
    return (outer[0], inner[0]) if len(outer) == len(inner) == 1 else None


def block_product(nest: Nest) -> Reduction | None:
    """The loop inside a block, when blocks of a decent height are multiplied and summed: dots."""
    found = inside_blocks(nest)
    if found is None or len(found[1].folds) != 1:
        return None
    fold = found[1].folds[0]
    high = all(isinstance(b.hi, Const) and b.hi.value >= DOT_ROWS for b in nest.blocks)
    return (
        found[1] if high and fold.monoid.name == "sum" and len(_factors(fold.args[0])) > 1 else None
    )


def strip_product(nest: Nest) -> Reduction | None:
    """The loop over strips of one column, when strips of a decent height are multiplied and summed: dots of several."""
    if len(nest.reductions) != 1 or not nest.free or not nest.reductions[0].variable:
        return None
    (r,) = nest.reductions
    high = [b for b in nest.blocks if isinstance(b.hi, Const) and b.hi.value >= DOT_ROWS]
    whole = len(high) == len(nest.blocks) == 1
    return r if whole and multiplies(nest, r, high[0], nest.free[-1]) else None


def product_of(nest: Nest) -> tuple[Loop, Loop, Reduction] | None:
    """(m, n, k) of a dense product: sum over k of a[.., m, k] * b[.., k, n].

    m, n and k may run over lists; of several loops on one side (a list of tiles, and the inside of one) the innermost
    counts. One of m and n may be the inside of a group that has a list of its own, or of a listed tile.
    """
    for r in nest.reductions:
        if r.variable or r.constant or r.depth or len(r.folds) != 1 or _asks_memory(nest, r.loop):
            continue
        fold = r.folds[0]
        if fold.monoid.name != "sum":
            continue
        sides = _factors(fold.args[0])
        if len(sides) < 2:
            continue
        found = [x for x in nest.spatial if x in nest.free or x in nest.blocks]
        enter = [f for f in sides if nest.enters(r.loop.var, f)]
        only = [[x for x in found if nest.enters(x.var, f)] for f in enter]
        if len(only) == 2:
            a = [x for x in only[0] if x not in only[1]]
            b = [x for x in only[1] if x not in only[0]]
            if a and b and any(x in nest.free for x in (*a, *b)) and not bounds_another(nest, r):
                m, n = sorted((a[-1], b[-1]), key=nest.spatial.index)
                both = any(nest.enters(m.var, f) and nest.enters(n.var, f) for f in sides)
                if nest.fits_lanes(m) and nest.fits_lanes(n) and not both:
                    return m, n, r
    return None


def multiplies(nest: Nest, r: Reduction, *sides: Loop) -> bool:
    """Whether a sum over r is a product of two matrices: sum over k of a[m, k] * b[k, n], with sides m and n."""
    if len(sides) != 2 or len(r.folds) != 1 or r.folds[0].monoid.name != "sum":
        return False
    m, n = ([f for f in _factors(r.folds[0].args[0]) if nest.enters(x.var, f)] for x in sides)
    apart = not any(f in n for f in m)
    return apart and all(any(nest.enters(r.loop.var, f) for f in side) for side in (m, n))


def _asks_memory(nest: Nest, loop: Loop) -> bool:
    """Whether what is inside a loop is done or not as memory says, entry by entry, or as a search found."""
    asked = [n.cond for n in walk(loop.body) if isinstance(n, stmt.Guard)]
    found = (m for c in asked for v in walk(c) for m in nest.made_of.get(v, ()))
    return any(isinstance(n, Load) for c in asked for n in walk(c)) or any(
        isinstance(m, Lookup) for m in found
    )


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Cast) and isinstance(e.a, Bin):
        e = e.a
    return [*_factors(e.a), *_factors(e.b)] if isinstance(e, Bin) and e.op == "*" else [e]


def is_unit(v: Var, at: Expr) -> bool:
    """Whether a variable enters an index with factor 1."""
    if at is v:
        return True
    return isinstance(at, Bin) and at.op == "+" and (is_unit(v, at.a) or is_unit(v, at.b))
