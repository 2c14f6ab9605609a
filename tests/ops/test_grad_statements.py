"""Gradients through several statements and of several outputs, beside dense torch; what has none says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
import torch
from ops.matrices import close, gradcheck, gradgradcheck, leaf, matrix, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw

F64 = torch.float64


@tw.program
def normalised(a: Any, x: Any, total: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    total[i] = tw.sum(j, a[i, j] * a[i, j])
    y[i, f] = tw.sum(j, a[i, j] * x[j, f]) / (total[i] + 1.0)


@tw.program
def diamond(a: Any, x: Any, h: Any, u: Any, y: Any) -> None:
    """h is read by two statements and is an output."""
    i, j, f = tw.axes("i j f")
    h[j, f] = tw.tanh(x[j, f])
    u[f] = tw.sum(j, h[j, f] * h[j, f])
    y[i, f] = tw.sum(j, a[i, j] * h[j, f]) * u[f]


@tw.program
def edges(a: Any, x: Any, z: Any, e: Any, y: Any) -> None:
    """An intermediate on a structure."""
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, x[i, f] * z[j, f])
    y[i, f] = tw.sum(j, e[i, j] * z[j, f])


@tw.program
def graph_softmax(a: Any, s: Any, t: Any, x: Any, top: Any, e: Any, all_: Any, y: Any) -> None:
    """Four statements: scores, their maximum, exponentials on the structure, their sum."""
    i, j, f = tw.axes("i j f")
    top[i] = tw.max(j, a[i, j] * (s[i] + t[j]))
    e[i, j] = a[i, j] * tw.exp(a[i, j] * (s[i] + t[j]) - top[i])
    all_[i] = tw.sum(j, e[i, j])
    y[i, f] = tw.sum(j, e[i, j] * x[j, f]) / (all_[i] * all_[i] + 1.0)


@tw.program
def with_norm(a: Any, s: Any, x: Any, o: Any, lse: Any) -> None:
    i, j, f = tw.axes("i j f")
    tw.outputs(o[i, f], lse[i], value=tw.softmax_sum_lse(j, a[i, j] * s[j], x[j, f]))


@tw.program
def norm_after(a: Any, s: Any, x: Any, o: Any, lse: Any, y: Any) -> None:
    """Both results are read by a statement."""
    i, j, f = tw.axes("i j f")
    tw.outputs(o[i, f], lse[i], value=tw.softmax_sum_lse(j, a[i, j] * s[j], x[j, f]))
    y[i, f] = o[i, f] * tw.sigmoid(lse[i])


@tw.program
def begun(t: Any, x: Any, b: Any, y: Any, z: Any) -> None:
    """Some rows of y are written again."""
    i, f, r = tw.axes("i f r")
    t.unique()
    y.sized(x.dim(0), x.dim(1))
    y[i, f] = b[f] * x[i, f]
    y[t[r], f] = 2.0 * x[t[r], f] * b[f]
    z[f] = tw.sum(i, y[i, f] * y[i, f])


@tw.program
def twice(x: Any, b: Any, y: Any, z: Any) -> None:
    """The second assignment replaces the first."""
    i, f = tw.axes("i f")
    y[i, f] = x[i, f] * b[f]
    y[i, f] = tw.exp(b[f]) + x[i, f]
    z[i] = tw.sum(f, y[i, f])


@tw.program
def counted(x: Any, b: Any, found: Any, count: Any, y: Any) -> None:
    """A list comes in between; no gradient goes through it."""
    i, f = tw.axes("i f")
    tw.append(found, count, i, where=tw.sum(f, x[i, f]) > 0.0, over=i)
    y[i, f] = x[i, f] * b[f]


@tw.program
def chosen(x: Any, b: Any, best: Any, y: Any) -> None:
    """Whole numbers come in between."""
    i, f = tw.axes("i f")
    best[i] = tw.argmax(f, x[i, f])
    y[i, f] = tw.where(f < best[i], x[i, f] * b[f], b[f])


@dataclass(frozen=True)
class Case:
    program: Any
    shapes: tuple[tuple[int, ...], ...]
    same: Callable[..., tuple[Tensor, ...]]
    sparse: bool = True


def _edges(A: Tensor, held: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    e = A * (x @ z.T)
    return e[held], e @ z


def _graph_softmax(A: Tensor, held: Tensor, s: Tensor, t: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    score = A * (s[:, None] + t)
    top = torch.where(held, score, -torch.inf).amax(1)
    e = torch.where(held, A * torch.where(held, score - top[:, None], 0).exp(), 0)
    all_ = e.sum(1)
    return top, e[held], all_, e @ x / (all_ * all_ + 1)[:, None]


def _with_norm(A: Tensor, held: Tensor, s: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    score = torch.where(held, A * s, -torch.inf)
    return score.softmax(1) @ x, score.logsumexp(1)


def _diamond(A: Tensor, held: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    h = x.tanh()
    u = h.square().sum(0)
    return h, u, A @ h * u


def _normalised(A: Tensor, held: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    total = A.square().sum(1)
    return total, A @ x / (total + 1)[:, None]


def _norm_after(A: Tensor, held: Tensor, s: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    o, lse = _with_norm(A, held, s, x)
    return o, lse, o * lse.sigmoid()[:, None]


ROWS = torch.tensor([4, 1])


def _begun(x: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    named = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
    named[ROWS] = 1
    y = (1 + named) * x * b
    return y, y.square().sum(0)


def _twice(x: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    y = b.exp() + x
    return y, y.sum(1)


def _chosen(x: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    before = torch.arange(x.shape[1], device=x.device) < x.argmax(1)[:, None]
    return (torch.where(before, x * b, b.expand_as(x)),)


CASES = {
    "normalised": Case(normalised, ((8, 3),), _normalised),
    "diamond": Case(diamond, ((8, 3),), _diamond),
    "edges": Case(edges, ((6, 3), (8, 3)), _edges),
    "graph_softmax": Case(graph_softmax, ((6,), (8,), (8, 3)), _graph_softmax),
    "with_norm": Case(with_norm, ((8,), (8, 3)), _with_norm),
    "norm_after": Case(norm_after, ((8,), (8, 3)), _norm_after),
    "begun": Case(
        lambda x, b: begun(ROWS.to(x.device), x, b), ((6, 3), (3,)), _begun, sparse=False
    ),
    "twice": Case(twice, ((6, 3), (3,)), _twice, sparse=False),
    "counted": Case(
        lambda x, b: counted(x, b)[2:], ((6, 3), (3,)), lambda x, b: (x * b,), sparse=False
    ),
    "chosen": Case(lambda x, b: chosen(x, b)[1:], ((6, 3), (3,)), _chosen, sparse=False),
}


def inputs(case: Case, dtype: torch.dtype, place: Place, seed: int = 0) -> tuple[Any, list[Tensor]]:
    """The sparse operand (rows without entries have no gradient here), and all that wants a gradient."""
    dense = matrix(6, 8, 0.4, seed=seed, dtype=dtype, device=place.device)
    dense[2, 1] = 0.75
    dense[:, 0] = torch.where(dense[:, 0] == 0, 0.5, dense[:, 0])
    A = tw.SparseTensor.from_dense(dense)
    wanted = [
        leaf(randn(*s, seed=seed + n + 1, dtype=dtype, device=place.device))
        for n, s in enumerate(case.shapes)
    ]
    return A, [leaf(A.values), *wanted] if case.sparse else wanted


def outputs(case: Case, A: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    made = (
        case.program(A.with_values(given[0]), *given[1:]) if case.sparse else case.program(*given)
    )
    made = made if isinstance(made, tuple) else (made,)
    return tuple(t.values if isinstance(t, tw.SparseTensor) else t for t in made)


def dense_outputs(case: Case, A: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if not case.sparse:
        return case.same(*given)
    held = A.to_dense() != 0
    whole = torch.zeros(held.shape, dtype=given[0].dtype, device=held.device)
    return case.same(whole.masked_scatter(held, given[0]), held, *given[1:])


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str, fast: Place) -> None:
    A, given = inputs(CASES[name], F64, fast)
    assert gradcheck(lambda *t: outputs(CASES[name], A, t), tuple(given))


@pytest.mark.parametrize("name", ["normalised", "diamond", "edges", "begun", "with_norm"])
def test_twice(name: str, fast: Place) -> None:
    """Gradients are programs of one statement each: they have gradients."""
    A, given = inputs(CASES[name], F64, fast)
    assert gradgradcheck(lambda *t: outputs(CASES[name], A, t), tuple(given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_any_outputs(name: str, dtype: torch.dtype, where: Place) -> None:
    """Of any of the outputs, alone or together, as dense torch has them."""
    case = CASES[name]
    A, given = inputs(case, dtype, where, seed=3)
    wide = [leaf(t.double()) for t in given]
    made, want = outputs(case, A, tuple(given)), dense_outputs(case, A, tuple(wide))
    every = range(len(made))
    for some in (c for n in every for c in combinations(every, n + 1)):
        if where.slow and len(some) not in (1, len(made)):
            continue
        back = [
            randn(*made[k].shape, seed=k, dtype=made[k].dtype, device=where.device) for k in some
        ]
        got = torch.autograd.grad(
            [made[k] for k in some], given, back, retain_graph=True, allow_unused=True
        )
        told = torch.autograd.grad(
            [want[k] for k in some],
            wide,
            [t.double() for t in back],
            retain_graph=True,
            allow_unused=True,
        )
        for a, b in zip(got, told, strict=True):
            if a is None or b is None:
                assert (a is None or not a.any()) and (b is None or not b.any())
            else:
                assert a.dtype == dtype
                close(a.double(), b, dtype)


@pytest.mark.parametrize("name", ["normalised", "edges", "with_norm", "begun", "counted"])
def test_compiled(name: str, fast: Place) -> None:
    case = CASES[name]
    A, given = inputs(case, torch.float32, fast)
    some = lambda made: sum((k + 1) * t.square().sum() for k, t in enumerate(made))
    want = torch.autograd.grad(some(outputs(case, A, tuple(given))), given)
    whole = torch.compile(lambda *t: some(outputs(case, A, t)), fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(whole(*given), given), want, strict=True):
        close(a, b)


@pytest.mark.parametrize("format", ["csc", "coo", "bsr"])
def test_formats(format: str, fast: Place) -> None:
    """An intermediate on the structure of an operand of another format."""
    dense = matrix(6, 8, 0.4, dtype=F64, device=fast.device)
    options = {"block": (2, 4)} if format == "bsr" else {}
    A = tw.SparseTensor.from_dense(dense, format=format, **options)
    x, z = (leaf(randn(n, 3, dtype=F64, seed=n, device=fast.device)) for n in (6, 8))
    given = (leaf(A.values), x, z)
    assert gradcheck(lambda v, x, z: edges(A.with_values(v), x, z)[1], given)


def test_no_entries(where: Place) -> None:
    A = tw.SparseTensor.from_dense(torch.zeros(6, 8, device=where.device))
    v, x, z = leaf(A.values), *(leaf(randn(n, 3, device=where.device)) for n in (6, 8))
    e, y = edges(A.with_values(v), x, z)
    one = torch.ones((), device=where.device)
    found = torch.autograd.grad((e.values.sum(), y.sum()), (v, x, z), (one, one))
    assert not any(t.any() for t in found) and found[0].shape == (0,)


def test_strided(where: Place) -> None:
    """Inputs and gradients that are not contiguous."""
    A, (v, x, z) = inputs(CASES["edges"], torch.float32, where)
    X, Z = (leaf(t.T.contiguous()) for t in (x, z))
    back = randn(3, 6, device=where.device)
    want = torch.autograd.grad(edges(A.with_values(v), x, z)[1], (v, x, z), back.T.contiguous())
    got = torch.autograd.grad(edges(A.with_values(v), X.T, Z.T)[1], (v, X, Z), back.T)
    for a, b in zip((got[0], got[1].T, got[2].T), want, strict=True):
        close(a, b)


def test_only_what_is_asked(fast: Place) -> None:
    """What does not lead to an input that wants a gradient is not run."""
    A, (v, x, z) = inputs(CASES["edges"], torch.float32, fast)
    y = edges(A, x.detach(), z)[1]
    y.sum().backward()
    assert z.grad is not None and x.grad is None and v.grad is None


# --- what has none --------------------------------------------------------------------------------------


@tw.program
def read_too_early(x: Any, y: Any, z: Any) -> None:
    i, f = tw.axes("i f")
    y[i, f] = tw.exp(x[i, f])
    z[i, f] = y[i, f] * y[i, f]
    y[i, f] = z[i, f] + 1.0


@tw.program
def into_entries(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = x[i, j] * 2.0
    y[i, j] = a[i, j] + 1.0


moments = tw.monoid(
    "moments",
    state="n s",
    identity=(0.0, 0.0),
    lift=lambda v: (1.0, v),
    combine=lambda n, s, m, t: (n + m, s + t),
    finalise=lambda n, s: (s, n),
    backward=lambda v, result, grad: grad,
)


@tw.program
def both_moments(x: Any, s: Any, n: Any) -> None:
    i, j = tw.axes("i j")
    tw.outputs(s[i], n[i], value=moments.parts(j, x[i, j]))


def test_read_too_early(fast: Place) -> None:
    x = leaf(randn(3, 2, device=fast.device))
    y, _ = read_too_early(x)
    with pytest.raises(tw.TilewrightError, match=r"(?s)y is read before .*z\[i, f\] = y"):
        y.sum().backward()


def test_second_result(fast: Place) -> None:
    x = leaf(randn(3, 2, device=fast.device))
    s, n = both_moments(x)
    (got,) = torch.autograd.grad(s.sum(), x, retain_graph=True)
    assert (got == 1).all()
    with pytest.raises(tw.TilewrightError, match=r"result 1 of moments\w* has no derivative"):
        n.sum().backward()


def test_into_entries(fast: Place) -> None:
    dense = matrix(4, 5, 0.5, device=fast.device)
    x = leaf(randn(4, 5, device=fast.device))
    y = into_entries(tw.SparseTensor.from_dense(dense), x)
    with pytest.raises(tw.TilewrightError, match=r"writes into y where a\[i, j\] has entries"):
        y.sum().backward()


# --- prepared structures, and transforms ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["normalised", "edges", "graph_softmax", "norm_after"])
def test_prepared(name: str, where: Place) -> None:
    """With a transpose and work lists: one setting is for all statements."""
    case = CASES[name]
    A, given = inputs(case, torch.float32, where, seed=3)
    A.prepare()
    wide = [leaf(t.double()) for t in given]
    made, want = outputs(case, A, tuple(given)), dense_outputs(case, A, tuple(wide))
    for a, b in zip(made, want, strict=True):
        close(a.double(), b, torch.float32)
    back = [randn(*t.shape, seed=n, device=where.device) for n, t in enumerate(made)]
    told = torch.autograd.grad(want, wide, [t.double() for t in back])
    for a, b in zip(torch.autograd.grad(made, given, back), told, strict=True):
        close(a.double(), b, torch.float32)


def test_transforms(fast: Place) -> None:
    A, (_, x) = inputs(CASES["normalised"], F64, fast)
    some = lambda x: normalised(A, x)[1].square().sum()
    xs = randn(2, *x.shape, dtype=F64, device=fast.device)
    each = torch.stack([torch.autograd.grad(some(leaf_), leaf_)[0] for leaf_ in map(leaf, xs)])
    close(torch.vmap(torch.func.grad(some))(xs), each)
