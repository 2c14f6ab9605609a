"""What a call launches, and what is kept from one call to the next."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from ops.calls import CASES, launches
from ops.matrices import close, randn
from ops.places import INTERPRETER, Place
from semantics.stages import STAGES, run_step
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
from tilewright.formats.bind import bind
from tilewright.formats.storage import Spec
from tilewright.ir.interp import run_coord, run_loops
from tilewright.lowering.position import lower_to_position
from tilewright.ops import again, kept
from tilewright.ops.args import dense_text
from tilewright.ops.backend import backend
from tilewright.ops.dtypes import name_of
from tilewright.ops.entry import Entry
from tilewright.ops.packing import pack, packing
from tilewright.ops.products import listed_product
from tilewright.ops.ready import served
from tilewright.ops.registry import template
from tilewright.runtime.counters import counters

# Kernels of ours, and operations of torch, of a warm call on a GPU.
PINNED: dict[str, tuple[int, str]] = {
    "F.linear": (0, "addmm"),
    "linear rows": (2, ""),  # a list and b in all rows, the product
    "linear rows, no b": (2, ""),
    "linear k": (4, ""),  # flags, lists of them, what they name of x, the product
    "linear k, no b": (4, ""),
    "linear mask": (3, ""),
    "linear lengths": (4, ""),
    "linear numbers": (2, ""),
    "linear Index (1, None)": (2, ""),
    "linear Index 32x1": (2, ""),
    "family rows": (2, "zero_"),
    "family k": (4, ""),
    "family blocks": (3, ""),
    "matmul rows": (2, ""),
    "matmul k": (4, ""),
    "matmul columns": (2, "zero_"),
    "masked_linear 1x1": (3, "where copy_ copy_"),
    "masked_linear 16x16": (2, ""),
    "grouped_matmul, 1 slots": (1, "zero_"),
    "grouped_matmul, 2 slots": (1, "zero_"),
    "grouped_matmul, 2 slots, and gradients": (4, "zero_ zero_"),
    "from_mask": (1, ""),
    "from_lengths": (2, ""),
    "from_choices": (2, ""),
    "from_values ordered": (2, ""),
    "from_values (None, 1), ordered": (3, ""),  # flags of parts, of whole columns, a list
    "from_values (1, 1), grouped": (1, ""),  # values are flags
    "from_values grouped": (2, ""),
    "from_values any order": (1, ""),
}


def kind_of(name: str) -> str:
    return name if name in PINNED else f"from_values {name.split(', ')[-1]}"


@pytest.fixture
def triton() -> object:
    with backend("triton"):
        yield


@INTERPRETER
@pytest.mark.parametrize("name", [n for n in CASES if n != "linear auto"])
def test_launches_of_a_call(name: str, triton: object) -> None:
    call = CASES[name]()
    launches(call)
    made = launches(call)
    assert (len(made.ours), " ".join(made.torch)) == PINNED[kind_of(name)]


@INTERPRETER
def test_tiles_of_experts_are_made_once_for_an_index(triton: object) -> None:
    x, w = randn(6, 5), randn(3, 5, 4, seed=2)
    index = tw.Index.from_choices(torch.tensor([[0, 2]] * 6), 3)
    made = [launches(lambda: tw.ops.grouped_matmul(x, w, index)) for _ in range(2)]
    assert [len(m.ours) for m in made] == [3, 1]


# --- programs ---------------------------------------------------------------------------------------


def listed_case() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """x, w, b, lists of the k's of each 16 rows; and what the product is."""
    g = torch.Generator().manual_seed(3)
    x = randn(37, 29) * (torch.rand(37, 29, generator=g) < 0.06)
    x[16:32] = 0  # a list without entries
    w, b = randn(21, 29, seed=2), randn(21, seed=3)
    with backend("c"):
        index = tw.Index.from_values(x, (16, 1), grouped=True)
    given = {"x": x, "w": w, "k_list": index.positions, "k_count": index.counts}
    return given, b, x @ w.T + b


