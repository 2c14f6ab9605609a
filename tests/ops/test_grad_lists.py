"""Gradients of programs over lists, beside dense torch: what is not named is not read and has the gradient 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ops.matrices import close, gradcheck, gradgradcheck, leaf, matrix, randn
from ops.places import Place
from ops.test_tokens import PROGRAMS, call, wanted
from torch import Tensor

import tilewright as tw
from tilewright.ops.library import run

F64 = torch.float64
T, F, N = 11, 5, 3  # tokens, features, columns


@tw.program
def rms_norm(x: Any, s: Any, b: Any, rows: Any, count: Any, y: Any) -> None:
    f, g, r = tw.axes("f g r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y[t, f] = x[t, f] * tw.rsqrt(tw.mean(g, x[t, g] * x[t, g]) + 1e-6) * s[f] + b[f]


@tw.program
def attended(x: Any, q: Any, v: Any, rows: Any, count: Any, o: Any, lse: Any) -> None:
    """A softmax over what is named, with both results."""
    i, n, g, r = tw.axes("i n g r")
    t = tw.listed("t", rows[r], r, below=count[0])
    score = tw.sum(g, q[i, g] * x[t, g])
    tw.outputs(o[i, n], lse[i], value=tw.softmax_sum_lse(t, score, v[t, n]))


@tw.program
def product(x: Any, w: Any, rows: Any, count: Any, y: Any) -> None:
    n, f, r = tw.axes("n f r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y[t, n] = tw.relu(tw.sum(f, x[t, f] * w[n, f]))


@tw.program
def two_sums(x: Any, s: Any, rows: Any, count: Any, m: Any, y: Any) -> None:
    """Two statements, each over the list."""
    f, r = tw.axes("f r")
    t = tw.listed("t", rows[r], r, below=count[0])
    m[f] = tw.mean(t, x[t, f])
    y[t, f] = (x[t, f] - m[f]) * s[f]


@tw.program
def packed(x: Any, s: Any, rows: Any, count: Any, y: Any) -> None:
    """Side by side what is named, times what stands at its place."""
    f, r = tw.axes("f r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y.sized(rows.dim(0), x.dim(1))
    y[r, f] = x[t, f] * s[r]


@tw.program
def begun(x: Any, b: Any, rows: Any, count: Any, y: Any) -> None:
    """Rows that are not named hold b."""
    i, f, r = tw.axes("i f r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y.sized(x.dim(0), x.dim(1))
    y[i, f] = b[f]
    y[t, f] = x[t, f] * x[t, f] + b[f]


@dataclass(frozen=True)
class Case:
    program: Any
    shapes: tuple[tuple[int, ...], ...]
    same: Callable[..., tuple[Tensor, ...]]


def _rms_norm(k: Tensor, at: Tensor, x: Tensor, s: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return ((x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() * s + b) * k[:, None],)


def _attended(k: Tensor, at: Tensor, x: Tensor, q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    score = q @ x[at].T
    return score.softmax(1) @ v[at], score.logsumexp(1)


def _two_sums(k: Tensor, at: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    m = (x * k[:, None]).sum(0) / max(len(at), 1)
    return m, (x - m) * s * k[:, None]


CASES = {
    "rms_norm": Case(rms_norm, ((T, F), (F,), (F,)), _rms_norm),
    "attended": Case(attended, ((T, F), (4, F), (T, N)), _attended),
    "product": Case(
        product,
        ((T, F), (N, F)),
        lambda k, at, x, w: ((x @ w.T).relu() * k[:, None],),
    ),
    "two_sums": Case(two_sums, ((T, F), (F,)), _two_sums),
    "packed": Case(
        packed,
        ((T, F), (T,)),
        lambda k, at, x, s: (x[at] * s[: len(at), None],),
    ),
    "begun": Case(
        begun,
        ((T, F), (F,)),
        lambda k, at, x, b: (x.square() * k[:, None] + b,),
    ),
}


def listing(kind: str, place: Place, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in any order, with room behind them that names anything; their number; the rows."""
    order = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
    count = {"none": 0, "one": 1, "some": 5, "all": T}[kind]
    rows = order.to(torch.int32)
    rows[count:] = 7
    return rows.to(place.device), torch.tensor([count], device=place.device), order[:count]


def told(name: str, made: Any, count: int) -> tuple[Tensor, ...]:
    """The outputs; what lies behind a list is no part of them."""
    outs = made if isinstance(made, tuple) else (made,)
    return tuple(t[:count] for t in outs) if name == "packed" else outs


