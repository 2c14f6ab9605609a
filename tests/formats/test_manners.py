"""What users of torch try with a SparseTensor: modules move it, and what it has not is told."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright as tw


def eye(dtype: torch.dtype = torch.float32) -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(torch.eye(3, dtype=dtype))


class Layer(torch.nn.Module):
    """A matrix that moves with the module, and its values, which are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("A", eye(), persistent=False)
        self.v = torch.nn.Parameter(torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        A: Any = self.A
        return tw.spmm(A.with_values(self.v), x)


MOVES: dict[str, tuple[Callable[[Any], Any], torch.dtype]] = {
    "double": (lambda m: m.double(), torch.float64),
    "half": (lambda m: m.half(), torch.float16),
    "bfloat16": (lambda m: m.bfloat16(), torch.bfloat16),
    "float": (lambda m: m.double().float(), torch.float32),
    "to": (lambda m: m.to("cpu", torch.float64, non_blocking=True), torch.float64),
    "cpu": (lambda m: m.cpu(), torch.float32),
    "copy": (copy.deepcopy, torch.float32),
}


@pytest.mark.parametrize("name", MOVES)
def test_modules_move_it(name: str) -> None:
    move, dtype = MOVES[name]
    layer = move(Layer())
    assert layer.A.dtype == layer.v.dtype == dtype
    x = torch.rand(3, 2, dtype=dtype)
    torch.testing.assert_close(layer(x), layer.v[:, None] * x)
    assert list(layer.state_dict()) == ["v"]


def test_whole_numbers_and_ones_keep_their_dtype() -> None:
    layer = torch.nn.Module()
    layer.register_buffer("A", eye(torch.int64), persistent=False)  # type: ignore[arg-type]
    layer.register_buffer("B", eye().with_values(None), persistent=False)  # type: ignore[arg-type]
    layer.double()
    held: Any = layer
    assert held.A.dtype == torch.int64 and held.B.values is None


def test_what_tensors_have_is_told() -> None:
    for name in ("requires_grad_", "sum", "clone", "size"):
        with pytest.raises(AttributeError, match=rf"A\.values\.{name} is that of the entries"):
            getattr(eye(), name)
    with pytest.raises(AttributeError, match=r"has no nothing$"):
        _ = eye().nothing  # type: ignore[attr-defined, unused-ignore]
    assert not hasattr(eye(), "__array__")


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "function": (torch.relu, r"A\.map\(fn\) for the values"),
    "number": (lambda a: a + 1, r"A\.map\(fn\) changes the stored values"),
    "reflected": (lambda a: 1 + a, r"A\.map\(fn\) changes the stored values"),
    "dense": (lambda a: torch.eye(3) + a, r"A\.to_dense\(\) has all others"),
    "quotient": (lambda a: a / a, "expected: a number;"),
    "array": (lambda a: tw.spmm(a, torch.ones(3, 2).numpy()), "torch.as_tensor makes one"),
    "list": (lambda a: a @ [1.0], "torch.as_tensor makes one"),
    "lists": (
        lambda a: tw.SparseTensor.from_coo([0], [1], torch.ones(1), (3, 3)),  # type: ignore[arg-type]
        "torch.as_tensor makes one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_told_in_words(name: str) -> None:
    action, words = REFUSED[name]
    with pytest.raises(tw.TilewrightError, match=words):
        action(eye())


@pytest.mark.parametrize("op", [operator.add, operator.mul], ids=["add", "mul"])
def test_torch_matrices_on_the_left(op: Callable[[Any, Any], Any]) -> None:
    left = torch.eye(3).to_sparse_csr() * 2
    made = op(left, eye())
    torch.testing.assert_close(made.to_dense(), op(left.to_dense(), torch.eye(3)))


def test_without_memory() -> None:
    """On the meta device nothing is drawn or planned, call after call."""
    A = eye().prepare().to("meta")
    assert "nothing to draw" in str(A)
    for _ in range(3):
        assert tw.spmm(A, torch.ones(3, 2, device="meta")).shape == (3, 2)
        assert tw.spmm(eye().to("meta"), torch.ones(3, 2, device="meta")).shape == (3, 2)
    again = eye().to("meta")
    assert {tw.spmm(again, torch.ones(3, 2, device="meta")).shape for _ in range(3)} == {(3, 2)}
