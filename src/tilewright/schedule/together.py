"""Primitives that bring statements together: compute_at, inline, merge.

In: a stage III program with several nests, or several loops in one block. Out: one that means the same with fewer
trips through memory.

    h[i, k] = sum(j, a[i, j] * x[j, k]);  y[i, l] = sum(k, h[i, k] * w[k, l])
    compute_at(p, "h", "k")      # h[i, k] is folded on chip where loop k of y needs it
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Buffer, Expr, Load, Var
from tilewright.ir.flat import Loop
from tilewright.ir.node import Node, is_named, substitute, transform, walk
from tilewright.lowering.own import own
from tilewright.schedule.edit import edit, find, illegal, splice, uses
from tilewright.schedule.legal import (
    Body,
    bound_lane,
    covers,
    folds,
    fresh,
    nest_loops,
    sets,
    uneven,
    unset,
    within,
)

EFFECTS = stmt.Append | stmt.Publish | stmt.Atomic


@dataclass(frozen=True)
class _Producer:
    """The nest that writes a buffer: loops around the store, what stands before it, and the store."""

    nest: Loop
    around: tuple[Loop, ...]
    before: Body
    store: stmt.Store


def _producer(p: flat.Program, what: str, name: str) -> _Producer:
    buffer = next((b for b in p.buffers if b.name == name), None)
    if buffer is None:
        raise illegal(what, f"there is no buffer {name}", "name a buffer of the program")
    stores = [s for s in within(p.body) if isinstance(s, stmt.Store) and s.buffer is buffer]
    nest = next((n for n in p.body if isinstance(n, Loop) and buffer in _touched((n,))[1]), None)
    if len(stores) != 1 or nest is None:
        raise illegal(what, f"{name} is not written by one statement", "name an intermediate")
    around = nest_loops(nest)
    inner = around[-1].body
    if stores[0] not in inner or not covers(stores[0], around):
        why = f"the loops around the store of {name} are not over its dimensions alone"
        raise illegal(what, why, "do it before the loops are split", ir=nest)
    before = tuple(s for s in inner[: inner.index(stores[0])] if not isinstance(s, stmt.Store))
    if any(isinstance(s, EFFECTS | stmt.Store) for s in within(before)):
        raise illegal(what, f"more than {name} is made on the way to its store", ir=nest)
    return _Producer(nest, around, before, stores[0])


def compute_at(p: flat.Program, buffer: str, name: str) -> flat.Program:
    """for i, k: h[i, k] = e;  for i: for k: .. h[i, k] ..  ->  for i: for k: h_at = e; .. h_at ..

    The nest that writes h goes where h is workspace that nobody else reads; an output is still written.
    """
    what, loop = f"compute_at({buffer}, {name})", find(p, name)
    made = _producer(p, what, buffer)
    loads = {n for n in walk(loop.body) if isinstance(n, Load) and n.buffer is made.store.buffer}
    later = p.body[p.body.index(made.nest) + 1 :]
    if len(loads) != 1 or not any(s is loop for s in within(later)):
        raise illegal(what, f"{name} does not read one element of {buffer}", ir=loop)
    (load,) = loads
    table = unify(made.store.indices[0], load.indices[0], {x.var for x in made.around})
    if table is None or len(table) != len(made.around):
        raise illegal(what, f"{load} does not tell the loops of {buffer}", ir=loop)
    _undisturbed(p, what, made.nest)
    block, value = _copy(p, made, table)
    body = _placed(loop.body, load, block, value)
    done = _dropped(edit(p, name, lambda s: [replace(s, body=body)]), made)
    if unset(done):
        why = f"{unset(done)} is not known before the body of {name}"
        raise illegal(what, why, "choose a loop inside", ir=loop)
    if uneven(done):
        raise illegal(what, uneven(done), "compute it before loops become lanes", ir=loop)
    return done


def unify(pattern: Any, target: Any, free: set[Var]) -> dict[Any, Any] | None:
    """What the free variables of a pattern stand for, where it has the form of a target."""
    if pattern in free:
        return {pattern: target}
    if type(pattern) is not type(target) or (isinstance(pattern, Node) and is_named(pattern)):
        return {} if pattern is target else None
    if not isinstance(pattern, Node):
        return {} if pattern == target else None
    table: dict[Any, Any] = {}
    for f in fields(pattern):  # type: ignore[arg-type]
        pairs = [(getattr(pattern, f.name), getattr(target, f.name))]
        if isinstance(pairs[0][0], tuple):
            if len(pairs[0][0]) != len(pairs[0][1]):
                return None
            pairs = list(zip(*pairs[0], strict=True))
        for a, b in pairs:
            inner = unify(a, b, free)
            if inner is None or any(table.setdefault(v, e) != e for v, e in inner.items()):
                return None
    return table


def _undisturbed(p: flat.Program, what: str, nest: Loop) -> None:
    """Nothing that a nest reads is written again after it."""
    after = p.body[p.body.index(nest) + 1 :]
    for s in within(after):
        if isinstance(s, stmt.Store | stmt.Atomic) and uses(nest, s.buffer):
            raise illegal(what, f"{s.buffer.name} is written in between", ir=s)


def _copy(p: flat.Program, made: _Producer, table: dict[Any, Any]) -> tuple[Body, Var]:
    """What makes the value, in variables of its own, at the place that the table tells; and the value."""
    value = Var(fresh(p, f"{made.store.buffer.name}_at"), made.store.buffer.dtype)
    block = (*made.before, stmt.Let(value, made.store.value))
    own = [v for s in within(block) for v in sets(s) if v is not value]
    named = p
    for v in dict.fromkeys(own):
        table[v] = Var(fresh(named, v.name), v.dtype)
        named = replace(named, scalars=(*named.scalars, table[v]))
    return substitute(block, table), value


def _placed(body: Body, load: Load, block: Body, value: Var) -> Body:
    """The block in front of the first statement that reads the element, under the same guards."""
    at = next(n for n, s in enumerate(body) if any(m == load for m in walk(s)))
    first = body[at]
    rest = _swap(body[at + 1 :], load, value)
    if isinstance(first, stmt.Guard) and load not in walk(first.cond) and load not in walk(rest):
        inner = replace(first, body=_placed(first.body, load, block, value))
        return (*body[:at], inner, *rest)
    return (*body[:at], *block, *_swap((first,), load, value), *rest)


def _swap(n: Any, load: Load, value: Expr) -> Any:
    return transform(n, lambda m: value if m == load else None)


def _dropped(p: flat.Program, made: _Producer) -> flat.Program:
    """Without the nest of a workspace that nobody reads any more."""
    b = made.store.buffer
    others = [s for s in within((made.nest,)) if isinstance(s, stmt.Store)]
    read = any(isinstance(n, Load) and n.buffer is b for n in walk(p.body))
    if b.role != "work" or read or len(others) > 1:
        return p
    body = tuple(s for s in p.body if s is not made.nest)
    return replace(p, body=body, buffers=tuple(x for x in p.buffers if x is not b))


def inline(p: flat.Program, buffer: str) -> flat.Program:
    """for i, f: h[i, f] = e;  for i, f: y[i, f] = g(h[i, f])  ->  for i, f: h[i, f] = e; y[i, f] = g(e)"""
    what = f"inline({buffer})"
    made = _producer(p, what, buffer)
    later = reader(p, what, made.nest, made.store.buffer)
    around = nest_loops(later)
    rest = around[-1].body
    if any(not isinstance(s, stmt.Let | stmt.Store | stmt.Guard) for s in within(rest)):
        raise illegal(what, f"what reads {buffer} is not elementwise", ir=later)
    loads = {n for n in walk(rest) if isinstance(n, Load) and n.buffer is made.store.buffer}
    (index,) = {n.indices[0] for n in loads} if len(loads) == 1 else {None}
    table = None if index is None else unify(index, made.store.indices[0], {x.var for x in around})
    if table is None or not _same_loops(made.around, around, table):
        raise illegal(what, f"{buffer} is not read where it is written", ir=later)
    _undisturbed(p, what, made.nest)
    value = Var(fresh(p, f"{buffer}_at"), made.store.buffer.dtype)
    (load,) = loads
    moved = substitute(_swap(rest, load, value), table)
    keep = replace(made.store, value=value)
    body = made.around[-1].body
    at = body.index(made.store)
    tail = (*body[:at], stmt.Let(value, made.store.value), keep, *moved, *body[at + 1 :])
    done = replace(p, body=tuple(s for s in p.body if s is not later))
    done = edit(done, made.around[-1].var.name, lambda s: [replace(s, body=tail)])
    return unstored(done, keep)


def reader(p: flat.Program, what: str, nest: Loop, b: Buffer) -> Loop:
    """The one nest that reads a buffer: it can move up to where the buffer is written."""
    at = p.body.index(nest)
    later = [n for n in p.body[at + 1 :] if any(m is b for m in walk(n))]
    if len(later) != 1 or not isinstance(later[0], Loop):
        raise illegal(what, f"{b.name} is not read by one later statement", ir=nest)
    moved = later[0]
    between = p.body[at : p.body.index(moved)]
    mine, theirs = _touched(between), _touched((moved,))
    clash = (mine[1] - {b}) & (theirs[0] | theirs[1]) or theirs[1] & mine[0]
    if clash:
        raise illegal(what, f"{next(iter(clash)).name} is needed in between", ir=moved)
    return moved


def _touched(body: Body) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that are read, and those that are written."""
    read = {n.buffer for n in walk(body) if isinstance(n, Load)}
    kinds = stmt.Store | stmt.Atomic
    lists = {b for s in within(body) if isinstance(s, stmt.Append) for b in (s.list, s.count)}
    return read, lists | {s.buffer for s in within(body) if isinstance(s, kinds)}


