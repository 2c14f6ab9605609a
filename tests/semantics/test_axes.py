"""Axis rules of every program of the project: another order, and what is skipped, give what is told.

Programs come from calls of all operators (`operators.py`), so that each has its own formats, lists and gradients; those
over sparse operands are asked again over dense ones. The judge is the interpreter of stage I.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from semantics.axes import Case, axis_of, extent, holding, moved, skipped, without
from semantics.operators import OPERATORS
from semantics.recorded import dense, recorded, statements

import tilewright as tw
from tilewright.analysis.invariance import AxisRule

SOURCE = Path(tw.__file__).parent
ORDERS = 4  # of an axis, until one gives something else
STRUCTURE = "stores its entries along it: another order is another structure"
LISTED = ("lists what is found along it", "it counts places of")
# Refused, though no order of what travels gives anything else
ALIKE = {
    (r"spmm_.*mean_kept0", "j"): "entries of a are counted; what x holds is not asked",
    (r"tiles_0x1_parts_1_1", "r"): "a list of a part has room for one entry",
}


def no(findings: list[str]) -> None:
    """Fails with one finding a line."""
    assert not findings, "\n" + "\n".join(findings)


@cache
def calls(statement: str) -> list[Case]:
    """Those of a statement by all operators."""
    return [c for operator in OPERATORS for c in statements(operator).get(statement, [])]


def orders(n: int) -> list[np.ndarray]:
    """Some orders, none of them the first."""
    rng = np.random.default_rng(n)
    made = [np.roll(np.arange(n), 1), *(rng.permutation(n) for _ in range(ORDERS - 1))]
    return [order for order in made if (order != np.arange(n)).any()]


def same(c: Case, rule: AxisRule, order: np.ndarray) -> bool:
    """Whether the inputs that travel, in another order, give the outputs in that order."""
    want = dict(c.given)
    try:
        got = c.run(moved(rule, c, order))
    except IndexError:  # what lies behind a list was read, and names nothing
        return False
    for v in rule.travels:
        if v.written:
            want[v.tensor] = want[v.tensor].take(order, axis=axis_of(c, v.tensor, v.dim))
    return all(close(got[n], want[n]) for n in want)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


# --- all programs -----------------------------------------------------------------------------------

# Where programs are registered, and what the names of these begin with
MADE = {
    ("ops/arithmetic.py", ""): "sparse_",
    ("ops/attention.py", ""): "attention_blocks",
    ("ops/backward.py", "later_steps"): "spmm_sum_d_",
    ("ops/backward.py", "text"): "spmm_sum_d_",
    ("ops/einsum.py", "_traced"): "einsum_",
    ("ops/found.py", "_packed_lists"): "packed_lists_",
    ("ops/found.py", "_registered"): "listed_linear_over_k_for_32_i_found",
    ("ops/grouped_matmul.py", "expert_tiles"): "expert_tiles_",
    ("ops/grouped_matmul.py", "grouped_product"): "grouped_product_",
    ("ops/index.py", ""): "choices",
    ("ops/index.py", "_registered"): "tiles_",
    ("ops/linear.py", ""): "rows_product",
    ("ops/linear_relu.py", "_registered"): "linear_relu_",
    ("ops/packing.py", "packing"): "packed_for_",
    ("ops/products.py", "_registered"): "listed_linear_over_",
    ("ops/program.py", "trace"): "relu_max_",
    ("ops/sddmm.py", ""): "sddmm_",
    ("ops/softmax.py", ""): "row_softmax",
    ("ops/union.py", ""): "merged_",
    ("ops/spmm.py", ""): "spmm_",
    ("ops/tall.py", ""): "bsr_tall",
    ("bench/profile.py", ""): "tile_product",
}


def programs() -> set[str]:
    return {name for operator in OPERATORS for name in recorded(operator).programs}


def test_every_program_is_here(registered: tuple[str, ...]) -> None:
    """A new one wants a call in operators.py."""
    here = programs()
    no([name for name in registered if name not in here])


def test_every_place_that_makes_programs_is_here() -> None:
    found = {place for path in sorted(SOURCE.rglob("*.py")) for place in places(path)}
    assert found == MADE.keys()
    no([first for first in MADE.values() if not any(p.startswith(first) for p in programs())])


def places(path: Path) -> Iterator[tuple[str, str]]:
    """The functions of a file that register programs; "" at the top."""
    text = path.read_text()
    tree = ast.parse(text if "register(" in text else "")
    inside = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "register":
            around = [f.name for f in inside if call in ast.walk(f)]
            yield path.relative_to(SOURCE).as_posix(), around[-1] if around else ""


# --- any order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS)
def test_any_order_gives_the_same(operator: str) -> None:
    findings = []
    for name, cases in statements(operator).items():
        for nth, c in product(range(len(cases[0].rules.axes)), cases):
            rule = c.rules.axes[nth]
            if not rule.invariant:
                continue
            longest = max(extent(other.rules.axes[nth], other) for other in calls(name))
            tried = orders(extent(rule, c))[:1]
            if longest < 2 or not all(same(c, rule, order) for order in tried):
                findings.append(f"{name} {rule.axis}: {rule.why}")
    no(findings)


@pytest.mark.parametrize("operator", OPERATORS)
def test_refusals_are_not_too_careful(operator: str) -> None:
    """Some order of what travels gives something else; where nothing travels, a structure or a list is tied."""
    findings = []
    for name in statements(operator):
        for nth, rule in enumerate(calls(name)[0].rules.axes):
            if not rule.invariant and not matters(name, nth):
                findings.append(f"{name} {rule.axis}: {rule.why}")
    no(findings)


def matters(name: str, nth: int) -> bool:
    rule = calls(name)[0].rules.axes[nth]
    if not rule.travels:
        return any(why in rule.why for why in (STRUCTURE, *LISTED))
    rules = [(c, c.rules.axes[nth]) for c in calls(name)]
    found = any(not same(c, a, order) for c, a in rules for order in orders(extent(a, c)))
    excused = any(re.fullmatch(p, name) and a == rule.axis for p, a in ALIKE)
    return found != excused


@pytest.mark.parametrize("operator", OPERATORS)
def test_dense_operands_tie_nothing(operator: str) -> None:
    """Over dense operands axes may come in any order, those of lists apart; what ties them is a structure."""
    findings = []
    for name, c in dense(operator).items():
        for rule in c.rules.axes:
            tried = orders(extent(rule, c))[:1] if rule.travels else []
            if rule.invariant and not all(same(c, rule, order) for order in tried):
                findings.append(f"{name} {rule.axis}: is not {rule.why}")
            if not rule.invariant:
                findings.append(f"{name} {rule.axis}: {rule.why}")
    no(findings)


# --- skipping ---------------------------------------------------------------------------------------

GRADIENT = re.compile(r".*_(d_\w+|kept\d+)")
TRIED = (0.0, 1.0, -2.5, -np.inf, np.inf)
DRAWS = 8


def axes_of(c: Case, kind: str) -> Iterator[AxisRule]:
    """Those of a kind that may come in any order, where a name is one axis."""
    names = [a.axis for a in c.rules.axes]
    for a in c.rules.axes:
        if a.invariant and a.kind == kind and names.count(a.axis) == 1:
            yield a


def operands(rule: AxisRule, c: Case) -> list[str]:
    """The numbers along an axis."""
    found = dict.fromkeys(t.tensor for t in rule.travels if not t.written)
    return [n for n in found if c.arrays[n].dtype == np.float32]


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_skipped_of_a_reduction(operator: str) -> None:
    """The value that is told adds nothing; where none is told, each of some values adds something to some numbers.
    (Gradients that compare do so for few numbers.)"""
    findings = []
    for name, c in dense(operator).items():
        for rule in axes_of(c, "reduction"):
            for operand in operands(rule, c):
                skip = rule.skip(operand)
                if skip is not None and not adds_nothing(c, rule, operand, skip.value):
                    findings.append(f"{name} {rule.axis}: {skip}")
                if annihilators(c, rule, operand) - {skip.value if skip is not None else None}:
                    findings.append(f"{name} {rule.axis}: {operand} has another annihilator")
                for v in TRIED if skip is None and not GRADIENT.fullmatch(name) else ():
                    if all(adds_nothing(drawn(c, n), rule, operand, v) for n in range(DRAWS)):
                        findings.append(f"{name} {rule.axis}: nothing is told of {operand} = {v}")
    no(findings)


def annihilators(c: Case, rule: AxisRule, operand: str) -> set[float | None]:
    """What the rules say of the reductions over an axis."""
    found = (a for a in c.rules.annihilators if a.operand == operand)
    return {a.value for a in found if rule.axis in a.reduction.split(" over ")[1].split(", ")}


def adds_nothing(c: Case, rule: AxisRule, operand: str, value: float) -> bool:
    """Whether slices of an operand that hold a value might as well not be there."""
    gone = np.arange(extent(rule, c)) % 2 == 0
    arrays = holding(rule, c, operand, gone, value)
    got, want = c.run(arrays), without(rule, c, arrays, gone)
    return all(close(got[n], want[n]) for n in want)


def drawn(c: Case, seed: int) -> Case:
    """The same program with other numbers."""
    rng = np.random.default_rng(seed)
    draw = lambda a: rng.standard_normal(a.shape).astype(a.dtype) if a.dtype == np.float32 else a
    return Case(c.program, {n: draw(a) for n, a in c.arrays.items()}, c.sizes, c.scalars)


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_skipped_of_an_output(operator: str) -> None:
    """It is what is told, or what is left is told."""
    findings = []
    for name, c in dense(operator).items():
        for rule in axes_of(c, "spatial"):
            gone = np.arange(extent(rule, c)) % 2 == 0
            for skip in rule.skips:
                got = c.run(holding(rule, c, skip.operand, gone, skip.value))
                for at in skipped(rule, c, got, gone) if skip.known else ():
                    if not close(at, np.full_like(at, skip.leaves)):
                        findings.append(f"{name} {rule.axis}: {skip}")
                if not skip.known and not skip.why.endswith(" is left"):
                    findings.append(f"{name} {rule.axis}: {skip}")
    no(findings)
