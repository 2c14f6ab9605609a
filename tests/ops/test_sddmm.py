"""tw.sddmm against dense torch, and the order of its values."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from ops.matrices import KINDS, close, matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.formats.convert import source_coordinates
from tilewright.ops import formats
from tilewright.ops.backend import backend
from tilewright.ops.spaces import PARTS
from tilewright.tune.machine import machine_of

PLANS = import_module("tilewright.ops.sddmm")  # the package has the function under its name
OPS = {
    "dot": lambda x, z: (x * z).sum(-1),
    "add": lambda x, z: x + z,
    "sub": lambda x, z: x - z,
    "mul": lambda x, z: x * z,
    "div": lambda x, z: x / z,
}


def at_entries(rows, cols, values, x, z, op: str):  # type: ignore[no-untyped-def]
    made = OPS[op](x[rows.long()], z[cols.long()])
    return values * made if made.dim() == 1 else values[:, None] * made


@pytest.mark.parametrize(
    "kind", ["torch-csr", "torch-coo", "torch-csc", "tensor", "tensor-coo", "scipy-csr"]
)
@pytest.mark.parametrize("op", OPS)
def test_against_torch(op: str, kind: str, where: Place) -> None:
    if kind.startswith("scipy") and where.name == "cuda":
        pytest.skip("SciPy matrices live on the host")
    dense = matrix(device=where.device)
    x, z = randn(10, 6, device=where.device), randn(12, 6, seed=2, device=where.device)
    got = tw.sddmm(KINDS[kind](dense), x, z, op=op).to_dense()
    held = OPS[op](x[:, None], z[None])
    want = dense * held if op == "dot" else dense[:, :, None] * held
    close(got, torch.where(want != 0, want, 0), torch.float32)


def shuffled(device: torch.device, index: torch.dtype = torch.int64) -> tw.SparseTensor:
    rows = torch.tensor([3, 0, 2, 0, 3, 3], dtype=index, device=device)
    cols = torch.tensor([1, 2, 2, 0, 1, 0], dtype=index, device=device)
    return tw.SparseTensor.from_coo(rows, cols, randn(6, device=device), (4, 3))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("op", ["dot", "add"])
def test_values_in_the_order_of_the_source(op: str, index: torch.dtype, where: Place) -> None:
    A = shuffled(where.device, index)
    x, z = randn(4, 5, device=where.device), randn(3, 5, seed=2, device=where.device)
    s = A.structure
    got = tw.sddmm(A, x, z, op=op)
    close(got.values, at_entries(s.rows, s.indices, A.values, x, z, op))


def test_prepared_keeps_the_order(where: Place) -> None:
    A = shuffled(where.device)
    x, z = randn(4, 5, device=where.device), randn(3, 5, seed=2, device=where.device)
    before = tw.sddmm(A, x, z).values
    A.prepare()
    close(tw.sddmm(A, x, z).values, before)


@pytest.mark.parametrize("kind", ["torch-csr", "tensor-coo"])
def test_structure_is_the_source(kind: str, where: Place) -> None:
    """The result can take part in the next product: sddmm, then spmm."""
    dense = matrix(device=where.device)
    x, z = randn(10, 6, device=where.device), randn(12, 6, seed=2, device=where.device)
    e = tw.sddmm(KINDS[kind](dense), x, z)
    close(tw.spmm(e, z), (dense * (x @ z.t())) @ z, torch.float16)


@pytest.mark.parametrize("op", ["dot", "add"])
def test_vectors(op: str, where: Place) -> None:
    edges = torch.tensor([[0, 1, 1, 3], [2, 2, 0, 0]], device=where.device)
    G = tw.graph(edges, num_nodes=4)
    s, t = randn(4, device=where.device), randn(4, seed=2, device=where.device)
    got = tw.sddmm(G, s, t, op=op)
    close(got.values, OPS[op](s[edges[1], None], t[edges[0], None]).reshape(-1))


def test_map_then_heads(where: Place) -> None:
    """Scores of several heads: add, a nonlinearity on values, a product of heads."""
    edges = torch.tensor([[0, 1, 1, 3, 2], [2, 2, 0, 0, 3]], device=where.device)
    G = tw.graph(edges, num_nodes=4)
    s, t = randn(4, 2, device=where.device), randn(4, 2, seed=2, device=where.device)
    h = randn(4, 2, 3, seed=3, device=where.device)
    e = tw.sddmm(G, s, t, op="add").map(torch.nn.functional.leaky_relu)
    weights = torch.nn.functional.leaky_relu(s[edges[1]] + t[edges[0]])
    want = torch.zeros(4, 2, 3, device=where.device)
    want.index_add_(0, edges[1], weights[:, :, None] * h[edges[0]])
    close(tw.spmm(e, h), want)


@pytest.mark.parametrize("layout", ["columns", "steps"])
def test_layout(layout: str, where: Place) -> None:
    dense = matrix(device=where.device)
    x, z = randn(6, 10, device=where.device).t(), randn(12, 6, seed=2, device=where.device)
    z = torch.stack([z, z + 9], 2)[:, :, 0] if layout == "steps" else z.t().contiguous().t()
    close(tw.sddmm(dense.to_sparse_csr(), x, z).to_dense(), dense * (x @ z.t()), torch.float16)


def test_no_entries(where: Place) -> None:
    A = torch.zeros(3, 4, device=where.device).to_sparse_csr()
    got = tw.sddmm(A, randn(3, 5, device=where.device), randn(4, 5, device=where.device))
    assert got.values.shape == (0,)


LISTED: list[dict[str, int]] = [
    {"rows": 8, "edges": 4, "chunk": 16, "inner": 32},
    {"rows": 2, "edges": 8, "chunk": 8, "width": 16, "unroll": 2},
    {"rows": 4, "edges": 1, "chunk": 64, "inner": 32, "warps": 2},
    {"rows": 2, "edges": 4, "chunk": 16, "inner": 1},
    {"rows": 2, "edges": 4, "chunk": 16, "width": 16},
]


@pytest.mark.parametrize("setting", LISTED, ids=str)
@pytest.mark.parametrize("kind", ["tensor", "shuffled", "empty"])
@pytest.mark.parametrize("width", [32, 19])
def test_rows_loaded_once(width: int, kind: str, setting: dict[str, int], tiled: Place) -> None:
    """Parts of rows from a list: x stands outside of the loop over a row's entries."""
    dense = matrix(30, 40, 0 if kind == "empty" else 0.2, device=tiled.device)
    if kind == "empty":
        dense[3] = 0
    A = shuffled(tiled.device) if kind == "shuffled" else tw.SparseTensor.from_dense(dense)
    x, z = (randn(n, width, seed=n, device=tiled.device) for n in A.shape)
    plan = tw.sddmm.plan(A, x, z, setting)
    plan.out.fill_(float("nan"))
    plan.launch()
    rows, cols = source_coordinates(A.structure)
    close(plan.out, at_entries(rows, cols, A.values, x, z, "dot"))
    assert "segs" in plan.kernel.stages["scheduled"]


