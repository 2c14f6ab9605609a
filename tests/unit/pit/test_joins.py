"""Which statements share a kernel: lists, and what is moved by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.language.trace import listed, trace
from tilewright.pit.joins import joins

Value = Callable[..., Any]


def moved(value: Value, size: int = 32, other: int = 32, **how: Any) -> bool:
    """Whether packed[p, j] = value joins the append of k's for each `size` rows."""

    def program(x: Any, z: Any, ks: Any, count: Any, packed: Any) -> None:
        I, K, G, p = tw.axes("I K G p")
        i, j = tw.part(I, size, "i"), tw.part(G, other, "j")
        seen = tw.any((i,), tw.not_equal(x[i, K], 0))
        tw.append(ks, count, K, where=seen, over=K, group=I, **how)
        k = listed("k", ks[G, p], p, below=count[G])
        packed.sized(x.dim(1), x.dim(0))
        packed[p, j] = value(x, z, ks, count, G, j, k)

    return joins(*trace(program).body)


def test_what_lists_name_joins() -> None:
    assert moved(lambda x, z, ks, count, G, j, k: x[j, k])
    assert moved(lambda x, z, ks, count, G, j, k: x[j, k] * 2.0)


APART: dict[str, tuple[Value, dict[str, Any]]] = {
    "other groups": (lambda x, z, ks, count, G, j, k: x[j, k], {"other": 16}),
    "another operand": (lambda x, z, ks, count, G, j, k: z[j, k], {}),
    "another list's length": (lambda x, z, ks, count, G, j, k: x[j, k] * count[G + 1], {}),
    "a length": (lambda x, z, ks, count, G, j, k: x[j, k] * count[0], {}),
    "an entry of the list": (lambda x, z, ks, count, G, j, k: x[j, k] * ks[G, 0], {}),
    "any order": (lambda x, z, ks, count, G, j, k: x[j, k], {"ordered": False}),
}


@pytest.mark.parametrize("name", APART)
def test_what_needs_more_does_not(name: str) -> None:
    value, how = APART[name]
    assert not moved(value, **how)


def begins(value: Value, rows: str = "x", **how: Any) -> bool:
    """Whether y[i, n] = value joins the append of rows of x."""

    def program(x: Any, b: Any, found: Any, count: Any, y: Any) -> None:
        I, i, n, k = tw.axes("I i n k")
        seen = tw.any((k,), tw.not_equal(x[I, k], 0))
        tw.append(found, count, I, where=seen, over=I, **{"ordered": False, **how})
        if rows:
            y.sized({"x": x, "b": b}[rows].dim(0), b.dim(0))
        y[i, n] = value(x, b, found, count, i, n)

    made = trace(program)
    return joins(*made.body, made.sized)


def test_what_rows_begin_as_joins() -> None:
    assert begins(lambda x, b, found, count, i, n: b[n])
    assert begins(lambda x, b, found, count, i, n: b[n] * 0.0)


NOT_BEGUN: dict[str, tuple[Value, dict[str, Any]]] = {
    "in order": (lambda x, b, found, count, i, n: b[n], {"ordered": True}),
    "rows of another": (lambda x, b, found, count, i, n: b[n], {"rows": "b"}),
    "rows of nobody": (lambda x, b, found, count, i, n: b[n], {"rows": ""}),
    "a place in the list": (lambda x, b, found, count, i, n: b[n] * found[i], {}),
    "how many there are": (lambda x, b, found, count, i, n: b[n] * count[0], {}),
    "a sum": (lambda x, b, found, count, i, n: b[n] * tw.sum(k := tw.axes("k")[0], x[i, k]), {}),
}


@pytest.mark.parametrize("name", NOT_BEGUN)
def test_what_begins_otherwise_does_not(name: str) -> None:
    value, how = NOT_BEGUN[name]
    assert not begins(value, **how)
