"""Tensors of three dimensions of which one is kept: relational products, in one launch from any format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.matrices import TOLERANCE
from ops.places import TILED, Place
from ops.places import at as place_at
from torch import Tensor

import tilewright as tw
from tilewright.ops.ready import served

FORMATS = ("csf", "csf.3.dense", "bucket.2", "grouped.3.1", "parts")


@tw.program
def related(a: Any, x: Any, y: Any) -> None:
    r, i, j, f = tw.axes("r i j f")
    y[i, f] = tw.sum((r, j), a[r, i, j] * x[r, j, f])


@tw.program
def largest(a: Any, x: Any, y: Any) -> None:
    r, i, j, f = tw.axes("r i j f")
    y[i, f] = tw.max((r, j), a[r, i, j] * x[r, j, f])


@tw.program
def layer(a: Any, x: Any, w: Any, y: Any) -> None:
    """A relational graph convolution: the weights of the relation inside the sum."""
    r, i, j, k, f = tw.axes("r i j k f")
    y[i, f] = tw.sum((r, j), a[r, i, j] * tw.sum(k, x[j, k] * w[r, k, f]))


def entries(lengths: list[int], dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Entries of 4 relations, as many for each row as told, over 9 columns of which the last is never used."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    n = len(rows)
    at = torch.stack([torch.randint(0, 4, (n,), generator=g), rows])
    at = torch.cat([at, torch.randint(0, 8, (1, n), generator=g)])
    return at[:, torch.randperm(n, generator=g)], torch.randn(n, generator=g).to(dtype)


def tensor(at: Tensor, v: Tensor, rows: int, format: str) -> tw.SparseTensor:
    made = tw.SparseTensor.from_coords(at, v, (4, rows, 9))
    return made.decompose(tw.rules.hyb(1, 1)) if format == "parts" else made.to_format(format)


def expected(at: Tensor, v: Tensor, rows: int, x: Tensor, how: str) -> Tensor:
    each = v.double()[:, None] * x.double()[at[0], at[2]]
    made = torch.full((rows, x.shape[-1]), 0.0 if how == "sum" else -torch.inf).double()
    return made.scatter_reduce(0, at[1][:, None].expand_as(each), each, how)


LENGTHS = st.lists(st.one_of(st.just(0), st.integers(0, 6), st.just(60)), min_size=1, max_size=7)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


@settings(max_examples=12, deadline=None)
@given(LENGTHS, DTYPES, st.sampled_from(FORMATS), st.sampled_from(["sum", "amax"]))
def test_any_tensor(lengths: list[int], dtype: torch.dtype, format: str, how: str) -> None:
    at, v = entries(lengths, dtype)
    x = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[:, 8] = torch.nan
    a = tensor(at, v, len(lengths), format)
    want = expected(at, v, len(lengths), x, how)
    for name in ("c", TILED):
        with place_at(name) as place:
            for _ in range(2):
                run = related if how == "sum" else largest
                got = run(a.to(place.device), x.to(place.device))
                torch.testing.assert_close(got.double().cpu(), want, **TOLERANCE[dtype])


@pytest.mark.parametrize("format", FORMATS)
def test_one_launch_over_rows(format: str, where: Place) -> None:
    """Rows follow each other: nothing is searched, relation and column are read for each entry."""
    at, v = entries([3, 0, 40, 1, 7], torch.float32)
    a = tensor(at.to(where.device), v.to(where.device), 5, format)
    x = torch.randn(4, 9, 6, device=where.device)
    for _ in range(2):
        with served() as kernels:
            got = related(a, x)
    (kernel,) = kernels
    torch.testing.assert_close(got, tw.einsum("rij,rjf->if", a, x))
    torch.testing.assert_close(got, torch.einsum("rij,rjf->if", a.to_dense(), x))
    assert "find(" not in kernel.stages["flat"]
    names = {b.name for b in kernel.buffers}
    assert {"a_indices1", "a_indices2"} <= names
    assert ("units" in names) == (where.backend == "triton")


def test_weights_inside(where: Place) -> None:
    at, v = entries([3, 0, 12, 1, 7], torch.float32)
    a = tensor(at.to(where.device), v.to(where.device), 5, "parts")
    x, w = torch.randn(9, 3, device=where.device), torch.randn(4, 3, 5, device=where.device)
    with served() as kernels:
        got = layer(a, x, w)
    assert len(kernels) == 1
    torch.testing.assert_close(got, torch.einsum("rij,jk,rkf->if", a.to_dense(), x, w))


def test_grouped_once(fast: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """New values flow into what was made; the tensor itself stays as it is."""
    at, v = entries([3, 0, 12, 1, 7], torch.float32)
    a = tensor(at.to(fast.device), v.to(fast.device), 5, "parts")
    x = torch.randn(4, 9, 6, device=fast.device)
    related(a, x)
    monkeypatch.setattr(tw.SparseTensor, "to_format", lambda *_: pytest.fail("converted again"))
    torch.testing.assert_close(related(a.with_values(2 * a.values), x), 2 * related(a, x))
    assert a.format.startswith("parts+bucket")


def test_tuned(tiled: Place) -> None:
    at, v = entries([3, 0, 12, 1, 7], torch.float32)
    a = tensor(at.to(tiled.device), v.to(tiled.device), 5, "parts")
    x = torch.randn(4, 9, 6, device=tiled.device)
    want = related(a, x)
    setting = {"rows": 2, "unroll": 2, "long": 8, "chunk": 16, "warps": 1}
    assert (
        setting.items()
        <= tw.tune(related, a, x, settings=[setting], budget_s=0, save=False).items()
    )
    with served() as kernels:
        torch.testing.assert_close(related(a, x), want)
    assert kernels[0].setting["rows"] == 2


def test_gradients(fast: Place) -> None:
    at, v = entries([3, 0, 12, 1, 7], torch.float64)
    at = torch.unique(at, dim=1)  # looked up by the gradient of x
    a = tensor(at.to(fast.device), v[: at.shape[1]].to(fast.device), 5, "parts")
    x = torch.randn(4, 9, 2, dtype=torch.float64, device=fast.device, requires_grad=True)
    v = a.values.clone().requires_grad_()
    run = lambda v, x: related(a.with_values(v), x)
    assert torch.autograd.gradcheck(run, (v, x), fast_mode=True)


@tw.program
def each(a: Any, x: Any, y: Any) -> None:
    r, i, j = tw.axes("r i j")
    y[r, i] = tw.sum(j, a[r, i, j] * x[j])


@tw.program
def crossed(a: Any, x: Any, y: Any) -> None:
    r, i, j = tw.axes("r i j")
    y[i] = tw.sum((r, j), a[r, i, j] * a[r, j, i] * x[r])


def test_other_programs_read_the_tensor_as_it_is(where: Place) -> None:
    """Two dimensions kept, or one tensor addressed in two ways."""
    g = torch.Generator().manual_seed(0)
    dense = torch.randn(3, 6, 6, generator=g) * (torch.rand(3, 6, 6, generator=g) < 0.4)
    a = tw.SparseTensor.from_dense(dense.to(where.device), format="csf", dims=3)
    x, z = torch.randn(6, device=where.device), torch.randn(3, device=where.device)
    d = a.to_dense()
    torch.testing.assert_close(each(a, x), torch.einsum("rij,j->ri", d, x))
    torch.testing.assert_close(crossed(a, z), torch.einsum("rij,rji,r->i", d, d, z))
    assert not any(k[0] == "grouped" for k in a.structure.plans)


@tw.program
def beside(m: Any, a: Any, y: Any) -> None:
    r, i, j = tw.axes("r i j")
    y[r] = tw.sum(i, m[i, r] * tw.sum(j, a[r, i, j]))


@tw.program
def scaled(m: Any, a: Any, y: Any) -> None:
    r, i, j = tw.axes("r i j")
    y[r] = tw.sum((i, j), (m[i, r] + 1.0) * a[r, i, j])


@pytest.mark.parametrize("name", ["csr", "csc", "ell.6"])
@pytest.mark.parametrize("format", ["csf", "csf.3.dense", "bucket.4"])
def test_a_matrix_beside_three_dimensions(format: str, name: str, where: Place) -> None:
    g = torch.Generator().manual_seed(0)
    dense = torch.randn(6, 4, 5, generator=g) * (torch.rand(6, 4, 5, generator=g) < 0.4)
    a = tw.SparseTensor.from_dense(dense.to(where.device), format="csf", dims=3).to_format(format)
    m = (torch.randn(4, 6, generator=g) * (torch.rand(4, 6, generator=g) < 0.5)).to(where.device)
    sparse, d = tw.SparseTensor.from_dense(m).to_format(name), a.to_dense()
    torch.testing.assert_close(beside(sparse, a), torch.einsum("ir,rij->r", m, d))
    torch.testing.assert_close(scaled(sparse, a), torch.einsum("ir,rij->r", m + 1, d))