@pytest.mark.parametrize("trailing", [(2,), (2, 3)])
def test_values_with_heads_beside_wider_rows(trailing: tuple[int, ...], where: Place) -> None:
    """Those that such a call made go back into it."""
    A = shuffled(where.device)
    x, z = randn(4, 2, 3, device=where.device), randn(3, 2, 3, seed=2, device=where.device)
    v = randn(6, *trailing, device=where.device).requires_grad_()
    got = tw.sddmm(A.with_values(v), x, z, op="add").values
    s = A.structure
    wide = v.reshape(*v.shape, *[1] * (3 - v.dim())).expand(6, 2, 3)
    want = wide * (x[s.rows.long()] + z[s.indices.long()])
    close(got, want)
    weight = randn(6, 2, 3, seed=5, device=where.device)
    for g, w in zip(
        *(torch.autograd.grad((t * weight).sum(), v) for t in (got, want)), strict=True
    ):
        close(g, w)


@pytest.mark.parametrize("grad", [False, True])
def test_no_heads(grad: bool, where: Place) -> None:
    """Values [nnz, 0]: results are empty, and have gradients."""
    A = shuffled(where.device)
    H = A.with_values(torch.ones(6, 0, device=where.device, requires_grad=grad))
    x, z = (torch.ones(n, 0, 2, device=where.device, requires_grad=grad) for n in (4, 3))
    made = {
        (6, 0): [tw.sddmm(H, x, z), tw.sddmm(A, x, z), tw.softmax(H)],
        (6, 0, 2): [tw.sddmm(A, x, z, op="add")],
        (4, 0, 2): [tw.spmm(H, z), tw.spmm(H, z, reduce="max")],
    }
    for shape, results in made.items():
        for e in results:
            got = e if isinstance(e, torch.Tensor) else e.values
            assert tuple(got.shape) == shape
            if grad:
                got.sum().backward()


