"""Compacted lists mean the same at every stage and on every back end: interpreters, C, Triton's interpreter.

The judge is a Python loop over a NumPy array. Lists that need not be in order are compared as sets.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from ops.places import Place
from semantics.stages import STAGES, numpy_of, run_step

import tilewright as tw
from tilewright import driver
from tilewright.analysis.domain import covers
from tilewright.ir.interp import run_flat, run_tile
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.language.trace import append, axes, nth, part, trace
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend
from tilewright.ops.entry import Entry
from tilewright.ops.library import run
from tilewright.ops.registry import register
from tilewright.schedule import loop as step
from tilewright.schedule.append import append_of, carry
from tilewright.schedule.default_triton import schedule_triton
from tilewright.support.errors import ScheduleError

ORDER = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "any-order"])


def plain(x: Any, found: Any, count: Any) -> None:
    (i,) = axes("i")
    append(found, count, i, where=x[i] > 0.5, over=i, ordered=ORDERED[0])


def grouped(x: Any, found: Any, count: Any) -> None:
    i, k = axes("i k")
    append(found, count, k, where=x[i, k] > 0.5, over=k, group=i, ordered=ORDERED[0])


def tiled(x: Any, found: Any, count: Any) -> None:
    I, K = axes("I K")
    i, k = part(I, 3, "i"), part(K, 4, "k")
    seen = tw.any((i, k), x[i, k] < 0.0)  # what is outside reads as 0, and must not count as seen
    append(found, count, nth(I, K), where=~seen, over=(I, K), ordered=ORDERED[0])


def whole_rows(x: Any, found: Any, count: Any) -> None:
    i, k = axes("i k")
    append(found, count, i, where=tw.sum(k, x[i, k]) > 0.5, over=i, ordered=ORDERED[0])


def repeated(x: Any, found: Any, count: Any) -> None:
    """One candidate comes several times: it does not depend on the axis."""
    i, k = axes("i k")
    append(found, count, i, where=tw.sum(k, x[i, k]) > 0.5, over=(i, k), ordered=ORDERED[0])


def started(x: Any, number: Any, found: Any, ends: Any) -> None:
    i, c, k = axes("i c k")
    number.typed("i32")
    number[i] = tw.sum(k, tw.where(x[i, k] > 0.5, 1, 0))
    before = tw.sum(c, tw.where(c < i, number[c], 0))
    append(found, ends, nth(i, k), where=x[i, k] > 0.5, over=k, group=i, start=before)


ORDERED = [True]
PROGRAMS = {f.__name__: f for f in (plain, grouped, tiled, whole_rows, repeated, started)}
SHAPES = {
    "odd": (7, 13),
    "one": (1, 1),
    "wide": (2, 300),
    "tall": (70, 3),
    "none": (0, 5),
    "empty": (3, 0),
}
FILLS = {"some": 0.7, "all": 0.0, "nothing": 1.0}


CASES = [
    (n, s, "some") for n in PROGRAMS for s in SHAPES if n != "repeated" or s in ("odd", "empty")
]
CASES += [(n, "odd", fill) for n in PROGRAMS for fill in ("all", "nothing")]


def values(shape: tuple[int, ...], fill: float) -> torch.Tensor:
    x = torch.rand(shape)
    return torch.where(x >= fill, x * 0.2 + 0.7, -x - 0.1)


def wanted(name: str, x: np.ndarray) -> list[list[int]]:
    if name == "plain":
        return [[i for i in range(len(x)) if x[i] > 0.5]]
    if name == "grouped":
        return [[k for k in range(x.shape[1]) if row[k] > 0.5] for row in x]
    if name == "started":
        return [
            [i * x.shape[1] + k for k in range(x.shape[1]) if x[i, k] > 0.5] for i in range(len(x))
        ]
    if name == "whole_rows":
        return [[i for i in range(len(x)) if x[i].sum() > 0.5]]
    if name == "repeated":
        return [[i for i in range(len(x)) if x[i].sum() > 0.5 for _ in x[i]]]
    rows, columns = -(-x.shape[0] // 3), -(-x.shape[1] // 4)
    seen = [
        (x[t // columns * 3 :][:3, t % columns * 4 :][:, :4] < 0).any()
        for t in range(rows * columns)
    ]
    return [[t for t, s in enumerate(seen) if not s]]


def made(name: str, ordered: bool) -> str:
    ORDERED[0] = ordered
    traced = trace(PROGRAMS[name])
    return register(replace(traced, name=f"{name}_{'ordered' if ordered else 'any'}")).traced.name


def lists(name: str, outs: dict[str, Any]) -> list[list[int]]:
    found = np.asarray(outs["found"])
    if name == "started":
        ends = [0, *np.asarray(outs["ends"]).tolist()]
        assert np.diff(ends).tolist() == np.asarray(outs["number"]).tolist()
        return [found[a:b].tolist() for a, b in pairwise(ends)]
    count = np.asarray(outs["count"]).tolist()
    return [
        row[:n].tolist()
        for row, n in zip(found.reshape(len(count), found.shape[-1]), count, strict=True)
    ]


def same(got: list[list[int]], want: list[list[int]], ordered: bool) -> None:
    assert (got if ordered else [sorted(g) for g in got]) == want


def case(name: str, shape: str, fill: str = "some") -> torch.Tensor:
    sizes = SHAPES[shape]
    return values((sizes[0] * sizes[1],) if name == "plain" else sizes, FILLS[fill])


@ORDER
@pytest.mark.parametrize("shape", ["odd", "none", "empty"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_stage(name: str, stage: str, shape: str, ordered: bool) -> None:
    x = case(name, shape)
    with backend("c" if stage == "for-c" else "triton"):
        entry = Entry(
            program_text(made(name, ordered), (dense_arg("x", x),)),
            "c" if stage == "for-c" else "triton",
        )
        pool, outs = [x], {}
        for s in entry.steps:
            outs |= run_step(stage, s, pool, [], [])
            pool += [torch.from_numpy(outs[t.name]) for t in s.bound.program.outputs]
    same(lists(name, outs), wanted(name, numpy_of(x)), ordered)


@ORDER
@pytest.mark.parametrize(("name", "shape", "fill"), CASES)
def test_back_end(name: str, shape: str, fill: str, ordered: bool, where: Place) -> None:
    x = case(name, shape, fill)
    program = made(name, ordered)
    outs = run(
        program_text(program, (dense_arg("x", x.to(where.device)),)), [x.to(where.device)], []
    )
    names = trace(PROGRAMS[name]).outputs
    held = {n: o.cpu().numpy() for n, o in zip(names, outs, strict=True)}
    same(lists(name, held), wanted(name, numpy_of(x)), ordered)


@ORDER
@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_are_read_back(name: str, ordered: bool) -> None:
    entry = Entry(program_text(made(name, ordered), (dense_arg("x", case(name, "odd")),)), "c")
    for s in entry.steps:
        p = s.bound.program
        for stage in (p, lower_to_position(p), lower_to_flat(lower_to_position(p))):
            again = parse(text(stage))
            assert text(again) == text(stage)
            assert driver.texts(text(again)) == driver.texts(text(stage))


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_groups_are_independent(order: str) -> None:
    """Programs of different groups may run in any order."""
    x = case("grouped", "odd")
    s = Entry(program_text(made("grouped", True), (dense_arg("x", x),)), "triton").steps[0]
    made_ = schedule_triton(lower_to_flat(lower_to_position(s.bound.program)), {"cells": 4}).program
    arrays, sizes = {"x": x.numpy()}, {"n_i": 7, "n_k": 13}
    for p, run_ in ((made_, run_flat), (lower_to_tile(made_), run_tile)):
        got = run_(p, arrays, sizes, order=order, seed=1)  # type: ignore[operator]
        same(lists("grouped", got), wanted("grouped", x.numpy()), True)


def flat_of(name: str, ordered: bool = True) -> Any:
    p = Entry(program_text(made(name, ordered), (dense_arg("x", case(name, "odd")),)), "c").steps[0]
    return lower_to_flat(lower_to_position(p.bound.program))


def refusal(fn: Any) -> str:
    with pytest.raises(ScheduleError) as why:
        fn()
    return str(why.value)


def test_an_order_is_not_given_up() -> None:
    p = flat_of("grouped")
    assert "it appends in order" in refusal(lambda: step.kind(p, "k", "grid"))
    assert append_of(step.kind(p, "i", "grid")) is not None  # another list for each


def test_carry_is_refused() -> None:
    assert "nothing is appended in order" in refusal(lambda: carry(flat_of("plain", False)))
    p = step.split(flat_of("tiled"), "I", 4)
    assert "it appends in order" in refusal(lambda: step.kind(p, "I_i", "lane"))


def test_what_a_list_holds_behind_its_entries_is_open() -> None:
    """Nothing is zeroed for an ordered list; a shared count begins at 0."""
    for ordered in (True, False):
        p = (
            Entry(program_text(made("plain", ordered), (dense_arg("x", torch.rand(4)),)), "c")
            .steps[0]
            .bound.program
        )
        found, count = p.outputs
        assert covers(p, found) and covers(p, count) == ordered


def strongest(x: Any, found: Any, count: Any) -> None:
    i, k = axes("i k")
    append(found, count, tw.argmax(k, x[i, k]), where=x[i, 0] > 0.5, over=i, ordered=False)


def test_a_value_of_a_reduction() -> None:
    """In C, what a statement says holds flags beside expressions."""
    x = values((7, 13), 0.7)
    found, count = tw.program(strongest)(x)
    assert found[: int(count)].tolist() == x.argmax(1)[x[:, 0] > 0.5].tolist()


def last_and_next(x: Any, found: Any, count: Any) -> None:
    i, k = axes("i k")
    last = tw.max(k, tw.where(x[i, k] > 0.5, k, 0))
    append(found, count, last + 1, where=x[i, 0] > 0.5, over=i)


def twice_as_large(x: Any, found: Any, count: Any) -> None:
    i, k = axes("i k")
    append(found, count, 2.0 * x[i, k], where=x[i, k] > 0.5, over=(i, k))


def test_values_are_whole_numbers() -> None:
    """What floats hold may be whole; what is not would be cut."""
    x = values((7, 13), 0.7)
    found, count = tw.program(last_and_next)(x)
    last = torch.where(x > 0.5, torch.arange(13), 0).amax(1)[x[:, 0] > 0.5]
    assert found[: int(count)].tolist() == (last + 1).tolist()
    with pytest.raises(tw.TilewrightError, match="a list of floats is not supported"):
        tw.program(twice_as_large)(x)
