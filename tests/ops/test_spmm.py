"""tw.spmm against dense torch: kinds of input, layouts of x, reductions, heads, work lists."""

from __future__ import annotations

import re

import pytest
import torch
from ops.matrices import KINDS, close, matrix, randn, reduced
from ops.places import Place

import tilewright as tw
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.ops.choice import Choice
from tilewright.ops.plans import choose, work_list_of
from tilewright.ops.spmm import _call as spmm_call
from tilewright.schedule.options import Setting


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str, where: Place) -> None:
    if kind.startswith("scipy") and where.name == "cuda":
        pytest.skip("SciPy matrices live on the host")
    dense = matrix(device=where.device)
    x = randn(12, 7, device=where.device)
    close(tw.spmm(KINDS[kind](dense), x), dense @ x)


@pytest.mark.parametrize("kind", ["torch-csr", "torch-csc", "tensor-coo"])
@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_reduce(reduce: str, kind: str, where: Place) -> None:
    dense = matrix(device=where.device)
    x = randn(12, 7, device=where.device)
    close(tw.spmm(KINDS[kind](dense), x, reduce=reduce), reduced(dense, x, reduce))


@pytest.mark.parametrize(
    "reduce,empty", [("sum", 0.0), ("mean", 0.0), ("max", "-inf"), ("min", "inf")]
)
def test_empty_rows(reduce: str, empty: float | str, where: Place) -> None:
    got = tw.spmm(
        matrix(device=where.device).to_sparse_csr(),
        randn(12, 3, device=where.device),
        reduce=reduce,
    )
    assert torch.equal(got[2].cpu(), torch.full((3,), float(empty)))


@pytest.mark.parametrize("kind", ["torch-csr", "torch-csc", "torch-coo", "torch-bsr"])
def test_values(kind: str, where: Place) -> None:
    """values= follow the order of the source."""
    dense = matrix(device=where.device)
    A, x = KINDS[kind](dense), randn(12, 5, device=where.device)
    old = A._values() if kind == "torch-coo" else A.values()
    close(tw.spmm(A, x, values=old * 3 + 0.5 * old.sign()), (dense * 3 + 0.5 * dense.sign()) @ x)


@pytest.mark.parametrize("kind", ["torch-csr", "torch-bsr"])
def test_vector(kind: str, where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, device=where.device)
    close(tw.spmm(KINDS[kind](dense), x), dense @ x)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


def stepped(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x + 99], 2)[:, :, 0]


def sliced(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x + 99, x, x + 99], 1)[:, x.shape[1] : 2 * x.shape[1]]


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Contiguous, but not aligned to 16 bytes."""
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view_as(x)


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:, :1].expand_as(x)


@pytest.mark.parametrize(
    "view", [transposed, stepped, sliced, shifted, expanded], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("kind", ["torch-csr", "torch-bsr"])
def test_layout_of_x(kind: str, view, where: Place) -> None:  # type: ignore[no-untyped-def]
    dense = matrix(device=where.device)
    x = view(randn(12, 16, device=where.device))
    close(tw.spmm(KINDS[kind](dense), x), dense @ x)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_widths_of_x_that_lies_turned(
    reduce: str, where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that holds a narrow row whole does not serve a wide one."""
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)  # what is left unwritten
    dense = matrix(device=where.device)
    a = tw.SparseTensor.from_dense(dense).prepare()
    for width in (24, 104, 5, 300):
        x = randn(width, 12, seed=width, device=where.device).t()
        close(tw.spmm(a, x, reduce=reduce), tw.spmm(a, x.contiguous(), reduce=reduce))


def test_values_not_contiguous(where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 5, device=where.device)
    A = dense.to_sparse_csr()
    close(tw.spmm(A, x, values=torch.stack([A.values(), A.values() + 1], 1)[:, 0]), dense @ x)


