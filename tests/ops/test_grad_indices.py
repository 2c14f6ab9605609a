"""Gradients of what is read through index arrays and index arithmetic: several reads of one element add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ops.matrices import close, gradcheck, gradgradcheck, leaf, matrix, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw

F64 = torch.float64
P, Q = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([1, 0, 2, 2, 1])


@tw.program
def picked(x: Any, b: Any, at: Any, y: Any) -> None:
    i, f = tw.axes("i f")
    y[i, f] = x[at[i], f] * b[f]


@tw.program
def summed(x: Any, w: Any, at: Any, y: Any) -> None:
    """An embedding under a sum."""
    i, g, f = tw.axes("i g f")
    y[f] = tw.sum((i, g), x[at[i], g] * w[f, g])


@tw.program
def crossed(x: Any, p: Any, q: Any, y: Any) -> None:
    """Two index arrays, and one beside the index that it depends on."""
    i, j = tw.axes("i j")
    y[i, j] = x[p[i], q[j]] * x[i, p[j]] + x[i, q[i]] + x[0, p[j]]


@tw.program
def convolved(x: Any, w: Any, o: Any, y: Any) -> None:
    i, r = tw.axes("i r")
    y[i] = tw.sum(r, x[i + r] * w[r]) * o[i]


@tw.program
def neighbours(x: Any, o: Any, y: Any) -> None:
    """What is not looked at may lie outside."""
    (i,) = tw.axes("i")
    after = tw.where(i < 4, x[i + 1], 0.0) * o[i]
    y[i] = after + tw.where(i > 0, tw.exp(x[i - 1]), 0.0)


@tw.program
def largest(x: Any, best: Any, y: Any) -> None:
    """Through an index that an earlier statement found."""
    i, f = tw.axes("i f")
    best[i] = tw.argmax(f, x[i, f])
    y[i] = x[i, best[i]] * 2.0


@tw.program
def tokens(e: Any, s: Any, ids: Any, rows: Any, count: Any, y: Any) -> None:
    """An embedding of some tokens."""
    f, r = tw.axes("f r")
    t = tw.listed("t", rows[r], r, below=count[0])
    y[t, f] = e[ids[t], f] * s[t]


@dataclass(frozen=True)
class Case:
    op: Callable[..., Tensor]
    same: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


ROWS, COUNT = torch.tensor([4, 1, 3, 9, 9]).int(), torch.tensor([3]).int()


def _neighbours(x: Tensor, o: Tensor) -> Tensor:
    none = x.new_zeros(1)
    return torch.cat([x[1:], none]) * o + torch.cat([none, x[:-1].exp()])


def _crossed(x: Tensor) -> Tensor:
    p, q = P.to(x.device), Q.to(x.device)
    own = x.gather(1, q[:, None])
    return x[p][:, q] * x[:, p] + own + x[0, p]


def _tokens(e: Tensor, s: Tensor) -> Tensor:
    kept = torch.zeros(5, dtype=s.dtype, device=s.device)
    kept[[4, 1, 3]] = 1
    return e[P.to(e.device)] * (s * kept)[:, None]


CASES = {
    "picked": Case(
        lambda x, b: picked(x, b, P.to(x.device)),
        lambda x, b: x[P.to(x.device)] * b,
        ((4, 3), (3,)),
    ),
    "summed": Case(
        lambda x, w: summed(x, w, P.to(x.device)),
        lambda x, w: (x[P.to(x.device)] @ w.T).sum(0),
        ((4, 3), (2, 3)),
    ),
    "crossed": Case(
        lambda x: crossed(x, P.to(x.device), Q.to(x.device)),
        _crossed,
        ((5, 3),),
    ),
    "convolved": Case(
        convolved,
        lambda x, w, o: (x.unfold(0, 3, 1) @ w) * o,
        ((7,), (3,), (5,)),
    ),
    "neighbours": Case(neighbours, _neighbours, ((5,), (5,))),
    "largest": Case(
        lambda x: largest(x)[1],
        lambda x: 2 * x.amax(1),
        ((5, 3),),
    ),
    "tokens": Case(
        lambda e, s: tokens(e, s, P.to(e.device), ROWS.to(e.device), COUNT.to(e.device)),
        _tokens,
        ((3, 2), (5,)),
    ),
}


def numbers(name: str, dtype: torch.dtype, place: Place) -> list[Tensor]:
    shapes = CASES[name].shapes
    return [leaf(randn(*s, seed=n, dtype=dtype, device=place.device)) for n, s in enumerate(shapes)]


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str, fast: Place) -> None:
    assert gradcheck(CASES[name].op, tuple(numbers(name, F64, fast)))


@pytest.mark.parametrize("name", CASES)
def test_twice(name: str, fast: Place) -> None:
    assert gradgradcheck(CASES[name].op, tuple(numbers(name, F64, fast)))


def second(op: Callable[..., Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of the size of gradients; 0 where they do not depend on an operand."""
    y = op(*given)
    back = leaf(randn(*y.shape, seed=9, dtype=y.dtype, device=y.device))
    first = torch.autograd.grad(y, given, back, create_graph=True)
    size = sum(g.square().sum() for g in first) + 0 * sum(t.sum() for t in given)
    return torch.autograd.grad(size, (*given, back))


