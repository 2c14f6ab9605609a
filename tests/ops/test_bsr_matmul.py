"""tw.bsr_matmul against dense torch: block sizes, formats, batches, dtypes, gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from ops.matrices import TOLERANCE, close, leaf, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright.formats import Structure
from tilewright.ops.backend import backend
from tilewright.ops.block_tiles import settings, tiles
from tilewright.ops.bsr_matmul import _kind as kind
from tilewright.ops.bsr_matmul import plan as bsr_plan
from tilewright.ops.entry import entry
from tilewright.ops.sparse import as_blocks
from tilewright.ops.tall import tall, worth
from tilewright.runtime import build_c

module = sys.modules["tilewright.ops.bsr_matmul"]
BLOCKS = [(4, 4), (5, 3), (16, 16), (16, 32), (24, 8), (64, 64), (128, 128)]


def blocks(block: tuple[int, int], where: Place, dtype: torch.dtype = torch.float32) -> Tensor:
    """2 x 3 blocks, the first row of them empty but for one."""
    made = randn(2 * block[0], 3 * block[1], dtype=dtype, device=where.device)
    kept = torch.tensor([[0, 1, 0], [1, 0, 1]], device=where.device)
    return made * kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)


def as_format(dense: Tensor, block: tuple[int, int], format: str) -> object:
    if format == "torch":
        return dense.to_sparse_bsr(block)
    if format == "bsr":
        return tw.SparseTensor.from_dense(dense, format="bsr", block=block)
    return tw.SparseTensor.from_dense(dense).to_format("dbsr", block=block)


@pytest.mark.parametrize(
    "block,columns", [*((b, 37) for b in BLOCKS), ((16, 16), 1), ((16, 16), 64)], ids=str
)
def test_blocks(block: tuple[int, int], columns: int, where: Place) -> None:
    dense = blocks(block, where)
    x = randn(dense.shape[1], columns, device=where.device)
    got = tw.bsr_matmul(as_format(dense, block, "bsr"), x)
    torch.testing.assert_close(got, dense @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("format", ["torch", "bsr", "dbsr"])
def test_formats_and_batches(format: str, batch: tuple[int, ...], where: Place) -> None:
    dense = blocks((4, 8), where)
    x = randn(*batch, 24, 5, device=where.device)
    close(tw.bsr_matmul(as_format(dense, (4, 8), format), x), dense @ x)


def test_a_dbsr_matrix_of_broken_blocks(where: Place) -> None:
    """The last blocks stand over the edge."""
    dense = blocks((4, 8), where)[:-1, :-3]
    A = tw.SparseTensor.from_dense(dense).to_format("dbsr", block=(4, 8))
    x = randn(21, 5, device=where.device)
    close(tw.bsr_matmul(A, x), dense @ x)
    close(tw.spmm(A, x), dense @ x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter has no bfloat16 product")
    dense = blocks((16, 16), where, dtype)
    x = randn(48, 20, dtype=dtype, device=where.device)
    got = tw.bsr_matmul(as_format(dense, (16, 16), "bsr"), x)
    assert got.dtype == dtype
    tolerance = {k: 4 * v for k, v in TOLERANCE[dtype].items()}
    torch.testing.assert_close(got.double(), dense.double() @ x.double(), **tolerance)


@pytest.mark.parametrize("format", ["bsr", "dbsr"])
def test_gradients(format: str, where: Place) -> None:
    dense = blocks((4, 8), where, torch.float64)
    A = as_format(dense, (4, 8), format)
    assert isinstance(A, tw.SparseTensor)
    v, x = leaf(A.values), leaf(randn(2, 24, 5, dtype=torch.float64, device=where.device))
    g = randn(2, 8, 5, seed=4, dtype=torch.float64, device=where.device)
    dv, dx = torch.autograd.grad(tw.bsr_matmul(A, x, values=v), (v, x), g)
    close(dx, dense.t() @ g)
    close(A.with_values(dv).to_dense(), (g @ x.mT).sum(0) * (dense != 0))


@pytest.fixture(params=[32, 64])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose vectors have so many bytes."""
    monkeypatch.setattr(build_c, "vector", lambda: request.param)
    entry.cache_clear()
    yield
    entry.cache_clear()


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize(
    "block,columns", [((16, 16), 96), ((12, 5), 80), ((3, 8), 16), ((1, 4), 64)], ids=str
)
def test_sums_in_registers(block: tuple[int, int], columns: int) -> None:
    """Rows side by side, those that are left, and blocks over the edge; with gradients."""
    dense = blocks(block, Place("c"))[: 2 * block[0] - (block[0] > 1), : 3 * block[1] - 1]
    A = tw.SparseTensor.from_dense(dense).to_format("dbsr", block=block)
    x = leaf(randn(dense.shape[1], columns))
    v = leaf(A.explicit_values())
    with backend("c"):
        y = tw.bsr_matmul(A, x, values=v)
        dv, dx = torch.autograd.grad(y, (v, x), y.detach())
        steps = bsr_plan(A, x.detach()).kernel.schedule
    assert any(step.name == "jam" for step in steps) == (block[0] > 1)
    torch.testing.assert_close(y, dense @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dx, dense.t() @ y, rtol=1e-4, atol=1e-4)
    want = (y @ x.t()) * (dense != 0)
    got = A.with_values(dv).to_dense() * (dense != 0)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_settings(tiled: Place) -> None:
    dense = blocks((16, 16), tiled)
    A, x = as_format(dense, (16, 16), "bsr"), randn(48, 300, device=tiled.device)
    for setting in settings(A.structure, 300, x.dtype):
        plan = bsr_plan(A, x, setting)
        plan.launch()
        assert plan.setting["width"] == setting["width"]
        torch.testing.assert_close(plan.out, dense @ x, rtol=1e-4, atol=1e-4)