@pytest.mark.parametrize("stage", STAGES)
def test_packed_product_at_stage(stage: str) -> None:
    """What lists name of x side by side, then the product over it with a bias."""
    back = "c" if stage == "for-c" else "triton"
    given, b, want = listed_case()
    with backend(back):
        lists = {n: given[n] for n in ("x", "k_list", "k_count")}
        (step,) = Entry(dense_text(packing(16).name, lists), back).steps
        packed = run_step(stage, step, list(lists.values()), [], [])["x_packed"]
        for i, row in enumerate(given["x"]):
            named = given["k_list"][i // 16, : given["k_count"][i // 16]].long()
            np.testing.assert_array_equal(packed[: len(named), i], row[named].numpy())
        held = {**given, "x_packed": torch.from_numpy(np.nan_to_num(packed)), "b": b}
        name = listed_product("k", 1, 16, packed=True, biased=True)
        (step,) = Entry(dense_text(name, held), back).steps
        got = run_step(stage, step, list(held.values()), [], [])["y"]
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", ["coord", "loops"])
def test_rows_that_are_not_named_begin_as_the_bias(stage: str) -> None:
    """Both statements in one program: the second writes into what the first began."""
    x, w, b = randn(7, 5), randn(4, 5, seed=2), randn(4, seed=3)
    rows = torch.tensor([4, 1, 6, 0], dtype=torch.int32)
    count = torch.tensor([2], dtype=torch.int32)
    held = {"x": x, "w": w, "i_list": rows, "i_count": count, "b": b}
    t = template(listed_product("i", biased=True)).traced
    types = {n: Spec("dense", name_of(v.dtype), v.dim()) for n, v in held.items()}
    bound = bind(t, types)
    arrays = {n: v.numpy() for n, v in held.items()}
    sizes = {r.size: arrays[r.array].shape[r.dim] for r in bound.rules}
    if stage == "coord":
        got = run_coord(bound.program, arrays, sizes)["y"]
    else:
        got = run_loops(lower_to_position(bound.program), arrays, sizes)["y"]
    want = b.expand(7, 4).clone()
    want[[4, 1]] += x[[4, 1]] @ w.T
    np.testing.assert_allclose(got.reshape(7, 4), want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, 16])
def test_packing(size: int, where: Place) -> None:
    """One list for all rows, or one for each group; x in any layout; NaN where no list leads is not read."""
    x = randn(37, 29, device=where.device) * (torch.arange(29, device=where.device) % 3 == 0)
    tile = (size, 1) if size else (None, 1)
    index = tw.Index.from_values(x, tile, grouped=bool(size))
    poison = torch.where(x == 0, float("nan"), x)
    for t in (poison, poison.t().contiguous().t()):
        got = pack(t, index.positions, index.counts, size)
        torch.testing.assert_close(got[:10], x[:, ::3].t())


@pytest.mark.parametrize("asked", ["rows", "k", "mask", "lengths", "index"])
def test_bias_of_another_dtype(asked: str, where: Place) -> None:
    """It is added afterwards, as torch adds it."""
    x, w, b = (randn(*s, device=where.device) for s in ((2, 8, 5), (4, 5), (4,)))
    x[1, 3:] = 0
    sparse = {
        "mask": x[..., 0] != 0,
        "lengths": torch.tensor([8, 3], device=where.device),
        "index": tw.Index.from_values(x.reshape(16, 5), (1, None)),
    }.get(asked, asked)
    y = tw.linear(x, w, b.double(), sparse=sparse)
    assert y.dtype == torch.float64
    close(y, (x @ w.T).double() + b.double(), torch.float32)


# --- what is kept -----------------------------------------------------------------------------------


@INTERPRETER
def test_a_weight_is_copied_once(triton: object) -> None:
    kept.forget()
    w = randn(8, 6)
    first = kept.k_major(w, again=True)
    assert first.stride(0) == 1
    torch.testing.assert_close(first, w)
    assert kept.k_major(w, again=True) is first
    assert kept.k_major(w.view(8, 6), again=True) is first
    assert kept.k_major(w[:4], again=True).shape == (4, 6)
    w[2, 3] = 7.0
    changed = kept.k_major(w, again=True)
    assert changed is not first
    torch.testing.assert_close(changed, w)


@INTERPRETER
def test_nothing_is_kept_of_what_is_gone(triton: object) -> None:
    kept.forget()
    w = randn(8, 6)
    kept.k_major(w, again=True)
    del w
    gc.collect()
    kept.k_major(randn(3, 4), again=True)
    assert len(kept._COPIES) == 1


@INTERPRETER
def test_some_tensors_are_not_kept(triton: object) -> None:
    kept.forget()
    with torch.inference_mode():
        w = randn(8, 6)
        torch.testing.assert_close(kept.k_major(w, again=True), w)
    with FakeTensorMode():
        assert kept.k_major(torch.empty(8, 6), again=True).shape == (8, 6)
        assert kept.numbers(3, torch.int32, torch.empty(1)).shape == (3,)
    assert not kept._COPIES


@INTERPRETER
def test_a_weight_in_training_is_not_kept(triton: object) -> None:
    kept.forget()
    w = randn(8, 6).requires_grad_()
    (g,) = torch.autograd.grad((kept.k_major(w, again=True) * 3.0).sum(), w)
    torch.testing.assert_close(g, torch.full((8, 6), 3.0))
    with torch.no_grad():
        assert not kept.k_major(w, again=True).requires_grad
    assert not kept._COPIES


def _fused_step(p: torch.nn.Parameter) -> None:
    p.grad = torch.ones_like(p)
    torch.optim.SGD([p], 0.5, fused=True).step()


def _swapped_average(p: torch.nn.Parameter) -> None:
    average, p.data = p.data, torch.zeros_like(p)
    tw.linear(torch.ones_like(p), p, sparse="k")
    average.mul_(3.0)
    p.data = average


