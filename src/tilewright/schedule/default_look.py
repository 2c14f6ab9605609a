"""The default schedule of programs that look at parts of an operand: is something there, or what do a few add up to.

In: an unscheduled stage III program whose reductions are small, or ask whether something holds. Out: a scheduled one.

    beside     elements side by side, of one part and of its neighbours: lanes, 16 bytes for each thread
    apart      elements that lie a row apart: a few in lanes, so that each thread has them all; the rest unrolled

What lies apart is never spread over threads: they would have to meet for each answer.
"""

from __future__ import annotations

from tilewright.analysis.cost import BYTES
from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Cast, Const, Expr, Load, Var, const
from tilewright.ir.node import walk
from tilewright.schedule.bits import asked
from tilewright.schedule.clamp import unclamped
from tilewright.schedule.edit import find, loops
from tilewright.schedule.record import Scheduled
from tilewright.schedule.shape import Nest, Reduction, bounds_another

TESTS = ("any", "all")
LOOKED = 4096  # elements of a tile that is looked at
SPAN = 1024  # of them, along a whole dimension where candidates are listed
FAR = 32  # of them, along a whole dimension whose elements lie apart
ACROSS = 512  # bytes beside each other for each warp: 16 for a thread
STACK, STEPS = 4, 4  # elements apart in lanes, and how many times that many are unrolled
AT_ONCE = STACK * STEPS


def looks(nest: Nest, dense: list[Reduction]) -> bool:
    """Whether parts of a constant size are added up, or all that is asked is if something holds."""
    small = all(
        (r.constant and laned(r)) or all(f.monoid.name in TESTS for f in r.folds) for r in dense
    )
    whole = bool(dense) and len(dense) == len(nest.reductions) and nest.free == nest.spatial
    return small and whole and nest.fits_lanes(nest.free[-1])


def look(s: Scheduled, nest: Nest, parts: list[Reduction], warps: int) -> Scheduled:
    """All of a small part at once, and as many parts as make a tile. Of what is larger than a tile: neighbours."""
    last = nest.free[-1].var
    apart = apart_of(nest, parts, last)
    room = across(parts, warps) if apart else LOOKED
    for r in parts:
        if r in apart:
            s = stacked(s, r)
        elif r.constant:
            s, used = in_lanes(s, nest, r, room)
            room //= used
    s = by_bits(once(s, parts, apart), parts, apart)
    for r in parts:
        if not r.constant and room > 1:
            size = room if _beside(nest, r.loop.var, parts) else min(room, FAR)
            s = s.then("split", r.name, size).then("kind", f"{r.name}_i", "lane")
            s, room = by_lane(s, r), room // size
    if room <= 1:
        return s
    s = s.then("split", last.name, room).then("kind", f"{last.name}_i", "lane")
    return s.then("kind", f"{last.name}_o", "grid")


def by_bits(s: Scheduled, parts: list[Reduction], apart: list[Reduction]) -> Scheduled:
    """Whether something is not 0 is asked of the bits of all that lies apart, step by step, and once at the end."""
    names = [n for r in parts[:1] if r in apart for n in (r.name, f"{r.name}_o")]
    steps = [x for x in loops(s.program) if x.var.name in names and x.kind != "lane"]
    return s.then("bits", steps[0].var.name) if steps and asked(steps[0]) else s


def whole_rows(s: Scheduled, parts: list[Reduction]) -> Scheduled:
    """What lies side by side in steps: threads join the bits of all steps, and meet once after the last."""
    (r,) = parts
    steps = [x for x in loops(s.program) if x.var.name == f"{r.name}_o" and x.kind == "serial"]
    if not steps or not asked(steps[0]):
        return s
    return s.then("rfactor", f"{r.name}_i").then("bits", f"{r.name}_o")


def once(s: Scheduled, parts: list[Reduction], apart: list[Reduction]) -> Scheduled:
    """Where some lanes lie beside each other, others apart, threads share them: all meet once, after the last step."""
    if (
        not parts
        or parts[0] not in apart
        or apart == parts
        or any(len(r.folds) != 1 for r in parts)
    ):
        return s
    steps = [x.var.name for x in loops(s.program) if x.kind != "lane"]
    if not any(n == parts[0].name or n.startswith(f"{parts[0].name}_o") for n in steps):
        return s
    for r in parts:
        for name in (r.name, f"{r.name}_i"):
            if any(x.var.name == name and x.kind == "lane" for x in loops(s.program)):
                s = s.then("rfactor", name)
    return s


