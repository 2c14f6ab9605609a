"""Primitives about memory: `prefetch`, `stream` and `cache`.

In: a stage III program, the names of loops and buffers. Out: the same reads, asked for early or made once.

    cache(p, "x", "o")      # the row of x that loop o reads again and again waits on chip
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from tilewright.analysis.cost import BYTES
from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Buffer, Const, Expr, Load, Var, const, minimum
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.node import substitute, transform, walk
from tilewright.lowering.lanes import value_lanes
from tilewright.schedule.edit import blocks, edit, find, illegal, uses
from tilewright.schedule.legal import APART, at_least, fresh, sets, unset, within
from tilewright.schedule.shape import is_unit


def prefetch(p: flat.Program, name: str, distance: int) -> flat.Program:
    """serial p: let j = idx[p]; ... x[j * n + f]  ->  the same, with x[idx[p + distance] * n] asked for early

    What lanes and the loops inside read, side by side, is asked for as a whole. Near the end of a row the entries
    ahead are those of the next ones. Where no index array is read, it is what the turns of the loop read by number.
    """
    what, loop = f"prefetch({name}, {distance})", find(p, name)
    at_least(what, distance)
    if loop.kind == "lane":
        raise illegal(what, "it is a lane: all of it is read at once", "fetch in a serial loop")
    gathers = lambda s: [g for g in _gathers(s) if not _by_lane(p, g[2])]
    if not gathers(loop):
        return _prefetch_rows(p, what, loop, distance)

    def rule(s: Loop) -> list[stmt.Stmt]:  # of each loop of the name: a jammed one has a rest
        hints = [
            _hint(s, x, {let.var: Load(table, (_ahead(p, s, table, distance),))})
            for let, table, x in gathers(s)
        ]
        if not hints:
            return [s]
        at = max(s.body.index(let) for let, _ in _coordinates(s)) + 1
        return [replace(s, body=(*s.body[:at], *hints, *s.body[at:]))]

    return edit(p, name, rule)


def _prefetch_rows(p: flat.Program, what: str, loop: Loop, distance: int) -> flat.Program:
    """for i: ... x[i * n + f]  ->  the same, with x[(i + distance) * n] asked for early"""
    found = [x for x in row_loads(loop) if not _by_lane(p, x)]
    if not found:
        why = "nothing in it is read through an index array, or row by row"
        raise illegal(what, why, ir=loop)

    def rule(s: Loop) -> list[stmt.Stmt]:
        later = minimum(s.var + distance, s.hi - 1)
        read = (x for x in row_loads(s) if not _by_lane(p, x))
        return [replace(s, body=(*(_hint(s, x, {s.var: later}) for x in read), *s.body))]

    return edit(p, loop.var.name, rule)


def _hint(loop: Loop, x: Load, later: dict[Var, Expr]) -> stmt.Prefetch:
    """What a load reads, side by side, in the turn that is given."""
    first = {n.var: n.lo for n in walk(loop.body) if isinstance(n, Loop)}
    return stmt.Prefetch(x.buffer, substitute(x.indices, {**first, **later}), _span(loop, x))


def row_loads(loop: Loop) -> list[Load]:
    """Loads of several elements, side by side, at a place that the turn of a loop decides; one for each buffer."""
    found: dict[str, Load] = {}
    for n in walk(loop.body):
        if isinstance(n, Load) and n.buffer.role == "in" and _span(loop, n) > 1:
            inner = {m for m in walk(n.indices) if isinstance(m, Var)}
            if loop.var in inner and not _needs(loop, inner):
                found.setdefault(n.buffer.name, n)
    return list(found.values())


def _span(loop: Loop, x: Load) -> int:
    """How many elements, side by side, the loops inside of a loop read."""
    found = [n for n in walk(loop.body) if isinstance(n, Loop) and is_unit(n.var, x.indices[-1])]
    ends = [(n.lo, n.hi) for n in found]
    return max(
        (int(b.value - a.value) for a, b in ends if isinstance(a, Const) and isinstance(b, Const)),
        default=1,
    )


def row_bytes(p: flat.Program, name: str) -> int:
    """The bytes from one row to the next of what a loop reads, of the longest; 0 where that is not known."""
    loop = find(p, name)
    read = [(let.var, x) for let, _, x in _gathers(loop)] or [
        (loop.var, x) for x in row_loads(loop)
    ]
    return max((stride(v, x.indices[-1]) * BYTES[x.buffer.dtype] for v, x in read), default=0)


def stride(v: Var, e: Expr) -> int:
    """The number that a variable is multiplied by, where it is a constant."""
    match e:
        case Bin("*", a, Const(n)) if a is v:
            return int(n)
        case Bin("+", a, b):
            return stride(v, a) + stride(v, b)
    return int(e is v)


def _ahead(p: flat.Program, loop: Loop, table: Buffer, distance: int) -> Expr:
    """The place to look ahead at: rows of one array follow one another, other ranges end where they end.

    How far beyond its end a row may look is the same for all its entries.
    """
    rows = [e.buffer for e in (loop.lo, loop.hi) if isinstance(e, Load)]
    known = lambda e: all(v in p.sizes for v in walk(e) if isinstance(v, Var))
    if len(rows) == 2 and rows[0] == rows[1] and len(rows[0].shape) == 1:
        ends = (table.shape[0], Load(rows[0], (rows[0].shape[0] - 1,)))
        end = next((e for e in ends if known(e)), None)
        if end is not None:
            return loop.var + minimum(const(distance), end - loop.hi)
    return minimum(loop.var + distance, loop.hi - 1)


def stream(p: flat.Program, *names: str) -> flat.Program:
    """x[..] -> x[..], once: elements of these buffers are not kept in caches for the sake of others"""
    known = {b.name for b in p.buffers}
    for n in names:
        if n not in known:
            held = ", ".join(sorted(known))
            raise illegal(f"stream({n})", f"there is no such buffer; there are {held}", ir=p)
    return replace(p, streams=(*p.streams, *(n for n in names if n not in p.streams)))


def _gathers(loop: Loop) -> list[tuple[stmt.Let, Buffer, Load]]:
    """Loads addressed through `let j = idx[p]`, one for each buffer."""
    lets = _coordinates(loop)
    found: dict[str, tuple[stmt.Let, Buffer, Load]] = {}
    for n in walk(loop.body):
        if isinstance(n, Load):
            inner = {m for m in walk(n.indices) if isinstance(m, Var)}
            for let, table in lets:
                if let.var in inner and not _needs(loop, inner):
                    found.setdefault(n.buffer.name, (let, table, n))
    return list(found.values())


def _by_lane(p: flat.Program, x: Load) -> bool:
    """Whether an address needs a value that each lane reads for itself; lanes themselves begin where they begin."""
    lanes, needed = value_lanes(p), flat.made_of(p.body, *x.indices)
    lets = (s for s in walk(p.body) if isinstance(s, stmt.Let) and s.var in needed)
    return any(
        lanes.get(s.var) and any(isinstance(n, Load | Lookup) for n in walk(s.value)) for s in lets
    )


def _needs(loop: Loop, names: set[Var]) -> bool:
    """Whether an address needs values that are not known at the top of the body."""
    made = {s.var for s in walk(loop.body) if isinstance(s, stmt.Let)}
    moving = {s.var for s in walk(loop.body) if isinstance(s, Loop) and not isinstance(s.lo, Const)}
    return bool(names & ((made | moving) - {s.var for s, _ in _coordinates(loop)}))


def _coordinates(loop: Loop) -> list[tuple[stmt.Let, Buffer]]:
    """let j = idx[p], for the loop's own p: the statement and the array"""
    return [
        (s, s.value.buffer)
        for s in loop.body
        if isinstance(s, stmt.Let) and isinstance(s.value, Load) and s.value.indices == (loop.var,)
    ]