@pytest.mark.parametrize("kind", ["tensor", "tensor-coo", "tensor-csc"])
def test_heads(kind: str, where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 3, 5, device=where.device)
    A = KINDS[kind](dense)
    heads = A.with_values(randn(A.nnz, 3, seed=2, device=where.device))
    close(tw.spmm(heads, x), torch.einsum("ijh,jhf->ihf", heads.to_dense(), x))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_duplicates_add_up(index: torch.dtype, where: Place) -> None:
    rows = torch.tensor([3, 0, 3, 0, 3], dtype=index, device=where.device)
    cols = torch.tensor([1, 2, 1, 0, 1], dtype=index, device=where.device)
    A = tw.SparseTensor.from_coo(rows, cols, randn(5, device=where.device), (4, 3))
    x = randn(3, 6, device=where.device)
    close(tw.spmm(A, x), A.to_dense() @ x)


def test_ones(where: Place) -> None:
    """Without values every entry counts as one."""
    edges = torch.tensor([[0, 1, 1, 3], [2, 2, 0, 0]], device=where.device)
    G, x = tw.graph(edges, num_nodes=4), randn(4, 5, device=where.device)
    want = torch.zeros(4, 5, device=where.device).index_add_(0, edges[1], x[edges[0]])
    close(tw.spmm(G, x), want)


def test_graph_values_follow_the_edges(where: Place) -> None:
    edges = torch.tensor([[0, 1, 1, 3], [2, 2, 0, 0]], device=where.device)
    weight = torch.tensor([1.0, 10.0, 100.0, 1000.0], device=where.device)
    x = torch.eye(4, device=where.device)
    got = tw.spmm(tw.graph(edges, num_nodes=4, values=weight), x)
    assert got[2].tolist() == [1, 10, 0, 0] and got[0].tolist() == [0, 100, 0, 1000]


def test_transposed(where: Place) -> None:
    dense = matrix(device=where.device)
    x = randn(10, 4, device=where.device)
    close(tw.spmm(tw.SparseTensor.from_dense(dense).T, x), dense.t() @ x)


@pytest.mark.parametrize(
    "mixed", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)], ids=str
)
def test_mixed_dtypes(mixed: tuple[torch.dtype, torch.dtype], where: Place) -> None:
    """The result has the wider dtype of values and x."""
    dense = matrix(dtype=mixed[0], device=where.device)
    x = randn(12, 4, dtype=mixed[1], device=where.device)
    got = tw.spmm(dense.to_sparse_csr(), x)
    assert got.dtype == mixed[1]
    close(got, dense.to(mixed[1]) @ x)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1)], ids=str)
def test_degenerate_shapes(shape: tuple[int, int], where: Place) -> None:
    dense = matrix(*shape, fill=1.0, device=where.device)
    x = randn(shape[1], 3, device=where.device)
    close(tw.spmm(dense.to_sparse_csr(), x), dense @ x)


def test_no_features() -> None:
    assert tw.spmm(matrix().to_sparse_csr(), randn(12, 0)).shape == (10, 0)


def test_new_indices_in_place_are_seen(where: Place) -> None:
    """The cache of structures notices a changed index array."""
    A = matrix(device=where.device).to_sparse_csr()
    x = randn(12, 4, device=where.device)
    tw.spmm(A, x)
    A.col_indices().copy_((A.col_indices() + 1) % 12)
    close(tw.spmm(A, x), A.to_dense() @ x)


# --- work lists -----------------------------------------------------------------------------------------


