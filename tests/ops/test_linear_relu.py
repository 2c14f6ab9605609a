"""tw.ops.linear_relu: a layer with ReLU and an index of what it left, against torch; and the layer after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fuzz.lists import same, wanted
from ops.matrices import TOLERANCE, close, leaf, randn
from ops.places import Place
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear

import tilewright as tw
from tilewright.ops.backend import backend
from tilewright.ops.kept import k_major
from tilewright.ops.linear_relu import linear_relu
from tilewright.ops.ready import served
from tilewright.runtime.counters import counters
from tilewright.support.errors import TilewrightError


def dense(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return linear(x, w, b).relu()


def sparse(*shape: int, **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    """x, w, b of which the ReLU leaves about a tenth; all zero in the last rows."""
    m, n, k = shape
    x, w = randn(m, k, **how), randn(n, k, seed=2, **how)
    x[m - m // 4 :] = 0.0
    return x, w, randn(n, seed=3, **how) - 1.3 * k**0.5


PATTERNS: dict[str, Callable[[Tensor], None]] = {
    "nothing": lambda x: x.fill_(-1.0),
    "all": lambda x: x.abs_().add_(1.0),
    "row": lambda x: x.neg_().clamp_(max=-0.1)[5].fill_(1.0),
    "blocks": lambda x: x.fill_(-1.0)[8:16, 16:24].fill_(2.0),
    "nan": lambda x: x.fill_(-1.0)[7, 3].fill_(float("nan")),
}


@pytest.mark.parametrize("tile", [(32, 1), (8, 4)], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern(pattern: str, tile: tuple[int, int], where: Place) -> None:
    """h is the ReLU of a pattern, multiplied by 1."""
    x = randn(35, 40, device=where.device)
    PATTERNS[pattern](x)
    h, index = linear_relu(x, torch.eye(40, device=where.device), tile=tile)
    want = dense(x, torch.eye(40, device=where.device))
    torch.testing.assert_close(h, want, equal_nan=True)
    assert index.tile == tile and index.shape == (35, 40) and index.groups == index.grid[0]
    assert same(index, wanted(h.cpu(), tile)) is None
    if pattern == "nan":
        assert index.counts.tolist()[0] == (40 if tile[1] == 1 else 10)


@pytest.mark.parametrize("layout", [None, "rows", "k"])
@pytest.mark.parametrize("tile", [(1, 1), (32, 1), (16, 64)], ids=str)
def test_layout(tile: tuple[int, int], layout: str | None, where: Place) -> None:
    x, w, b = sparse(37, 70, 12, device=where.device)
    h, index = linear_relu(x, w, b, tile=tile, layout=layout)
    close(h, dense(x, w, b))
    assert same(index, wanted(h.cpu(), tile)) is None
    thin = tile[1] == 1 and where.backend == "triton"
    assert h.stride() == ((1, 37) if layout == "k" or (not layout and thin) else (70, 1))


def test_the_next_product_copies_nothing(tiled: Place) -> None:
    h, _ = linear_relu(*sparse(37, 70, 12, device=tiled.device))
    assert k_major(h) is h


def test_one_kernel(where: Place) -> None:
    """On a GPU the list is made by the product's kernel; on a CPU torch multiplies and a detector follows."""
    given = sparse(20, 30, 8, dtype=torch.float16, device=where.device)
    with served() as kernels:
        linear_relu(*given)
    assert len(kernels) == 1
    assert "dot(" in kernels[0].stages.get("tile", "") or where.name == "c"


def test_wide_numbers_are_torchs(where: Place) -> None:
    """Without tensor cores the vendor's product is faster; the layer lies by k all the same."""
    given = sparse(20, 30, 8, device=where.device)
    with served() as kernels:
        h, _ = linear_relu(*given)
    assert not any("dot(" in k.stages.get("tile", "") for k in kernels)
    assert h.stride() == ((1, 20) if where.backend == "triton" else (30, 1))


