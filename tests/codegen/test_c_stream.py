"""Outputs that pass the caches, in C: whole lines, aligned ones, and only where they would not stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ops.matrices import randn

import tilewright as tw
from tilewright import driver
from tilewright.runtime import build_c
from tilewright.schedule.record import parse_steps
from tilewright.support.errors import ScheduleError


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing stays: every kernel that is built passes the caches."""
    monkeypatch.setattr(build_c, "far", lambda: 0)
    yield


def matrix() -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(torch.randn(23, 31).relu())


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [16, 31, 32, 100, 128, 160, 512, 640])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.usefixtures("small_cache")
def test_streams(width: int, dtype: torch.dtype, reduce: str) -> None:
    """Rows of whole lines pass by, others do not; the result is the same."""
    A, x = matrix(), randn(31, width).to(dtype)
    A = A.with_values(A.values.to(dtype))
    y = tw.spmm(A, x, reduce=reduce)
    dense = A.to_dense().double()[:, :, None] * x.double()[None]
    stored = (A.to_dense() != 0)[:, :, None]
    want = {
        "sum": dense.sum(1),
        "mean": dense.sum(1) / stored.sum(1).clamp(min=1),
        "max": dense.masked_fill(~stored, -torch.inf).amax(1),
    }[reduce]
    close = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(y.double(), want, rtol=close, atol=4 * close)


def kernel_text(width: int, dtype: torch.dtype = torch.float32) -> driver.Kernel:
    @tw.program
    def product(a, x, y):  # type: ignore[no-untyped-def]
        i, j, f = tw.axes("i j f")
        y[i, f] = tw.sum(j, a[i, j] * x[j, f])

    A = matrix()
    (made,) = product.kernels(A.with_values(A.values.to(dtype)), randn(31, width).to(dtype))
    return made


def test_whole_lines_alone() -> None:
    assert "TW_PASS(y_at + f, acc[f / TW_F32S])" in kernel_text(48).text
    assert "tw_far" not in kernel_text(40).text
    half = kernel_text(32, torch.bfloat16).text  # rounded first
    assert "uint16_t line[32]" in half and "tw_stream(y + (i * 32 + 0), line, 64)" in half


@pytest.mark.parametrize("offset", [0, 1, 4, 15])
@pytest.mark.usefixtures("small_cache")
def test_outputs_that_begin_anywhere(offset: int) -> None:
    """A place that is no line's is written the usual way."""
    A, x = matrix(), randn(31, 48)
    made = driver.resume(kernel_text(48).stages["flat"])
    assert "tw_far" in made.text
    room = torch.full((23 * 48 + 32,), 7.0)
    begin = (-room.data_ptr() // 4) % 16 + offset
    y = room[begin : begin + 23 * 48].view(23, 48)
    csr = A.structure.as_csr()
    given = {"a_indptr": csr.indptr, "a_indices": csr.indices, "a": A.values, "x": x, "y": y}
    sizes = {"n_i": 23, "n_j": 31, "a_nnz": A.nnz, "n_f": 48}
    tensors = [given[b.name] for b in made.buffers]
    made.call(tensors, [t.data_ptr() for t in tensors], [sizes[n] for n in made.sizes], [])
    torch.testing.assert_close(y, A.to_dense() @ x)
    assert (room[:begin] == 7).all() and (room[begin + 23 * 48 :] == 7).all()


@pytest.mark.parametrize("name", ["x", "a_indices"])
def test_what_is_read_stays(name: str) -> None:
    with pytest.raises(ScheduleError, match="for what is written alone"):
        steps = parse_steps(f"kind(i, grid)\nkind(f, lane)\nstream({name})")
        driver.resume(kernel_text(48).stages["flat"], schedule=steps)


def test_half_of_the_last_cache() -> None:
    assert build_c.far() >= 1 << 20
    assert f"-DTW_FAR={build_c.far()}" in build_c.target_flags()
