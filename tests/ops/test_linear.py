"""tw.linear on some rows, against torch."""

from __future__ import annotations

import pytest
import torch
from ops.matrices import TOLERANCE, close, randn
from ops.places import Place

import tilewright as tw
from tilewright.ops import found
from tilewright.ops.families import FAMILIES
from tilewright.ops.ready import served
from tilewright.pit import detect


def whole(x, w, b, rows):  # type: ignore[no-untyped-def]
    """Rows that are not named count as zero rows."""
    kept = torch.zeros_like(x)
    kept[rows.long()] = x[rows.long()]
    return torch.nn.functional.linear(kept, w, b)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_rows(index: torch.dtype, bias: bool, where: Place) -> None:
    x, w = randn(21, 33, device=where.device), randn(17, 33, seed=2, device=where.device)
    b = randn(17, seed=3, device=where.device) if bias else None
    rows = torch.tensor([20, 3, 0, 11], dtype=index, device=where.device)
    close(tw.linear(x, w, b, sparse=rows), whole(x, w, b, rows))


def test_mask(where: Place) -> None:
    x, w = randn(21, 33, device=where.device), randn(17, 33, seed=2, device=where.device)
    mask = torch.arange(21, device=where.device) % 3 == 1
    close(tw.linear(x, w, sparse=mask), whole(x, w, None, mask.nonzero()[:, 0]))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [224, 237])
