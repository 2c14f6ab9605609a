"""Programs over several sparse structures, and over every format: results and gradients against dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ops.matrices import close, gradcheck, matrix, randn
from ops.places import Place
from torch import Tensor

import tilewright as tw
from tilewright.formats import meet
from tilewright.formats.distinct import is_sorted
from tilewright.support.errors import FormatError

F64 = torch.float64


@tw.program
def masked_product(m: Any, a: Any, b: Any, e: Any) -> None:
    i, j, k = tw.axes("i j k")
    e[i, j] = m[i, j] * tw.sum(k, a[i, k] * b[k, j])


@tw.program
def product(a: Any, b: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.sum(k, a[i, k] * b[k, j])


@tw.program
def plus(a: Any, b: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i, j] = a[i, j] + b[i, j]


@tw.program
def both_ways(a: Any, b: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * b[j, i]


@tw.program
def hyper(h: Any, g: Any, x: Any, y: Any) -> None:
    i, e, j, f = tw.axes("i e j f")
    y[i, f] = tw.sum(e, h[i, e] * tw.sum(j, g[e, j] * x[j, f]))


@tw.program
def typed(a: Any, t: Any, x: Any, w: Any, y: Any) -> None:
    i, j, k, l = tw.axes("i j k l")
    y[i, l] = tw.sum((j, k), a[i, j] * x[j, k] * w[t[i, j], k, l])


@tw.program
def times(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f])


@tw.program
def largest(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * x[j, f])


@tw.program
def sampled(a: Any, x: Any, z: Any, e: Any) -> None:
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * tw.sum(f, x[i, f] * z[j, f])


def sparse(place: Place, n: int, m: int, seed: int, dtype: torch.dtype = F64) -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(matrix(n, m, 0.35, seed).to(dtype).to(place.device))


# --- several structures -----------------------------------------------------------------------------


def test_results(where: Place) -> None:
    m, a, b = sparse(where, 7, 9, 1), sparse(where, 7, 6, 2), sparse(where, 6, 9, 3)
    dense = a.to_dense() @ b.to_dense()
    close(masked_product(m, a, b).to_dense(), m.to_dense() * dense)
    close(product(a, b), dense)
    close(plus(a, sparse(where, 7, 6, 4)), a.to_dense() + sparse(where, 7, 6, 4).to_dense())
    h, x = sparse(where, 6, 8, 5), randn(6, 5, device=where.device).to(F64)
    g = tw.SparseTensor.from_dense(h.to_dense().T.contiguous())
    close(hyper(h, g, x), h.to_dense() @ g.to_dense() @ x)


def test_columns_of_a_dense_result(where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that holds few columns whole does not serve many."""
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)  # what is left unwritten
    for columns in (24, 104, 5):
        a, b = sparse(where, 7, 6, 2), sparse(where, 6, columns, 3)
        close(product(a, b), a.to_dense() @ b.to_dense())


def test_values_on_one_structure_are_not_searched(where: Place) -> None:
    a = sparse(where, 6, 7, 1)
    kinds = torch.arange(a.nnz, device=where.device) % 3
    t = a.with_values(kinds)
    x, w = (randn(*s, device=where.device).to(F64) for s in ((7, 5), (3, 5, 4)))
    want = torch.einsum("ij,jk,ijkl->il", a.to_dense(), x, w[t.to_dense()])
    close(typed(a, t, x, w), want)
    assert "find(" not in typed.kernels(a, t, x, w)[-1].stages["flat"]


def test_duplicates_add_up_where_they_are_looked_up(where: Place) -> None:
    rows, cols = (torch.tensor(v, device=where.device) for v in ([0, 0, 2], [1, 1, 3]))
    values = torch.tensor([1.0, 2.0, 3.0], dtype=F64, device=where.device)
    twice = tw.SparseTensor.from_coo(rows, cols, values, (4, 5))
    ones = tw.SparseTensor.from_dense(torch.ones(4, 5, dtype=F64, device=where.device))
    close((ones * twice).to_dense(), twice.to_dense())


def test_values_keep_their_order_where_rows_are_searched(where: Place) -> None:
    """A matrix beside its own transpose: loops follow its entries, and they are searched."""
    rows, cols = (torch.tensor(v, device=where.device) for v in ([1, 0, 0, 2], [0, 2, 1, 2]))
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64, device=where.device)
    a = tw.SparseTensor.from_coo(rows, cols, values, (3, 3))
    made = both_ways(a, a)
    assert made.values.tolist() == [3.0, 0.0, 3.0, 16.0]
    close(made.to_dense(), a.to_dense() * a.to_dense().T)