@pytest.mark.parametrize("name", CASES)
def test_twice_in_tiles(name: str, tiled: Place) -> None:
    """Beside torch's own; their kernels fit a thread."""
    made, want = (second(f, numbers(name, F64, tiled)) for f in (CASES[name].op, CASES[name].same))
    for a, b in zip(made, want, strict=True):
        close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dtype(name: str, dtype: torch.dtype, where: Place) -> None:
    given = numbers(name, dtype, where)
    wide = [leaf(t.double()) for t in given]
    y, want = CASES[name].op(*given), CASES[name].same(*wide)
    close(y.double(), want, dtype)
    back = randn(*y.shape, seed=9, dtype=dtype, device=where.device)
    told = torch.autograd.grad(want, wide, back.double())
    for a, b in zip(torch.autograd.grad(y, given, back), told, strict=True):
        assert a.dtype == dtype
        close(a.double(), b, dtype)


@pytest.mark.parametrize("name", ["picked", "summed", "tokens", "largest"])
def test_compiled(name: str, fast: Place) -> None:
    given = numbers(name, torch.float32, fast)
    some = lambda *t: CASES[name].op(*t).square().sum()
    want = torch.autograd.grad(some(*given), given)
    whole = torch.compile(some, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(whole(*given), given), want, strict=True):
        close(a, b)


def test_the_same_every_time(where: Place) -> None:
    """With deterministic algorithms; nothing of it is refused there."""
    at = torch.zeros(200, dtype=torch.int64, device=where.device)
    x, b = leaf(randn(4, 3, device=where.device)), randn(3, device=where.device)
    torch.use_deterministic_algorithms(True)
    try:
        made = [torch.autograd.grad(picked(x, b, at).sum(), x)[0] for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(made[0], t) for t in made)
    close(made[0], torch.cat([200 * b[None], torch.zeros(3, 3, device=where.device)]))


def test_nothing_is_read(where: Place) -> None:
    at = torch.zeros(0, dtype=torch.int64, device=where.device)
    x, b = (leaf(randn(*s, device=where.device)) for s in ((4, 3), (3,)))
    found = torch.autograd.grad(picked(x, b, at).sum(), (x, b))
    assert [t.shape for t in found] == [x.shape, b.shape] and not any(t.any() for t in found)


@tw.program
def before(x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y.sized(x.dim(0))
    y[i] = tw.where(i > 0, x[i - 1], 0.0)


def test_places_beyond_what_floats_count(fast: Place) -> None:
    """Floats of 32 bits hold whole numbers up to 2^24 only."""
    n = (1 << 24) + 40
    x, back = (torch.arange(n, device=fast.device) % k for k in (5, 7))
    x, back = leaf(x.float()), back.float()
    (got,) = torch.autograd.grad(before(x), x, back)
    assert torch.equal(got[:-1], back[1:]) and got[-1] == 0


def test_strided(where: Place) -> None:
    x, b = leaf(randn(3, 4, device=where.device)), randn(3, device=where.device)
    at = P.to(where.device)
    back = randn(3, 5, device=where.device)
    (got,) = torch.autograd.grad(picked(x.T, b, at), x, back.T)
    close(got, torch.autograd.grad(x.T[at] * b, x, back.T)[0])


# --- types of edges -------------------------------------------------------------------------------------


@tw.program
def typed(a: Any, t: Any, x: Any, w: Any, y: Any) -> None:
    i, j, k, n = tw.axes("i j k n")
    y[i, n] = tw.sum((j, k), a[i, j] * x[j, k] * w[t[i, j], k, n])


@tw.program
def shifted(a: Any, t: Any, w: Any, y: Any) -> None:
    """Arithmetic with what is kept on the structure, and with the row."""
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * w[i, 2 - t[i, j]])


def graph(place: Place, dtype: torch.dtype = F64) -> tuple[tw.SparseTensor, Tensor]:
    dense = matrix(5, 4, 0.6, dtype=dtype, device=place.device)
    A = tw.SparseTensor.from_dense(dense)
    made = torch.Generator().manual_seed(1)
    return A, torch.randint(0, 3, (A.nnz,), generator=made).to(place.device)


