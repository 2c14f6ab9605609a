"""Tokens by the weights of the experts that they chose, against a loop over all choices."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from ops.matrices import randn
from ops.places import Place
from semantics.stages import STAGES, run_step
from torch import Tensor

import tilewright as tw
from tilewright.ir.parse import parse
from tilewright.ir.text import text as text_of
from tilewright.ops import grouped_matmul
from tilewright.ops.args import dense_arg, dense_text, program_text
from tilewright.ops.backend import backend
from tilewright.ops.entry import Entry
from tilewright.ops.grouped_matmul import _call, expert_tiles, grouped_product, tile_of, tiles_of
from tilewright.ops.registry import TEMPLATES, register, template
from tilewright.ops.vendor import SERVED

# tokens, slots, experts, k, n, and which ids: all, with some that name no expert, one expert only
CASES = {
    "some": (13, 2, 4, 9, 7, (-1, 4)),
    "tiles": (40, 3, 2, 17, 20, (0, 2)),
    "one slot": (11, 1, 3, 5, 6, (0, 3)),
    "one expert": (20, 2, 5, 5, 6, (2, 3)),
    "none": (6, 2, 3, 5, 6, (-1, 0)),
    "no tokens": (0, 2, 3, 5, 6, (0, 3)),
}


def drawn(name: str, where: Place, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    tokens, slots, experts, k, n, ids = CASES[name]
    g = torch.Generator().manual_seed(len(name))
    shapes = ((tokens, k), (experts, k, n), (tokens, slots))
    made = [randn(*s, seed=k, dtype=dtype, device=where.device) for k, s in enumerate(shapes)]
    return [*made, torch.randint(*ids, (tokens, slots), generator=g).to(where.device)]


def right(x: Tensor, w: Tensor, gates: Tensor, ids: Tensor) -> Tensor:
    """[tokens, slots, n], before gates."""
    whole = torch.cat([w, torch.zeros_like(w[:1])])
    ids = torch.where((ids < 0) | (ids >= len(w)), len(w), ids)
    return torch.einsum("tk,tskn->tsn", x, whole[ids])


def gradients(y: Tensor, *of: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y.square().sum(), of)]


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, gated: bool, where: Place) -> None:
    x, w, gates, ids = drawn(name, where)
    x, w, gates = (t.requires_grad_() for t in (x, w, gates))
    index = tw.Index.from_choices(ids, len(w))
    of = (x, w, gates) if gated else (x, w)
    got = gradients(grouped_matmul(x, w, index, weights=gates if gated else None), *of)
    whole = right(x, w, gates, ids)
    want = gradients((whole * gates[..., None]).sum(1) if gated else whole, *of)
    for a, e in zip(got, want, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    x, w, gates, ids = drawn("tiles", where, dtype)
    x, w = x.requires_grad_(), w.requires_grad_()
    got = gradients(grouped_matmul(x, w, tw.Index.from_choices(ids, len(w))), x, w)
    x, w = (t.detach().double().requires_grad_() for t in (x, w))
    want = gradients(right(x, w, gates, ids), x, w)
    tolerance = {torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for a, e in zip(got, want, strict=True):
        assert a.dtype == dtype
        scale = float(e.abs().max())
        torch.testing.assert_close(a.double() / scale, e / scale, rtol=tolerance, atol=tolerance)


OWN = template(grouped_product(2).name).own
assert OWN is not None
STEPS = {
    "y": grouped_product(2),
    "d_q": OWN.first[0],
    "d_x": OWN.of["x"][0],
    "d_w": OWN.of["w"][0],
}


def step_call(name: str, back: str) -> tuple[str, list[Tensor], list[int], dict[str, Tensor]]:
    """A program by its output, and all tensors by name."""
    x, w, _, ids = drawn("some", Place("c"))
    _, given, ints = _call(x, w, tw.Index.from_choices(ids, len(w)))
    tensors = dict(given)
    tensors |= {"d_y": randn(ids.numel(), w.shape[2], seed=5), "d_q": randn(ids.numel(), 9, seed=6)}
    tensors |= {"ids": ids.reshape(-1)}
    t = STEPS[name]
    if t.name not in TEMPLATES:
        register(t)
    args = tuple(dense_arg(n, tensors[n]) for n in t.inputs)
    return program_text(t.name, args), [tensors[n] for n in t.inputs], ints("", []), tensors


def step_right(name: str, t: dict[str, Tensor]) -> Tensor:
    w, ids = t["w"], t["ids"]
    token = torch.arange(len(ids)) // 2
    chosen = torch.nn.functional.one_hot(ids + 1, len(w) + 1)[:, 1:].float()  # [places, experts]
    if name == "y":
        return torch.einsum("qk,qe,ekn->qn", t["x"][token], chosen, w)
    if name == "d_q":
        return torch.einsum("qn,qe,ekn->qk", t["d_y"], chosen, w)
    if name == "d_x":
        return t["d_q"].reshape(len(t["x"]), 2, -1).sum(1)
    return torch.einsum("qk,qe,qn->ekn", t["x"][token], chosen, t["d_y"])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", STEPS)
def test_stage(name: str, stage: str) -> None:
    """Forward and backward mean the same at every stage, without torch's help."""
    back = "c" if stage == "for-c" else "triton"
    with backend(back), mock.patch.dict(SERVED, clear=True):
        text, held, ints, tensors = step_call(name, back)
        got = run_step(stage, Entry(text, back).steps[0], held, ints, [])[name]
    want = step_right(name, tensors)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_tiles_at_stage(stage: str) -> None:
    """Both statements that cut experts into tiles; an expert with several, one with part of a tile, one without."""
    back = "c" if stage == "for-c" else "triton"
    number = torch.tensor([5, 0, 40, 16], dtype=torch.int32)
    held = [number, number.cumsum(0).int(), torch.empty(7, 20, dtype=torch.int32)]
    names = ("number", "ends", "room")
    text = dense_text(expert_tiles(16).name, dict(zip(names, held, strict=True)))
    first, second = Entry(text, back).steps
    last = run_step(stage, first, held, [], [])["last"]
    assert last.tolist() == [1, 1, 4, 5]
    got = run_step(stage, second, [*held, torch.from_numpy(last)], [], [])["unit"]
    starts, owners, fills = [0, 5, 21, 37, 45], [0, 2, 2, 2, 3, 0, 0], [5, 16, 16, 8, 16, 0, 0]
    want = np.zeros((5, 16), int) + np.array(starts)[:, None] + np.arange(16)
    np.testing.assert_array_equal(got[:5, :16], want)
    assert got[:, 16].tolist() == owners and got[:, 17].tolist() == fills


