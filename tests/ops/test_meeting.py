"""Pairs of structures that meet again: positions are kept, and results, gradients and new values stay right."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from conformance.cases import EXECUTORS, execute
from ops.matrices import close, gradcheck
from ops.places import INTERPRETER, Place
from ops.test_merge import matrix, times, turned
from torch import Tensor

import tilewright as tw
from tilewright import driver
from tilewright.formats.convert import source_coordinates
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.ops.meeting import positions
from tilewright.ops.sparse import without_duplicates
from tilewright.support.errors import FormatError


@tw.program
def weighted(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * b[i, j] * x[j, f])


def new_values(t: Any, like: Tensor | None = None) -> Any:
    v = torch.randn(t.nnz, dtype=torch.float64, device=t.device)
    return tw.SparseTensor(t.structure, v.to(like.dtype if like is not None else t.values.dtype))


def dense_of(t: Any) -> Tensor:
    """A dense copy through which gradients reach the values."""
    rows, cols = t.structure.as_coordinates()[0]
    perm = t.structure.perm
    v = t.values if perm is None else t.values[perm]
    return v.new_zeros(tuple(t.shape)).index_put((rows, cols), v, accumulate=True)


def gradients(y: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    pull = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    return list(torch.autograd.grad((y * pull).sum(), leaves))


@pytest.mark.parametrize("order", ["sorted", "any"])
@pytest.mark.parametrize("swapped", [False, True], ids=["same", "swapped"])
def test_results_and_gradients_call_after_call(swapped: bool, order: str, where: Place) -> None:
    """The first call searches, later ones read; values change, structures stay."""
    run = turned if swapped else weighted
    a, b = matrix(7, 9, 1, order), matrix(9, 7, 2, order) if swapped else matrix(7, 9, 2, order)
    a, b = a.to(where.device), b.to(where.device)
    x = torch.randn(9, 5, device=where.device, requires_grad=True)
    for _ in range(4 if not where.slow else 3):
        a, b = new_values(a), new_values(b)
        leaves = [a.values.requires_grad_(), b.values.requires_grad_(), x]
        y = run(a, b, x)
        other = dense_of(b).T if swapped else dense_of(b)
        want = (dense_of(a) * other) @ x
        close(y, want)
        for got, right in zip(gradients(y, leaves), gradients(want, leaves), strict=True):
            close(got, right)


@pytest.mark.parametrize(
    "executor",
    [pytest.param(e, marks=[INTERPRETER] if e == "triton" else []) for e in EXECUTORS[:-1]],
)
def test_every_executor_reads_them(executor: str) -> None:
    a, b, x = matrix(7, 9, 1), matrix(7, 9, 2), torch.randn(9, 5)
    for _ in range(2):
        (y,) = execute(weighted, [a, b, x], executor)
        close(torch.from_numpy(y).float(), (a.to_dense() * b.to_dense()) @ x)
    assert isinstance(a.structure.plans["met"][b.structure][False], Tensor)


def test_the_second_call_searches_nothing(where: Place) -> None:
    a, b = matrix(7, 9, 1).to(where.device), matrix(7, 9, 2).to(where.device)
    first, second, third = (times.kernels(a, b)[0] for _ in range(3))
    assert "find(" in first.stages["loops"] and "b_at_a" not in first.stages["loops"]
    assert "b_at_a[" in second.stages["loops"] and "find(" not in second.stages["loops"]
    assert third is second
    assert "b_at_a[" in times.kernels(new_values(a), new_values(b))[0].stages["loops"]


def test_its_text_is_read_back() -> None:
    a, b, x = matrix(9, 7, 1), matrix(7, 9, 2), torch.randn(7, 5)
    turned(a, b, x)
    (kernel,) = turned.kernels(a, b, x)
    said = kernel.stages["coord"]
    assert ".met(b_turned_a, j, True)" in said
    assert text(parse(said)) == said
    assert driver.texts(said)["loops"] == kernel.stages["loops"]


def test_gradcheck_over_kept_positions(where: Place) -> None:
    if where.slow:
        pytest.skip("minutes in the interpreter")
    a, b = (matrix(4, 5, s, giant=False).to(where.device) for s in (1, 2))
    va, vb = (t.values.double().requires_grad_() for t in (a, b))
    x = torch.randn(5, 2, dtype=torch.float64, device=where.device, requires_grad=True)

    def run(va: Tensor, vb: Tensor, x: Tensor) -> Tensor:
        return weighted(tw.SparseTensor(a.structure, va), tw.SparseTensor(b.structure, vb), x)

    assert gradcheck(run, (va, vb, x))
    assert isinstance(a.structure.plans["met"][b.structure][False], Tensor)


def test_a_pair_ends_with_either_structure() -> None:
    a = matrix(7, 9, 1)
    for seed in range(4):  # ids of dead structures are used again
        b = matrix(7, 9, seed + 2)
        for _ in range(3):
            close(times(a, b).to_dense(), a.to_dense() * b.to_dense())
        del b
        gc.collect()
        assert len(a.structure.plans["met"]) == 0
    b, c = matrix(7, 9, 30), matrix(7, 9, 31)
    for _ in range(3):
        close(times(b, a).to_dense(), a.to_dense() * b.to_dense())
        close(times(c, a).to_dense(), a.to_dense() * c.to_dense())
    del b
    gc.collect()
    close(times(c, a).to_dense(), a.to_dense() * c.to_dense())


def test_a_structure_in_use_is_copied_without_its_plans() -> None:
    a, b = matrix(7, 9, 1), matrix(7, 9, 2)
    for _ in range(2):
        times(a, b)
    for again in (copy.deepcopy(a.structure), pickle.loads(pickle.dumps(a.structure))):
        assert again.plans == {}
        close(times(tw.SparseTensor(again, a.values), b).to_dense(), a.to_dense() * b.to_dense())


def entries(t: Any) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return source_coordinates(t.structure), t.values


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("order", ["sorted", "any"])
def test_positions(index: torch.dtype, order: str) -> None:
    """-1 exactly where the other structure has no entry; else its place among the values."""
    a, b = (matrix(7, 9, s, order).to_format("coo") for s in (1, 2))
    a, b, none = (
        tw.SparseTensor.from_coo(*(c.to(index) for c in coords), v, (7, 9)).to_format("csr")
        for coords, v in (entries(a), entries(b), ([torch.zeros(0)] * 2, torch.zeros(0)))
    )
    b = without_duplicates(b)
    for other in (b, none):
        assert positions(a.structure, other.structure, False) is None
        at = positions(a.structure, other.structure, False)
        assert at is not None and at is positions(a.structure, other.structure, False)
        found = torch.cat([other.values, torch.zeros(1)])[at.long()]
        rows, cols = source_coordinates(a.structure)
        close(found, other.to_dense()[rows.long(), cols.long()])


def test_nothing_is_kept_while_tracing() -> None:
    a, b, x = matrix(7, 9, 1), matrix(7, 9, 2), torch.randn(9, 5)
    run = torch.compile(lambda a, b, x: weighted(a, b, x), backend="aot_eager")
    for _ in range(3):
        close(run(a, b, x), (a.to_dense() * b.to_dense()) @ x)
    assert "met" not in a.structure.plans and "met" not in b.structure.plans


def test_a_gradient_that_would_search_duplicates() -> None:
    """In the gradient of b the loops follow b, and a is searched: several entries of one place cannot be found."""
    a, b, x = matrix(7, 9, 1, "twice"), matrix(7, 9, 2), torch.randn(9, 5)
    close(weighted(a, b, x), (a.to_dense() * b.to_dense()) @ x)
    b.values.requires_grad_()
    with pytest.raises(FormatError, match="several entries"):
        weighted(a, b, x)


@pytest.mark.gpu
def test_nothing_waits_for_the_device() -> None:
    a, b, x = matrix(7, 9, 1).to("cuda"), matrix(7, 9, 2).to("cuda"), torch.randn(9, 5).cuda()
    for _ in range(2):  # the second use prepares
        weighted(a, b, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = [weighted(a, b, x) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for y in made:
        close(y, (a.to_dense() * b.to_dense()) @ x)


def of_four(columns: list[int]) -> tw.SparseTensor:
    """Four entries in three rows, of which the last has two."""
    held = {"indptr": torch.tensor([0, 1, 2, 4]), "indices": torch.tensor(columns)}
    return tw.SparseTensor.from_arrays("csr", (3, 4), torch.ones(4), **held)


ONE, UNSORTED, TWICE = of_four([0, 1, 2, 3]), of_four([0, 2, 3, 1]), of_four([0, 1, 2, 2])
SQUARE = tw.SparseTensor.from_dense(torch.eye(4))
BLOCKS = tw.SparseTensor.from_dense(torch.eye(4)[:2], format="dbsr.2.2")
KEPT = {
    "positions": lambda v: (ONE.with_values(v) * UNSORTED).values,
    "terms": lambda v: (ONE.with_values(v) @ SQUARE.with_values(v)).values,
    "in order": lambda v: tw.einsum("ij,ij->i", ONE, UNSORTED.with_values(v)),
    "added up": lambda v: tw.einsum("ij,ij->i", ONE, TWICE.with_values(v)),
    "all rows": lambda v: tw.bsr_matmul(BLOCKS.with_values(v.view(1, 2, 2)), torch.ones(4, 2)),
}


@pytest.mark.parametrize("call", KEPT.values(), ids=KEPT)
def test_what_is_kept_in_inference_mode_serves_training(call: Any) -> None:
    with torch.inference_mode():
        for _ in range(2):
            y = call(torch.ones(4))
    v = torch.ones(4, requires_grad=True)
    torch.testing.assert_close(call(v), y)
    (g,) = torch.autograd.grad(call(v).sum(), v)
    assert g.any()


def test_products_have_columns_beyond_32_bits() -> None:
    """Of the second matrix; the first one's indices are narrow."""
    one = torch.zeros(1, dtype=torch.int32)
    a = tw.SparseTensor.from_coo(one, one, torch.ones(1), (1, 1))
    b = tw.SparseTensor.from_coo(one.long(), one.long() + 2**33, torch.ones(1), (1, 2**34))
    made = a @ b
    assert isinstance(made, tw.SparseTensor) and made.structure.indices.tolist() == [2**33]