def test_arithmetic(where: Place) -> None:
    a, b, c = sparse(where, 7, 6, 1), sparse(where, 7, 6, 2), sparse(where, 6, 5, 3)
    close((a + b).to_dense(), a.to_dense() + b.to_dense())
    close((a * b).to_dense(), a.to_dense() * b.to_dense())
    close((a * 2.0).to_dense(), a.to_dense() * 2)
    made = a @ c
    assert isinstance(made, tw.SparseTensor)
    close(made.to_dense(), a.to_dense() @ c.to_dense())
    assert tw.einsum("ij,jk->ik", a, c, out_format="coo").format == "coo"


def test_products_of_blocks_and_masks(where: Place) -> None:
    """Entries of blocks one by one; with gradients."""
    dense = torch.tensor([[1.0, 0.0], [2.0, 3.0]], dtype=F64).kron(matrix(2, 2, 1.0, 1).double())
    a = tw.SparseTensor.from_dense(dense.to(where.device), format="bsr", block=(2, 2))
    bits = torch.eye(2, device=where.device) > 0
    held = {"block": a, "mask": tw.block_mask(bits, block=2), "entries": sparse(where, 4, 4, 2)}
    for m in held.values():
        for n in held.values():
            for _ in range(2):
                close((m @ n).to_dense(), m.to_dense().double() @ n.to_dense().double())
    v = a.explicit_values().requires_grad_()
    (g,) = torch.autograd.grad((a.with_values(v) @ held["entries"]).values.sum(), v)
    close(a.with_values(g).to_dense(), held["entries"].to_dense().sum(1) * (a.to_dense() != 0))