def numbers(case: Case, dtype: torch.dtype, place: Place, seed: int = 0) -> list[Tensor]:
    return [
        leaf(randn(*s, seed=seed + n, dtype=dtype, device=place.device))
        for n, s in enumerate(case.shapes)
    ]


@pytest.mark.parametrize("kind", ["some", "one", "all"])
@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str, kind: str, fast: Place) -> None:
    case = CASES[name]
    rows, count, at = listing(kind, fast)
    op = lambda *t: told(name, case.program(*t, rows, count.int()), len(at))
    assert gradcheck(op, tuple(numbers(case, F64, fast)))


@pytest.mark.parametrize("name", ["rms_norm", "attended", "two_sums", "begun", "packed"])
def test_twice(name: str, fast: Place) -> None:
    case = CASES[name]
    rows, count, at = listing("some", fast)
    op = lambda *t: told(name, case.program(*t, rows, count.int()), len(at))
    assert gradgradcheck(op, tuple(numbers(case, F64, fast)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["some", "none", "all"])
@pytest.mark.parametrize("name", CASES)
def test_dtype(name: str, kind: str, dtype: torch.dtype, where: Place) -> None:
    if where.slow and name == "product" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    if name == "attended" and kind == "none":
        pytest.skip("a softmax of nothing: 0 here, NaN there")
    case = CASES[name]
    rows, count, at = listing(kind, where, seed=2)
    given = numbers(case, dtype, where, seed=5)
    wide = [leaf(t.double()) for t in given]
    kept = torch.zeros(T, dtype=F64, device=where.device)
    kept[at] = 1
    with torch.no_grad():
        given[0][kept == 0] = float("nan")
    made = told(name, case.program(*given, rows, count.int()), len(at))
    want = case.same(kept, at.to(where.device), *wide)
    for a, b in zip(made, want, strict=True):
        close(a.double(), b, dtype)
    back = [randn(*t.shape, seed=n, dtype=t.dtype, device=where.device) for n, t in enumerate(made)]
    got = torch.autograd.grad(made, given, back)
    for a, b in zip(got, torch.autograd.grad(want, wide, [t.double() for t in back]), strict=True):
        assert a.dtype == dtype
        close(a.double(), b, dtype)


@pytest.mark.parametrize("name", ["rms_norm", "two_sums", "begun"])
def test_compiled(name: str, fast: Place) -> None:
    case = CASES[name]
    rows, count, _ = listing("some", fast)
    given = numbers(case, torch.float32, fast)

    def some(*t: Tensor) -> Tensor:
        made = case.program(*t, rows, count.int())
        return sum(o.square().sum() for o in (made if isinstance(made, tuple) else (made,)))

    want = torch.autograd.grad(some(*given), given)
    whole = torch.compile(some, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(whole(*given), given), want, strict=True):
        close(a, b)


@pytest.mark.parametrize("kind", ["some", "none", "all"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compacted(name: str, kind: str, where: Place) -> None:
    """Programs that `compact` made."""
    kept = torch.full((9,), kind == "all", device=where.device)
    if kind == "some":
        kept[::3] = True
    x = randn(9, 7, device=where.device)
    text, held = call(name, x, kept)
    y = run(text, [held[0].requires_grad_(), *held[1:]], [])[0]
    back = randn(*y.shape, device=where.device)
    (got,) = torch.autograd.grad(y, held[0], back)
    x.requires_grad_()
    close(got, torch.autograd.grad(wanted(name, x, kept), x, back)[0])


# --- lists of groups, tiles, lists that the program makes -------------------------------------------


@tw.program
def by_groups(x: Any, w: Any, ks: Any, count: Any, y: Any) -> None:
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[i, n] = tw.sum(k, x[i, k] * w[n, k])


@tw.program
def each_group(x: Any, w: Any, b: Any, ks: Any, count: Any, y: Any) -> None:
    """Reductions over lists inside of other things, and one that no operand ties to its group."""
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    inner = tw.sum(k, tw.tanh(x[i, k] * w[n, k])) * tw.max(k, w[n, k])
    y[i, n] = inner + tw.mean(k, w[n, k]) * b[i]


@tw.program
def soft_groups(x: Any, v: Any, b: Any, ks: Any, count: Any, y: Any) -> None:
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[i, n] = tw.softmax_sum(k, x[i, k], v[n, k]) * b[i]


@tw.program
def rows_of_a_group(x: Any, w: Any, ks: Any, count: Any, y: Any) -> None:
    """The group is an axis of the output, and its rows are summed up."""
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[I, n] = tw.sum((i, k), x[i, k] * w[n, k])


@tw.program
def pairs(x: Any, b: Any, s: Any, ks: Any, count: Any, y: Any) -> None:
    """What is named is an axis of the output."""
    I, g, p = tw.axes("I g p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[i, k] = x[i, k] * b[k] * s[i] * tw.mean(g, x[i, g])


def groups(place: Place) -> tuple[Tensor, Tensor, Tensor]:
    """Three lists of 4 k's or less for 5 rows, and where they name x."""
    ks = torch.tensor([[3, 1, 0, 0], [2, 0, 3, 1], [2, 2, 2, 2]], dtype=torch.int32)
    count = torch.tensor([2, 4, 1], dtype=torch.int32)
    kept = torch.zeros(5, 4, dtype=torch.bool)
    for i in range(5):
        kept[i, ks[i // 2, : count[i // 2]].long()] = True
    return ks.to(place.device), count.to(place.device), kept.to(place.device)


GROUPS = {
    "by_groups": (by_groups, ((5, 4), (3, 4))),
    "each_group": (each_group, ((5, 4), (3, 4), (5,))),
    "soft_groups": (soft_groups, ((5, 4), (3, 4), (5,))),
    "rows_of_a_group": (rows_of_a_group, ((5, 4), (3, 4))),
    "pairs": (pairs, ((5, 4), (4,), (5,))),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str, fast: Place) -> None:
    program, shapes = GROUPS[name]
    ks, count, _ = groups(fast)
    given = [leaf(randn(*s, seed=n, dtype=F64, device=fast.device)) for n, s in enumerate(shapes)]
    assert gradcheck(lambda *t: program(*t, ks, count), tuple(given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups_dtype(dtype: torch.dtype, where: Place) -> None:
    """What a list does not name is not read, though a gradient runs over all."""
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    ks, count, kept = groups(where)
    x, w = (
        randn(*s, seed=n, dtype=dtype, device=where.device) for n, s in enumerate(((5, 4), (3, 4)))
    )
    X, W = leaf(x.double()), leaf(w.double())
    x = leaf(torch.where(kept, x, float("nan")))
    w.requires_grad_()
    back = randn(5, 3, dtype=dtype, device=where.device)
    want = torch.autograd.grad((X * kept) @ W.T, (X, W), back.double())
    for a, b in zip(
        torch.autograd.grad(by_groups(x, w, ks, count), (x, w), back), want, strict=True
    ):
        close(a.double(), b, dtype)


@tw.program
def by_tiles(x: Any, w: Any, s: Any, tiles: Any, count: Any, y: Any) -> None:
    n, f, g, r = tw.axes("n f g r")
    t = tw.listed("t", tiles[r], r, below=count[0], tile=4)
    y[t, n] = tw.sum(f, x[t, f] * w[n, f]) * tw.max(g, x[t, g]) * s[t]


def test_tiles(where: Place) -> None:
    """Entries that stand for several values; the last tile sticks out."""
    tiles, count = torch.tensor([2, 0, 9]), torch.tensor([2], dtype=torch.int32)
    kept = torch.tensor([1.0] * 4 + [0.0] * 4 + [1.0] * 3, device=where.device)
    given = [randn(*s, seed=n, device=where.device) for n, s in enumerate(((T, F), (N, F), (T,)))]
    x, w, s = (leaf(t) for t in given)
    X, W, S = (leaf(t) for t in given)
    back = randn(T, N, device=where.device)
    y = by_tiles(x, w, s, tiles.int().to(where.device), count.to(where.device))
    want = X @ W.T * X.amax(1, keepdim=True) * (S * kept)[:, None]
    told_ = torch.autograd.grad(want, (X, W, S), back)
    for a, b in zip(torch.autograd.grad(y, (x, w, s), back), told_, strict=True):
        close(a, b)


@tw.program
def found(x: Any, w: Any, rows: Any, count: Any, y: Any) -> None:
    """The list is made by the program: no gradient goes through it."""
    i, n, f, r = tw.axes("i n f r")
    tw.append(rows, count, i, where=tw.sum(f, x[i, f]) > 0.0, over=i)
    t = tw.listed("t", rows[r], r, below=count[0])
    y[t, n] = tw.sum(f, x[t, f] * w[n, f])


def test_a_list_of_the_program(where: Place) -> None:
    x, w = (leaf(randn(*s, seed=n, device=where.device)) for n, s in enumerate(((T, F), (N, F))))
    kept = (x.detach().sum(1) > 0).float()
    back = randn(T, N, device=where.device)
    want = torch.autograd.grad((x * kept[:, None]) @ w.T, (x, w), back)
    for a, b in zip(torch.autograd.grad(found(x, w)[2], (x, w), back), want, strict=True):
        close(a, b)


@tw.program
def listed_rows(a: Any, x: Any, rows: Any, count: Any, y: Any) -> None:
    f, j, r = tw.axes("f j r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y[t, f] = tw.sum(j, a[t, j] * x[j, f])


@pytest.mark.parametrize("format", ["csr", "bsr"])
def test_rows_of_a_sparse_matrix(format: str, where: Place) -> None:
    rows, count, _ = listing("some", where)
    dense = matrix(T + 1, 6, 0.4, dtype=F64, device=where.device)
    how = {"block": (2, 2)} if format == "bsr" else {}
    A = tw.SparseTensor.from_dense(dense, format=format, **how)
    v, x = leaf(A.values), leaf(randn(6, 3, dtype=F64, device=where.device))
    op = lambda v, x: listed_rows(A.with_values(v), x, rows, count.int())
    assert gradcheck(op, (v, x), fast_mode=where.slow)


@tw.program
def parts_of(x: Any, w: Any, v: Any, y: Any) -> None:
    """Parts of a range: for each of them the axis runs over its own values."""
    (I,) = tw.axes("I")
    i = tw.part(I, 4, "i")
    y[I] = tw.max(i, x[i] * w[i]) * v[I] + tw.sum(i, x[i])


def test_parts_of_a_range(fast: Place) -> None:
    shapes = ((T,), (T,), (3,))
    given = [leaf(randn(*s, seed=n, dtype=F64, device=fast.device)) for n, s in enumerate(shapes)]
    assert gradcheck(parts_of, tuple(given))


# --- what has none --------------------------------------------------------------------------------------


@tw.program
def placed(x: Any, s: Any, w: Any, ks: Any, count: Any, y: Any) -> None:
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[i, n] = tw.sum(k, x[i, k] * w[n, k] * s[p])


def test_places_in_lists_of_groups(fast: Place) -> None:
    ks, count, _ = groups(fast)
    x, s, w = (leaf(randn(*z, device=fast.device)) for z in ((5, 4), (4,), (3, 4)))
    with pytest.raises(tw.TilewrightError, match="p is read as a place in lists of groups"):
        placed(x, s, w, ks, count).sum().backward()


@tw.program
def shared(x: Any, w: Any, owner: Any, places: Any, fill: Any, y: Any) -> None:
    """Tiles of rows, each with a weight of its own: the tile is no axis of the output."""
    t, r, n, k = tw.axes("t r n k")
    q = tw.listed("q", places[t, r], r, below=fill[t])
    y.sized(x.dim(0), w.dim(1))
    y[q, n] = tw.sum(k, x[q, k] * w[owner[t], n, k])


def test_groups_that_no_output_has(fast: Place) -> None:
    lists = torch.tensor([[0, 2], [3, 1]], dtype=torch.int32, device=fast.device)
    two = torch.tensor([1, 0], dtype=torch.int32, device=fast.device)
    x, w = leaf(randn(4, 5, device=fast.device)), randn(2, 3, 5, device=fast.device)
    y = shared(x, w, two, lists, torch.full_like(two, 2))
    with pytest.raises(tw.TilewrightError, match=r"(?s)t, which has lists of its own.*y\[q, n\]"):
        y.sum().backward()


@tw.program
def weighted(q: Any, v: Any, b: Any, ks: Any, count: Any, y: Any) -> None:
    """A softmax that is the same for all groups."""
    I, n, p = tw.axes("I n p")
    i = tw.part(I, 2, "i")
    k = tw.listed("k", ks[I, p], p, below=count[I])
    y[i, k] = tw.softmax_sum(n, q[n], v[n, k]) * b[i]


def test_a_score_for_all_groups(fast: Place) -> None:
    ks, count, _ = groups(fast)
    q, v, b = (leaf(randn(*z, device=fast.device)) for z in ((3,), (3, 4), (5,)))
    with pytest.raises(tw.TilewrightError, match="one for all groups that have lists of k"):
        weighted(q, v, b, ks, count).sum().backward()
