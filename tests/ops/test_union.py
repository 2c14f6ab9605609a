"""Sums of sparse matrices: where entries stand in a row of another one, at every stage, and what is made of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import close, gradcheck, gradgradcheck, leaf
from ops.places import Place
from ops.test_structures import repeated
from semantics.stages import STAGES, run_stage
from torch import Tensor

import tilewright as tw
from tilewright.formats.distinct import is_sorted
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.ops.args import in_rows
from tilewright.ops.backend import backend
from tilewright.ops.call import arguments
from tilewright.ops.entry import entry
from tilewright.ops.union import union

F64 = torch.float64
SHAPES = [(5, 40, 0.4), (40, 3, 0.5), (7, 9, 1.0), (6, 8, 0.0), (3, 300, 0.1), (0, 4, 1.0)]


def pattern(shape: tuple[int, int, float], seed: int, index: torch.dtype) -> tw.SparseTensor:
    made = torch.Generator().manual_seed(seed)
    held = torch.rand(shape[:2], generator=made) < shape[2]
    held[1:2] = False
    rows, cols = held.nonzero(as_tuple=True)
    a = tw.SparseTensor.from_coo(rows.to(index), cols.to(index), None, shape[:2])
    return a.to_format("csr")


def standing(a: tw.SparseTensor, b: tw.SparseTensor) -> list[int]:
    """Which entry of b stands at each of a's places, or -1 - (the first behind it)."""
    made = []
    for row in range(a.shape[0]):
        (p, q), (lo, hi) = (t.structure.indptr[row : row + 2].tolist() for t in (a, b))
        held = b.structure.indices[lo:hi].tolist()
        for col in a.structure.indices[p:q].tolist():
            at = bisect_left(held, col)
            made.append(lo + at if col in held else -1 - lo - at)
    return made


def merged(a: tw.SparseTensor, b: tw.SparseTensor) -> tuple[Any, ...]:
    index = {torch.int32: "i32", torch.int64: "i64"}[a.structure.index_dtype]
    program, tensors, ints = arguments(f"merged_{index}", {"a": a, "b": b})
    return in_rows(program, ("b",)), tensors, ints, []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_where_entries_stand(stage: str, shape: tuple[int, int, float]) -> None:
    a, b = (pattern(shape, seed, torch.int32) for seed in (1, 2))
    with backend("c" if stage == "for-c" else "triton"):
        got = run_stage(stage, *merged(a, b))
    assert got.tolist() == standing(a, b)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_where_entries_stand_in_code(
    shape: tuple[int, int, float], index: torch.dtype, where: Place
) -> None:
    a, b = (pattern(shape, seed, index).to(where.device) for seed in (1, 2))
    made = torch.ops.tilewright.run.default(*merged(a, b))[0]
    assert made.dtype == index and made.tolist() == standing(a, b)


def test_its_text_is_read_back() -> None:
    program, *_ = merged(*(pattern(SHAPES[0], seed, torch.int32) for seed in (1, 2)))
    told = text(entry(program, "c").steps[0].bound.program)
    assert "stored(a[i, j], i64) * place(b[i, j])" in told and text(parse(told)) == told


def test_only_rows_in_order_tell() -> None:
    a = pattern(SHAPES[0], 1, torch.int32)
    program, tensors, ints = arguments("merged_i32", {"a": a, "b": a.to_format("ell")})
    with pytest.raises(tw.TilewrightError, match="only in rows one knows"):
        torch.ops.tilewright.run.default(program, tensors, ints, [])


SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
}


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "dbsr.2.2"])
@pytest.mark.parametrize("name", SUMS)
def test_call_after_call(name: str, format: str, where: Place) -> None:
    """Entries in any order, some twice; new values on structures that come again."""
    a, b = (repeated(8, 8, seed, where.device, format) for seed in (1, 2))
    made = []
    for _ in range(3):
        a, b = (t.with_values(t.values * 2) for t in (a, b))
        made.append(SUMS[name](a, b))
        close(made[-1].to_dense(), SUMS[name](a.to_dense(), b.to_dense()))
    assert is_sorted(made[0].structure)  # and no place twice
    if format in ("csr", "csc", "coo"):
        assert made[1].structure is made[2].structure is not made[0].structure


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_places(shape: tuple[int, int, float], index: torch.dtype, where: Place) -> None:
    a, b = (pattern(shape, seed, i).to(where.device) for seed, i in ((1, index), (2, torch.int32)))
    made = union(a.structure, b.structure)
    held = (a.to_dense() + b.to_dense()) != 0
    assert made.places.index_dtype == index
    assert torch.equal(tw.SparseTensor(made.places).to_dense() != 0, held)
    made.places.check("test")
    for of, t in ((made.of_a, a), (made.of_b, b)):
        assert torch.equal(made.places.indices[of].long(), t.structure.indices.long())


def test_a_matrix_and_itself(where: Place) -> None:
    a = repeated(8, 8, 3, where.device, "csr")
    for _ in range(3):
        close((a + a).to_dense(), 2 * a.to_dense())
        assert not (a - a).values.any()


@pytest.mark.parametrize("format", ["csr", "csc"])
@pytest.mark.parametrize("name", SUMS)
def test_gradients(name: str, format: str, fast: Place) -> None:
    """First and second ones, of what meets and what does not."""
    a, b = (repeated(5, 6, seed, fast.device, format) for seed in (1, 2))

    def summed(v: Tensor, w: Tensor) -> Tensor:
        return SUMS[name](a.with_values(v), b.with_values(w)).values.square()

    given = leaf(a.values), leaf(b.values)
    assert gradcheck(summed, given) and gradgradcheck(summed, given)


def test_dtypes_that_differ(where: Place) -> None:
    a, b = (tw.SparseTensor.from_dense(torch.eye(3, device=where.device)) for _ in range(2))
    made = a.to(torch.float16) + b.to(torch.bfloat16)
    assert made.dtype == torch.float32 and made.values.tolist() == [2.0] * 3
    assert (a.with_values(None) + b).values.tolist() == [2.0] * 3
