"""What several primitives ask before they act: reasons, or nothing.

In: a stage III program or a loop of it. Out: "" where a step is legal, else the reason in a few words.

    carried(loop)      ->  "acc"                                    states that flow between iterations
    uneven(p)          ->  "the bounds of p_j differ from lane to lane"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product

from tilewright.ir import flat, stmt
from tilewright.ir.expr import LaneReduce, LaneScan, LaneSplit, Load, Var, const
from tilewright.ir.flat import Loop
from tilewright.ir.node import walk
from tilewright.lowering.flatten import linear
from tilewright.lowering.lanes import lanes_of, value_lanes
from tilewright.lowering.own import own
from tilewright.schedule.edit import blocks, illegal, loops, uses

Body = tuple[stmt.Stmt, ...]
# Fields of a statement that hold no expression of its own.
APART = ("monoid", "body", "then", "orelse")


def within(body: Body) -> Iterator[stmt.Stmt]:
    """All statements of a block, outermost first."""
    for s in body:
        yield s
        for inner in blocks(s):
            yield from within(inner)


def sets(s: stmt.Stmt) -> tuple[Var, ...]:
    """The variables that a statement itself sets."""
    match s:
        case stmt.Let(v, _) | Loop(v):
            return (v,)
        case stmt.Init(state, _):
            return state
        case stmt.Append(at=Var() as v):
            return (v,)
    return ()


def unset(p: flat.Program) -> str:
    """A variable that is used above the line that sets it, or after the loop whose turns set it."""
    return _unset(p.body, {*p.sizes, *p.scalars})


def _unset(body: Body, known: set[Var]) -> str:
    for s in body:
        said = [getattr(s, f.name) for f in fields(s) if f.name not in APART]  # type: ignore[arg-type]
        for v in walk(tuple(said)):
            if isinstance(v, Var) and v not in known and v not in sets(s):
                return v.name
        turns = isinstance(s, Loop) and s.kind != "lane"
        inside = {*known} if turns else known
        inside.update(sets(s))
        for inner in blocks(s):
            why = _unset(inner, inside)
            if why:
                return why
    return ""


def set_elsewhere(p: flat.Program, name: str) -> str:
    """Why a loop cannot become a lane: what it sets is set outside of it, too, where that would have no such lane."""
    own = [s for x in within(p.body) if isinstance(x, Loop) and x.var.name == name for s in x.body]
    inside = Counter(s.var for s in within(tuple(own)) if isinstance(s, stmt.Let))
    every = Counter(s.var for s in within(p.body) if isinstance(s, stmt.Let))
    found = [v.name for v, n in inside.items() if every[v] > n]
    return f"{found[0]} is set outside of it, too" if found else ""


def folds(body: Body) -> list[stmt.Fold | stmt.Join]:
    """The folds and joins into states that begin outside of a block."""
    begun = {v for s in within(body) if isinstance(s, stmt.Init) for v in s.state}
    found = (s for s in within(body) if isinstance(s, stmt.Fold | stmt.Join))
    return [s for s in found if s.state[0] not in begun]


def carried(loop: Loop) -> str:
    """The names of reduction states that flow from one iteration of a loop to the next."""
    return ", ".join(dict.fromkeys(v.name for s in folds(loop.body) for v in s.state))


def orders(s: stmt.Append, loop: Loop) -> bool:
    """Whether a loop decides the order of a list, rather than which list it is."""
    return not s.shared and not uses(s.group, loop.var)


def in_order(loop: Loop) -> str:
    """Why the iterations of a loop must keep their order: appends, folds without a lane form, memory read back."""
    for x in within(loop.body):
        inside = within(x.body) if isinstance(x, Loop) else ()
        if any(isinstance(s, stmt.Append) and orders(s, loop) for s in inside):
            return "it appends in order"
    for s in folds(loop.body):
        if not s.monoid.laned:
            return f"{s.monoid.name} is folded in order: it has no lane form"
    return rereads(loop)


def rereads(loop: Loop) -> str:
    """Why iterations may depend on each other through memory: more is read than the element that is written, and not
    from the part that is an iteration's own. Elements that are addressed through arrays are taken to be different."""
    stores = [s for s in within(loop.body) if isinstance(s, stmt.Store)]
    loads = [n for n in walk(loop.body) if isinstance(n, Load)]
    found = {
        s.buffer.name: None
        for s in stores
        for n in loads
        if n.buffer is s.buffer
        and (n.indices != s.indices or loop.var not in flat.made_of(loop.body, *s.indices))
        and not own([(s.indices[0], loop), (n.indices[0], loop)])
    }
    return f"{', '.join(found)} is written and read in it" if found else ""


