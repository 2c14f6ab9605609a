"""Products over lists made at run time, against torch on whole operands: results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import TOLERANCE, close, randn
from ops.places import Place
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
from tilewright.ops import matmul
from tilewright.ops.ready import served

PATTERNS = ("some", "blocks", "row", "nothing", "all")


def keep(kind: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    if kind == "some":
        return torch.rand(rows, columns, generator=g) < 0.05
    if kind == "blocks":
        coarse = torch.rand(rows // 8 + 1, columns // 8 + 1, generator=g) < 0.3
        return coarse.repeat_interleave(8, 0).repeat_interleave(8, 1)[:rows, :columns]
    made = torch.full((rows, columns), kind == "all")
    if kind == "row":
        made[rows // 2] = True
    return made


def values(mask: Tensor, dtype: torch.dtype, where: Place, seed: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(mask.shape, generator=g, dtype=torch.float64) * mask
    return x.to(where.device, dtype)


# sparse= of linear(x, w), from x; and what of x is part of the computation (None: all of it)
Asked = tuple[Callable[[Tensor], Any], Callable[[Tensor], Tensor | None]]


def by_groups(x: Tensor, rows: int, columns: int) -> Tensor:
    made = torch.zeros(x.shape, dtype=torch.bool)
    for i in range(0, x.shape[0], rows):
        for k in range(0, x.shape[1], columns):
            part = slice(i, i + rows), slice(k, k + columns)
            made[part] = bool((x[part] != 0).any())
    return made


def third(x: Tensor) -> Tensor:
    return (torch.arange(x.shape[0], device=x.device) % 3 == 1)[:, None].expand(x.shape)


ASKED: dict[str, Asked] = {
    "rows": (lambda x: "rows", lambda x: None),
    "k": (lambda x: "k", lambda x: None),
    "numbers": (lambda x: third(x)[:, 0].nonzero()[:, 0].flip(0), third),
    "mask": (lambda x: third(x)[:, 0], third),
    "index of rows": (
        lambda x: tw.Index.from_values(x, (8, None)),
        lambda x: by_groups(x, 8, x.shape[1]),
    ),
    "index of k": (
        lambda x: tw.Index.from_values(x, (None, 4)),
        lambda x: by_groups(x, x.shape[0], 4),
    ),
    "k of 16 rows": (
        lambda x: tw.Index.from_values(x, (16, 1), grouped=True),
        lambda x: by_groups(x, 16, 1),
    ),
    "16 k of 16 rows": (
        lambda x: tw.Index.from_values(x, (16, 16), grouped=True),
        lambda x: by_groups(x, 16, 16),
    ),
}


def whole(x: Tensor, w: Tensor, b: Tensor, used: Tensor | None) -> list[Tensor]:
    """The result and the gradients, in double."""
    x, w, b = (t.detach().double().requires_grad_() for t in (x, w, b))
    y = torch.nn.functional.linear(x if used is None else x * used.to(x.device), w, b)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w, b))]


def given(x: Tensor, w: Tensor, b: Tensor, sparse: Any) -> list[Tensor]:
    x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
    y = tw.linear(x, w, b, sparse=sparse)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w, b))]


def agree(got: list[Tensor], want: list[Tensor], dtype: torch.dtype) -> None:
    tolerance = TOLERANCE.get(dtype, {"rtol": 1e-4, "atol": 1e-4})
    for a, e in zip(got, want, strict=True):
        size = float(e.abs().max()) if e.numel() else 1.0
        scale = max(size, 1.0)
        assert a.dtype == dtype
        torch.testing.assert_close(a.double() / scale, e / scale, **tolerance)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", PATTERNS)
def test_linear(kind: str, asked: str, where: Place) -> None:
    if where.slow and kind != "row":
        pytest.skip("drawn in fuzz/test_products.py")
    x = values(keep(kind, 37, 29), torch.float32, where)
    w, b = (
        values(torch.ones(n), torch.float32, where, 2 + k) for k, n in enumerate([(21, 29), (21,)])
    )
    sparse, used = ASKED[asked]
    agree(given(x, w, b, sparse(x)), whole(x, w, b, used(x)), torch.float32)


@pytest.mark.parametrize("asked", ["rows", "k", "mask", "k of 16 rows"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, asked: str, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    x = values(keep("blocks", 37, 29), dtype, where)
    w, b = (values(torch.ones(n), dtype, where, 2 + k) for k, n in enumerate([(21, 29), (21,)]))
    sparse, used = ASKED[asked]
    agree(given(x, w, b, sparse(x)), whole(x, w, b, used(x)), dtype)


@pytest.mark.parametrize("what", ["mask", "lengths", "index"])
def test_batch(what: str, where: Place) -> None:
    """Tokens of a padded batch; what lies behind their ends is not read."""
    x = values(torch.ones(4, 5, 9), torch.float32, where)
    w, b = (values(torch.ones(n), torch.float32, where, 2) for n in ((7, 9), (7,)))
    size = torch.tensor([2, 0, 5, 1], device=where.device)
    used = (torch.arange(5, device=where.device) < size[:, None])[..., None]
    sparse = {"mask": used[..., 0], "lengths": size, "index": tw.Index.from_lengths(size, 5)}[what]
    want = whole(x, w, b, used)
    got = given(torch.where(used, x, float("nan")), w, b, sparse)
    agree(got, want, torch.float32)


@pytest.mark.parametrize("sparse", ["rows", "k", "columns"])
@pytest.mark.parametrize("kind", ["some", "nothing"])
def test_matmul(kind: str, sparse: str, where: Place) -> None:
    """Zeros are found, and gradients are those of the whole product."""
    a, b = (values(keep(kind, *n), torch.float32, where, n[0]) for n in ((37, 29), (29, 21)))
    a, b = a.requires_grad_(), b.requires_grad_()
    y = matmul(a, b, sparse=sparse)
    agree([y.detach()], [(a.double() @ b.double()).detach()], torch.float32)
    g = torch.ones_like(y)
    got = torch.autograd.grad(y, (a, b), g)
    agree(list(got), [(g @ b.T).double().detach(), (a.T @ g).double().detach()], torch.float32)


@pytest.mark.parametrize("tile", [(1, None), (4, None), (None, 1), (None, 4)], ids=str)
@pytest.mark.parametrize("operand", ["a", "b"])
def test_matmul_by_index(operand: str, tile: Any, where: Place) -> None:
    a, b = (values(torch.ones(n), torch.float32, where, n[0]) for n in ((37, 29), (29, 21)))
    seen = values(keep("row", *(a if operand == "a" else b).shape), torch.float32, where)
    index = tw.Index.from_values(seen, tile)
    size = [n or m for n, m in zip(tile, seen.shape, strict=True)]
    used = by_groups(seen, *size).to(where.device)
    a, b = a.requires_grad_(), b.requires_grad_()
    want = ((a * used) @ b if operand == "a" else a @ (b * used)).double()
    y = matmul(a, b, sparse=index)
    agree([y.detach()], [want.detach()], torch.float32)
    g = torch.ones_like(y)
    got = torch.autograd.grad(y, (a, b), g)
    right = torch.autograd.grad(want, (a, b), g.double())
    if tile[0 if operand == "b" else 1] is not None:  # k's: both operands are cut
        both = used.any(0 if operand == "a" else 1)
        right = (right[0] * both, right[1] * both[:, None])
    agree(list(got), [r.double() for r in right], torch.float32)


def test_what_is_not_named_is_not_read(where: Place) -> None:
    """NaN where no list leads."""
    x = values(keep("row", 37, 29), torch.float32, where)
    w = values(torch.ones(21, 29), torch.float32, where, 2)
    index = tw.Index.from_values(x, (16, 1), grouped=True)
    used = by_groups(x, 16, 1).to(where.device)
    poison = torch.where(used, x, float("nan")).requires_grad_()
    y = tw.linear(poison, w, sparse=index)
    torch.testing.assert_close(y.detach(), x @ w.T, rtol=1e-4, atol=1e-4)
    (d_x,) = torch.autograd.grad(y.sum(), poison)
    assert d_x.isfinite().all() and not d_x[~used].any()


WORDS: list[Callable[[Tensor, Tensor], Tensor]] = [
    *(lambda x, w, s=s: tw.linear(x, w, sparse=s) for s in ("rows", "k")),
    lambda x, w: tw.linear(x, w, sparse=x[:, 0] > 0),
    lambda x, w: tw.linear(x[None], w, sparse=torch.ones(1, dtype=torch.int32))[0],
    lambda x, w: tw.linear(x, w, sparse=tw.Index.from_values(x, (16, 1), grouped=True)),
    *(lambda x, w, s=s: matmul(x, w.T, sparse=s) for s in ("rows", "k", "columns")),
    lambda x, w: tw.ops.masked_linear(x, w, w > 0),
    lambda x, w: tw.ops.grouped_matmul(
        x, w.T[None], tw.Index.from_choices(torch.zeros(len(x), 1, dtype=torch.int64), 1)
    )[:, 0],
]


@pytest.mark.parametrize("number", range(len(WORDS)))
def test_nothing_waits_for_the_device(number: int) -> None:
    """On tensors without contents everything works, gradients too: shapes follow from shapes."""
    with FakeTensorMode():
        x, w = (torch.empty(n, 29, requires_grad=True) for n in (37, 21))
        y = WORDS[number](x, w)
        assert y.shape == (37, 21)
        assert [g.shape for g in torch.autograd.grad(y.sum(), (x, w))] == [(37, 29), (21, 29)]


def test_lists_are_tuned(tiled: Place) -> None:
    x, w = (values(torch.ones(n, 16), torch.float32, tiled) for n in (40, 16))
    index = tw.Index.from_values(x, (16, 1), grouped=True)
    asked = {"bm": 16, "bn": 32, "bk": 32, "group": 4, "warps": 4, "stages": 2}
    got = tw.tune(tw.linear, x, w, sparse=index, settings=[asked], budget_s=0)
    assert {n: got[n] for n in asked} == asked
    with served() as kernels:
        torch.testing.assert_close(tw.linear(x, w, sparse=index), x @ w.T, rtol=1e-4, atol=1e-4)
    assert kernels[-1].setting["bn"] == 32


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "word": (lambda x, w: tw.linear(x, w, sparse="all"), "'rows', 'k', row numbers"),
    "tiles": (
        lambda x, w: tw.linear(x, w, sparse=tw.Index.from_values(x, (4, 4))),
        "for each group of rows",
    ),
    "other": (
        lambda x, w: tw.linear(x, w, sparse=tw.Index.from_values(w, (4, None))),
        "an index of",
    ),
    "mask": (lambda x, w: tw.linear(x, w, sparse=torch.ones(3, dtype=torch.bool)), "as x has"),
    "lengths": (lambda x, w: tw.linear(x[None], w, sparse=torch.tensor([1, 2])), "as x has"),
    "columns": (lambda x, w: matmul(x, w.T, sparse="n"), "'columns'"),
    "shapes": (lambda x, w: matmul(x, w, sparse="rows"), "as many as a has columns"),
    "groups of k": (
        lambda x, w: matmul(x, w.T, sparse=tw.Index.from_values(w.T, (2, 2), grouped=True)),
        "which is summed up",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    action, told = REFUSED[name]
    with pytest.raises(tw.TilewrightError) as why:
        action(torch.ones(6, 8), torch.ones(5, 8))
    assert told in str(why.value)


BLOCKS = [(1, 1), (4, 4), (16, 16), (32, 16), (1, 3)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("kind", ["some", "nothing", "all"])
def test_masked_linear(kind: str, block: tuple[int, int], where: Place) -> None:
    """The gradient of w stops at the mask; what is masked holds NaN."""
    if where.slow and kind != "some":
        pytest.skip("drawn in fuzz/test_products.py")
    n, k = 45, 37
    mask = keep(kind, -(-n // block[0]), -(-k // block[1])).to(where.device)
    used = mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:n, :k]
    x, w, b = (values(torch.ones(s), torch.float32, where, 5) for s in ((3, 7, k), (n, k), (n,)))
    want = masked(x, torch.where(used, w, 0.0), used, b)
    x, w, b = (t.requires_grad_() for t in (x, torch.where(used, w, float("nan")), b))
    y = tw.ops.masked_linear(x, w, mask, b, block=block)
    got = [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w, b))]
    agree(got, want, torch.float32)


def masked(x: Tensor, w: Tensor, used: Tensor, b: Tensor) -> list[Tensor]:
    x, w, b = (t.detach().double().requires_grad_() for t in (x, w, b))
    y = torch.nn.functional.linear(x, w * used, b)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w, b))]


def test_a_mask_of_another_shape_is_refused() -> None:
    x, w = torch.ones(3, 8), torch.ones(9, 8)
    with pytest.raises(tw.TilewrightError, match="one element for each block"):
        tw.ops.masked_linear(x, w, torch.ones(7, 8, dtype=torch.bool))
    with pytest.raises(tw.TilewrightError, match=r"torch\.bool"):
        tw.ops.masked_linear(x, w, torch.ones(9, 8))


def test_blocks_that_a_mask_leaves_in_doubt() -> None:
    """Four by five elements over 50 x 70 may be blocks of 16, or of 13 and 14."""
    x, w = randn(5, 70), randn(50, 70, seed=2)
    mask = torch.arange(20).reshape(4, 5) % 3 == 0
    whole = lambda r, c: mask.repeat_interleave(r, 0)[:50].repeat_interleave(c, 1)[:, :70]
    with pytest.raises(tw.TilewrightError, match="13 to 16 and 14 to 17"):
        tw.ops.masked_linear(x, w, mask)
    for block in ((16, 16), (13, 14), (15, 17)):
        close(tw.ops.masked_linear(x, w, mask, block=block), x @ (w * whole(*block)).T)
    with pytest.raises(tw.TilewrightError, match="one element for each block"):
        tw.ops.masked_linear(x, w, mask, block=(8, 16))
    for wrong in ((16, 0), 16, (16,), ("a", 16)):
        with pytest.raises(tw.TilewrightError, match="two numbers from 1 on"):
            tw.ops.masked_linear(x, w, mask, block=wrong)  # type: ignore[arg-type]


# --- rows that begin where they are looked at -------------------------------------------------------


@tw.program
def begun(x: Any, b: Any, rows: Any, count: Any, y: Any) -> None:
    I, k, i, n = tw.axes("I k i n")
    seen = tw.any((k,), tw.not_equal(x[I, k], 0))
    tw.append(rows, count, I, where=seen, over=I, ordered=False)
    y.sized(x.dim(0), b.dim(1))
    y[i, n] = b[0, n]


@tw.program
def begun_by_sums(x: Any, b: Any, rows: Any, count: Any, y: Any) -> None:
    I, k, i, n = tw.axes("I k i n")
    tw.append(rows, count, I, where=tw.sum(k, x[I, k]) > 1.0, over=I, ordered=False)
    y.sized(x.dim(0), b.dim(1))
    y[i, n] = b[0, n]


@tw.program
def begun_by_one(x: Any, b: Any, rows: Any, count: Any, y: Any) -> None:
    I, i, n = tw.axes("I i n")
    tw.append(rows, count, I, where=tw.not_equal(x[I, 0], 0), over=I, ordered=False)
    y.sized(x.dim(0), b.dim(1))
    y[i, n] = b[i, n] * 2.0


BEGUN = {
    begun: (lambda x: (x != 0).any(1), lambda b: b[:1].expand_as(b)),
    begun_by_sums: (lambda x: x.sum(1) > 1.0, lambda b: b[:1].expand_as(b)),
    begun_by_one: (lambda x: x[:, 0] != 0, lambda b: b * 2.0),
}


@pytest.mark.parametrize("size", [(5, 7, 3), (64, 16, 8), (1, 1, 1), (300, 1100, 70)], ids=str)
@pytest.mark.parametrize("program", BEGUN, ids=lambda p: p.__name__)
def test_rows_begin_where_they_are_looked_at(
    program: Any, size: tuple[int, int, int], where: Place
) -> None:
    m, k, n = size
    x = randn(m, k, device=where.device).abs() + 0.5
    x[::3] = 0
    b = randn(m, n, seed=2, device=where.device)
    seen, value = BEGUN[program]
    with served() as kernels:
        rows, count, y = program(x, b)
    close(y, value(b))
    assert sorted(rows[: int(count)].tolist()) == seen(x).nonzero()[:, 0].tolist()
    assert len(kernels) == (2 if where.backend == "c" else 1)
