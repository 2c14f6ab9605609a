"""Formats beside tiles: in the space of a product, in plans that were measured, in cold plans."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from ops.places import INTERPRETER, Place

import tilewright as tw
from tilewright.ops import formats, tuning
from tilewright.ops.backend import backend
from tilewright.ops.formats import blocks_of, full_share, in_blocks
from tilewright.ops.ready import served
from tilewright.schedule.options import COptions
from tilewright.tune import store
from tilewright.tune.machine import H200

LISTS = {"rows": 4, "unroll": 2, "long": 16, "chunk": 64, "warps": 1}
BLOCK = 16


pytestmark = pytest.mark.usefixtures("own_plans")


@tw.program
def relu_sum(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * tw.relu(x[j, f]))


def blocky(place: Place, full: bool = True) -> tw.SparseTensor:
    """Two blocks of 16 x 16 and three entries beside; not full: the same lengths of rows, no block whole."""
    g = torch.Generator().manual_seed(0)
    dense = torch.zeros(40, 70)
    for i, j in ((0, 32), (16, 0)):
        step = 1 if full else 2
        dense[i : i + BLOCK, j : j + step * BLOCK : step] = torch.randn(BLOCK, BLOCK, generator=g)
    dense[36, 3], dense[37, 69], dense[39, 5] = 1.0, 2.0, 3.0
    return tw.SparseTensor.from_dense(dense.to(place.device)).prepare()


def operand(place: Place) -> torch.Tensor:
    x = torch.randn(70, 5, generator=torch.Generator().manual_seed(1))
    return x.to(place.device)


def setting_of(place: Place, **format: int) -> dict[str, int]:
    return {**(COptions().setting if place.backend == "c" else LISTS), **format}


def test_formats_are_parameters_of_the_space(where: Place) -> None:
    A, x = blocky(where), operand(where)
    space = tuning.subject_of_op(tw.spmm, (A, x), {}).space
    found = {p.name: p.values for p in space.params if p.format}
    assert found["block"] == (0, BLOCK)
    assert ("columns" in found) == (where.backend == "triton")
    assert "format" in str(space) and "block" in str(space)


@pytest.mark.parametrize(
    ("reduce", "dtype"), [("max", torch.float32), ("sum", torch.bfloat16)], ids=["max", "bf16"]
)
def test_blocks_are_for_sums_that_an_output_holds(
    reduce: str, dtype: torch.dtype, where: Place
) -> None:
    A, x = blocky(where).to(dtype), operand(where).to(dtype)
    space = tuning.subject_of_op(tw.spmm, (A, x), {"reduce": reduce}).space
    assert "block" not in {p.name for p in space.params}


@pytest.mark.parametrize("format", [{"block": BLOCK}, {"columns": 2}], ids=str)
def test_a_record_names_the_format_and_is_replayed(format: dict[str, int], where: Place) -> None:
    if where.backend == "c" and "columns" in format:
        pytest.skip("ranges of columns are lists of work")
    A, x = blocky(where), operand(where)
    want = A.to_dense() @ x
    got = tw.tune(tw.spmm, A, x, settings=[setting_of(where, **format)], budget_s=0)
    assert format.items() <= got.items()
    store.forget()  # as in a later process, on a structure alike
    other = blocky(where)
    with served() as kernels:
        torch.testing.assert_close(tw.spmm(other, x), want)
    assert len(kernels) == (2 if "block" in format else 1)
    said = tw.explain(tw.spmm, other, x)["plan"].body
    assert all(f"{name}={value}" in said for name, value in format.items()) and "measured" in said


def test_a_structure_of_its_class_without_the_format_does_without(where: Place) -> None:
    A, x, other = blocky(where), operand(where), blocky(where, full=False)
    tw.tune(tw.spmm, A, x, settings=[setting_of(where, block=BLOCK)], budget_s=0)
    assert full_share(A.structure, BLOCK) > 0.9 and blocks_of(other.structure) == (0,)
    with served() as kernels:
        torch.testing.assert_close(tw.spmm(other, x), other.to_dense() @ x)
    assert len(kernels) == 1


def test_columns_in_no_order_do_without_ranges(tiled: Place) -> None:
    A, x = blocky(tiled), operand(tiled)
    rows, cols = A.to_dense().nonzero(as_tuple=True)
    v = A.to_dense()[rows, cols]
    turned = tw.SparseTensor.from_coo(rows.flip(0), cols.flip(0), v.flip(0), A.shape)
    turned = turned.to_format("csr").prepare()
    tw.tune(tw.spmm, A, x, settings=[setting_of(tiled, columns=2)], budget_s=0)
    choice = tw.spmm.plan(turned, x).choice
    assert choice.source == "measured" and "columns" not in choice.setting
    torch.testing.assert_close(tw.spmm(turned, x), A.to_dense() @ x)


def test_new_values_are_not_converted(where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    A, x = blocky(where), operand(where)
    tw.tune(tw.spmm, A, x, settings=[setting_of(where, block=BLOCK)], budget_s=0)
    tw.spmm(A, x)
    monkeypatch.setattr(formats, "decompose", lambda *_: pytest.fail("converted again"))
    twice = A.with_values(A.values * 2)
    torch.testing.assert_close(tw.spmm(twice, x), 2 * (A.to_dense() @ x))
    v, z = A.values.clone().requires_grad_(), x.clone().requires_grad_()
    tw.spmm(A, z, values=v).sum().backward()
    torch.testing.assert_close(z.grad, A.to_dense().t() @ torch.ones(40, 5, device=x.device))


def test_parts_are_tuned_and_use_what_was_found(tiled: Place) -> None:
    """The list of their rows; blocks keep the kernel they have."""
    x, rules = operand(tiled), (tw.rules.blocks(BLOCK, 1.0), tw.rules.hyb(1, 1))
    a = blocky(tiled).decompose(*rules).prepare()
    tw.spmm(a, x)
    tw.tune(tw.spmm, a, x, settings=[setting_of(tiled, columns=2)], budget_s=0)
    with served() as kernels:
        torch.testing.assert_close(tw.spmm(a, x), a.to_dense() @ x)
    assert [k.setting.get("shared", 0) for k in kernels] == [1, 0]


def test_programs_of_users_have_ranges(tiled: Place) -> None:
    A, x = blocky(tiled), operand(tiled)
    want = relu_sum(A, x)
    got = tw.tune(relu_sum, A, x, settings=[setting_of(tiled, columns=4)], budget_s=0)
    assert got["columns"] == 4
    with served() as kernels:
        torch.testing.assert_close(relu_sum(A, x), want)
    assert len(kernels) == 1 and kernels[0].setting["shared"]


def test_searched_for_real_on_the_cpu() -> None:
    """Other formats are tried early, and what is found is a point of the space."""
    place = Place("c")
    A, x = blocky(place), operand(place)
    subject = tuning.subject_of_op(tw.spmm, (A, x), {})
    assert tuning.candidates(subject)[0]["block"] == BLOCK
    got = tw.tune(tw.spmm, A, x, budget_s=0.5)
    assert subject.space.why_not({"block": 0, **got}) is None
    record = store.find(subject.case.whole_key())
    assert record is not None and not record.how["failed"]


@INTERPRETER
def test_the_cold_plan_takes_blocks_where_that_is_clearly_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the model of a GPU, of which nothing is launched here; explained beside the others."""
    for module in ("plans", "spmm", "formats"):
        monkeypatch.setattr(sys.modules[f"tilewright.ops.{module}"], "machine_of", lambda _: H200)
    n = 512
    nearly = torch.ones(n, 4 * n)
    nearly[0, 0] = 0.0
    whole = tw.SparseTensor.from_dense(nearly)
    sparse = tw.SparseTensor.from_dense((torch.rand(n, 4 * n) < 0.1).float())
    x = torch.ones(4 * n, 256)
    with backend("triton"):
        plan = tw.spmm.plan(whole, x)
        assert plan.choice.source == "model" and plan.choice.setting["block"] in (16, 32)
        assert len(plan.pieces) == 2 and "block=" in tw.explain(plan)["plan"].body
        assert "block" not in tw.spmm.plan(sparse, x).choice.setting


def test_partial_rows_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    s = blocky(Place("c")).structure
    assert formats.ranges(s, 32) == (1, 2, 4)
    monkeypatch.setattr(formats, "ROOM", 3 * 40 * 32 * 4)
    assert formats.ranges(s, 32) == (1, 2)


def test_many_entries_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "EXACT", 100)
    dense = torch.zeros(16 * 40, 64)
    dense[:, 16:48] = 1.0
    assert full_share(tw.SparseTensor.from_dense(dense).structure, 16) == 1.0
    dense[::2, 20] = 0.0
    assert full_share(tw.SparseTensor.from_dense(dense).structure, 16) == pytest.approx(16 / 31.5)


def test_blocks_keep_the_order_of_values(fast: Place) -> None:
    A = blocky(fast)
    made = in_blocks(A, BLOCK)
    assert made.format == "parts+dbsr.16.16+csr" and made.values is A.values
    assert torch.equal(made.to_dense(), A.to_dense())
    assert in_blocks(A, BLOCK).structure is made.structure
