"""tw.bsr_matmul against dense torch: block sizes, formats, batches, dtypes, gradients."""

from __future__ import annotations

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
from tilewright.ops.bsr_matmul import plan as bsr_plan
from tilewright.ops.entry import entry
from tilewright.runtime import build_c

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