@pytest.mark.parametrize("fit", [1, 5, 1000])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dbsr.2.2"])
def test_products_a_few_rows_at_a_time(
    format: str, fit: int, fast: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries in any order, some twice; new values on structures that come again."""
    monkeypatch.setattr(meet, "FIT", fit)
    a, b = (repeated(8, 8, seed, fast.device, format) for seed in (1, 2))
    made = []
    for _ in range(3):
        a, b = (t.with_values(t.values * 2) for t in (a, b))
        made.append(a @ b)
        close(made[-1].to_dense(), a.to_dense() @ b.to_dense())
    assert made[1].structure is made[2].structure
    assert is_sorted(made[0].structure)  # and no place twice


def repeated(n: int, m: int, seed: int, device: str, format: str) -> tw.SparseTensor:
    """Entries in any order, some of one place."""
    random = torch.Generator().manual_seed(seed)
    rows, cols = (torch.randint(0, size, (20,), generator=random) for size in (n, m))
    values = torch.randn(20, generator=random, dtype=F64).to(device)
    return tw.SparseTensor.from_coo(rows.to(device), cols.to(device), values, (n, m)).to_format(
        format
    )


@pytest.mark.parametrize("many", [(torch.int32, 2**24 + 1), (torch.int64, 2**53 + 1)], ids=str)
def test_arithmetic_of_whole_numbers(many: tuple[torch.dtype, int], where: Place) -> None:
    """Numbers that no float has."""
    one = torch.eye(2, dtype=many[0], device=where.device)
    a, b = (tw.SparseTensor.from_dense(one * n) for n in (many[1], 1))
    for made, want in (
        (a + b, many[1] + 1),
        (a - b, many[1] - 1),
        (a * b, many[1]),
        (a @ b, many[1]),
    ):
        assert made.dtype == many[0] and made.values.tolist() == [want, want]


def test_operators_take_what_functions_take() -> None:
    """Matrices of torch and SciPy, and NumPy's numbers."""
    dense = torch.tensor([[1.0, 2.0], [0.0, 4.0]])
    a = tw.SparseTensor.from_dense(dense)
    for b in (dense.t().to_sparse_csr(), dense.t().to_sparse(), sp.csr_array(dense.t().numpy())):
        close((a + b).to_dense(), dense + dense.t())
        close((a - b).to_dense(), dense - dense.t())
        close((a * b).to_dense(), dense * dense.t())
        close((a @ b).to_dense(), dense @ dense.t())
    for two in (np.float32(2), np.int64(2)):
        assert torch.equal((a * two / two).to_dense(), dense) and (two * a).dtype == dense.dtype


@pytest.mark.parametrize("shape", [(0, 6, 5), (7, 0, 5), (7, 6, 0), (1, 1, 1)])
def test_arithmetic_of_nothing(shape: tuple[int, int, int], where: Place) -> None:
    n, m, k = shape
    a, c = sparse(where, n, m, 1), sparse(where, m, k, 3)
    close((a + a).to_dense(), 2 * a.to_dense())
    close((a @ c).to_dense(), a.to_dense() @ c.to_dense())


@tw.program
def biased(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * tw.exp(x[i, j]))


@tw.program
def turned(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[j, i] = a[i, j] * 2.0


@pytest.mark.parametrize("name", ["csr", "dcsr", "parts"])
def test_gradients_of_a_dense_operand_at_entries(name: str, where: Place) -> None:
    """It is dense, with 0 where there is no entry."""
    a = sparse(where, 5, 4, 1)
    a = a.decompose(tw.rules.hyb(1, 1)) if name == "parts" else a.to_format(name)
    x = randn(5, 4, device=where.device).to(F64).requires_grad_()
    biased(a, x).sum().backward()
    close(x.grad, a.to_dense() * x.exp())


@tw.program
def scored(a: Any, x: Any, y: Any) -> None:
    i, j, h = tw.axes("i j h")
    y[i, h] = tw.sum(j, tw.exp(a[i, j, h] + x[i, j]))


def test_gradients_of_what_heads_share(where: Place) -> None:
    """0 where there is no entry, though heads are summed up before loops could follow the entries."""
    a = sparse(where, 5, 4, 1)
    heads = torch.stack([a.values, -a.values], 1)
    x = randn(5, 4, device=where.device).to(F64).requires_grad_()
    scored(a.with_values(heads), x).sum().backward()
    there = a.map(torch.ones_like).to_dense()[..., None]
    close(x.grad, (there * (a.with_values(heads).to_dense() + x[..., None]).exp()).sum(2))


def test_duplicates_in_a_dense_result(where: Place) -> None:
    """They are added up first; where only a gradient would need that, they are refused."""
    at = torch.tensor([[0, 1, 0, 2, 1], [1, 3, 1, 2, 0]], device=where.device)
    a = tw.SparseTensor.from_coo(*at, torch.arange(1.0, 6.0, device=where.device), (3, 4))
    for name in ("coo", "ell"):
        close(turned(a.to_format(name)), 2 * a.to_dense().T)
    x = torch.zeros(3, 4, device=where.device)
    close(biased(a, x), a.to_dense().sum(1))
    with pytest.raises(FormatError, match="duplicates"):
        biased(a, x.requires_grad_())


def test_gradients(where: Place) -> None:
    a, b, c = sparse(where, 5, 4, 1), sparse(where, 5, 4, 2), sparse(where, 4, 3, 3)
    va, vb, vc = (t.values.clone().requires_grad_() for t in (a, b, c))
    gradcheck(lambda p, q: (a.with_values(p) + b.with_values(q)).values, (va, vb))
    gradcheck(lambda p, q: (a.with_values(p) @ c.with_values(q)).values, (va, vc))
    gradcheck(lambda p, q: product(a.with_values(p), c.with_values(q)), (va, vc))
    h, g = sparse(where, 4, 5, 5), sparse(where, 5, 4, 6)
    vh, vg = (t.values.clone().requires_grad_() for t in (h, g))
    x = randn(4, 2, device=where.device).to(F64).requires_grad_()
    gradcheck(lambda p, q, r: hyper(h.with_values(p), g.with_values(q), r), (vh, vg, x))


def test_wrong_shapes_are_told() -> None:
    a = tw.SparseTensor.from_dense(torch.eye(3))
    with pytest.raises(FormatError, match="B"):
        a + tw.SparseTensor.from_dense(torch.eye(4))
    with pytest.raises(FormatError, match="B"):
        a @ tw.SparseTensor.from_dense(torch.eye(4))


# --- every format -----------------------------------------------------------------------------------

FORMATS = (
    "csr",
    "csc",
    "coo",
    "dcsr",
    "dbsr.4.4",
    "ell",
    "padded.4",
    "srbcrs.4.2",
    "dia",
    "bitmap",
)


def in_format(name: str, dense: Tensor) -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(dense).to_format(name)


@pytest.mark.parametrize("name", FORMATS)
def test_format(name: str, where: Place) -> None:
    dense = matrix(12, 16, 0.3, 1).to(where.device)
    x, z, u = (randn(n, 5, device=where.device) for n in (16, 16, 12))
    a = in_format(name, dense)
    close(times(a, x), dense @ x)
    close(tw.spmm(a, x), dense @ x)
    close(sampled(a, u, z).to_dense(), dense * (u @ z.T))


@pytest.mark.parametrize("name", FORMATS)
def test_format_of_nothing(name: str, where: Place) -> None:
    dense = torch.zeros(8, 4, device=where.device)
    x = torch.full((4, 3), float("nan"), device=where.device)
    close(times(in_format(name, dense), x), torch.zeros(8, 3, device=where.device))


@pytest.mark.parametrize("name", ["dcsr", "ell", "padded.4"])
def test_pads_are_no_entries(name: str, where: Place) -> None:
    """An operand may hold NaN where nothing is stored; an empty row of a maximum is -inf."""
    dense = matrix(12, 16, 0.3, 1).to(where.device)
    dense[3], dense[:, 5] = 0, 0
    x = randn(16, 5, device=where.device)
    x[5] = float("nan")
    held = dense[:, :, None] * x[None].nan_to_num()
    want = torch.where((dense != 0)[:, :, None], held, -torch.inf).amax(1)
    close(largest(in_format(name, dense), x), want)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 8, 15, 33])