def test_no_rows_with_heads(where: Place) -> None:
    none = torch.zeros(0, dtype=torch.int64, device=where.device)
    A = tw.SparseTensor.from_coo(none, none, None, (0, 3))
    x, z = (torch.ones(n, 2, 4, device=where.device) for n in (0, 3))
    assert tuple(tw.sddmm(A, x, z, op="add").values.shape) == (0, 2, 4)
    assert tuple(tw.softmax(tw.sddmm(A, x, z)).values.shape) == (0, 2)


@tw.program
def batched(a, x, z, e):  # type: ignore[no-untyped-def]
    i, j, b, f = tw.axes("i j b f")
    e[i, j] = a[i, j] * tw.sum((b, f), x[b, i, f] * z[b, j, f])


def test_lanes_are_along_memory() -> None:
    """Heads are apart, what a head sums up is not; where nothing of theirs is summed up, loops outside are lanes."""
    A = shuffled("cpu")
    x, z = (torch.ones(n, 3, 16) for n in A.shape)
    with backend("c"):
        dot, add = tw.sddmm.plan(A, x, z), tw.sddmm.plan(A, x, z, op="add")
        q, mask = torch.ones(1, 1, 32, 64), tw.block_mask(torch.ones(2, 2) > 0, block=16)
        scores = tw.attention.plan(q, q, q, mask=mask)  # type: ignore[attr-defined]
    assert "for f in lane(16)" in dot.kernel.stages["scheduled"]
    assert (
        "for d in lane(64)" in scores.kernel.stages["scheduled"]
    )  # which the inner sum does not read
    assert "in lane(" in add.kernel.stages["scheduled"]


@pytest.mark.parametrize("features,along", [(2, False), (8, True), (48, True)])
def test_sums_of_few_are_not_lanes(features: int, along: bool) -> None:
    A = shuffled("cpu")
    x, z = (torch.ones(n, 3, features) for n in A.shape)
    with backend("c"):
        text = tw.sddmm.plan(A, x, z).kernel.stages["scheduled"]
    assert (f"for f in lane({features})" in text or "f_i in lane(16" in text) == along


def test_lanes_that_fill_no_vector_are_left_to_the_compiler() -> None:
    """Told that they are a sum, gcc 12 is several times slower; where the order matters it has to be told."""
    A = shuffled("cpu")
    with backend("c"):
        texts = [
            tw.sddmm.plan(A, *(torch.ones(n, f) for n in A.shape)).kernel.stages["c"]
            for f in (24, 32)
        ]
    assert ["simd reduction" in text for text in texts] == [False, True]


@pytest.mark.parametrize("op", ["dot", "add"])
@pytest.mark.parametrize("format", ["ell", "padded", "dcsr", "bitmap", "dia"])
def test_matrices_of_nothing_in_other_formats(format: str, op: str, where: Place) -> None:
    A = tw.SparseTensor.from_dense(torch.zeros(5, 7, device=where.device)).to_format(format)
    x, z = randn(5, 3, device=where.device), randn(7, 3, seed=2, device=where.device)
    assert not tw.sddmm(A, x, z, op=op).to_dense().any()