@pytest.mark.parametrize("name", STEPS)
def test_texts_are_read_back(name: str) -> None:
    p = Entry(step_call(name, "c")[0], "c").steps[0].bound.program
    assert str(parse(text_of(p))) == str(p)


@pytest.mark.parametrize("size", [16, 32])
def test_tiles(size: int) -> None:
    """Every place of an expert is in one tile of it; there is room for the worst."""
    ids = torch.tensor([0] * 40 + [2] * 16 + [3] + [-1] * 3)[:, None]
    index = tw.Index.from_choices(ids, 5)
    made = tiles_of(index, size)
    found: dict[int, list[int]] = {}
    for places, owner, fill in zip(made["places"], made["owner"], made["fill"], strict=True):
        found.setdefault(int(owner), []).extend(index.positions[places[: int(fill)]].tolist())
    assert {e: p for e, p in found.items() if p} == {
        e: p.tolist() for e, p in enumerate(index.compact()) if len(p)
    }
    assert [tile_of(n, 4) for n in (1, 127, 128, 300, 10**6)] == [16, 16, 32, 64, 128]


REFUSED = {
    "tokens": (lambda x, w, i: grouped_matmul(x[:2], w, i), "as many as the index has tokens"),
    "experts": (lambda x, w, i: grouped_matmul(x, w[:1], i), "experts and columns of x"),
    "index": (lambda x, w, i: grouped_matmul(x, w, i.positions), "from_choices"),
    "weights": (
        lambda x, w, i: grouped_matmul(x, w, i, weights=torch.ones(3, 3)),
        "one for each choice",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    x, w, _, ids = drawn("some", Place("c"))
    action, told = REFUSED[name]
    with pytest.raises(tw.TilewrightError) as why:
        action(x, w, tw.Index.from_choices(ids, len(w)))
    assert told in str(why.value)


def test_no_slots(where: Place) -> None:
    x, w = randn(9, 4, device=where.device), randn(2, 4, 3, seed=1, device=where.device)
    ids = torch.zeros(9, 0, dtype=torch.int64, device=where.device)
    for gates in (None, randn(9, 0, device=where.device)):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = grouped_matmul(x, w, tw.Index.from_choices(ids, 2), weights=gates)
        assert y.shape == ((9, 0, 3) if gates is None else (9, 3)) and not y.any()
        assert not any(g.any() for g in torch.autograd.grad(y.sum(), (x, w)))
