"""Rows in an order in which neighbours share columns, on the CPU: what is computed is the same, and when it is done."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.matrices import close, reduced
from torch import Tensor

import tilewright as tw
from tilewright.ops import plans
from tilewright.ops.plans import alike_pays, visits_of
from tilewright.ops.ready import served
from tilewright.ops.spaces import c as space
from tilewright.runtime import caches
from tilewright.runtime.caches import sizes
from tilewright.runtime.visits import make_visits, missing
from tilewright.tune.turns import saved

ALIKE = {"alike": 1}


def matrix(
    rows: int, columns: int, density: float = 0.2, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[tw.SparseTensor, Tensor]:
    """A random matrix with an empty and a full row."""
    random = torch.Generator().manual_seed(seed)
    held = torch.rand(rows, columns, generator=random) < density
    held[rows // 2], held[rows // 3] = True, False
    dense = torch.randn(rows, columns, generator=random).to(dtype) * held
    return tw.SparseTensor.from_dense(dense), dense


def families(rows: int, columns: int, each: int, seed: int = 0) -> tw.SparseTensor:
    """Rows of families that share their columns, in no order."""
    random = torch.Generator().manual_seed(seed)
    many = columns // each
    family = torch.randint(0, many, (rows,), generator=random)
    cols = (
        family[:, None] * each
        + torch.argsort(torch.rand(rows, each, generator=random), 1)[:, : each // 2]
    )
    at = torch.arange(rows).repeat_interleave(each // 2)
    return tw.SparseTensor.from_coo(
        at, cols.flatten(), torch.ones(cols.numel()), (rows, columns)
    ).to_format("csr")


def steps(launch: object) -> list[str]:
    return [s.name for s in launch.kernel.schedule]  # type: ignore[attr-defined]


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=9, unique=True).map(sorted), max_size=12),
    st.randoms(),
)
def test_every_entry_is_visited_once(lists: list[list[int]], random: object) -> None:
    indptr = torch.tensor(
        [0, *torch.tensor([len(r) for r in lists]).cumsum(0).tolist()], dtype=torch.int32
    )
    indices = torch.tensor([c for r in lists for c in r], dtype=torch.int32)
    order = list(range(len(lists)))
    random.shuffle(order)  # type: ignore[attr-defined]
    v = make_visits(indptr, indices, torch.tensor(order, dtype=torch.int64))
    assert sorted(v.rows.tolist()) == list(range(len(lists)))
    assert v.begin.dtype == v.columns.dtype == torch.int32
    for n, i in enumerate(v.rows.tolist()):
        lo, hi = v.begin[n : n + 2].tolist()
        assert v.columns[lo:hi].tolist() == lists[i]
        assert lo + v.shift[n] == indptr[i] and order[i] == n


def least_recent(columns: list[int], room: int) -> float:
    """The share of misses of a cache that forgets what was not touched for longest."""
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for c in columns:
        misses += c not in held
        held[c] = None
        held.move_to_end(c)
        if len(held) > room:
            held.popitem(last=False)
    return misses / len(columns)


@pytest.mark.parametrize("room", [40, 150, 1000])
@pytest.mark.parametrize("kind", ["random", "skewed", "families", "once"])
def test_misses_are_those_of_a_cache(kind: str, room: int) -> None:
    random = torch.Generator().manual_seed(1)
    made = {
        "random": lambda: torch.randint(0, 300, (6000,), generator=random),
        "skewed": lambda: (torch.rand(6000, generator=random) ** 4 * 300).long(),
        "families": lambda: visits_of(families(600, 320, 16).structure).columns,
        "once": lambda: torch.arange(5000),
    }[kind]()
    assert missing(made, room) == pytest.approx(least_recent(made.tolist(), room), abs=0.06)


def test_nothing_misses_nothing() -> None:
    assert missing(torch.empty(0, dtype=torch.int32), 10) == 0.0
    assert missing(torch.zeros(100, dtype=torch.int32), 10) == pytest.approx(0.01)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("width", [1, 5, 32, 130, 600])
def test_products(reduce: str, width: int) -> None:
    A, dense = matrix(60, 50)
    x = torch.randn(50, width)
    plan = tw.spmm.plan(A, x, ALIKE, reduce=reduce)
    plan.out.fill_(float("nan"))
    plan.launch()
    close(plan.out, reduced(dense, x, reduce))
    assert "visit" in steps(plan) and "visit" not in steps(tw.spmm.plan(A, x, {"alike": 0}))


@pytest.mark.parametrize("op", ["dot", "add", "mul", "max"])
@pytest.mark.parametrize("width", [1, 5, 32, 128, 600])
def test_entries(op: str, width: int) -> None:
    A, dense = matrix(60, 50, seed=3)
    x, z = torch.randn(60, width), torch.randn(50, width)
    plan = tw.sddmm.plan(A, x, z, ALIKE, op=op)
    plan.out.fill_(float("nan"))
    plan.launch()
    rows, cols = dense.nonzero().t()
    both = {
        "dot": lambda a, b: (a * b).sum(1),
        "add": torch.add,
        "mul": torch.mul,
        "max": torch.maximum,
    }
    want = both[op](x[rows], z[cols])
    close(plan.out, want * dense[rows, cols].reshape(-1, *[1] * (want.dim() - 1)))
    assert "visit" in steps(plan)


@pytest.mark.parametrize("width", [7, 64, 200])
def test_not_a_bit_changes(width: int) -> None:
    A, _ = matrix(80, 90, 0.4, seed=11)
    x, z = torch.randn(90, width), torch.randn(80, width)
    for made in (lambda k: tw.spmm.plan(A, x, k), lambda k: tw.sddmm.plan(A, z, x, k)):
        outs = []
        for alike in (0, 1):
            plan = made({"alike": alike})
            plan.launch()
            outs.append(plan.out)
        assert torch.equal(*outs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    A, dense = matrix(40, 30, dtype=dtype)
    x = torch.randn(30, 48).to(dtype)
    plan = tw.spmm.plan(A, x, ALIKE)
    plan.launch()
    close(plan.out, dense @ x)


@given(st.integers(0, 40), st.integers(1, 30), st.floats(0, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_any_pattern(rows: int, columns: int, density: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=random) * (
        torch.rand(rows, columns, generator=random) < density
    )
    A, x = tw.SparseTensor.from_dense(dense), torch.randn(columns, 8, generator=random)
    plan = tw.spmm.plan(A, x, ALIKE)
    plan.out.fill_(float("nan"))
    plan.launch()
    close(plan.out, dense @ x)


def test_values_in_another_order_than_rows() -> None:
    """Entries that came in no order keep theirs: values are read and written through it."""
    rows, cols = torch.randint(0, 20, (150,)), torch.randint(0, 30, (150,))
    v = torch.randn(150)
    A = tw.SparseTensor.from_coo(rows, cols, v, (20, 30))
    x, w = torch.randn(30, 16), torch.randn(20, 16)
    plan = tw.spmm.plan(A, x, ALIKE)
    plan.launch()
    close(plan.out, torch.zeros(20, 16).index_add(0, rows, v[:, None] * x[cols]))
    plan = tw.sddmm.plan(A, w, x, ALIKE)
    plan.launch()
    close(plan.out, v * (w[rows] * x[cols]).sum(1))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prepared structure takes it."""
    monkeypatch.setattr(plans, "alike_pays", lambda *_: True)


