"""Loads that stand before the loops they do not wait for."""

from __future__ import annotations

from tilewright.ir import tile
from tilewright.ir.expr import Bin, Buffer, Const, Expr, Var, const
from tilewright.lowering.early import early

N = Var("n")
A, X, Y = (Buffer(name, "f32", (N,), "in") for name in "axy")
P, T, V, ACC = Var("p"), Var("t"), Var("v", "f32"), Var("acc", "f32")
TYPES: dict[Var, tuple[str, ...]] = {V: ("e",), ACC: ("e",)}


def load(b: Buffer, at: Expr) -> tile.Load:
    return tile.Load(b, (at,), None, Const(0.0, "f32"))


def loop(*body: tile.Stmt) -> tile.For:
    return tile.For(T, const(0), N, body)


SUM = loop(tile.Set(ACC, Bin("+", ACC, load(X, T))))
READ = tile.Set(V, load(A, P))


def test_a_load_stands_before_the_loop() -> None:
    assert early((SUM, READ), TYPES) == (READ, SUM)


def test_inside_of_another_loop_too() -> None:
    outer = Var("o")
    made = early((tile.For(outer, const(0), N, (SUM, READ)),), TYPES)
    assert made == (tile.For(outer, const(0), N, (READ, SUM)),)


def test_several_keep_their_order() -> None:
    w = Var("w", "f32")
    second = tile.Set(w, load(X, P))
    assert early((SUM, READ, second), {**TYPES, w: ()}) == (READ, second, SUM)


def test_not_before_what_it_needs() -> None:
    at = tile.Set(P, ACC)
    assert early((SUM, at, READ), TYPES) == (SUM, at, READ)


def test_not_before_a_store_to_what_it_reads() -> None:
    stores = loop(tile.Store(A, (T,), Const(1.0, "f32"), None))
    assert early((stores, READ), TYPES) == (stores, READ)
    other = loop(tile.Store(Y, (T,), Const(1.0, "f32"), None))
    assert early((other, READ), TYPES) == (READ, other)


def test_not_over_a_barrier_or_a_store() -> None:
    for between in (tile.Barrier(), tile.Store(A, (P,), Const(1.0, "f32"), None)):
        assert early((SUM, between, READ), TYPES) == (SUM, between, READ)


def test_not_where_its_variable_is_used_before() -> None:
    uses = loop(tile.Set(ACC, Bin("+", ACC, V)))
    assert early((uses, READ), TYPES) == (uses, READ)


def test_not_what_has_more_lanes_and_not_beside_products() -> None:
    assert early((SUM, READ), {**TYPES, V: ("e", "f")}) == (SUM, READ)
    product = tile.Set(ACC, tile.Dot(ACC, ACC, None, "f32"))
    assert early((SUM, READ, product), TYPES) == (SUM, READ, product)
