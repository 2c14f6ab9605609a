"""What users of torch try with a SparseTensor: modules move it, and what it has not is told."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from pathlib import Path
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


STORED: dict[str, Callable[[tw.SparseTensor], tw.SparseTensor]] = {
    "csr": lambda a: a,
    "ones": lambda a: a.with_values(None),
    "bsr": lambda a: a.to_format("bsr", 2),
    "tree": lambda a: a.to_format("dcsr"),
    "parts": lambda a: a.decompose(tw.rules.hyb(1, 1)),
}


@pytest.mark.parametrize("name", STORED)
def test_a_buffer_is_stored_and_loaded(name: str, tmp_path: Path) -> None:
    """Values of the same pattern in place; any other matrix where it is asked for."""
    dense = torch.eye(4).roll(1, 0) * torch.arange(1.0, 5)
    layers = [torch.nn.Module() for _ in "ab"]
    for layer, t in zip(layers, (dense, dense.sign()), strict=True):
        layer.register_buffer("A", STORED[name](tw.SparseTensor.from_dense(t)))  # type: ignore[arg-type]
    first, second = layers
    torch.save(first.state_dict(), tmp_path / "state.pt")
    stored = torch.load(tmp_path / "state.pt")
    held: Any = second.A
    assert not second.load_state_dict(stored).missing_keys and second.A is held
    torch.testing.assert_close(held.to_dense(), (dense if name != "ones" else dense.sign()))
    other = torch.nn.Module()
    other.register_buffer("A", STORED[name](tw.SparseTensor.from_dense(torch.eye(4))))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="While copying the parameter named"):
        other.load_state_dict(stored)
    other.load_state_dict(stored, assign=True)
    taken: Any = other.A
    torch.testing.assert_close(taken.to_dense(), held.to_dense())


def test_another_pattern_is_no_copy() -> None:
    for other in (eye().to_format("coo"), tw.SparseTensor.from_dense(torch.eye(4)), torch.eye(3)):
        with pytest.raises(tw.TilewrightError, match=r"assign=True\) takes any"):
            eye().copy_(other)  # type: ignore[arg-type]
    assert eye().size() == (3, 3) and eye().size(0) == 3


def test_values_come_to_ones_that_are_not_stored() -> None:
    ones = eye().with_values(None)
    assert ones.copy_(eye().map(lambda v: 3 * v)).values.tolist() == [3.0] * 3
    assert eye().copy_(eye().with_values(None)).values.tolist() == [1.0] * 3


def test_what_tensors_have_is_told() -> None:
    for name in ("requires_grad_", "sum", "clone", "numel"):
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