def test_many_lists_of_k(
    rows: int, bias: bool, where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, and what they name of x, are made by one kernel; some lists are empty, some full."""
    monkeypatch.setattr(detect, "MANY", 7)
    x, w = randn(rows, 43, device=where.device), randn(17, 43, seed=2, device=where.device)
    x *= (torch.arange(rows) // 32 % 5)[:, None].to(where.device) > torch.arange(
        43, device=where.device
    ) % 4
    b = randn(17, seed=3, device=where.device) if bias else None
    close(tw.linear(x, w, b, sparse="k"), torch.nn.functional.linear(x, w, b))
    k = FAMILIES["k"]
    close(k.run(x, w, k.detect(x), b), torch.nn.functional.linear(x, w, b))


def test_lists_and_what_they_name_come_from_one_kernel(tiled: Place) -> None:
    x = randn(32 * detect.MANY, 20, device=tiled.device)
    x[:, 3:17] = 0.0
    with served() as kernels:
        index = FAMILIES["k"].detect(x)
    assert len(kernels) == 1 and index.packed is not None
    named = [0, 1, 2, 17, 18, 19]
    assert index.positions[5, :6].tolist() == named and index.counts.tolist() == [6] * 64
    assert torch.equal(index.packed[:6], x[:, named].t())
    assert FAMILIES["k"].detect(x[:64]).packed is None


@pytest.mark.parametrize("chosen", [[], list(range(21))], ids=["none", "all"])
def test_extremes(chosen: list[int], where: Place) -> None:
    x, w = randn(21, 8, device=where.device), randn(5, 8, seed=2, device=where.device)
    b, rows = (
        randn(5, seed=3, device=where.device),
        torch.tensor(chosen, dtype=torch.int32, device=where.device),
    )
    close(tw.linear(x, w, b, sparse=rows), whole(x, w, b, rows))


def test_rows_not_named_may_hold_anything(where: Place) -> None:
    x, w = randn(9, 8, device=where.device), randn(5, 8, seed=2, device=where.device)
    x[4:] = float("nan")
    rows = torch.tensor([2, 0], device=where.device)
    assert torch.equal(tw.linear(x, w, sparse=rows)[4:], torch.zeros(5, 5, device=where.device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    x, w = (
        randn(21, 33, dtype=dtype, device=where.device),
        randn(17, 33, seed=2, dtype=dtype, device=where.device),
    )
    rows = torch.tensor([20, 3, 0], device=where.device)
    got = tw.linear(x, w, sparse=rows)
    assert got.dtype == dtype
    want = whole(x.double(), w.double(), None, rows)
    torch.testing.assert_close(got.double(), want, **TOLERANCE[dtype])


def test_weight_by_columns(where: Place) -> None:
    """w as a transposed view: [k, n] in memory."""
    x, w = randn(9, 8, device=where.device), randn(8, 5, seed=2, device=where.device).t()
    rows = torch.tensor([8, 1], device=where.device)
    close(tw.linear(x, w, sparse=rows), whole(x, w, None, rows))


def test_dense(where: Place) -> None:
    x, w = randn(4, 8, device=where.device), randn(5, 8, seed=2, device=where.device)
    close(tw.linear(x, w), x @ w.t())


def test_mixed_dtypes(where: Place, request: pytest.FixtureRequest) -> None:
    """The wider dtype, as for products of sparse matrices, or an error of the catalogue."""
    x, w = randn(9, 8, device=where.device), randn(5, 8, seed=2, device=where.device).double()
    rows = torch.tensor([8, 1], device=where.device)
    try:
        close(tw.linear(x, w, sparse=rows), whole(x.double(), w, None, rows))
    except tw.TilewrightError as why:
        assert why.entry == "dtype"


@pytest.mark.parametrize("sparse", ["rows", "k"])
def test_products_of_no_terms(sparse: str, where: Place) -> None:
    x, w = torch.zeros(2, 3, 0, device=where.device), torch.zeros(4, 0, device=where.device)
    y = tw.linear(x, w, sparse=sparse)
    assert y.shape == (2, 3, 4) and not y.any()


@pytest.mark.parametrize("asked", [True, False])
def test_gradients_add_up_in_one_order(
    asked: bool, where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than one program lists in order: in deterministic mode sums do not run over their list."""
    monkeypatch.setattr(found, "ALONE", 8)
    x, w = randn(21, 33, device=where.device), randn(17, 33, seed=2, device=where.device)
    x[torch.arange(21, device=where.device) % 3 != 1] = 0.0
    x.requires_grad_()
    w.requires_grad_()
    torch.use_deterministic_algorithms(asked)
    try:
        y = tw.linear(x, w, sparse="rows")
        with served() as kernels:
            y.square().sum().backward()
        assert FAMILIES["rows"].detect(x.detach()).ordered == (asked or where.backend == "c")
    finally:
        torch.use_deterministic_algorithms(False)
    over_lists = [k for k in kernels if any("i_list" in b.name for b in k.buffers)]
    assert bool(over_lists) == (not asked and where.backend == "triton")  # torch has its own in C
    grads = x.grad, w.grad
    x2, w2 = (t.detach().clone().requires_grad_() for t in (x, w))
    torch.nn.functional.linear(x2, w2).square().sum().backward()
    for got, want in zip(grads, (x2.grad, w2.grad), strict=True):
        close(got, want)


SHARED = {"bm": 32, "bn": 32, "bk": 16, "group": 2, "warps": 4, "stages": 2}


@pytest.mark.parametrize(("depth", "dtype"), [(40, torch.float32), (128, torch.float16)], ids=str)
def test_programs_share_sums(depth: int, dtype: torch.dtype, tiled: Place) -> None:
    """Few tiles in many pieces, as many as the device finds there are; no rows, one, some, all; again and again."""
    x, w = (randn(n, depth, seed=n, device=tiled.device).to(dtype) for n in (200, 70))
    every = torch.ones(200, dtype=torch.bool, device=tiled.device)
    index = tw.Index.from_mask(every, (1, None), ordered=True)
    plans = [
        tw.linear.list_plan(x, w, index, {**SHARED, "pieces": pieces})  # type: ignore[attr-defined]
        for pieces in (1, 8)
    ]
    want = x.double() @ w.double().t()
    for count in (0, 1, 33, 200, 3):
        index.counts.fill_(count)
        for plan in plans:
            plan.out.fill_(-1.0)
            plan.launch()
            named = index.positions.flatten()[:count].long()
            got = plan.out.clone()
            close(got[named], want[named].to(dtype))
            got[named] = -1.0
            assert (got == -1.0).all()


@pytest.mark.parametrize(("bn", "stay"), [(32, False), (32, True), (128, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_short_last_tile_is_no_higher_than_its_rows(
    dtype: torch.dtype, bn: int, stay: bool, tiled: Place
) -> None:
    """Whole tiles alone, short and long last ones, shared by programs where they are wide; as many rows as the device
    finds; nothing else is written."""
    x, w = (
        randn(n, 40, seed=n, device=tiled.device).to(dtype) for n in (200, 300 if bn > 64 else 70)
    )
    index = tw.Index.from_mask(torch.ones(200, dtype=torch.bool, device=tiled.device), (1, None))
    setting = {**SHARED, "bm": 64, "bn": bn, "tail": 32} | ({"pieces": 1} if stay else {})
    plan = tw.linear.list_plan(x, w, index, setting)  # type: ignore[attr-defined]
    want = (x.double() @ w.double().t()).to(dtype)
    for count in (0, 1, 32, 33, 64, 96, 97, 200):
        index.counts.fill_(count)
        plan.out.fill_(-1.0)
        plan.launch()
        named = index.positions.flatten()[:count].long()
        close(plan.out[named], want[named])
        plan.out[named] = -1.0
        assert (plan.out == -1.0).all()
    told = tw.explain(plan)["schedule"].body
    assert "a last tile of up to 32 rows is no higher" in told
    assert ("programs take tile after tile" in told) == stay


def test_a_tail_of_rows_that_are_known_before_the_launch(tiled: Place) -> None:
    x, w = randn(150, 24, device=tiled.device), randn(40, 24, seed=2, device=tiled.device)
    for kept in (5, 64, 75, 140):
        rows = torch.arange(3, 3 + kept, device=tiled.device)
        plan = tw.linear.rows_plan(x, w, rows, {**SHARED, "bm": 64, "tail": 32})  # type: ignore[attr-defined]
        plan.launch()
        close(plan.out[rows], x[rows] @ w.t())


def test_shared_sums_are_the_same_every_time(tiled: Place) -> None:
    """Pieces are joined in order, whichever program comes last; a list of rows that is known before the launch."""
    x, w = randn(64, 128, device=tiled.device), randn(32, 128, seed=2, device=tiled.device)
    rows = torch.arange(3, 43, device=tiled.device)
    plan = tw.linear.rows_plan(x, w, rows, {**SHARED, "pieces": 4})  # type: ignore[attr-defined]
    plan.launch()
    first = plan.out.clone()
    close(first[rows], x[rows] @ w.t())
    for _ in range(3):
        plan.launch()
        assert torch.equal(plan.out[rows], first[rows])
    assert "sums of the last wave in up to 4 pieces" in tw.explain(plan)["schedule"].body


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sparse", ["rows", "k", "numbers"])
def test_wide_operands_keep_their_bits(sparse: str, dtype: torch.dtype, where: Place) -> None:
    """Beside numbers of 16 bits: 1e5 is beyond the largest of float16, and 1 + 2 ** -12 is none of either."""
    x = torch.ones(32, 16, dtype=dtype, device=where.device)
    w = torch.full((16, 16), 1e5, device=where.device)
    w[1] = 1 + 2**-12
    how = torch.arange(32, device=where.device) if sparse == "numbers" else sparse
    y = tw.linear(x, w, sparse=how)
    assert y.dtype == torch.float32
    assert (y[:, 0] == 1.6e6).all() and (y[:, 1] == 16 + 2**-8).all()