def _same_loops(mine: tuple[Loop, ...], theirs: tuple[Loop, ...], table: dict[Any, Any]) -> bool:
    """Whether each loop of one nest runs over the same range as a loop of the other."""
    ends: dict[Any, Any] = {x.var: (x.lo, x.hi, x.kind) for x in mine}
    met = [table.get(x.var) for x in theirs]
    same = all(ends.get(v) == (x.lo, x.hi, x.kind) for v, x in zip(met, theirs, strict=True))
    return same and len(set(met)) == len(mine)


def unstored(p: flat.Program, store: stmt.Store) -> flat.Program:
    """Without the store to a workspace that nobody reads any more."""
    b = store.buffer
    if b.role != "work" or any(isinstance(n, Load) and n.buffer is b for n in walk(p.body)):
        return p
    body = splice(p.body, lambda s: [] if s == store else None)
    return replace(p, body=body, buffers=tuple(x for x in p.buffers if x is not b))


def merge(p: flat.Program, first: str, second: str) -> flat.Program:
    """init s; for a: fold s; init t; for b: fold t  ->  init s; init t; for a: fold s, fold t[b := a]

    The second may read what the first writes where each of its turns reads what the same turn wrote:
    for a: h[a, ..] = e;  for b: f(h[b, ..])  ->  for a: h[a, ..] = e; f(h[a, ..])
    """
    what = f"merge({first}, {second})"
    a, b = find(p, first), find(p, second)
    if (a.lo, a.hi, a.kind) != (b.lo, b.hi, b.kind):
        raise illegal(what, "they do not run over the same range", ir=b)
    if b.kind == "lane" and bound_lane(p, b.var):
        raise illegal(what, bound_lane(p, b.var), ir=b)
    mine, theirs = _touched((a,)), _touched((b,))
    whole = {x for x in mine[1] & theirs[0] if not _by_turns(x, a, b)}
    clash = whole or theirs[1] & (mine[0] | mine[1])
    if clash:
        raise illegal(what, f"{second} needs {next(iter(clash)).name} whole", ir=b)
    return replace(p, body=_merged(p.body, what, a, b))