@pytest.mark.parametrize("diagonals", [2, 3, 5])
def test_diagonals(diagonals: int, width: int) -> None:
    """Widths that the C compiler unrolls: branches must not be joined over iterations."""
    dense = sum(torch.diag(torch.full((9 - k,), k + 1.0), k) for k in range(diagonals))
    x = randn(9, width)
    close(times(in_format("dia", dense), x), dense @ x)


def test_two_of_four(where: Place) -> None:
    dense = randn(6, 16, device=where.device)
    dense[:, 1::4], dense[:, 2::4] = 0, 0
    x = randn(16, 5, device=where.device)
    close(times(in_format("two_four", dense), x), dense @ x)


@pytest.mark.parametrize("name", ["ell", "dbsr.4.4", "dia"])
def test_gradients_of_formats(name: str, where: Place) -> None:
    a = in_format(name, matrix(8, 8, 0.4, 1).to(F64).to(where.device))
    v = a.values.clone().requires_grad_()
    x = randn(8, 3, device=where.device).to(F64).requires_grad_()
    gradcheck(lambda p, q: times(a.with_values(p), q), (v, x))


@pytest.mark.parametrize("op", ["dot", "add"])
@pytest.mark.parametrize("name", FORMATS)
def test_gradients_of_values_at_entries(name: str, op: str, fast: Place) -> None:
    """sddmm keeps the format of its pattern, with gradients and without."""
    a = in_format(name, matrix(8, 12, 0.4, 1).to(F64).to(fast.device))
    v = a.values.clone().requires_grad_()
    x, z = (randn(n, 3, device=fast.device).to(F64).requires_grad_() for n in (8, 12))
    made = lambda p, q, r: tw.sddmm(a.with_values(p), q, r, op=op)
    gradcheck(lambda *given: made(*given).values, (v, x, z))
    plain = tw.sddmm(a, x.detach(), z.detach(), op=op)
    got = made(v, x, z)
    assert got.format == plain.format == a.format
    close(got.values.detach(), plain.values)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_values_at_entries_of_ones(name: str, grad: bool, where: Place) -> None:
    a = tw.SparseTensor(in_format(name, matrix(8, 12, 0.4, 1).to(where.device)).structure, None)
    x, z = (randn(n, 3, device=where.device).requires_grad_(grad) for n in (8, 12))
    e = tw.sddmm(a, x, z)
    assert e.values.shape == a.explicit_values().shape
    close(e.to_dense().detach(), (a.to_dense() * (x @ z.T)).detach())
    close(sampled(a, x, z).to_dense().detach(), (a.to_dense() * (x @ z.T)).detach())


# --- more than two dimensions -----------------------------------------------------------------------


@tw.program
def mttkrp(t: Any, b: Any, c: Any, y: Any) -> None:
    i, j, k, f = tw.axes("i j k f")
    y[i, f] = tw.sum((j, k), t[i, j, k] * b[j, f] * c[k, f])


@tw.program
def relational(a: Any, x: Any, w: Any, y: Any) -> None:
    r, i, j, k, l = tw.axes("r i j k l")
    y[i, l] = tw.sum((r, j, k), a[r, i, j] * x[j, k] * w[r, k, l])