def holed(where: Place, rows: int = 7, dtype: torch.dtype = torch.float32) -> Tensor:
    """rows x 5 blocks of 16 x 16, every other row of them empty."""
    kept = randn(rows, 5, seed=3, device=where.device) < 0.3
    kept[::2] = False
    dense = randn(16 * rows, 80, dtype=dtype, device=where.device)
    return dense * kept.repeat_interleave(16, 0).repeat_interleave(16, 1)


@pytest.mark.parametrize("format", ["bsr", "dbsr"])
@pytest.mark.parametrize("many", [2, 4])
@pytest.mark.parametrize("cut", [0, 3])
def test_rows_of_blocks_in_one(many: int, format: str, cut: int, where: Place) -> None:
    """Empty rows come last; where the last row of blocks is not whole, all keep their order."""
    dense = holed(where)[: 112 - cut]
    A = tw.SparseTensor.from_dense(dense).to_format("dbsr", block=(16, 16))
    A = as_blocks(A) if format == "bsr" else A
    x = randn(80, 20, device=where.device)
    plan = bsr_plan(A, x, {"tall": many})
    plan.out.fill_(torch.nan)
    plan.launch()
    close(plan.out, dense @ x)
    made = tall(as_blocks(A).structure, many)
    assert made is not None and (made.rows is None) == bool(cut)
    assert cut or plan.ready.covered(*plan.sizes)  # nothing is zeroed


def test_gradients_of_rows_of_blocks_in_one(where: Place) -> None:
    dense = holed(where, dtype=torch.float64)
    A = as_blocks(tw.SparseTensor.from_dense(dense).to_format("dbsr", block=(16, 16)))
    v, x = leaf(A.explicit_values()), leaf(randn(80, 6, dtype=torch.float64, device=where.device))
    recipe, moving = kind(A.with_values(v), x, {"tall": 2})
    (y,) = recipe(moving)
    dv, dx = torch.autograd.grad(y, (v, x), y.detach())
    close(dx, dense.t() @ y)
    close(A.with_values(dv).to_dense(), (y @ x.t()) * (A.with_values(v * 0 + 1).to_dense() != 0))


def test_a_place_with_several_blocks_stays() -> None:
    s = Structure("bsr", (32, 16), torch.tensor([0, 2, 2]), torch.tensor([0, 0]), block=(16, 16))
    assert tall(s, 2) is None
    v, x = randn(2, 16, 16), randn(16, 4, seed=1)
    with backend("c"):
        plan = bsr_plan(tw.SparseTensor(s, v), x, {"tall": 2})
        plan.launch()
    close(plan.out, torch.cat([v.sum(0) @ x, torch.zeros(16, 4)]))


