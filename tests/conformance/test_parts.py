"""Tensors in parts: every kind of program over several formats at once equals the dense reference, on all executors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conformance.cases import Case, compare, conform, execute, judge, matrix, numbers, tensor
from formats.patterns import entries
from formats.test_parts import RULES
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.monoids import variance
from torch import Tensor

import tilewright as tw
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.ops.call import prepared
from tilewright.ops.entry import entry
from tilewright.ops.step import Step

INF = torch.tensor(torch.inf)
R = tw.rules
MIXED = (R.blocks(4, 0.5), R.band(0), R.hyb(1, 1))
BANDED = (R.band(1), R.long_rows(2))  # diagonals beside rows of their own length, without blocks
FORMATS = "parts+dbsr.4.4+dia.1+dell.1+dell.2+dpadded.2"
MERGED = "parts+dbsr.4.4+dia.1+csr"  # lists of rows as one


@tw.program
def product(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f])


@tw.program
def weighted(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j], x[j, f])


@tw.program
def sampled(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, x[i, f] * z[j, f])


@tw.program
def softmax(a: Any, lse: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    lse[i] = tw.logsumexp(j, a[i, j])
    e[i, j] = tw.exp(a[i, j] - lse[i])


@tw.program
def best(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.argmax(j, a[i, j])


@tw.program
def spread(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = variance(j, a[i, j])


@tw.program
def heads(a: Any, x: Any, y: Any) -> None:
    """Values with a dimension inside each entry."""
    i, j, h, f = tw.axes("i j h f")
    y[i, h, f] = tw.sum(j, a[i, j, h] * x[j, h, f])


@tw.program
def scaled(a: Any, w: Any, x: Any, e: Any) -> None:
    r, i, j = tw.axes("r i j")
    e[r, i, j] = a[r, i, j] * (w[r] + x[j])


@tw.program
def relations(a: Any, x: Any, y: Any) -> None:
    r, i, j, f = tw.axes("r i j f")
    y[r, i, f] = tw.sum(j, a[r, i, j] * x[j, f])


def reduced(word: Callable[..., Any], name: str) -> Any:
    def fn(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = word(j, a[i, j] * x[j, f])

    fn.__name__ = name
    return tw.program(fn)


mean, largest = reduced(tw.mean, "mean"), reduced(tw.max, "largest")


def pattern(n: int = 11, m: int = 13) -> Tensor:
    """Blocks, one of them not full, a diagonal, an empty row, a full row; columns without entries."""
    A = matrix(n, m, 0.1)
    A[4:8, 4:8] = numbers(4, 4, seed=5)
    A[8:10, 8:11] = numbers(2, 3, seed=6)
    A.fill_diagonal_(1.5)
    A[2] = 0
    A[:, -2:] = 0
    return A


def made(A: Tensor, *rules: Any, rest: str = "csr") -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(A).decompose(*rules, rest=rest)


def over(reference: Callable[[Tensor, Tensor], Any], *rules: Any, rest: str = "csr") -> Any:
    """x holds NaN where no entry reads it."""

    def make() -> Any:
        A = pattern()
        x = numbers(A.shape[1], 3)
        want = reference(A, x)
        x[-2:] = torch.nan
        return [made(A, *rules, rest=rest), x], want

    return make


def alone(reference: Callable[[Tensor], Any]) -> Any:
    return lambda: ([made(pattern(), *MIXED)], reference(pattern()))


def means(A: Tensor, x: Tensor) -> Tensor:
    return A @ x / (A != 0).sum(1, keepdim=True).clamp(min=1)


def maxima(A: Tensor, x: Tensor) -> Tensor:
    return torch.where((A != 0)[:, :, None], A[:, :, None] * x, -INF).amax(1)


def scores(A: Tensor) -> tuple[Tensor, Tensor]:
    held = torch.where(A != 0, A, -INF)
    lse = torch.logsumexp(held, 1)
    return lse, torch.where(A != 0, torch.exp(A - lse[:, None]), 0)


def weights(A: Tensor, x: Tensor) -> Tensor:
    return scores(A)[1] @ x


def spreads(A: Tensor) -> Tensor:
    rows = [r[r != 0].double() for r in A]
    return torch.stack([r.var(correction=0) if len(r) else r.sum() for r in rows])


def firsts(A: Tensor) -> Tensor:
    found = torch.where(A != 0, A, -INF).argmax(1)
    return torch.where((A != 0).any(1), found, -1)


def samples() -> Any:
    A, x, z = pattern(), numbers(11, 5), numbers(13, 5, seed=3)
    return [made(A, *MIXED), x, z], A * (x @ z.T)


def in_heads() -> Any:
    A = pattern()
    v = numbers(int((A != 0).sum()), 2, seed=4)
    a, x = tw.SparseTensor.from_dense(A).with_values(v), numbers(13, 2, 3)
    return [a.decompose(*MIXED), x], torch.einsum("ijh,jhf->ihf", a.to_dense(), x)


def of_relations() -> Any:
    A = torch.stack([matrix(4, 5, 0.5, seed=k) for k in range(3)])
    a, x = tensor(A).decompose(R.hyb(1, 1)), numbers(5, 3)
    return [a, x], torch.einsum("rij,jf->rif", A, x)


def by_relation() -> Any:
    A = torch.stack([matrix(4, 5, 0.5, seed=k) for k in range(3)])
    w, x = numbers(3), numbers(5, seed=2)
    return [tensor(A).decompose(R.hyb(1, 1)), w, x], A * (w[:, None, None] + x)


def csrmm(b: int, rest: str) -> Any:
    """csrmm rewritten: blocks of b at least a third full, the rest in another format."""

    def make() -> Any:
        A = matrix(18, 17, 0.15)
        A[3:12, 4:13] = numbers(9, 9, seed=5)
        x = numbers(17, 3)
        return [made(A, R.blocks(b, 1 / 3), rest=rest), x], A @ x

    return make


CASES = [
    Case("sum", product, over(torch.mm, *MIXED)),
    Case("mean", mean, over(means, *MIXED)),
    Case("max", largest, over(maxima, *MIXED)),
    Case("weighted", weighted, over(weights, *MIXED)),
    Case("bands-mean", mean, over(means, *BANDED)),
    Case("bands-max", largest, over(maxima, *BANDED)),
    Case("softmax", softmax, alone(scores)),
    Case("argmax", best, alone(firsts)),
    Case("own-monoid", spread, alone(spreads)),
    Case("sddmm", sampled, samples),
    Case("heads", heads, in_heads),
    Case("relations", scaled, by_relation),
    Case("sum-of-relations", relations, of_relations, converts=True),
    Case("columns", product, over(torch.mm, R.column_parts(3))),
    Case("strips", product, over(torch.mm, R.srbcrs(4, 2, least=2), R.long_rows(3))),
    *(
        Case(f"csrmm-{b}-{rest}", product, csrmm(b, rest))
        for b, rest in ((4, "csr"), (16, "ell"), (32, "padded.32"))
    ),
]


@conform(CASES)
def test_parts(case: Case, executor: str) -> None:
    judge(case, executor)


def test_parts_are_what_is_walked() -> None:
    """Each in its own format; lists of rows are one."""
    a = made(pattern(), *MIXED)
    assert a.format == FORMATS
    seen: list[Step] = []
    begun = Step.__init__

    def watch(step: Step, *args: Any) -> None:
        begun(step, *args)
        seen.append(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "__init__", watch)
        execute(reduced(tw.sum, "watched"), [a, numbers(13, 2)], "c")
        execute(reduced(tw.max, "watched_too"), [a, numbers(13, 2)], "c")
    views = {(s.views["a"], len(s.pieces)) for s in seen}
    assert views == {(MERGED, 3), (MERGED, 1)}


# --- any pattern, any rules -------------------------------------------------------------------------

ANY = {
    "sum": (product, lambda A, x: A @ x),
    "mean": (mean, means),
    "max": (largest, maxima),
    "weighted": (weighted, weights),
    "argmax": (best, lambda A, x: firsts(A)),
    "own": (spread, lambda A, x: spreads(A)),
    "softmax": (softmax, lambda A, x: scores(A)),
}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(ANY)),
    st.sampled_from(["mixed", "empty", "one", "giant", "full"]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    RULES,
    st.sampled_from(["coord", "loops", "for-c", "tile"]),
    st.integers(0, 99),
)
def test_any_rules(
    name: str, kind: str, shape: tuple[int, int], rules: list[Any], stage: str, seed: int
) -> None:
    """Random patterns taken apart at random; interpreters of all stages, and the text of stage I read back."""
    rows, cols = entries(kind, shape, seed)
    A = torch.zeros(shape)
    A[rows, cols] = numbers(*shape, seed=seed)[rows, cols]
    x = numbers(shape[1], 2, seed=seed)
    run, reference = ANY[name]
    given_ = (
        [made(A, *rules), x] if name in ("sum", "mean", "max", "weighted") else [made(A, *rules)]
    )
    want = reference(A, x)
    compare(Case(name, run, lambda: ([], want)), execute(run, given_, stage), want)


def test_text_is_read_back() -> None:
    """A program over parts, and those it is cut into."""
    a = made(pattern(), *MIXED)
    for fn in (product, largest):
        name, given_, _ = fn.inputs(a, numbers(13, 2))
        (step,) = entry(prepared(name, given_)[0], "c").steps
        for piece in (step, *step.pieces):
            said = text(piece.bound.program)
            assert text(parse(said)) == said