@tw.program
def attend(a, s, t, x, y):  # type: ignore[no-untyped-def]
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, tw.leaky_relu(s[i] + t[j]) * a[i, j], x[j, f])


@pytest.mark.usefixtures("always")
def test_programs_and_gradients() -> None:
    A, dense = matrix(40, 30, seed=5, dtype=torch.float64)
    A = A.prepare()
    v = A.values.clone().requires_grad_()  # type: ignore[union-attr]
    s, t, x = (
        torch.randn(*n, dtype=torch.float64, requires_grad=True) for n in ((40,), (30,), (30, 7))
    )
    kernel = attend.kernels(A, s, t, x)[0]
    assert kernel.schedule[0].name == "visit"
    score = torch.nn.functional.leaky_relu(s[:, None] + t) * dense
    weight = score.masked_fill(dense == 0, -torch.inf).softmax(1).nan_to_num(0.0)
    close(attend(A, s, t, x), weight @ x)
    assert torch.autograd.gradcheck(
        lambda v, s, t, x: attend(A.with_values(v), s, t, x), (v, s, t, x)
    )
    assert torch.autograd.gradcheck(lambda v, x: tw.spmm(A.with_values(v), x), (v, x))
    z = torch.randn(40, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, x: tw.sddmm(A, z, x).explicit_values(), (z, x))


@pytest.mark.usefixtures("always")
def test_gradients_visit_columns_in_turns() -> None:
    """The gradient of x is a product by the transpose, which has an order of its own."""
    A, dense = matrix(40, 30, seed=6)
    x, y = torch.randn(30, 16, requires_grad=True), torch.randn(40, 16)
    made = tw.spmm(A.prepare(), x)
    with served() as kernels:
        made.backward(y)
    assert [k.schedule[0].name for k in kernels] == ["visit"]
    close(x.grad, dense.t() @ y)