def _by_turns(x: Buffer, a: Loop, b: Loop) -> bool:
    """Whether each turn of both loops stays in its own part x[turn, ...] of a buffer."""
    added = any(isinstance(s, EFFECTS) and uses(s, x) for s in within(a.body))
    stores = [s for s in within(a.body) if isinstance(s, stmt.Store) and s.buffer is x]
    loads = [n for n in walk(b.body) if isinstance(n, Load) and n.buffer is x]
    touched = [(n.indices[0], loop) for loop, some in ((a, stores), (b, loads)) for n in some]
    return not added and own(touched)


def _merged(body: Body, what: str, a: Loop, b: Loop) -> Body:
    if not any(s is a for s in body):
        return tuple(_deeper(s, what, a, b) for s in body)
    at = [n for n, s in enumerate(body) if s is a or s is b]
    if len(at) != 2 or body[at[0]] is not a:
        raise illegal(what, f"{b.var.name} does not follow {a.var.name} in one block", ir=a)
    between = body[at[0] + 1 : at[1]]
    needed = _needed(between, b)
    states = {v for s in folds(a.body) for v in s.state}
    if any(uses(s, v) for s in (*needed, b) for v in states):
        raise illegal(what, f"{b.var.name} reads what {a.var.name} folds", ir=b)
    if any(isinstance(s, Loop) for s in needed):
        raise illegal(what, f"{b.var.name} reads what a loop in between makes", ir=b)
    both = replace(a, body=_shared(a, b))
    kept = tuple(s for s in between if s not in needed)
    mine, theirs = _touched(between), _touched((b,))
    clash = mine[1] & (theirs[0] | theirs[1]) or theirs[1] & mine[0]
    if clash:
        raise illegal(what, f"{next(iter(clash)).name} is needed in between", ir=b)
    return (*body[: at[0]], *needed, both, *kept, *body[at[1] + 1 :])


