"""Base of every IR node: frozen dataclasses, generic children, rebuild and walk.

In: nothing. Out: `@node` (compared by structure) and `@named` (compared by identity).

    @node
    class Neg(Expr):
        a: Expr
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")


class Node:
    """Anything that may stand in a program. What is asked at every node is known of its class."""

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _named: ClassVar[bool] = True

    def __str__(self) -> str:
        return show(self)


_PRINTERS: list[Callable[[Any], str]] = []


def show(thing: object) -> str:
    """The node's text; the printer registers itself when `ir.text` is imported."""
    return _PRINTERS[0](thing) if _PRINTERS else object.__repr__(thing)


@dataclass_transform(frozen_default=True)
def node(cls: type[T]) -> type[T]:
    """A node compared by structure."""
    return _told(dataclass(frozen=True, slots=True, repr=False)(cls), named=False)


@dataclass_transform(frozen_default=True, eq_default=False)
def named(cls: type[T]) -> type[T]:
    """A node compared by identity: variables, buffers, axes."""
    return _told(dataclass(frozen=True, slots=True, repr=False, eq=False)(cls), named=True)


def _told(cls: Any, named: bool) -> Any:
    cls._fields, cls._named = tuple(f.name for f in fields(cls)), named
    return cls


def parts(n: Any) -> list[Node]:
    """The direct children of a node, tuples flattened."""
    found: list[Node] = []
    for name in n._fields:
        value = getattr(n, name)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            _flat(value, found)
    return found


def _flat(values: tuple[Any, ...], found: list[Node]) -> None:
    for v in values:
        if isinstance(v, Node):
            found.append(v)
        elif isinstance(v, tuple):
            _flat(v, found)


def walk(n: object) -> Iterator[Any]:
    """Every node under n, n first. Named nodes are leaves."""
    todo: list[Any] = [n]
    while todo:
        m = todo.pop()
        if isinstance(m, Node):
            yield m
            if not m._named:
                todo += reversed(parts(m))
        elif isinstance(m, tuple):
            todo += reversed(m)
        else:
            yield m


def is_named(n: Node) -> bool:
    return n._named


def rebuild(n: Any, fn: Callable[[Any], Any]) -> Any:
    """The same node with fn applied to each child; the very same object when nothing changed."""
    if isinstance(n, tuple):
        made = tuple(fn(v) if isinstance(v, Node) else rebuild(v, fn) for v in n)
        return n if all(a is b for a, b in zip(made, n, strict=True)) else made
    if not isinstance(n, Node) or is_named(n):
        return n
    old = [getattr(n, name) for name in n._fields]
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
