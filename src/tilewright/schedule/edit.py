"""Finding and replacing loops by name: the handle that every primitive uses.

edit(p, "f", lambda loop: [...])     # the loop over f replaced by statements
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from tilewright.ir import flat, stmt
from tilewright.ir.node import Node, walk
from tilewright.support.errors import ScheduleError, error


def illegal(
    what: str,
    reason: str,
    cure: str = "choose another loop or another step",
    ir: Node | None = None,
) -> ScheduleError:
    """The error of a refused primitive; ir: the loop that it was asked of."""
    made = error("illegal", ir=ir, name=what, got=reason, expected="a legal step", cure=cure)
    assert isinstance(made, ScheduleError)
    return made


def loops(p: flat.Program) -> Iterator[flat.Loop]:
    """All loops, outermost first."""
    for s in p.body:
        yield from _loops(s)


def _loops(s: stmt.Stmt) -> Iterator[flat.Loop]:
    if isinstance(s, flat.Loop):
        yield s
    for block in blocks(s):
        for inner in block:
            yield from _loops(inner)


def blocks(s: stmt.Stmt) -> list[tuple[stmt.Stmt, ...]]:
    """The blocks of statements directly inside a statement."""
    out = []
    for f in fields(s):  # type: ignore[arg-type]
        v = getattr(s, f.name)
        if isinstance(v, tuple) and v and isinstance(v[0], stmt.Stmt):
            out.append(v)
    return out


def every_block(body: tuple[stmt.Stmt, ...]) -> list[tuple[stmt.Stmt, ...]]:
    """A block and all blocks inside of it, outermost first."""
    return [body, *(b for s in body for inner in blocks(s) for b in every_block(inner))]


def find(p: flat.Program, name: str) -> flat.Loop:
    for loop in loops(p):
        if loop.var.name == name:
            return loop
    names = ", ".join(loop.var.name for loop in loops(p))
    raise illegal(f"loop {name}", f"there is no such loop; there are {names}", ir=p)


def edit(p: flat.Program, name: str, fn: Callable[[flat.Loop], list[stmt.Stmt]]) -> flat.Program:
    """The program with one loop replaced."""
    find(p, name)

    def rule(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        return fn(s) if isinstance(s, flat.Loop) and s.var.name == name else None

    return replace(p, body=splice(p.body, rule))


def splice(
    body: tuple[stmt.Stmt, ...], rule: Callable[[stmt.Stmt], list[stmt.Stmt] | None]
) -> tuple[stmt.Stmt, ...]:
    """Replace statements by lists of statements, outermost first."""
    out: list[stmt.Stmt] = []
    for s in body:
        made = rule(s)
        out.extend(made if made is not None else [_inside(s, rule)])
    return tuple(out)


def _inside(s: Any, rule: Callable[[stmt.Stmt], list[stmt.Stmt] | None]) -> Any:
    changed = {}
    for f in fields(s):
        v = getattr(s, f.name)
        if isinstance(v, tuple) and v and isinstance(v[0], stmt.Stmt):
            new = splice(v, rule)
            if any(a is not b for a, b in zip(new, v, strict=False)) or len(new) != len(v):
                changed[f.name] = new
    return replace(s, **changed) if changed else s


def uses(n: Any, v: Node) -> bool:
    """Whether a variable or buffer occurs."""
    return any(m is v for m in walk(n))
