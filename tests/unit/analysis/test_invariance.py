"""Axis rules: every yes is proved by permuting numbers, every skip by leaving numbers out, every no has its reason.

The judge is the interpreter of stage I, on programs of users and on every operator of the project.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from semantics.axes import (
    Case,
    bound,
    check_any_order,
    entry_of,
    extent,
    holding,
    moved,
    skipped,
    without,
)
from semantics.programs import CASES
from semantics.structures import PATTERNS

import tilewright as tw
from tilewright.analysis.invariance import rules_of
from tilewright.ir.drive import rank
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.language.trace import append, axes, nth, part, trace
from tilewright.ops.entry import Entry
from tilewright.pit.detect import choices, lengths, tiles


def linear(x: Any, w: Any, b: Any, y: Any) -> None:
    i, n, k = axes("i n k")
    y[i, n] = tw.sum(k, x[i, k] * w[n, k]) + b[n]


def relu_linear(x: Any, w: Any, y: Any) -> None:
    i, n, k = axes("i n k")
    y[i, n] = tw.relu(tw.sum(k, x[i, k] * w[n, k]))


def gated(x: Any, w: Any, y: Any) -> None:
    i, n, k = axes("i n k")
    y[i, n] = tw.sigmoid(tw.sum(k, x[i, k] * w[n, k]))


def batched(x: Any, w: Any, y: Any) -> None:
    b, i, n, k = axes("b i n k")
    y[b, i, n] = tw.sum(k, x[b, i, k] * w[b, k, n])


def rows(x: Any, w: Any, at: Any, y: Any) -> None:
    m, n, k = axes("m n k")
    y.sized(x.dim(0), w.dim(0))
    at.unique()
    y[at[m], n] = tw.sum(k, x[at[m], k] * w[n, k])


def attention(q: Any, k: Any, v: Any, m: Any, y: Any) -> None:
    i, j, d, e = axes("i j d e")
    y[i, e] = tw.softmax_sum(j, tw.sum(d, q[i, d] * k[j, d]) + m[i, j], v[j, e])


def causal(q: Any, k: Any, v: Any, y: Any) -> None:
    i, j, d, e = axes("i j d e")
    score = tw.where(j <= i, tw.sum(d, q[i, d] * k[j, d]), -math.inf)
    y[i, e] = tw.softmax_sum(j, score, v[j, e])


def softmax(x: Any, y: Any) -> None:
    i, j, other = axes("i j l")
    y[i, j] = tw.exp(x[i, j] - tw.logsumexp(other, x[i, other]))


def layer_norm(x: Any, g: Any, y: Any) -> None:
    i, k, a, b = axes("i k a b")
    mean, square = tw.mean(a, x[i, a]), tw.mean(b, x[i, b] * x[i, b])
    y[i, k] = (x[i, k] - mean) * tw.rsqrt(square - mean * mean + 1e-5) * g[k]


def convolution(x: Any, w: Any, o: Any, y: Any) -> None:
    i, r, c, f = axes("i r c f")
    y[i, f] = tw.sum((r, c), x[i + r, c] * w[r, c, f]) * o[i]


def scaled(x: Any, s: Any, w: Any, y: Any) -> None:
    i, n, k = axes("i n k")
    y[i, n] = tw.sum(k, x[i, k] * s[i, k // 4] * w[n, k])


def largest(x: Any, y: Any) -> None:
    i, k = axes("i k")
    y[i] = tw.max(k, x[i, k])


def place(x: Any, y: Any) -> None:
    i, k = axes("i k")
    y[i] = tw.argmax(k, x[i, k])


def gram(x: Any, z: Any, y: Any) -> None:
    i, j, k = axes("i j k")
    y[i, j] = tw.any(k, tw.not_equal(x[i, k] * z[j, k], 0))


def recurrence(x: Any, y: Any) -> None:
    i, k = axes("i k")
    y[i] = STEPS(k, x[i, k])


def in_parts(x: Any, found: Any, count: Any) -> None:
    b, I = axes("b I")
    i = part(I, 2, "i")
    append(found, count, I, where=tw.any(i, x[b, i] > 0.5), over=I, group=b)


# y = x * y + 1, from the first entry to the last: a scan
STEPS = tw.monoid(
    "unit_steps",
    state="p q",
    identity=(1.0, 0.0),
    lift=lambda x: (x, 1.0),
    combine=lambda p, q, r, s: (p * r, q * r + s),
    finalise=lambda p, q: q,
)
USERS = {
    "linear": (linear, (5, 7), (4, 7), (4,)),
    "relu-linear": (relu_linear, (5, 7), (4, 7)),
    "gated": (gated, (5, 7), (4, 7)),
    "batched": (batched, (2, 5, 7), (2, 7, 4)),
    "attention": (attention, (5, 3), (6, 3), (6, 2), (5, 6)),
    "causal": (causal, (5, 3), (5, 3), (5, 2)),
    "softmax": (softmax, (5, 7)),
    "layer-norm": (layer_norm, (5, 7), (7,)),
    "convolution": (convolution, (7, 3), (3, 3, 2), (5,)),
    "scaled": (scaled, (5, 8), (5, 2), (4, 8)),
    "largest": (largest, (5, 7)),
    "place": (place, (5, 7)),
    "gram": (gram, (5, 7), (4, 7)),
    "recurrence": (recurrence, (5, 7)),
}


@cache
def user(name: str) -> Case:
    if name == "rows":
        at = torch.tensor([4, 0, 3])
        given = {"x": torch.randn(5, 7), "w": torch.randn(4, 7), "at": at}
        return bound(entry_of(rows, given).steps[0], list(given.values()), [])
    fn, *shapes = USERS[name]
    params = list(trace(fn).inputs)
    given = {n: torch.randn(s) for n, s in zip(params, shapes, strict=True)}
    return bound(entry_of(fn, given).steps[0], list(given.values()), [])


@cache
def operator(name: str) -> Case:
    program, tensors, ints, floats = CASES[name](PATTERNS["mixed"], torch.float32, 3, "cpu").call
    return bound(Entry(program, "c").steps[0], list(tensors), list(ints), list(floats))


def case(name: str) -> Case:
    return operator(name) if name in CASES else user(name)


ALL = [*USERS, "rows", *CASES]
INVARIANT = [(n, a.axis) for n in ALL for a in case(n).split.rules.axes if a.invariant]
SKIPS = [
    (n, a.axis, s.operand)
    for n in [*USERS, "rows"]
    for a in case(n).split.rules.axes
    for s in a.skips
    if s.known
]


@pytest.mark.parametrize(("name", "axis"), INVARIANT)
def test_any_order_gives_the_same(name: str, axis: str) -> None:
    check_any_order(case(name).split, axis)


@pytest.mark.parametrize(("name", "axis", "operand"), SKIPS)
def test_what_is_skipped_is_not_missed(name: str, axis: str, operand: str) -> None:
    """Some of the slices hold the value: reductions give the same without them, outputs are what is told."""
    c = case(name).split
    rule = c.axis(axis)
    skip = rule.skip(operand)
    assert skip is not None
    gone = np.arange(extent(rule, c)) % 2 == 0
    arrays = holding(rule, c, operand, gone, skip.value)
    got = c.run(arrays)
    if rule.kind == "reduction":
        want = without(rule, c, arrays, gone)
        for t in c.program.outputs:
            np.testing.assert_allclose(got[t.name], want[t.name], rtol=1e-5, atol=1e-6)
        return
    for at in skipped(rule, c, got, gone):
        np.testing.assert_allclose(at, np.full_like(at, skip.leaves), atol=1e-6)


REFUSED = {
    ("convolution", "i"): "x[i + r, c] computes with it",
    ("convolution", "r"): "x[i + r, c] computes with it",
    ("scaled", "k"): "s[i, k // 4] computes with it",
    ("causal", "i"): "j <= i uses its number",
    ("causal", "j"): "j <= i uses its number",
    ("place", "k"): "argmax(k, x[i, k], k) uses its number",
    ("recurrence", "k"): "unit_steps is not told to be the same in any order",
    ("spmm-sum", "i"): "a stores its entries along it: another order is another structure",
    ("spmm-sum", "j"): "a stores its entries along it: another order is another structure",
    ("sddmm-dot", "i"): "a stores its entries along it",
    ("block-attention", "i"): "stores its entries along it",
}


@pytest.mark.parametrize(("name", "axis"), REFUSED)
def test_a_refusal_says_why(name: str, axis: str) -> None:
    rule = case(name).axis(axis)
    assert not rule.invariant and not rule.skips
    assert REFUSED[name, axis] in rule.why


def test_the_same_answers_access_by_access() -> None:
    """Operands that are read in two ways have the rules of two operands."""
    for name in ALL:
        c = case(name)
        told = {a.axis: (a.kind, a.invariant) for a in c.rules.axes}
        assert told == {a.axis: (a.kind, a.invariant) for a in c.split.rules.axes}


def test_an_order_that_matters_does() -> None:
    """The refusals are not too careful: another order of these axes gives something else."""
    for name, axis in (("convolution", "r"), ("scaled", "k"), ("causal", "j"), ("recurrence", "k")):
        c = case(name)
        rule = c.axis(axis)
        order = np.roll(np.arange(extent(rule, c)), 1)
        got, want = c.run(moved(rule, c, order)), c.run()
        assert any(not np.allclose(got[k], want[k]) for k in want), name


UNKNOWN = {
    ("linear", "i", "x"): "b[n] is left",
    ("attention", "i", "q"): "softmax_sum(j, m[i, j], v[j, e]) is left",
    ("softmax", "i", "x"): "exp(0.0 - logsumexp(l, 0.0)) is left",
    ("layer-norm", "k", "x"): "mean(a, x[i, a])",
}


@pytest.mark.parametrize(("name", "axis", "operand"), UNKNOWN)
def test_an_output_that_is_not_known(name: str, axis: str, operand: str) -> None:
    rule = case(name).axis(axis)
    assert rule.invariant and rule.skip(operand) is None
    told = next(s for s in rule.skips if s.operand == operand)
    assert UNKNOWN[name, axis, operand] in told.why


LEAVES = {
    ("relu-linear", "i", "x"): (0.0, 0.0),
    ("gated", "i", "x"): (0.0, 0.5),
    ("attention", "i", "m"): (-math.inf, 0.0),
    ("largest", "i", "x"): (-math.inf, -math.inf),
    ("softmax", "j", "x"): (-math.inf, 0.0),
    ("layer-norm", "i", "x"): (0.0, 0.0),
}


@pytest.mark.parametrize(("name", "axis", "operand"), LEAVES)
def test_an_output_that_is_known(name: str, axis: str, operand: str) -> None:
    skip = case(name).axis(axis).skip(operand)
    assert skip is not None and (skip.value, skip.leaves) == LEAVES[name, axis, operand]


ANNIHILATORS = {
    ("linear", "x", "k"): 0.0,
    ("linear", "w", "k"): 0.0,
    ("attention", "m", "j"): -math.inf,
    ("attention", "q", "d"): 0.0,
    ("attention", "v", "j"): None,
    ("largest", "x", "k"): -math.inf,
    ("softmax", "x", "l"): -math.inf,
    ("layer-norm", "x", "a"): None,
    ("gram", "x", "k"): 0.0,
    ("spmm-sum", "a", "j"): 0.0,
    ("spmm-mean", "a", "j"): None,
    ("spmm-max", "x", "j"): None,
    ("rows", "x", "k"): 0.0,
}


@pytest.mark.parametrize(("name", "operand", "over"), ANNIHILATORS)
def test_annihilators(name: str, operand: str, over: str) -> None:
    found = case(name).rules.annihilator(operand, over)
    assert found.value == ANNIHILATORS[name, operand, over]
    assert found.value is not None or "still gets" in found.why


def test_what_travels_along() -> None:
    told = {a.axis: [str(t) for t in a.travels] for a in case("linear").rules.axes}
    assert told == {"i": ["y.0!", "x.0"], "n": ["y.1!", "w.0", "b.0"], "k": ["x.1", "w.1"]}
    assert [str(t) for t in case("rows").axis("m").travels] == ["at.0"]


def test_lists() -> None:
    """A list has the order of its axis; the axes inside parts, and what counts them, are tied."""
    x = torch.rand(3, 6)
    c = bound(entry_of(in_parts, {"x": x}).steps[0], [x], [])
    assert c.axis("b").invariant and c.axis("b").kind == "group"
    assert not c.axis("I").invariant and "lists what is found along it" in c.axis("I").why
    assert "parts of 2, one for each I" in c.axis("i").why
    order = np.array([2, 0, 1])
    got, want = c.run(moved(c.axis("b"), c, order)), c.run()
    assert (got["count"] == want["count"][order]).all()


def test_what_counts_parts_of_parts_is_tied() -> None:
    x = torch.rand(3, 6)
    c = bound(entry_of(tiles(2, 3), {"x": x}).steps[0], [x], [])
    assert not c.axis("b").invariant and "it counts parts of I" in c.axis("b").why


DETECTORS = {
    "tiles": tiles(2, 3),
    "by-row": tiles(2, 3, True),
    "lengths": lengths,
    "choices": choices,
}


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_have_rules(name: str) -> None:
    fn = DETECTORS[name]
    given = {
        "x": torch.rand(4, 6),
        "size": torch.tensor([1, 2]),
        "at": torch.arange(3),
        "ids": torch.tensor([0, 1]),
        "names": torch.arange(2),
    }
    params = (trace(fn) if callable(fn) else fn).inputs
    for step in entry_of(fn, {n: given[n] for n in params if n in given}).steps:
        assert all(a.why for a in rules_of(step.bound.program).axes)


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    """Axes of a structure keep their order; features, heads and inner products come in any."""
    c = operator(name)
    held = {ix.name for t in c.program.tensors if t.sparse for a in accesses(c, t) for ix in a}
    assert held or name == "rows-product"
    for a in c.rules.axes:
        assert a.invariant == (a.axis not in held), a.why


def accesses(c: Case, t: Any) -> list[tuple[Any, ...]]:
    found = [a for a in walk(c.program.body) if isinstance(a, Load) and a.buffer is t]
    return [a.indices[: rank(t)] for a in found]


def test_nth_is_a_number() -> None:
    def numbered(x: Any, found: Any, count: Any) -> None:
        i, j = axes("i j")
        append(found, count, nth(i, j), where=x[i, j] > 0.5, over=(i, j))

    x = torch.rand(2, 3)
    c = bound(entry_of(numbered, {"x": x}).steps[0], [x], [])
    assert "nth(i, j) uses its number" in c.axis("i").why


def test_rules_print_as_a_table() -> None:
    text = str(case("linear").rules).splitlines()
    assert text[1].split() == ["axis", "kind", "any", "order", "travels", "skipping", "why"]
    assert len(text) == 5 and "x = 0: adds nothing; w = 0: adds nothing" in text[4]
