"""The fuzzer itself: its judge on programs with a known answer, its draws the same every time, a few draws of each."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from fuzz.cross import VARIANTS, cases
from fuzz.cross import plan as variants
from fuzz.grammar import Access, Call, Fold, Number, Operand, Program
from fuzz.judge import Entries, Judge
from fuzz.mutants import MUTANTS
from fuzz.work import plan
from ops.places import INTERPRETER

A, B = Operand("a", ("i", "j"), "csr", 2), Operand("b", ("j", "k"))
AT = np.array([[0, 1], [2, 0], [2, 1], [2, 1]])
V = np.array([2.0, 3.0, 4.0, 5.0])
X = np.arange(6.0).reshape(2, 3)
PRODUCT = Call("*", (Access("a", ("i", "j")), Access("b", ("j", "k"))))
KNOWN: set[str] = set()  # draws of seed 7 that the compiler gets wrong today


def judged(value: object, target: tuple[str, ...]) -> np.ndarray:
    p = Program({"a": A, "b": B}, target, value, (), ("i", "j", "k"))
    arrays = {"a": Entries(AT, V, (3, 2)), "b": X}
    return Judge(p, arrays, {"i": 3, "j": 2, "k": 3}).run().dense


def test_sum_over_entries() -> None:
    dense = np.array([[0, 2.0], [0, 0], [3, 9]])
    np.testing.assert_array_equal(judged(Fold("sum", ("j",), PRODUCT), ("i", "k")), dense @ X)


def test_maximum_of_entries() -> None:
    """Duplicates are entries of their own; a row without any gives -inf."""
    made = judged(Fold("max", ("j",), PRODUCT), ("i", "k"))
    np.testing.assert_array_equal(made, [[6, 8, 10], [-np.inf] * 3, [15, 20, 25]])


def test_absent_is_left_out() -> None:
    """a is the only structure: it drives, whatever the expression."""
    value = Fold("sum", ("j",), Call("+", (Access("a", ("i", "j")), Number(1.0))))
    np.testing.assert_array_equal(judged(value, ("i",)), [3, 0, 15])


def test_inside_of_a_reduction() -> None:
    """The reduction does not run over a, which drives from inside of it."""
    value = Fold("mean", ("k",), Call("+", (Access("a", ("i", "j")), Access("b", ("j", "k")))))
    made = judged(Fold("sum", ("j",), value), ("i",))
    np.testing.assert_array_equal(made, [2 + 4, 0, (3 + 1) + (4 + 4) + (5 + 4)])


def test_what_counts() -> None:
    p = Program({"a": A, "b": B}, ("i", "k"), Fold("sum", ("j",), PRODUCT), (), ("i", "j", "k"))
    seen = Judge(p, {"a": Entries(AT[:1], V[:1], (3, 2)), "b": X}, {"i": 3, "j": 2, "k": 3}).run()
    np.testing.assert_array_equal(seen.seen["b"], [[False] * 3, [True] * 3])


WORDS = """
import numpy as np
from fuzz.grammar import draw_program
from fuzz.inputs import draw_inputs, draw_widths
for number in range(20):
    rng = np.random.default_rng([3, number])
    p = draw_program(rng)
    print(p.source, p.formats, draw_inputs(rng, p, draw_widths(rng, p), small=True).words)
"""


def test_draws_repeat() -> None:
    """In another process too, whose sets have another order."""
    made = []
    for number in ("1", "2"):
        space = {**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", WORDS], env=space, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        made.append(ran.stdout)
    assert made[0] == made[1]


@pytest.mark.parametrize("number", range(8))
def test_a_few_draws(number: int) -> None:
    told = [t for t in plan(7, number, 3, 0.3) if f"{t.plan}.{t.draw}" not in KNOWN]
    assert not [t for t in told if t.kind in ("wrong", "broken")]


def test_ten_mutants() -> None:
    assert len(MUTANTS) >= 10


@pytest.mark.parametrize("number", [3, 46, 70, 150])
def test_a_few_variants(number: int) -> None:
    told = [t for t in variants(7, number, 0.1, 0.1) if t.kind != "begun"]
    assert told and {t.kind for t in told} == {"ok"}


def test_the_cross_product_is_whole() -> None:
    assert len({c.name for c in cases()}) > 150
    assert len(VARIANTS) == len({str(v) for v in VARIANTS}) == 7 * 2 * 4


@INTERPRETER
def test_rows_that_are_entries_of_another_structure() -> None:
    """No schedule of Triton's served this draw: its rows begin where another structure says."""
    *_, told = plan(7, 30, only=9)
    assert (told.where, told.kind) == ("triton", "ok"), told
