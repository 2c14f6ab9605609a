"""Products over zeros found in each call: every family against torch, and the choice between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ops.matrices import TOLERANCE, close, randn
from ops.places import Place
from torch.nn.functional import linear

import tilewright as tw
from tilewright.ops import dynamic, families
from tilewright.ops.dynamic import auto
from tilewright.ops.families import FAMILIES
from tilewright.ops.products import _in_waves
from tilewright.ops.ready import served
from tilewright.pit import watch
from tilewright.pit.tiles import Costs, Tile
from tilewright.support.errors import TilewrightError

SIZES = [(70, 40, 130), (33, 5, 64), (64, 64, 128), (1, 1, 1), (5, 3, 200)]


def some(m: int, k: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows and parts of rows that are 0."""
    x = randn(m, k, dtype=dtype, device=device)
    x[::3] = 0
    x[: m // 2, k // 2 :] = 0
    return x


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    made: str = request.param
    return made


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_family(family: str, size: tuple[int, int, int], where: Place) -> None:
    m, n, k = size
    x, w = some(m, k, where.device), randn(n, k, seed=2, device=where.device)
    f = FAMILIES[family]
    close(f.run(x, w, f.detect(x)), x @ w.t())


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("size", [*SIZES, (9, 300, 2100), (0, 4, 6)], ids=str)
def test_a_family_finds_for_itself(
    family: str, size: tuple[int, int, int], biased: bool, where: Place
) -> None:
    m, n, k = size
    x, w = some(m, k, where.device), 0.1 * randn(n, k, seed=2, device=where.device)
    b = randn(n, seed=3, device=where.device) if biased else None
    y, index = FAMILIES[family].found(x, w, b, 1)
    close(y, linear(x, w, b))
    want = FAMILIES[family].detect(x)
    assert torch.equal(index.counts.cpu(), want.counts.cpu()) and index.tile == want.tile


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_rows_begin_where_they_are_looked_at(biased: bool, tiled: Place) -> None:
    """Two launches: rows are found and begun, then multiplied."""
    x, w = some(33, 70, tiled.device), randn(40, 70, seed=2, device=tiled.device)
    b = randn(40, seed=3, device=tiled.device) if biased else None
    with served() as kernels:
        y, _ = FAMILIES["rows"].found(x, w, b, 0)
    close(y, linear(x, w, b))
    assert len(kernels) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_family_in_other_dtypes(family: str, dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    x = some(70, 130, where.device, dtype)
    w = randn(9, 130, seed=2, dtype=dtype, device=where.device)
    f = FAMILIES[family]
    got = f.run(x, w, f.detect(x))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), x.double() @ w.double().t(), **TOLERANCE[dtype])


@pytest.mark.parametrize("full", [False, True], ids=["nothing", "everything"])
def test_family_of_extremes(family: str, full: bool, where: Place) -> None:
    x = torch.full((40, 70), float(full), device=where.device)
    w = randn(6, 70, seed=2, device=where.device)
    f = FAMILIES[family]
    close(f.run(x, w, f.detect(x)), x @ w.t())


def test_family_reads_what_is_listed(family: str, where: Place) -> None:
    """NaN in every micro-tile that no list names."""
    x, w = randn(96, 192, device=where.device), randn(7, 192, seed=2, device=where.device)
    x[32:64] = 0
    x[:, 64:128] = 0
    f = FAMILIES[family]
    index, want = f.detect(x), x @ w.t()
    x[32:64] = float("nan")
    if family != "rows":
        x[:, 64:128] = float("nan")
        w[:, 64:128] = float("nan")
    close(f.run(x, w, index), want)


def test_transposed_views(family: str, where: Place) -> None:
    x = some(40, 70, where.device).t().contiguous().t()
    w = randn(70, 9, seed=2, device=where.device).t()
    f = FAMILIES[family]
    close(f.run(x, w, f.detect(x)), x @ w.t())


# --- the choice -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call was made before; steps cost so much that what is skipped pays; all are looked for every second time."""
    tile = Tile(32, 64, 64, 4, 3, step=1000.0, gathered=1300.0, start=1.0)
    costs = Costs("a device", "f32", 1, tile, (tile,), detect=1.0, look=1e6, write=1e6)
    monkeypatch.setattr(dynamic, "costs_of", lambda *_: costs)
    monkeypatch.setattr(watch, "EVERY", 2)
    monkeypatch.setattr(dynamic, "_PLACES", {})
    monkeypatch.setattr(dynamic.CHOOSER, "made", {})


def settle(x: torch.Tensor, w: torch.Tensor) -> str:
    """The family after a few calls: on a GPU, numbers arrive late."""
    for _ in range(4):
        auto(x, w)
        if x.is_cuda:
            torch.cuda.synchronize()
    return dynamic.CHOOSER.made[dynamic._place(x, w).site].family