def cache(p: flat.Program, buffer: str, name: str) -> flat.Program:
    """serial v: lane d: .. x[j * n + d] ..  ->  lane d: x_at = x[j * n + d]; serial v: lane d: .. x_at .."""
    what, loop = f"cache({buffer}, {name})", find(p, name)
    if loop.kind not in ("serial", "unroll"):
        raise illegal(what, f"it is a {loop.kind} loop", "name the loop that reads again", ir=loop)
    if any(
        isinstance(s, stmt.Store | stmt.Atomic) and s.buffer.name == buffer for s in within(p.body)
    ):
        raise illegal(what, f"{buffer} is written here", ir=loop)
    sites = [*_sites(loop.body, buffer, ())]
    if len({load for load, _ in sites}) != 1:
        raise illegal(what, f"{name} does not read one element of {buffer}", ir=loop)
    load = sites[0][0]
    inner = {v for s in within((loop,)) for v in sets(s)}
    lanes = [s for s in within(loop.body) if isinstance(s, Loop) and s.kind == "lane"]
    at = _written_out(loop.body, load)
    moving = [v.name for v in _changing(at, inner, lanes)]
    if moving:
        why = f"{load} changes with {moving[0]}"
        raise illegal(
            what, why, "make the loop that it runs over lanes, or name a loop inside", ir=loop
        )
    guards = _shared_guards(loop, sites, inner, lanes)
    listed = [v.name for v in _from_list(p) if uses(at, v)]
    if listed and any(len(around) > len(guards) for _, around in sites):
        why = f"{listed[0]} of a list may be no row, and is not asked for before {name}"
        raise illegal(what, why, "cache before rows come from a list", ir=loop)
    value = Var(fresh(p, f"{buffer}_at"), load.buffer.dtype)
    body: tuple[stmt.Stmt, ...] = (stmt.Let(value, at),)
    for g in guards:
        body = (stmt.Guard(g, body),)
    for s in reversed(list({s.var: s for s in lanes if uses((at, body), s.var)}.values())):
        body = (replace(s, body=body),)
    inside = transform(loop.body, lambda n: value if n == load else None)
    made = edit(p, name, lambda s: [*body, replace(s, body=inside)])
    if unset(made):
        raise illegal(what, f"{unset(made)} is not known before {name}", ir=loop)
    return made