def _deeper(s: stmt.Stmt, what: str, a: Loop, b: Loop) -> stmt.Stmt:
    return replace(s, body=_merged(s.body, what, a, b)) if isinstance(s, Loop | stmt.Guard) else s


def _needed(between: Body, b: Loop) -> Body:
    """The statements in between that a loop needs, in order."""
    want: list[stmt.Stmt] = [b]
    found: list[stmt.Stmt] = []
    for s in reversed(between):
        made = {v for n in within((s,)) for v in sets(n)} | {
            v for f in folds((s,)) for v in f.state
        }
        if any(uses(w, v) for w in want for v in made):
            found.insert(0, s)
            want.append(s)
    return tuple(found)


def _shared(a: Loop, b: Loop) -> Body:
    """Both bodies over one variable; what both compute alike, of what the first does not write, is computed once."""
    table: dict[Any, Any] = {b.var: a.var}
    changed = _touched((a,))[1]
    lets = {s.var: s.value for s in a.body if isinstance(s, stmt.Let)}
    known: dict[Any, Var] = {}
    for v, e in lets.items():
        parts = (e, *(lets[m] for m in flat.made_of(a.body, e) if m in lets))
        if not any(isinstance(n, Load) and n.buffer in changed for n in walk(parts)):
            known[e] = v
    made: list[stmt.Stmt] = [*a.body]
    for s in b.body:
        s = substitute(s, table)
        if isinstance(s, stmt.Let) and s.value in known and s.var.dtype == known[s.value].dtype:
            table[s.var] = known[s.value]
        else:
            made.append(s)
    return tuple(made)
