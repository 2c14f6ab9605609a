"""torch.library.opcheck on the registered operator, on the arguments that each public function makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.ops.args import dense_text
from tilewright.ops.attention import _call as attention_call
from tilewright.ops.grouped_matmul import _call as grouped_call
from tilewright.ops.linear import _call as linear_call
from tilewright.ops.products import arguments as listed_call
from tilewright.ops.products import listed_product
from tilewright.ops.sddmm import _call as sddmm_call
from tilewright.ops.spmm import _call as spmm_call

RUN = torch.ops.tilewright.run.default


def spmm(reduce: str, prepared: bool, place: Place, grad: bool) -> tuple[Any, ...]:
    A = tw.SparseTensor.from_dense(matrix(device=place.device))
    A = A.with_values(A.values.clone().requires_grad_(grad))
    if prepared:
        A.prepare()
    return spmm_call(A, randn(12, 5, device=place.device).requires_grad_(grad), reduce, None)


def blocks(place: Place, grad: bool) -> tuple[Any, ...]:
    A = tw.SparseTensor.from_dense(matrix(device=place.device), format="bsr", block=(2, 4))
    A = A.with_values(A.values.clone().requires_grad_(grad))
    return spmm_call(A, randn(12, 5, device=place.device).requires_grad_(grad), "sum", None)


def sddmm(op: str, place: Place, grad: bool) -> tuple[Any, ...]:
    A = tw.SparseTensor.from_dense(matrix(device=place.device)).to_format("coo")
    x, z = (randn(n, 5, seed=n, device=place.device).requires_grad_(grad) for n in (10, 12))
    return sddmm_call(A, x, z, op, None)


def linear(place: Place, grad: bool) -> tuple[Any, ...]:
    x, w = (randn(n, 5, seed=n, device=place.device).requires_grad_(grad) for n in (10, 4))
    return linear_call(x, w, torch.tensor([3, 1], device=place.device), None)


def listed(size: int, place: Place, grad: bool) -> tuple[Any, ...]:
    x, w = (randn(n, 5, seed=n, device=place.device) for n in (10, 4))
    index = tw.Index.from_values(x > 1, (size or 1, 1 if size else None), grouped=size > 0)
    axis = "k" if size else "i"
    given = {"x": x.requires_grad_(grad), "w": w.requires_grad_(grad)}
    given |= {f"{axis}_list": index.positions, f"{axis}_count": index.counts}
    given["b"] = randn(4, seed=7, device=place.device).requires_grad_(grad)
    return listed_call(listed_product(axis, 1, size, biased=True), given)


def attention(prepared: bool, place: Place, grad: bool) -> tuple[Any, ...]:
    mask = tw.block_mask(torch.tensor([[1, 0], [1, 1]], device=place.device), 8, (12, 15))
    if prepared:
        mask.prepare()
    q, k, v = (
        randn(2, n, 4, seed=n, device=place.device).requires_grad_(grad) for n in (12, 15, 15)
    )
    return attention_call(q, k, v, mask, 0.5, None)


def grouped(place: Place, grad: bool) -> tuple[Any, ...]:
    x, w = (
        randn(*n, seed=1, device=place.device).requires_grad_(grad) for n in ((6, 5), (3, 5, 4))
    )
    ids = torch.tensor([[0, 2], [2, 1], [0, 0], [1, 2], [-1, 0], [2, 2]], device=place.device)
    name, given, ints = grouped_call(x, w, tw.Index.from_choices(ids, 3))
    return dense_text(name, given), list(given.values()), ints("", [])


CALLS: dict[str, Callable[[Place, bool], tuple[Any, ...]]] = {
    "spmm": lambda p, g: spmm("sum", False, p, g),
    "spmm-prepared": lambda p, g: spmm("sum", True, p, g),
    "spmm-max": lambda p, g: spmm("max", False, p, g),
    "spmm-blocks": blocks,
    "sddmm-dot": lambda p, g: sddmm("dot", p, g),
    "sddmm-add": lambda p, g: sddmm("add", p, g),
    "linear": linear,
    "grouped": grouped,
    "linear-listed-rows": lambda p, g: listed(0, p, g),
    "linear-listed-k": lambda p, g: listed(4, p, g),
    "attention": lambda p, g: attention(False, p, g),
    "attention-prepared": lambda p, g: attention(True, p, g),
}


@pytest.mark.parametrize(
    ("name", "grad"), [*((name, True) for name in CALLS), ("spmm", False), ("grouped", False)]
)
def test_opcheck(name: str, grad: bool, fast: Place) -> None:
    program, tensors, ints, *floats = CALLS[name](fast, grad)
    result = torch.library.opcheck(RUN, (program, tensors, ints, floats[0] if floats else []))
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CALLS)
def test_inputs_are_left_alone(name: str, where: Place) -> None:
    program, tensors, ints, *floats = CALLS[name](where, False)
    before = [t.clone() for t in tensors]
    outs = RUN(program, tensors, ints, floats[0] if floats else [])
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
    held = {t.untyped_storage().data_ptr() for t in tensors}
    assert not any(o.untyped_storage().data_ptr() in held for o in outs)