def inputs(where: Place) -> dict[str, torch.Tensor]:
    full = randn(64, 128, device=where.device)
    rows, blocks = full.clone(), full.clone()
    rows.view(8, 8, 128)[:, 1:] = 0
    blocks[:, 64:] = 0
    return {"dense": full, "rows": rows, "blocks": blocks}


@pytest.mark.parametrize("kind", ["dense", "rows", "blocks"])
def test_auto_finds_the_family(kind: str, where: Place) -> None:
    x, w = inputs(where)[kind], randn(16, 128, seed=2, device=where.device)
    b = randn(16, seed=3, device=where.device)
    assert settle(x, w) == kind
    close(auto(x, w, b), linear(x, w, b))
    assert f"linear 64 x 16 x 128, f32 on {dynamic._place(x, w).site.device}: {kind}" in (
        auto.explain(x, w)  # type: ignore[attr-defined]
    )


def test_auto_follows_what_changes(fast: Place) -> None:
    given, w = inputs(fast), randn(16, 128, seed=2, device=fast.device)
    assert [settle(given[k], w) for k in ("rows", "dense", "blocks", "rows")] == [
        "rows",
        "dense",
        "blocks",
        "rows",
    ]


INDEX = {"rows": ((1, None), False), "k": ((32, 1), True), "blocks": ((16, 64), True)}


@pytest.mark.parametrize("family", INDEX)
@pytest.mark.parametrize("full", [False, True], ids=["few", "all"])
def test_auto_with_an_index(family: str, full: bool, where: Place) -> None:
    """Nothing is looked for: what was given multiplies, or dense where it names all."""
    x, w = randn(64, 128, device=where.device), randn(16, 128, seed=2, device=where.device)
    b = randn(16, seed=3, device=where.device)
    x[:, 2 if not full else 128 :] = 0
    x[2 if not full else 64 :] = 0
    tile, grouped = INDEX[family]
    index = tw.Index.from_values(x, tile, grouped=grouped)
    with served() as kernels:
        for _ in range(3):
            close(auto(x, w, b, index=index), linear(x, w, b))
    assert not any("append" in str(k.stages.get("flat")) for k in kernels)
    told = auto.explain(x, w, index)  # type: ignore[attr-defined]
    named = " x ".join("all" if t is None else str(t) for t in tile)
    assert f"an index for {family} of {named} given: {'dense' if full else family}" in told
    assert "index " not in told.split("\n", 1)[1]
    assert "nothing was chosen yet" in auto.explain(x, w)  # type: ignore[attr-defined]


def test_auto_with_an_index_has_gradients(fast: Place) -> None:
    x, w = inputs(fast)["rows"], randn(16, 128, seed=2, device=fast.device)
    index = tw.Index.from_values(x, (1, None))
    for _ in range(2):
        auto(x, w, index=index)
    mine, theirs = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
    (auto(*mine, index=index) ** 2).sum().backward()
    (linear(*theirs) ** 2).sum().backward()
    for a, c in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, c.grad, rtol=1e-3, atol=1e-2)


def test_auto_takes_batches_and_nothing(where: Place) -> None:
    w = randn(5, 12, seed=2, device=where.device)
    for shape in ((2, 3, 12), (12,), (0, 12)):
        x = randn(*shape, device=where.device)
        close(auto(x, w), linear(x, w))