@pytest.mark.parametrize("setting", [p for p in PARTS if p["width"] <= 32][-2:], ids=str)
def test_settings_over_parts_of_rows(setting: dict[str, int], tiled: Place) -> None:
    """What tuning tries beside tiles of entries, rows that share columns side by side among them."""
    dense = matrix(23, 17, 0.3, device=tiled.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    x, z = randn(23, 40, device=tiled.device), randn(17, 40, seed=1, device=tiled.device)
    tried = tw.sddmm.subject(A, x, z)
    assert setting in tried.shown
    want = (x @ z.T * dense)[dense != 0]
    close(tried.make(setting)()[0], want)


@pytest.mark.parametrize("alike", [0, 1])
def test_ranges_of_columns(alike: int, tiled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows of z do not stay in cache, tuning tries parts of rows range of columns after range."""
    dense = matrix(23, 17, 0.3, device=tiled.device)
    A = tw.SparseTensor.from_dense(dense).prepare()
    x, z = randn(23, 40, device=tiled.device), randn(17, 40, seed=1, device=tiled.device)
    setting = {"rows": 2, "edges": 4, "chunk": 16, "width": 16, "alike": alike}
    assert not any("columns" in s for s in tw.sddmm.subject(A, x, z).near(setting))
    small = replace(machine_of(A.device), cache=1000)
    monkeypatch.setattr(formats, "machine_of", lambda device: small)
    tried = tw.sddmm.subject(A, x, z)
    cut = [s for s in tried.near(setting) if "columns" in s]
    assert [s["columns"] for s in cut] == [2, 4]
    assert not tried.near({"edges": 32, "width": 32, "warps": 4})  # tiles of entries
    for s in cut:
        close(tried.make(s)()[0], (x @ z.T * dense)[dense != 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [19, 32, 64, 160])
def test_long_rows_are_read_once(
    width: int, dtype: torch.dtype, tiled: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tuning: parts of rows once a structure is prepared, range of columns after range where z is large."""
    monkeypatch.setattr(PLANS, "ENOUGH", 100)
    dense = (torch.rand(5, 300, device=tiled.device) < 0.7).to(dtype)
    A = tw.SparseTensor.from_dense(dense)
    x, z = (randn(n, width, seed=n, dtype=dtype, device=tiled.device) for n in A.shape)
    want = ((x.float() @ z.float().T) * dense)[dense != 0]
    assert "chunk" not in chosen(A, x, z)
    A.prepare()
    setting = chosen(A, x, z)
    assert ("chunk" in setting) == (width >= 32)
    assert "columns" not in setting
    if setting.get("chunk"):
        assert tw.sddmm.subject(A, x, z).first == setting
    close(tw.sddmm(A, x, z).values, want.to(dtype), dtype)
    small = replace(machine_of(A.device), cache=300 * width * x.itemsize / 2)
    monkeypatch.setattr(formats, "machine_of", lambda device: small)
    B = tw.SparseTensor.from_dense(dense).prepare()
    assert chosen(B, x, z).get("columns", 1) == (4 if width >= 32 else 1)
    close(tw.sddmm(B, x, z).values, want.to(dtype), dtype)


def chosen(A: tw.SparseTensor, x: torch.Tensor, z: torch.Tensor) -> dict[str, int]:
    """The setting of a call that is not tuned."""
    made = PLANS._kind(A, x, z, "dot", None)[0].choice
    assert made is not None and made.source == "default"
    return dict(made.setting)


def test_ranges_of_columns_in_no_order_are_refused(tiled: Place) -> None:
    A = shuffled(tiled.device)
    x, z = (randn(n, 19, seed=n, device=tiled.device) for n in A.shape)
    with pytest.raises(tw.TilewrightError, match="columns"):
        tw.sddmm.plan(A, x, z, {"rows": 2, "edges": 4, "chunk": 16, "width": 16, "columns": 2})
