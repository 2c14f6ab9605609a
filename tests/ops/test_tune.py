"""tw.tune on every operator, on every place; what it finds is used later, and nothing else is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.matrices import close, matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.ops import tuning
from tilewright.ops.plans import choose, complete, list_model
from tilewright.ops.ready import served
from tilewright.ops.spaces import FEW_ROWS, SETTINGS, WIDE_SETTINGS, list_settings
from tilewright.runtime.counters import counters
from tilewright.schedule.options import COptions
from tilewright.support.errors import TilewrightError
from tilewright.tune import measure, store
from tilewright.tune.cost import rank

C_SETTING = {"width": 64, "prefetch": 0, "grain": 16}
LISTS = {"rows": 4, "unroll": 2, "long": 16, "chunk": 64, "warps": 1}


pytestmark = pytest.mark.usefixtures("own_plans")


@tw.program
def relu_sum(a, x, y):  # type: ignore[no-untyped-def]
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * tw.relu(x[j, f]))


def of(place: Place) -> dict[str, int]:
    """A setting that is not the usual one."""
    return C_SETTING if place.backend == "c" else LISTS


def sparse(place: Place) -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(matrix(device=place.device)).prepare()


def spmm_case(place: Place) -> tuple[Any, ...]:
    return tw.spmm, (sparse(place), randn(12, 5, device=place.device)), {}, LISTS


def program_case(place: Place) -> tuple[Any, ...]:
    return relu_sum, (sparse(place), randn(12, 5, device=place.device)), {}, LISTS


def einsum_case(place: Place) -> tuple[Any, ...]:
    return tw.einsum, ("ij,jf->if", sparse(place), randn(12, 5, device=place.device)), {}, LISTS


def sddmm_case(place: Place) -> tuple[Any, ...]:
    A = sparse(place)
    x, z = randn(A.shape[0], 7, device=place.device), randn(12, 7, seed=1, device=place.device)
    return tw.sddmm, (A, x, z), {}, {"edges": 16, "width": 16, "warps": 1}


def blocks_case(place: Place) -> tuple[Any, ...]:
    A = tw.SparseTensor.from_torch(torch.eye(32, device=place.device).to_sparse_bsr((16, 16)))
    x = randn(32, 16, device=place.device)
    return tw.spmm, (A, x), {}, {"width": 16, "warps": 8, "stages": 3, "blocks": 2, "bn": 64}


def strips_case(place: Place) -> tuple[Any, ...]:
    dense = matrix(32, 24, dtype=torch.float16, device=place.device)
    A = tw.SparseTensor.from_dense(dense).to_format("srbcrs.16.4")
    x = randn(24, 16, dtype=torch.float16, device=place.device)
    return tw.spmm, (A, x), {}, {"bk": 64, "width": 64, "warps": 8, "stages": 4}


def ragged_case(place: Place) -> tuple[Any, ...]:
    r = tw.ragged(lengths=torch.tensor([3, 0, 5], device=place.device), max_len=5)
    A = tw.SparseTensor(r.structure, randn(8, device=place.device))
    return relu_sum, (A, randn(5, 4, device=place.device)), {}, {"rows": 2, "unroll": 2, "warps": 1}


def linear_case(place: Place) -> tuple[Any, ...]:
    dtype = torch.float16 if place.backend == "triton" else torch.float32
    x, w = (
        randn(9, 8, dtype=dtype, device=place.device),
        randn(6, 8, dtype=dtype, device=place.device),
    )
    rows = torch.tensor([0, 3, 8], device=place.device)
    tile = {"bm": 32, "bn": 32, "bk": 32, "group": 8, "warps": 4, "stages": 2}
    return tw.linear, (x, w), {"sparse": rows}, tile


def attention_case(place: Place) -> tuple[Any, ...]:
    mask = tw.block_mask(torch.tensor([[True, False], [True, True]], device=place.device), block=16)
    q = [randn(1, 32, 16, seed=n, device=place.device) for n in range(3)]
    return tw.attention, tuple(q), {"mask": mask}, {"bm": 16, "bn": 16, "warps": 2, "stages": 2}


CASES: dict[str, Callable[[Place], tuple[Any, ...]]] = {
    "spmm": spmm_case,
    "program": program_case,
    "einsum": einsum_case,
    "sddmm": sddmm_case,
    "linear": linear_case,
    "attention": attention_case,
    "blocks": blocks_case,
    "strips": strips_case,
    "ragged": ragged_case,
}


def dense(value: Any) -> torch.Tensor:
    return value.values if isinstance(value, tw.SparseTensor) else value


@pytest.mark.parametrize("name", CASES)
def test_every_operator_is_tuned_and_uses_what_was_found(name: str, where: Place) -> None:
    op, args, options, setting = CASES[name](where)
    if where.backend == "c" and op is tw.linear:
        with pytest.raises(tw.TilewrightError, match="on the CPU torch multiplies"):
            tw.tune(op, *args, settings=[C_SETTING], budget_s=0, **options)
        return
    setting = C_SETTING if where.backend == "c" else setting
    want = dense(op(*args, **options))
    got = tw.tune(op, *args, settings=[setting], budget_s=0, **options)
    assert setting.items() <= got.items()
    with served() as kernels:
        close(dense(op(*args, **options)), want, want.dtype)
    used = kernels[-1].setting
    assert {k: v for k, v in setting.items() if k not in ("long", "chunk", "group")}.items() <= {
        "prefetch": 0,
        **used,
    }.items()


def test_a_later_process_uses_it(fast: Place) -> None:
    """Of a structure alike, not the same: found by its class."""
    A, x = sparse(fast), randn(12, 5, device=fast.device)
    setting = tw.tune(tw.spmm, A, x, settings=[of(fast)], budget_s=0)
    store.forget()
    other = tw.SparseTensor.from_dense(matrix(device=fast.device)).prepare()
    wider = randn(12, 6, device=fast.device)
    used = [tw.spmm.plan(other, t).setting.items() for t in (x, wider)]  # type: ignore[attr-defined]
    assert [setting.items() <= items for items in used] == [True, False]


@pytest.mark.parametrize("source", ["coo", "csc"])
def test_structures_that_are_walked_in_another_format(source: str, fast: Place) -> None:
    A, x = sparse(fast).to_format(source), randn(12, 5, device=fast.device)
    tw.spmm(A, x)
    tw.tune(tw.spmm, A, x, settings=[of(fast)], budget_s=0)
    with served() as kernels:
        tw.spmm(A, x)
    used = {"prefetch": 0, **kernels[0].setting}
    assert {k: v for k, v in of(fast).items() if k not in ("long", "chunk")}.items() <= used.items()


def test_nothing_is_measured_unless_asked(where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "seconds", lambda *_: pytest.fail("measured"))
    A, x = sparse(where), randn(12, 5, device=where.device)
    for _ in range(3):
        tw.spmm(A, x)


def test_warm_calls_compile_nothing_after_tuning(fast: Place) -> None:
    A, x = sparse(fast), randn(12, 5, device=fast.device)
    tw.tune(tw.spmm, A, x, settings=[of(fast)], budget_s=0)
    tw.spmm(A, x)
    counters.reset()
    for other in (A.with_values(A.values * 2), sparse(fast)):  # type: ignore[operator]
        tw.spmm(other, x)
    assert counters.c_builds == counters.triton_builds == counters.disk_hits == 0


def test_gradients_after_tuning(fast: Place) -> None:
    A, x = sparse(fast), randn(12, 5, device=fast.device).requires_grad_()
    tw.tune(tw.spmm, A, x.detach(), settings=[of(fast)], budget_s=0)
    tw.spmm(A, x).sum().backward()
    close(x.grad, A.to_dense().t() @ torch.ones(A.shape[0], 5, device=fast.device))


def test_the_whole_space_on_the_cpu() -> None:
    """Searched for real: a point of the space, at least as fast as the usual one when it was measured."""
    A, x = sparse(Place("c")), randn(12, 5)
    got = tw.tune(tw.spmm, A, x, budget_s=1.0)
    subject = tuning.subject_of_op(tw.spmm, (A, x), {})
    assert subject.space.why_not(got) is None
    record = store.find(subject.case.whole_key())
    assert record is not None and record.gain >= 1.0
    assert record.how["first"] == COptions().setting | {"alike": 0}
    assert record.how["repeats"] >= 3


def test_the_default_plan_is_the_models(tiled: Place) -> None:
    A = sparse(tiled)
    s, dtype = A.structure, torch.float32
    full = [complete(setting, s, 20, dtype) for setting in SETTINGS]
    made = choose(s, 20, dtype)
    assert made.source == "model"
    assert made.setting == rank(list_model(s, 20, dtype), full)[0][0]


@pytest.mark.parametrize("setting", WIDE_SETTINGS, ids=str)
def test_wide_tiles_of_few_rows(tiled: Place, setting: dict[str, int]) -> None:
    """Short rows, longer ones, one of several pieces; features that do not fill a tile."""
    dense = matrix(20, 300, 0.05, dtype=torch.float16, device=tiled.device)
    x = randn(300, 72, dtype=torch.float16, device=tiled.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    plan = tw.spmm.plan(A, x, setting)  # type: ignore[attr-defined]
    plan.launch()
    close(plan.out, (dense.double() @ x.double()).half())


def test_wide_tiles_are_for_few_rows_of_half_numbers_and_wide_results() -> None:
    assert list_settings(FEW_ROWS, 128, 2) == [*SETTINGS, *WIDE_SETTINGS]
    assert [s for s in list_settings(FEW_ROWS, 64, 2) if s.get("width") == 128] == []
    for rows, span, itemsize in ((FEW_ROWS, 32, 2), (FEW_ROWS, 128, 4), (FEW_ROWS + 1, 128, 2)):
        assert list_settings(rows, span, itemsize) == SETTINGS


def test_candidates_stand_in_the_order_of_the_model(tiled: Place) -> None:
    subject = tuning.subject_of_op(tw.spmm, (sparse(tiled), randn(12, 64, device=tiled.device)), {})
    assert subject.model is not None
    totals = [subject.model(p).total for p in tuning.candidates(subject)]
    known, others = totals[: len(SETTINGS)], totals[len(SETTINGS) :]
    assert known == sorted(known) and others == sorted(others) and len(others) > 100


def test_explained() -> None:
    A, x = sparse(Place("c")), randn(12, 5)
    assert "nothing was measured" in str(tw.explain(tw.spmm, A, x)["plan"].body)
    tw.tune(tw.spmm, A, x, settings=[COptions().setting, C_SETTING], budget_s=0)
    said = str(tw.explain(tw.spmm, A, x)["plan"].body)
    assert "measured" in said and "tried all 2 of 2 settings" in said and "spmm_sum" in said


def test_explained_by_the_model(tiled: Place) -> None:
    plan = tw.spmm.plan(sparse(tiled), randn(12, 8, device=tiled.device))  # type: ignore[attr-defined]
    said = str(tw.explain(plan)["plan"].body)
    assert "chosen by the cost model" in said
    many = len(SETTINGS)
    assert all(word in said for word in ("launch", "tail", f"1 of {many}", f"last of {many}"))


@pytest.mark.parametrize(
    "call",
    [
        lambda A, x: tw.tune(len, A),
        lambda A, x: tw.tune(tw.sddmm, A, x),
        lambda A, x: tw.tune(tw.spmm, A, x[:3]),
        lambda A, x: tw.tune(tw.spmm, A, x, settings=[{"rows": 8}]),
        lambda A, x: tw.tune(tw.spmm, A, x, settings=[]),
        lambda A, x: tw.tune(tw.spmm, A, x, settings=[5]),
        lambda A, x: tw.tune(tw.spmm, A, x, settings=[{"width": 0}]),
        lambda A, x: tw.tune(tw.spmm, A, x, settings=[{"width": "a"}]),
        lambda A, x: tw.tune(tw.spmm, A, x, budget_s=None),
        lambda A, x: tw.tune(tw.spmm, A, x, budget_s=-1),
    ],
)
def test_mistakes(call: Callable[..., Any]) -> None:
    with pytest.raises(TilewrightError):
        call(sparse(Place("c")), randn(12, 5))