@tw.program
def scaled(t: Any, b: Any, e: Any) -> None:
    i, j, k = tw.axes("i j k")
    e[i, j, k] = t[i, j, k] * b[k]


@pytest.mark.parametrize("name", ["csf", "csf.3.dense", "bucket.4", "bucket.1"])
def test_three_dimensions(name: str, where: Place) -> None:
    dense = (matrix(5, 42, 0.2, 1)).reshape(5, 6, 7).to(where.device)
    at = dense.nonzero().T.contiguous()
    t = tw.SparseTensor.from_coords(at, dense[tuple(at)], (5, 6, 7), format=name)
    b, c = randn(6, 4, device=where.device), randn(7, 4, device=where.device)
    x, w = randn(7, 3, device=where.device), randn(5, 3, 2, device=where.device)
    close(mttkrp(t, b, c), torch.einsum("ijk,jf,kf->if", dense, b, c))
    close(relational(t, x, w), torch.einsum("rij,jk,rkl->il", dense, x, w))
    close(scaled(t, c[:, 0]).to_dense(), dense * c[:, 0])


def test_rows_of_rows_that_are_missing(where: Place) -> None:
    """The outer axis is the inner one of the result: lanes of a row that is shorter have no bounds to read."""
    coords = torch.tensor([[0, 0, 0, 2, 2], [0, 0, 1, 0, 0], [0, 1, 0, 0, 1]], device=where.device)
    values = torch.arange(1.0, 6.0, device=where.device)
    A = tw.SparseTensor.from_coords(coords, values, (3, 40, 3), "ragged.3")
    close(inner_sums(A), A.to_dense().sum(2).t())
    close(sums(A), A.to_dense().sum(2))


@tw.program
def inner_sums(a, y):  # type: ignore[no-untyped-def]
    i, j, k = tw.axes("i j k")
    y[j, i] = tw.sum(k, a[i, j, k])


@tw.program
def sums(a, y):  # type: ignore[no-untyped-def]
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.sum(k, a[i, j, k])


@tw.program
def lesser(a: Any, b: Any, c: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.max(j, tw.minimum(a[i, j], 0.5) * b[j, i] * c[j])


def test_work_lists_are_those_of_the_rows_that_are_walked(where: Place) -> None:
    """b alone drives, by its columns, while a is prepared and has lists of its own rows."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.rand(n, m, generator=g) for n, m in ((40, 30), (30, 40)))
    a, b = (t * (torch.rand(t.shape, generator=g) < 0.2) for t in (a, b))
    c = torch.rand(30, generator=g)
    each = torch.where(b.t() != 0, a.clamp(max=0.5) * b.t() * c, -float("inf"))
    held = [tw.SparseTensor.from_dense(t.to(where.device)).prepare() for t in (a, b)]
    for _ in range(2):
        close(lesser(*held, c.to(where.device)), each.amax(1).to(where.device))


@tw.program
def longest(a: Any, b: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i] = tw.sum(j, a[i, j] * tw.max(k, b[j, k]))


def test_columns_of_a_block_have_rows_of_another_matrix(where: Place) -> None:
    """What is inside of a block decides where entries of b begin: they are not lanes."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.rand(n, m, generator=g) for n, m in ((32, 48), (48, 20)))
    b = b * (torch.rand(b.shape, generator=g) < 0.5)
    held = tw.SparseTensor.from_torch(a.to(where.device).to_sparse_bsr((16, 16)))
    rows = tw.SparseTensor.from_dense(b.to(where.device))
    close(longest(held, rows), (a @ b.amax(1)).to(where.device))


@pytest.mark.parametrize("made", ["csr", "csc", "coo", "dcsr", "parts", "turned"])
def test_trained_after_inference(made: str, where: Place) -> None:
    """What is kept with a structure is made outside of inference mode: a gradient may need it later."""
    dense = matrix(12, 10, device=where.device)
    A = tw.SparseTensor.from_dense(dense.t().contiguous() if made == "turned" else dense)
    if made == "parts":
        A = A.decompose(tw.rules.hyb(2, 2))
    elif made == "turned":
        A = A.T
    else:
        A = A.to_format(made)
    with torch.inference_mode():
        for _ in range(3):  # the third call has all that is prepared
            tw.spmm(A, torch.ones(10, 3, device=where.device))
    x = torch.ones(10, 3, device=where.device, requires_grad=True)
    tw.spmm(A, x).sum().backward()
    close(x.grad, dense.sum(0)[:, None].expand(-1, 3))