@pytest.mark.parametrize(
    "shape", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1, 1), (1, 130, 7)], ids=str
)
@pytest.mark.parametrize("bias", [True, False])
def test_shape(shape: tuple[int, int, int], bias: bool, where: Place) -> None:
    x, w, b = (t.to(where.device) for t in sparse(*shape))
    given = (x, w, b + 1.0) if bias else (x, w)
    h, index = linear_relu(*given)
    close(h, dense(*given))
    assert same(index, wanted(h.cpu(), (32, 1))) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    x, w, b = sparse(37, 40, 16, dtype=dtype, device=where.device)
    h, index = linear_relu(x, w, b, tile=(16, 2))
    assert h.dtype == dtype
    want = dense(x.double(), w.double(), b.double())
    torch.testing.assert_close(h.double(), want, **TOLERANCE[dtype])
    assert same(index, wanted(h.cpu(), (16, 2))) is None


def test_values_are_looked_at_after_rounding(where: Place) -> None:
    """What a narrow dtype rounds to 0 is no value."""
    x = torch.full((3, 1), 2.0**-20, device=where.device).half()
    w = torch.tensor([[2.0**-20], [1.0]], device=where.device).half()
    h, index = linear_relu(x, w, tile=(2, 1))
    assert index.counts.tolist() == [1, 1] and index.positions[:, 0].tolist() == [1, 1]
    assert not h[:, 0].any() and h[:, 1].all()


def test_operands_in_any_layout(where: Place) -> None:
    x, w, b = sparse(37, 21, 12, device=where.device)
    b2 = torch.stack([b, b], 1)[:, 0]
    close(linear_relu(x.t().contiguous().t(), w.t().contiguous().t(), b2)[0], dense(x, w, b))
    batch = x[:36].reshape(4, 9, 12)
    h, index = linear_relu(batch, w, b)
    close(h, dense(batch, w, b))
    assert same(index, wanted(h.reshape(36, 21).cpu(), (32, 1))) is None
    w2 = randn(5, 21, seed=4, device=where.device)
    close(tw.linear(h, w2, sparse=index), linear(h, w2))


def test_lists_in_order(where: Place) -> None:
    x, w, b = sparse(37, 70, 12, device=where.device)
    given = [linear_relu(x, w, b, ordered=True)[1]]
    torch.use_deterministic_algorithms(True)
    try:
        given.append(linear_relu(x, w, b)[1])
    finally:
        torch.use_deterministic_algorithms(False)
    for index in given:
        assert index.ordered and all(p.tolist() == sorted(p.tolist()) for p in index.compact())


# --- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["rows", "k"])
def test_gradcheck(layout: str, fast: Place) -> None:
    x, w, b = (
        leaf(randn(*s, seed=len(s), dtype=torch.float64, device=fast.device))
        for s in ((9, 5), (6, 5), (6,))
    )
    call = lambda *given: linear_relu(*given, tile=(4, 2), layout=layout)[0]
    assert torch.autograd.gradcheck(call, (x, w, b))
    assert torch.autograd.gradcheck(call, (x, w))


def test_gradient_passes_nan(where: Place) -> None:
    """As in torch: where h is NaN, its gradient passes."""
    x, w = (leaf(t) for t in sparse(5, 6, 4, device=where.device)[:2])
    with torch.no_grad():
        x[1, 2] = float("nan")
    got = torch.autograd.grad(linear_relu(x, w)[0].nansum(), (x, w))
    want = torch.autograd.grad(dense(x, w).nansum(), (x, w))
    for g, t in zip(got, want, strict=True):
        torch.testing.assert_close(g, t, equal_nan=True)