def giant(device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Row 1 holds 700 entries, more than one piece; the others few."""
    dense = matrix(6, 700, 0.01, dtype=dtype, device=device)
    dense[1] = randn(700, seed=3, dtype=dtype, device=device)
    dense[3] = 0
    return dense


SETTING: Setting = {"rows": 4, "unroll": 2, "long": 16, "chunk": 64, "warps": 1}


def listed(A: tw.SparseTensor, x: torch.Tensor, setting: Setting = SETTING):  # type: ignore[no-untyped-def]
    """The prepared structure uses this setting from now on."""
    full = {**setting, "width": 16, "outer": 0}
    A.structure.plans["chosen", x.shape[-1], x.dtype] = Choice(full, "given")
    return A.structure, full


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_prepared(reduce: str, dtype: torch.dtype, tiled: Place) -> None:
    dense = giant(tiled.device, dtype)
    A = tw.SparseTensor.from_dense(dense).prepare()
    x = randn(700, 20, dtype=dtype, device=tiled.device)
    listed(A, x)
    want = reduced(dense.double(), x.double(), reduce)
    torch.testing.assert_close(
        tw.spmm(A, x, reduce=reduce).double(),
        want,
        rtol=1e-2,
        atol=6e-2 if dtype == torch.float16 else 1e-4,
    )


def test_a_giant_row_is_cut(tiled: Place) -> None:
    A = tw.SparseTensor.from_dense(giant(tiled.device)).prepare()
    s, setting = listed(A, randn(700, 20, device=tiled.device))
    assert int(work_list_of(s, setting).units[:, 2].max()) == 11


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_twice_the_same_bits(reduce: str, tiled: Place) -> None:
    """Pieces are combined in index order, whoever comes last."""
    A = tw.SparseTensor.from_dense(giant(tiled.device)).prepare()
    x = randn(700, 20, device=tiled.device)
    listed(A, x)
    first = tw.spmm(A, x, reduce=reduce)
    assert torch.equal(tw.spmm(A, x, reduce=reduce), first)


def test_counters_are_left_at_zero(tiled: Place) -> None:
    A = tw.SparseTensor.from_dense(giant(tiled.device)).prepare()
    x = randn(700, 20, device=tiled.device)
    s, setting = listed(A, x)
    tw.spmm(A, x)
    kept = list(work_list_of(s, setting).counters.values())
    assert kept and all(int(c.abs().sum()) == 0 for c in kept)


def test_default_setting_of_a_prepared_structure(tiled: Place) -> None:
    dense = giant(tiled.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    x = randn(700, 20, device=tiled.device)
    got = tw.spmm(A, x)
    assert choose(A.structure, 20, torch.float32).setting["rows"] >= 1
    close(got, dense @ x, torch.float16)


def test_prepared_backward(tiled: Place) -> None:
    """The transposed structure has a work list of its own: column 0 is full."""
    dense = giant(tiled.device).t().contiguous()
    A = tw.SparseTensor.from_dense(dense).prepare()
    x = randn(6, 4, device=tiled.device).requires_grad_()
    g = randn(700, 4, seed=4, device=tiled.device)
    tw.spmm(A, x).backward(g)
    close(x.grad, dense.t() @ g, torch.float16)


def test_tune_keeps_results(tiled: Place) -> None:
    dense = matrix(device=tiled.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    x = randn(12, 8, device=tiled.device)
    chosen = tw.tune(tw.spmm, A, x, settings=[SETTING, {**SETTING, "rows": 8, "warps": 2}])
    assert chosen["rows"] in (4, 8)
    close(tw.spmm(A, x), dense @ x)


@pytest.mark.parametrize("source", ["coo", "csc"])
def test_preparation_reaches_the_rows(source: str, tiled: Place) -> None:
    """Operators walk rows: what prepare() makes of another format must be there for them."""
    A = tw.SparseTensor.from_dense(giant(tiled.device)).to_format(source).prepare()
    program, *_ = spmm_call(A, randn(700, 4, device=tiled.device), "sum", None)
    assert "t_indptr" in program and "units" in program


def test_the_second_use_prepares(fast: Place) -> None:
    """For gradients (and always on a GPU): the transpose is made once, not in every backward pass."""
    A = tw.SparseTensor.from_dense(randn(9, 12, device=fast.device).relu())
    x = randn(12, 5, device=fast.device).requires_grad_()
    tw.spmm(A, x).sum().backward()
    assert A.structure.transposed is None
    tw.spmm(A, x).sum().backward()
    assert A.structure.transposed is not None
    close(x.grad, 2 * A.to_dense().t() @ torch.ones(9, 5, device=fast.device))


def test_entries_read_once(tiled: Place) -> None:
    """The setting `stream` marks the arrays of entries, not x; the marks survive the text."""
    dense = matrix(40, 30, device=tiled.device)
    x = randn(30, 16, device=tiled.device)
    setting = {"rows": 4, "unroll": 2, "long": 8, "chunk": 16, "warps": 1, "stream": 1}
    plan = tw.spmm.plan(tw.SparseTensor.from_dense(dense), x, setting)
    plan.launch()
    close(plan.out, dense @ x)
    code = plan.kernel.stages["triton"].splitlines()
    marked = [line for line in code if "evict_first" in line]
    entries = [line for line in code if "load(a_ptr" in line or "load(a_indices_ptr" in line]
    assert marked and marked == entries
    for stage in ("scheduled", "tile"):
        said = plan.kernel.stages[stage]
        assert text(parse(said)).strip() == said.strip()


@pytest.mark.parametrize("unroll", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_every_length(tiled: Place, unroll: int, dtype: torch.dtype) -> None:
    """Rounds of unrolled copies, whole and short ones, and rows that are cut in pieces."""
    columns, lengths = (torch.arange(n, device=tiled.device) for n in (31, 27))
    dense = (columns[None, :] < lengths[:, None]) * randn(27, 31, device=tiled.device)
    dense, x = dense.to(dtype), randn(31, 40, device=tiled.device).to(dtype)
    setting = {"rows": 4, "unroll": unroll, "long": 18, "chunk": 20, "warps": 1}
    plan = tw.spmm.plan(tw.SparseTensor.from_dense(dense), x, setting)
    plan.launch()
    close(plan.out, (dense.double() @ x.double()).to(dtype))


def rounds_of(device: torch.device) -> list[tuple[int, str]]:
    """The unrolled rounds of a kernel over a work list: copies and body of each, in the order of the text."""
    A = tw.SparseTensor.from_dense(matrix(40, 30, device=device))
    setting = {"rows": 4, "unroll": 8, "long": 8, "chunk": 16, "warps": 1}
    plan = tw.spmm.plan(A, randn(30, 16, device=device), setting)
    _, *parts = re.split(r"static_range\((\d+)\):", plan.kernel.stages["triton"])
    bodies = (re.split(r"\n *(?:for|if|else|begun|rounds)\b", b)[0] for b in parts[1::2])
    return list(zip(map(int, parts[::2]), bodies, strict=True))


def test_last_rounds_are_short(tiled: Place) -> None:
    """Steps that no lane has are not done: rounds of 2, 4 and 6 beside those of 8."""
    assert sorted(n for n, _ in rounds_of(tiled.device)) == [2, 4, 6, 8, 8]


def test_copies_share_an_address(tiled: Place) -> None:
    """What unrolled copies differ in is added last, by itself: a constant beside one address."""
    for _, body in rounds_of(tiled.device):
        assert re.search(r"a_indices_ptr \+ .* \+ q\d*( \* 4)?[,)]", body), body


@pytest.mark.parametrize(("width", "lines"), [(32, 2), (128, 8), (130, 5), (512, 8)])
def test_gathers_are_asked_for_early(width: int, lines: int) -> None:
    """On the CPU, at every width: rows of x that are not in a cache take as long as hundreds of products.

    All lines of a tile are asked for, and so many entries ahead that they are 16 KB.
    """
    A = tw.SparseTensor.from_dense(matrix(30, 40))
    plan = tw.spmm.plan(A, randn(40, width))
    ahead = min(32, (16 << 10) // (4 * width))
    said = rf"tw_early\(x \+ .*\[p_j \+ tw_min_i64\({ahead}, a_nnz - .*\)\].*, {lines}\);"
    assert re.search(said, plan.kernel.stages["c"])