@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_auto_gradients(kind: str, fast: Place) -> None:
    """A value that is 0 has a gradient too."""
    x, w = inputs(fast)[kind], randn(16, 128, seed=2, device=fast.device)
    b = randn(16, seed=3, device=fast.device)
    assert settle(x, w) == kind
    mine, theirs = ([t.clone().requires_grad_() for t in (x, w, b)] for _ in range(2))
    (auto(*mine) ** 2).sum().backward()
    (linear(*theirs) ** 2).sum().backward()
    for a, c in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, c.grad, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_auto_gradcheck(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[kind]
    monkeypatch.setattr(dynamic, "_chosen", lambda x, w: dynamic.Plan(family, family.detect(x)))
    x, w = some(5, 6, torch.device("cpu"), torch.float64), randn(3, 6, dtype=torch.float64)
    tensors = [t.requires_grad_() for t in (x, w, randn(3, seed=3, dtype=torch.float64))]
    assert torch.autograd.gradcheck(auto, tensors)
    assert torch.autograd.gradgradcheck(auto, tensors)


def test_auto_is_dense_inside_compile() -> None:
    x, w = some(8, 6, torch.device("cpu")), randn(3, 6, seed=2)
    made = torch.compile(auto, backend="eager", fullgraph=True)
    close(made(x, w), linear(x, w))
    assert not dynamic.CHOOSER.made


def test_auto_under_autocast(where: Place) -> None:
    x, w = some(8, 6, where.device), randn(3, 6, seed=2, device=where.device)
    with torch.autocast(where.device.type, torch.bfloat16):
        assert auto(x, w).dtype == torch.bfloat16


@pytest.mark.gpu
def test_a_graph_keeps_what_was_chosen() -> None:
    where = Place("cuda")
    x, w = inputs(where)["blocks"].bfloat16(), randn(16, 128, device=where.device).bfloat16()
    assert settle(x, w) == "blocks"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = auto(x, w)
    x.copy_(inputs(where)["dense"])
    graph.replay()
    torch.testing.assert_close(y, linear(x, w), rtol=2e-2, atol=1e-1)


WRONG = {
    "w": (lambda x, w, b: auto(x, w[:, 1:]), "columns, as many as x"),
    "b": (lambda x, w, b: auto(x, w, b[1:]), "3 entries"),
    "dtype": (lambda x, w, b: auto(x, w.double()), "as x"),
    "integers": (lambda x, w, b: auto(x.int(), w), "a floating point dtype"),
    "an index of elements": (
        lambda x, w, b: auto(x, w, index=tw.Index.from_values(x)),
        "an index of rows",
    ),
    "an index of another": (
        lambda x, w, b: auto(x, w, index=tw.Index.from_values(x[:2], (1, None))),
        "an index of",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name: str) -> None:
    call, told = WRONG[name]
    with pytest.raises(TilewrightError, match=told):
        call(randn(4, 6), randn(3, 6), randn(3))


@pytest.mark.parametrize("expected", [0, 1, 40, 5000])
def test_what_is_expected_changes_no_result(expected: int, where: Place) -> None:
    x, w = randn(40, 32, seed=1, device=where.device), randn(24, 32, seed=2, device=where.device)
    x[torch.arange(40, device=where.device) % 3 > 0] = 0
    family = FAMILIES["rows"]
    known = replace(family.detect(x), expected=expected)
    close(family.run(x, w, known), linear(x, w))


def test_tiles_of_rows_fill_waves() -> None:
    """By hand: 2,068 rows of 4,096 columns are 2 waves of 128 x 256 and 20 rows, 4 of 64 x 256, 5 of 128 x 128."""
    said = {
        (2068, 4096, 4096): (128, 256),
        (523, 1024, 4096): (64, 128),
        (4096, 4096, 4096): (128, 256),
    }
    for (rows, columns, inner), tile in said.items():
        made = _in_waves(2, rows, columns, inner, rows)
        assert (made["bm"], made["bn"]) == tile
    few, many = (_in_waves(2, 341, 1024, 1024, room) for room in (341, 32768))
    assert (
        _in_waves(4, 523, 1024, 4096, 1024)["pieces"] == 8
    )  # 72 tiles of 64 x 128: sums in 5 pieces each
    assert few["bm"] == many["bm"] == 64 and "pieces" in many  # most programs would find no rows


def test_a_graph_does_not_copy_its_weights() -> None:
    """Families over k's read w by k: in a CUDA graph only if it lies so already."""
    x, w = randn(64, 32, seed=1), randn(48, 32, seed=2)
    place = dynamic._place(x, w)
    place.family = FAMILIES["k"]
    assert place.frozen(w) is None
    by_k = w.t().contiguous().t()
    plan = place.frozen(by_k)
    assert plan is not None and plan.family is FAMILIES["k"]
    close(plan.run(x, by_k, None), linear(x, w))
    dynamic.forget()


@pytest.mark.parametrize("shape", [(64, 128, 40), (70, 130, 33), (5, 64, 1), (32, 63, 8)], ids=str)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("way", [families._by_groups, families._by_columns])
def test_blocks_on_a_cpu(way: Any, density: float, shape: tuple[int, int, int]) -> None:
    """Group by group, or column by column: the same; what is not listed is not read."""
    m, k, n = shape
    held = (
        torch.rand(-(-m // 32), -(-k // 64), generator=torch.Generator().manual_seed(4)) < density
    )
    whole = held.repeat_interleave(32, 0).repeat_interleave(64, 1)[:m, :k]
    x, w = randn(m, k) * whole, randn(n, k, seed=2)
    index = families.FAMILIES["blocks"].detect(x)
    dirty = x.masked_fill(~whole, float("nan"))
    close(way(dirty, w, index), x @ w.T)
    w.mul_(2.0)  # a copy that is kept notices
    close(way(dirty, w, index), x @ w.T)
    close(way(dirty, w.requires_grad_(), index).detach(), (x @ w.T).detach())