@pytest.mark.parametrize("tile", [(32, 1), (8, 4)], ids=str)
def test_two_layers(tile: tuple[int, int], where: Place) -> None:
    """A given index cuts the gradient of h where h is 0: the ReLU does so too; the rest is the dense network's."""
    x, w1, b1 = sparse(40, 48, 12, device=where.device)
    w2, b2 = randn(10, 48, seed=4, device=where.device), randn(10, seed=5, device=where.device)
    given = [leaf(t) for t in (x, w1, b1, w2, b2)]
    weight = randn(40, 10, seed=6, device=where.device)

    def network(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        h, index = linear_relu(x, w1, b1, tile=tile)
        return tw.linear(h, w2, b2, sparse=index)

    y, want = network(*given), linear(dense(*given[:3]), *given[3:])
    close(y, want)
    got = torch.autograd.grad((y * weight).sum(), given)
    for g, t in zip(got, torch.autograd.grad((want * weight).sum(), given), strict=True):
        torch.testing.assert_close(g, t, rtol=1e-4, atol=1e-4)


# --- torch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["rows", "k"])
def test_shapes_without_values(layout: str) -> None:
    with FakeTensorMode():
        x, w = torch.empty(35, 12), torch.empty(70, 12)
        h, index = linear_relu(x, w, tile=(16, 4), layout=layout)
    assert h.shape == (35, 70) and h.stride() == ((1, 35) if layout == "k" else (70, 1))
    assert index.positions.shape == (3, 18) and index.counts.shape == (3,)


def test_another_pattern_builds_nothing(where: Place) -> None:
    x, w, b = sparse(37, 40, 12, device=where.device)
    linear_relu(x, w, b)
    counters.reset()
    for rows in (37, 36, 5):
        linear_relu(-x[:rows], w, b)
    assert counters.c_builds == counters.triton_builds == counters.disk_hits == 0


@pytest.mark.gpu
def test_a_graph_is_replayed_on_other_patterns() -> None:
    """Counts begin at 0 in each replay, and nothing waits for the device."""
    x, w, b = (t.cuda().bfloat16() for t in sparse(300, 200, 64))
    w2 = randn(32, 200, seed=4, device="cuda").bfloat16()

    def network() -> tuple[Tensor, tw.Index, Tensor]:
        h, index = linear_relu(x, w, b)
        return h, index, tw.linear(h, w2, sparse=index)

    network()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h, index, y = network()
    for seed in range(4):
        x.copy_(randn(300, 64, seed=seed))
        x[seed * 50 : seed * 80] = 0.0
        graph.replay()
        torch.testing.assert_close(h, dense(x, w, b), rtol=3e-2, atol=3e-2)
        assert same(index, wanted(h.float().cpu(), (32, 1))) is None
        torch.testing.assert_close(y, linear(h, w2), rtol=3e-2, atol=1e-1)


# --- mistakes ---------------------------------------------------------------------------------------

WRONG = {
    "rows": ({"tile": (1, None)}, "two powers of two up to 64"),
    "odd": ({"tile": (24, 1)}, "two powers of two up to 64"),
    "large": ({"tile": (128, 1)}, "Index.from_values finds other micro-tiles"),
    "layout": ({"layout": "columns"}, "'rows' or 'k'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name: str) -> None:
    how, told = WRONG[name]
    with pytest.raises(TilewrightError, match=told):
        linear_relu(*sparse(4, 6, 3), **how)


def test_mistakes_in_operands() -> None:
    x, w, b = sparse(4, 6, 3)
    for given, told in (((x, w[:, 1:]), "columns, as many as x"), ((x, w, b[1:]), "6 entries")):
        with pytest.raises(TilewrightError, match=told):
            linear_relu(*given)
    with pytest.raises(TilewrightError, match="floating point"):
        linear_relu(x.int(), w)


def test_it_is_the_public_one() -> None:
    assert tw.ops.linear_relu is linear_relu
    with backend("c"):
        _, index = tw.ops.linear_relu(*sparse(4, 6, 3))
    assert "micro-tiles of 32 x 1 in 4 x 6" in str(index) and "in any order" in str(index)


@pytest.mark.parametrize("tile", [(32, 1), (8, 16)], ids=str)
@pytest.mark.parametrize("dtypes", ["half float none", "half half float", "float half half"])
def test_dtypes_are_promoted_whatever_the_tile(dtypes: str, tile: Any, where: Place) -> None:
    x, w, b = (
        None if d == "none" else randn(*shape, seed=n, device=where.device).to(getattr(torch, d))
        for n, (d, shape) in enumerate(
            zip(dtypes.split(), ((40, 24), (48, 24), (48,)), strict=True)
        )
    )
    with torch.autocast(where.device.type, torch.bfloat16):
        h, _ = linear_relu(x, w, b, tile=tile)
    assert h.dtype == torch.float32
    exact = torch.nn.functional.linear(x.float(), w.float(), None if b is None else b.float())
    torch.testing.assert_close(h, exact.relu(), rtol=1e-3, atol=1e-2)


def test_sizes_that_a_graph_pins() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        h, index = tw.ops.linear_relu(x, x)
        assert h.shape[0] == 6
        return tw.linear(h, h, sparse=index)

    x = torch.randn(6, 4)
    made = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(made(x), layer(x))
