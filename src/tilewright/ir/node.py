"""Base of every IR node: frozen dataclasses, generic children, rebuild and walk.

In: nothing. Out: `@node` (compared by structure) and `@named` (compared by identity).

    @node
    class Neg(Expr):
        a: Expr
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


class Node:
    """Anything that may stand in a program."""

    __slots__ = ()

    def __str__(self) -> str:
        return show(self)


_PRINTERS: list[Callable[[Any], str]] = []


def show(thing: object) -> str:
    """The node's text; the printer registers itself when `ir.text` is imported."""
    return _PRINTERS[0](thing) if _PRINTERS else object.__repr__(thing)


@dataclass_transform(frozen_default=True)
def node(cls: type[T]) -> type[T]:
    """A node compared by structure."""
    return dataclass(frozen=True, slots=True, repr=False)(cls)


@dataclass_transform(frozen_default=True, eq_default=False)
def named(cls: type[T]) -> type[T]:
    """A node compared by identity: variables, buffers, axes."""
    return dataclass(frozen=True, slots=True, repr=False, eq=False)(cls)


def parts(n: object) -> Iterator[object]:
    """The direct children of a node, tuples flattened."""
    for f in fields(n):  # type: ignore[arg-type]
        yield from _flat(getattr(n, f.name))


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for v in value:
            yield from _flat(v)
    elif isinstance(value, Node):
        yield value


def walk(n: object) -> Iterator[Any]:
    """Every node under n, n first. Named nodes are leaves."""
    if isinstance(n, tuple):
        for v in n:
            yield from walk(v)
        return
    yield n
    if isinstance(n, Node) and not is_named(n):
        for c in parts(n):
            yield from walk(c)


def is_named(n: Node) -> bool:
    return type(n).__eq__ is object.__eq__


def rebuild(n: Any, fn: Callable[[Any], Any]) -> Any:
    """The same node with fn applied to each child; the very same object when nothing changed."""
    if isinstance(n, tuple):
        made = tuple(fn(v) if isinstance(v, Node) else rebuild(v, fn) for v in n)
        return n if all(a is b for a, b in zip(made, n, strict=True)) else made
    if not isinstance(n, Node) or is_named(n):
        return n
    old = [getattr(n, f.name) for f in fields(n)]  # type: ignore[arg-type]
    new = [fn(v) if isinstance(v, Node) else rebuild(v, fn) for v in old]
    return n if all(a is b for a, b in zip(new, old, strict=True)) else type(n)(*new)


def transform(n: Any, rule: Callable[[Any], Any]) -> Any:
    """Apply a rule bottom-up; the rule returns None for no change. Memoised by identity."""
    memo: dict[int, tuple[Any, Any]] = {}

    def go(m: Any) -> Any:
        known = memo.get(id(m))
        if known is not None:
            return known[1]
        inner = rebuild(m, go)
        made = rule(inner) if isinstance(inner, Node) else None
        out = inner if made is None else made
        memo[id(m)] = (m, out)
        return out

    return go(n)


def substitute(n: Any, table: dict[Any, Any]) -> Any:
    """Replace named nodes (variables, mostly) by other nodes."""
    return transform(n, lambda m: table.get(m) if is_named(m) else None)