def uneven(p: flat.Program) -> str:
    """Why lanes of a program would need control flow of their own."""
    table = value_lanes(p)
    for s in within(p.body):
        match s:
            case Loop(v, lo, hi, kind) if kind != "lane" and lanes_of((lo, hi), table):
                return f"the bounds of {v.name} would differ from lane to lane"
            case stmt.If(c) if lanes_of(c, table):
                return f"the branch on {c} would differ from lane to lane"
            case stmt.Publish(_, _, a, b, c) if lanes_of((a, b, c), table):
                return "pieces of a row would differ from lane to lane"
    return ""


def adds_up(p: flat.Program, loop: Loop) -> str:
    """A buffer with an element that every turn of a loop adds to."""
    adds = (s for s in within(loop.body) if isinstance(s, stmt.Atomic))
    return next(
        (s.buffer.name for s in adds if loop.var not in flat.made_of(p.body, *s.indices)), ""
    )


def republished(p: flat.Program) -> str:
    """Why a program would publish one piece of a row several times: a loop around it that is not over pieces."""
    for x in loops(p):
        for s in within(x.body):
            if isinstance(s, stmt.Publish) and x.kind in ("serial", "unroll"):
                if x.var not in flat.made_of(p.body, s.slot, s.nth):
                    return f"pieces are published inside {x.var.name}, which would be serial"
    return ""


def bound_lane(p: flat.Program, v: Var) -> str:
    """Why a lane must stay one: values wait in it for another loop, or are reduced along it."""
    if sum(x.var is v for x in loops(p)) > 1:
        return "it is opened twice: values wait in its lanes"
    over = [n for n in walk(p.body) if isinstance(n, LaneReduce | LaneScan)]
    held = [ln for n in over for ln in (n.lanes if isinstance(n, LaneReduce) else (n.lane,))]
    if any(v in (n.lane, n.outer, n.inner) for n in walk(p.body) if isinstance(n, LaneSplit)):
        return "values are split along its lanes"
    return "values are reduced along its lanes" if v in held else ""


def nest_loops(top: Loop) -> tuple[Loop, ...]:
    """A loop and those that stand alone inside each other, outermost first."""
    made = [top]
    while len(made[-1].body) == 1 and isinstance(made[-1].body[0], Loop):
        made.append(made[-1].body[0])
    return tuple(made)


def covers(s: stmt.Store, around: Sequence[Loop]) -> bool:
    """Whether loops over the whole dimensions of a buffer, and nothing else, stand around a store to it."""
    by_end = [[x.var for x in around if x.hi == n and x.lo == const(0)] for n in s.buffer.shape]
    alone = all(len(x.body) == 1 for x in around[:-1])
    held = len(by_end) == len(around) and alone
    return held and any(linear(s.buffer, ix) == s.indices[0] for ix in product(*by_end))


def alone(body: Body, inner: Loop) -> bool:
    """Whether nothing but numbers, guards and lanes lead to a loop."""
    *before, last = body
    if not all(isinstance(s, stmt.Let) for s in before):
        return False
    return last is inner or (isinstance(last, stmt.Guard | Loop) and alone(last.body, inner))


def taken(p: flat.Program) -> set[str]:
    """Every name of a program."""
    made = {b.name for b in p.buffers} | {v.name for v in (*p.sizes, *p.scalars)}
    return made | {v.name for v in walk(p.body) if isinstance(v, Var)}


def unused(p: flat.Program, what: str, *names: str) -> None:
    """Refuse a step whose new loops have names that are taken. Sizes may have them: they are told apart afterwards."""
    held = {v.name for v in walk(p.body) if isinstance(v, Var) and v not in p.sizes}
    for name in names:
        if name in held or name in {b.name for b in p.buffers}:
            raise illegal(
                what,
                f"the name {name} is taken",
                "take this step before the one that made the name",
            )


def fresh(p: flat.Program, name: str, held: set[str] | None = None) -> str:
    """A name that nothing has: name, name1, name2 ...; held: names that are taken, which it joins."""
    held = taken(p) if held is None else held
    n, made = 0, name
    while made in held:
        n += 1
        made = f"{name}{n}"
    held.add(made)
    return made


def at_least(what: str, number: int, least: int = 1) -> None:
    if number < least:
        raise illegal(what, f"{number} is less than {least}", f"give {least} or more")