def apart_of(nest: Nest, parts: list[Reduction], last: Var | None) -> list[Reduction]:
    """The parts whose elements lie apart, where those of others, or the next parts, lie side by side."""
    beside = {r.name: _beside(nest, r.loop.var, parts) for r in parts}
    near = any(beside.values()) or (last is not None and _beside(nest, last, parts))
    if not near or not all(r.constant and laned(r) for r in parts):
        return []
    return [r for r in parts if not beside[r.name]]


def stacked(s: Scheduled, r: Reduction) -> Scheduled:
    """serial i: fold  ->  serial i_o: unroll i_i: fold; where a guard asks for i, unroll: lane i_i in STACK: fold

    A guard that is not in lanes is a branch: loads would wait for each other. The last may be asked for again instead.
    """
    assert isinstance(r.loop.hi, Const)
    guards = [n.cond for n in walk(r.loop.body) if isinstance(n, stmt.Guard)]
    free = not any(r.loop.var in flat.made_of(r.loop.body, c) for c in guards)
    if not free and not unclamped(s.program, find(s.program, r.name)):
        s, free = s.then("clamp", r.name), True
    if free:
        return s.then("unroll", r.name, min(int(r.loop.hi.value), AT_ONCE))
    if r.loop.hi.value <= STACK:
        return s.then("kind", r.name, "lane")
    s = s.then("split", r.name, STACK).then("kind", f"{r.name}_i", "lane")
    steps = -(-int(r.loop.hi.value) // STACK)
    return s.then("unroll", f"{r.name}_o", min(steps, STEPS))


def across(parts: list[Reduction], warps: int) -> int:
    """How many elements of what is looked at lie side by side in a tile."""
    sizes = [BYTES[n.buffer.dtype] for n in _loads(parts)]
    return ACROSS * warps // max(sizes, default=4)


def _loads(parts: list[Reduction]) -> list[Load]:
    return [n for r in parts for n in walk(r.loop.body) if isinstance(n, Load)]


def _beside(nest: Nest, v: Var, parts: list[Reduction]) -> bool:
    """Whether neighbours along a loop are neighbours in memory."""
    return any(_unit(nest, v, n.indices[0]) for n in _loads(parts))


def _unit(nest: Nest, v: Var, at: Expr) -> bool:
    """Whether a variable enters an index with factor 1, also through what it is the last part of."""
    match at:
        case Var() if at is v:
            return True
        case Var():
            made = nest.made_of.get(at, ())
            return len(made) == 1 and _unit(nest, v, made[0])
        case Bin("+", a, b):
            return _unit(nest, v, a) or _unit(nest, v, b)
        case Cast(_, a):
            return _unit(nest, v, a)
    return False


def in_lanes(s: Scheduled, nest: Nest, r: Reduction, room: int) -> tuple[Scheduled, int]:
    """Lanes, as far as there is room; the lanes that were taken."""
    if r.variable or bounds_another(nest, r) or not laned(r):
        return s, 1
    if isinstance(r.loop.hi, Const) and r.loop.hi.value <= room:
        size = 1 << (int(r.loop.hi.value) - 1).bit_length()
        return s.then("kind", r.name, "lane"), size
    size = min(room, SPAN)
    if size < 2 or r.loop.lo != const(0):
        return s, 1
    return s.then("split", r.name, size).then("kind", f"{r.name}_i", "lane"), size


def laned(r: Reduction) -> bool:
    """Whether everything that a loop folds has a lane form; else it stays serial."""
    return all(f.monoid.laned for f in r.folds)


def by_lane(s: Scheduled, r: Reduction) -> Scheduled:
    """A reduction in tiles of lanes: each lane adds up its own, the lanes are joined once."""
    inner = tuple(x for x in loops(s.program) if x.var.name == f"{r.name}_i")
    folds = [n for n in walk(inner) if isinstance(n, stmt.Fold)]
    alone = len(folds) == 1 and folds[0].monoid.joins
    return s.then("rfactor", f"{r.name}_i") if alone else s