def _from_list(p: flat.Program) -> list[Var]:
    """Variables that are read from a work list."""
    lets = [s for s in within(p.body) if isinstance(s, stmt.Let)]
    return [s.var for s in lets if isinstance(s.value, Load) and s.value.buffer.role == "plan"]


Guards = tuple[Expr, ...]


def _sites(
    body: tuple[stmt.Stmt, ...], buffer: str, guards: Guards
) -> Iterator[tuple[Load, Guards]]:
    """Every load of a buffer, with the guards around it."""
    for s in body:
        own = [getattr(s, f.name) for f in fields(s) if f.name not in APART]  # type: ignore[arg-type]
        for n in walk(tuple(own)):
            if isinstance(n, Load) and n.buffer.name == buffer:
                yield n, guards
        held = (*guards, s.cond) if isinstance(s, stmt.Guard) else guards
        for inner in blocks(s):
            yield from _sites(inner, buffer, held)


def _written_out(body: tuple[stmt.Stmt, ...], e: Expr) -> Expr:
    """An expression without the variables that a body lets."""
    lets = {s.var: s.value for s in within(body) if isinstance(s, stmt.Let)}
    while any(v in lets for v in walk(e) if isinstance(v, Var)):
        e = substitute(e, lets)
    return e


def _changing(e: Expr, inner: set[Var], lanes: list[Loop]) -> list[Var]:
    """The variables of an expression that a loop sets, lanes apart."""
    held = {s.var for s in lanes}
    return [v for v in walk(e) if isinstance(v, Var) and v in inner and v not in held]


def _shared_guards(
    loop: Loop, sites: list[tuple[Load, Guards]], inner: set[Var], lanes: list[Loop]
) -> list[Expr]:
    """The guards around all loads that can be asked before the loop."""
    out = [[_written_out(loop.body, g) for g in guards] for _, guards in sites]
    common = [g for g in out[0] if all(g in others for others in out)]
    return [g for g in common if not _changing(g, inner, lanes)]