def half_full(density: float, columns: int = 4096) -> tuple[tw.SparseTensor, Tensor]:
    """Blocks of 32 on the device that only has shapes."""
    kept = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < density
    starts = torch.cat([torch.zeros(1), kept.sum(1).cumsum(0)]).int()
    s = Structure("bsr", (2048, 2048), starts, kept.nonzero()[:, 1].int(), block=(32, 32))
    values = torch.zeros(int(kept.sum()), 32, 32, dtype=torch.bfloat16)
    return tw.SparseTensor(s, values), torch.zeros(2048, columns, dtype=torch.bfloat16)


def test_how_many_rows_are_worth_it() -> None:
    """As measured: blocks of 32 as they are where little is stored, four rows in one where much is."""
    for density, want in ((0.1, 1), (0.7, 4)):
        A, x = half_full(density)
        assert worth(A.structure, A.values, x) == want
        assert worth(A.structure, A.values.float(), x.float()) == 1  # no tensor cores
        assert worth(A.structure, A.values, x[None]) == 1
    A, x = half_full(0.35)
    assert worth(A.structure, A.values, x) == 4
    assert worth(A.structure, A.values.requires_grad_(), x) == 1  # copied in each call


def test_what_is_chosen_is_used_and_follows_the_values(
    tiled: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "worth", lambda s, v, x: 2)
    dense, x = holed(tiled), randn(80, 20, device=tiled.device)
    A = as_blocks(tw.SparseTensor.from_dense(dense).to_format("dbsr", block=(16, 16)))
    assert "tall" not in bsr_plan(A, x).setting  # not prepared
    A.prepare()
    assert bsr_plan(A, x).setting["tall"] == 2
    close(tw.bsr_matmul(A, x), dense @ x)
    A.values.mul_(2.0)
    close(tw.bsr_matmul(A, x), 2.0 * dense @ x)
    v = leaf(A.explicit_values())
    (dv,) = torch.autograd.grad(tw.bsr_matmul(A, x, values=v).sum(), v)
    assert dv.shape == v.shape


def test_tuning_tries_rows_of_blocks_in_one(tiled: Place) -> None:
    dense, x = holed(tiled), randn(80, 20, device=tiled.device)
    A = as_blocks(tw.SparseTensor.from_dense(dense).to_format("dbsr", block=(16, 16))).prepare()
    tried = tw.bsr_matmul.subject(A, x)
    assert {s["tall"] for s in tried.shown} == {1, 2, 4}
    assert all(tried.space.why_not(s) is None for s in tried.shown), tried.space
    close(tried.make(tried.shown[-1])()[0], dense @ x)
    best = tw.tune(tw.bsr_matmul, A, x, settings=list(tried.shown[-2:]), save=False, budget_s=5)
    assert best["tall"] in {s["tall"] for s in (*tried.shown[-2:], tried.first)}
    assert bsr_plan(A, x).setting["tall"] == best["tall"]  # and is used from now on


@pytest.mark.parametrize("bn", [16, 32, 64])
def test_large_blocks_are_walked_in_steps(bn: int, where: Place) -> None:
    dense = blocks((32, 64), where)
    A, x = as_format(dense, (32, 64), "bsr"), randn(dense.shape[1], 20, device=where.device)
    plan = bsr_plan(A, x, {"width": 32, "bn": bn, "blocks": 1})
    plan.launch()
    torch.testing.assert_close(plan.out, dense @ x, rtol=1e-4, atol=1e-4)


def structure(size: int, block: int) -> Structure:
    return tw.SparseTensor.from_dense(torch.eye(size), format="bsr", block=(block, block)).structure


def test_the_choice_fits_block_and_columns() -> None:
    assert tiles(structure(1024, 16), 4096, torch.bfloat16)["width"] == 256
    assert tiles(structure(1024, 64), 40, torch.bfloat16)["width"] == 64
    assert tiles(structure(1024, 128), 512, torch.bfloat16)["width"] == 64  # few rows of blocks
    wide = tiles(structure(4096, 128), 4096, torch.bfloat16)
    assert (wide["warps"], wide["stages"], wide["bn"]) == (8, 6, 64)
    assert tiles(structure(1024, 64), 4096, torch.float32)["stages"] == 2


def test_compiled(fast: Place) -> None:
    dense = blocks((4, 8), fast)
    A, x = as_format(dense, (4, 8), "bsr"), randn(24, 5, device=fast.device)
    product = torch.compile(tw.bsr_matmul, fullgraph=True, backend="aot_eager")
    close(product(A, x), dense @ x)