def test_types_of_edges(where: Place) -> None:
    A, kinds = graph(where, torch.float32)
    shapes = ((4, 3), (3, 3, 2))
    v, x, w = leaf(A.values), *(leaf(randn(*s, device=where.device)) for s in shapes)
    rows, cols = A.to_dense().nonzero(as_tuple=True)
    every = (v[:, None, None] * x[cols][:, :, None] * w[kinds]).sum(1)
    want = torch.zeros(5, 2, device=where.device).index_add(0, rows, every)
    back = randn(5, 2, seed=4, device=where.device)
    told = torch.autograd.grad(want, (v, x, w), back)
    got = torch.autograd.grad(typed(A.with_values(v), A.with_values(kinds), x, w), (v, x, w), back)
    for a, b in zip(got, told, strict=True):
        close(a, b)


def test_types_in_a_dense_table(fast: Place) -> None:
    A, _ = graph(fast)
    kinds = torch.arange(20, device=fast.device).reshape(5, 4) % 3
    shapes = ((4, 3), (3, 3, 2))
    v, x, w = leaf(A.values), *(leaf(randn(*s, dtype=F64, device=fast.device)) for s in shapes)
    assert gradcheck(lambda v, x, w: typed(A.with_values(v), kinds, x, w), (v, x, w))


def test_arithmetic_on_a_structure(fast: Place) -> None:
    A, kinds = graph(fast)
    v, w = leaf(A.values), leaf(randn(5, 3, dtype=F64, device=fast.device))
    op = lambda v, w: shifted(A.with_values(v), A.with_values(kinds), w)
    assert gradcheck(op, (v, w))


@pytest.mark.parametrize("format", ["csc", "coo", "bsr"])
def test_formats(format: str, fast: Place) -> None:
    A = tw.SparseTensor.from_dense(
        matrix(6, 4, 0.6, dtype=F64, device=fast.device),
        format=format,
        **({"block": (2, 2)} if format == "bsr" else {}),
    )
    kinds = A.with_values(torch.arange(A.values.numel(), device=fast.device).view_as(A.values) % 3)
    v, w = leaf(A.values), leaf(randn(3, 4, 2, dtype=F64, device=fast.device))
    x = randn(4, 4, dtype=F64, device=fast.device)
    assert gradcheck(lambda v, w: typed(A.with_values(v), kinds, x, w), (v, w))


# --- what has none --------------------------------------------------------------------------------------


@tw.program
def of_a_sparse(a: Any, at: Any, b: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[at[i], j] * b[j]


def test_a_sparse_operand(fast: Place) -> None:
    """Its other operands have gradients."""
    A, _ = graph(fast)
    at, b = P.to(fast.device), leaf(randn(4, dtype=F64, device=fast.device))
    (got,) = torch.autograd.grad(of_a_sparse(A, at, b).sum(), b)
    close(got, A.to_dense()[at].sum(0))
    y = of_a_sparse(A.with_values(leaf(A.values)), at, b)
    with pytest.raises(tw.TilewrightError, match=r"a\[at\[i\], j\] is sparse, and read through"):
        y.sum().backward()


def test_types_that_are_stored_apart(fast: Place) -> None:
    A, _ = graph(fast)
    other = tw.SparseTensor.from_dense(torch.eye(5, 4, device=fast.device))
    kinds = other.with_values(torch.ones(4, dtype=torch.int64, device=fast.device))
    x, w = (leaf(randn(*s, dtype=F64, device=fast.device)) for s in ((4, 3), (3, 3, 2)))
    y = typed(A, kinds, x, w)
    with pytest.raises(tw.TilewrightError, match="stored apart from other operands"):
        y.sum().backward()


@tw.program
def overwritten(t: Any, x: Any, y: Any) -> None:
    i, f = tw.axes("i f")
    y.sized(x.dim(0), x.dim(1))
    y[t[i], f] = 2.0 * x[i, f]


def test_written_through_what_may_repeat(fast: Place) -> None:
    x = leaf(randn(5, 3, device=fast.device))
    y = overwritten(P.to(fast.device), x)
    with pytest.raises(tw.TilewrightError, match=r"by which y\[t\[i\], f\] is written, may name"):
        y.sum().backward()


def test_sizes_are_those_of_inputs() -> None:
    @tw.program
    def put(x: Any, t: Any, y: Any) -> None:
        i, f = tw.axes("i f")
        y.sized(8, x.dim(1))
        y[t[i], f] = x[i, f]

    with pytest.raises(tw.TilewrightError, match=r"as x\.dim\(0\)"):
        put(torch.ones(3, 2), torch.arange(3))