CHANGES = {
    "fused optimizer": _fused_step,
    ".data": lambda p: p.data.mul_(2.0),
    "average": _swapped_average,
    "copy": lambda p: p.detach().fill_(1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("read", [lambda p: p, lambda p: p.data], ids=["p", "p.data"])
def test_weights_that_change_without_a_version_are_read_again(
    where: Place, change: Any, read: Any
) -> None:
    x = randn(3, 6, device=where.device)
    p = torch.nn.Parameter(randn(8, 6, seed=2, device=where.device))
    for turn in (lambda _: None, change):
        turn(p)
        with torch.no_grad():
            close(tw.linear(x, read(p), sparse="k"), x @ p.T)


def test_what_is_kept_in_inference_mode_serves_training(where: Place) -> None:
    kept.forget()
    kept._NUMBERS.clear()
    x, w = randn(2, 4, 6, device=where.device), randn(8, 6, device=where.device)
    sizes = torch.tensor([3, 1], device=where.device)
    ids = torch.zeros(4, 1, dtype=torch.int64, device=where.device)
    chosen, experts = tw.Index.from_choices(ids, 1), w.T[None].contiguous()

    def sums(x: torch.Tensor) -> torch.Tensor:
        y = tw.linear(x, w, sparse=sizes).sum() + tw.linear(x[0], w, sparse="k").sum()
        return y + tw.ops.grouped_matmul(x[1], experts, chosen).sum()

    with torch.inference_mode():
        y = sums(x)
    assert sums(x.requires_grad_()) == y
    (g,) = torch.autograd.grad(sums(x), x)
    assert g.isfinite().all()


@INTERPRETER
def test_a_weight_that_changes_is_noticed_by_the_product(triton: object) -> None:
    x, w = randn(33, 6), randn(8, 6, seed=2)
    x[:, ::2] = 0
    for _ in range(2):
        close(tw.linear(x, w, sparse="k"), x @ w.T)
        w.mul_(2.0)


def test_other_values_compile_nothing_and_know_their_kind(where: Place) -> None:
    """Only sizes make a new kind; a shorter list does not."""
    w, b = randn(21, 29, seed=2, device=where.device), randn(21, seed=3, device=where.device)
    seen: list[int] = []
    for n in range(4):
        x = randn(37, 29, seed=n, device=where.device)
        x[: 9 * n] = 0
        for sparse in ("rows", "k"):
            close(tw.linear(x, w, b, sparse=sparse), torch.nn.functional.linear(x, w, b))
        seen.append(len(again._KINDS))
        if n == 0:
            counters.reset()
    assert counters.c_builds == counters.triton_builds == 0
    assert len({*seen}) == 1


def test_kinds_are_told_apart(where: Place) -> None:
    """By layout, dtype and size."""
    w = randn(4, 6, seed=2, device=where.device)
    for x in (
        randn(5, 6, device=where.device),
        randn(6, 5, device=where.device).t(),
        randn(9, 6, device=where.device),
        randn(5, 12, device=where.device)[:, ::2],
        randn(5, 6, device=where.device).double(),
    ):
        y = tw.linear(x, w.to(x.dtype), sparse="rows")
        close(y, x @ w.to(x.dtype).T)


def test_a_count_may_lie_anywhere(tiled: Place) -> None:
    """What is read one element at a time needs no address of its own kind, and no kernel."""
    x, w = (randn(n, 16, seed=n, device=tiled.device) for n in (7, 5))
    at = torch.tensor([0, 0, 0, 2, 4], dtype=torch.int32, device=tiled.device)
    rows = torch.arange(8, dtype=torch.int32, device=tiled.device)
    seen = []
    for count in (at[3:4].clone(), at[3:4], at[4:5]):
        index = tw.Index(rows, count, (7, 16), (1, None))
        with served() as kernels:
            y = tw.linear(x, w, sparse=index)
        seen += kernels
        n = int(count)
        close(y, torch.cat([x[:n] @ w.T, torch.zeros(7 - n, 5, device=tiled.device)]))
    assert len({id(k) for k in seen}) == 1 and seen[0].loose == ("i_count",)


@pytest.mark.gpu
def test_a_graph_reads_the_weight_as_it_is() -> None:
    """Copies that are kept are no part of a graph: a weight that changed is copied again in each replay."""
    x, w = (randn(64, 32, seed=k, device=torch.device("cuda")) for k in (1, 2))
    x[:, ::2] = 0
    tw.linear(x, w, sparse="k")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tw.linear(x, w, sparse="k")
    w.mul_(2.0)
    graph.replay()
    torch.testing.assert_close(y, x @ w.T, rtol=1e-3, atol=1e-3)


def test_cases_are_all_pinned() -> None:
    assert {kind_of(n) for n in CASES if n != "linear auto"} == {*PINNED}


def test_another_default_device() -> None:
    """Tensors say where they are."""
    x, A = torch.randn(6, 4), tw.SparseTensor.from_dense(torch.eye(6))
    with torch.device("meta"):
        got = tw.linear(x, x, sparse="rows"), (A + A).to_dense(), tw.spmm(A, x)
    for made, want in zip(got, (x @ x.T, 2 * A.to_dense(), x), strict=True):
        torch.testing.assert_close(made, want)