@pytest.mark.usefixtures("always")
def test_only_what_is_prepared_and_csr() -> None:
    A, _ = matrix(40, 30, seed=7)
    x = torch.randn(30, 8)
    assert "visit" not in steps(tw.spmm.plan(A, x))
    assert "visit" in steps(tw.spmm.plan(A.prepare(), x))
    assert "visit" not in steps(tw.spmm.plan(A.to_format("ell").prepare(), x))
    step = torch.compile(lambda A, x: tw.spmm(A, x), fullgraph=True, backend="eager")
    close(step(A, x), tw.spmm(A, x))


def test_it_pays_where_rows_share_columns_that_a_cache_forgets() -> None:
    """Families of rows in no order gain; the same in order, or small enough for a cache, do not."""
    near = sizes()[2] // 512
    s = families(4 * near, 4 * near, 16).prepare().structure
    assert alike_pays(s, 512, 4, False)
    assert s.indices is not None
    then = visits_of(s).columns
    assert missing(then, near) < 0.5 * missing(s.indices, near)
    assert saved(then, then, s.shape[0], 512, 4) < 0
    small = families(60, 64, 16).prepare().structure
    assert not alike_pays(small, 128, 4, False)


def test_no_order_is_looked_for_where_none_could_pay() -> None:
    """Rows of one number each: what a row out of its turn costs is more than all gathers take."""
    near = sizes()[2] // 4
    columns = torch.randperm(2 * near, generator=torch.Generator().manual_seed(0))
    at = torch.arange(len(columns))
    s = tw.SparseTensor.from_coo(at, columns, None, (2 * near, 2 * near)).to_format("csr").structure
    assert not alike_pays(s, 4, 4, False) and "visits" not in s.plans


def test_a_default_call_takes_what_pays() -> None:
    near = sizes()[2] // 512
    A = families(2 * near, 4 * near, 16).prepare()
    x = torch.randn(4 * near, 128)
    assert "visit" in steps(tw.spmm.plan(A, x))
    indptr, cols = A.structure.indptr, A.structure.indices
    assert indptr is not None and cols is not None
    rows = torch.arange(A.shape[0]).repeat_interleave(indptr.diff())
    close(tw.spmm(A, x), torch.zeros(A.shape[0], 128).index_add(0, rows, x[cols]))


def test_it_can_be_tuned() -> None:
    assert space(64, True).params[0].name == "alike"
    assert "alike" not in [p.name for p in space(64).params]
    A, dense = matrix(50, 40)
    x = torch.randn(40, 16)
    found = tw.tune(tw.spmm, A, x, settings=[{"alike": 1}], save=False)
    assert found["alike"] == 1
    assert "visit" in steps(tw.spmm.plan(A, x))
    close(tw.spmm(A, x), dense @ x)


def test_rows_are_asked_for_ahead() -> None:
    """Rows of x that entries share, where they are neither short nor long."""
    A, _ = matrix(40, 30)
    told = {}
    for width in (32, 128, 256, 512):
        plan = tw.sddmm.plan(A, torch.randn(40, width), torch.randn(30, width), {"alike": 0})
        told[width] = "prefetch(i, 4)" in map(str, plan.kernel.schedule)
    assert told == {32: False, 128: True, 256: True, 512: False}


@tw.program
def two_sides(a, b, x, z, y):  # type: ignore[no-untyped-def]
    i, j, k, f = tw.axes("i j k f")
    y[i, f] = tw.sum(k, b[i, k] * z[k, f]) + tw.sum(j, a[i, j] * x[j, f])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("swapped", [False, True])
def test_rows_of_two_matrices(swapped: bool) -> None:
    """The order is that of one of them, and its columns are taken for no other's."""
    A, first = matrix(40, 30, 0.3, seed=8)
    B, second = matrix(40, 50, 0.1, seed=9)
    x, z = torch.randn(30, 8), torch.randn(50, 8)
    a, b = (A.prepare(), B) if swapped else (A, B.prepare())
    close(two_sides(a, b, x, z), first @ x + second @ z)
    close(two_sides(A.prepare(), B.prepare(), x, z), first @ x + second @ z)


def test_caches_are_those_that_the_system_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "ROOT", tmp_path)
    ask = caches.sizes.__wrapped__
    assert ask() == caches.USUAL
    for n, told in enumerate(
        (("1", "64K", "Instruction"), ("1", "48K", "Data"), ("2", "512K", "Unified"))
    ):
        at = tmp_path / f"index{n}"
        at.mkdir()
        for name, text in zip(("level", "size", "type"), told, strict=True):
            (at / name).write_text(text + "\n")
    assert ask() == {1: 48 << 10, 2: 512 << 10}
