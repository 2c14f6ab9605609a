"""tw.einsum and @tw.program: new operators from index notation."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from ops.matrices import KINDS, close, matrix, randn
from ops.places import Place

import tilewright as tw
from tilewright.language.trace import trace
from tilewright.support.errors import FormatError


@pytest.mark.parametrize("kind", ["torch-csr", "torch-coo", "torch-bsr", "tensor-csc"])
@pytest.mark.parametrize(
    "subscripts,shapes",
    [
        ("ij,jf->if", [(12, 5)]),
        ("ij,if->jf", [(10, 5)]),
        ("ij,j->i", [(12,)]),
        ("ij->i", []),
        ("ij->j", []),
        ("ij,jf,fg->ig", [(12, 5), (5, 4)]),
        ("ij,jf,f->if", [(12, 5), (5,)]),
        ("ij,jf->fi", [(12, 5)]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_dense_output(
    subscripts: str, shapes: list[tuple[int, ...]], kind: str, where: Place
) -> None:
    dense = matrix(device=where.device)
    operands = [randn(*s, seed=n, device=where.device) for n, s in enumerate(shapes)]
    got = tw.einsum(subscripts, KINDS[kind](dense), *operands)
    close(got, torch.einsum(subscripts, dense, *operands))


@pytest.mark.parametrize(
    "subscripts,shapes",
    [
        ("ij,i->ij", [(10,)]),
        ("ij,j->ij", [(12,)]),
        ("ij,i,j->ij", [(10,), (12,)]),
        ("ij,if,jf->ij", [(10, 5), (12, 5)]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_sparse_output(subscripts: str, shapes: list[tuple[int, ...]], where: Place) -> None:
    """The letters of a sparse operand that multiplies everything: its structure."""
    dense = matrix(device=where.device)
    operands = [randn(*s, seed=n, device=where.device) for n, s in enumerate(shapes)]
    A = tw.SparseTensor.from_dense(dense)
    got = tw.einsum(subscripts, A, *operands)
    assert isinstance(got, tw.SparseTensor) and got.structure is A.structure
    close(got.to_dense(), torch.einsum(subscripts, dense, *operands))


def test_sparse_output_keeps_the_source_order(where: Place) -> None:
    rows = torch.tensor([2, 0, 1], device=where.device)
    A = tw.SparseTensor.from_coo(
        rows, rows, torch.tensor([1.0, 2.0, 3.0], device=where.device), (3, 3)
    )
    got = tw.einsum("ij,i->ij", A, torch.tensor([10.0, 20.0, 30.0], device=where.device))
    assert got.values.tolist() == [30.0, 20.0, 60.0]


def test_dense_operands_only(where: Place) -> None:
    x, y = randn(4, 5, device=where.device), randn(5, 6, seed=2, device=where.device)
    close(tw.einsum("ij,jk->ik", x, y), x @ y)


def test_einsum_tells_which_operand() -> None:
    with pytest.raises(tw.TilewrightError, match=r"5 in operand0 .* and 4 in operand1") as why:
        tw.einsum("ij,jf->if", randn(3, 5), randn(4, 2))
    assert "in: einsum('ij,jf->if', operand0, operand1)" in str(why.value)


# --- programs -------------------------------------------------------------------------------------------


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@tw.program
def two_steps(a: Any, x: Any, c: Any, h: Any, y: Any) -> None:
    """Two statements, a scalar parameter, two outputs."""
    i, j, f = tw.axes("i j f")
    h[i, f] = tw.sum(j, a[i, j] * x[j, f]) * c
    y[i, f] = tw.relu(h[i, f]) + c


@tw.program
def by_axis(a: Any, x: Any, y: Any) -> None:
    """Axes that the target lacks are summed."""
    i, j, f = tw.axes("i j f")
    y[i, f] = a[i, j] * x[j, f]


@tw.program
def edge_gates(a: Any, s: Any, t: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * tw.sigmoid(s[i] + t[j])


@tw.program
def normalise(x: Any, m: Any, y: Any) -> None:
    """Dense in, dense out."""
    i, f = tw.axes("i f")
    m[i] = tw.logsumexp(f, x[i, f])
    y[i, f] = tw.exp(x[i, f] - m[i])


def test_max_of_relu(where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    terms = torch.where((dense != 0)[:, :, None], dense[:, :, None] * x.relu(), float("-inf"))
    close(relu_max(dense.to_sparse_csr(), x), terms.amax(1))


@pytest.mark.parametrize("c", [2.0, -0.5, 3])
def test_two_statements(c: float, where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    h, y = two_steps(dense.to_sparse_csr(), x, c)
    close(h, dense @ x * c)
    close(y, (dense @ x * c).relu() + c)


@pytest.mark.parametrize("kind", ["torch-csr", "torch-csc", "torch-coo", "torch-bsr", "tensor-coo"])
def test_sum_of_what_is_left(kind: str, where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    close(by_axis(KINDS[kind](dense), x), dense @ x)


def test_edges_out(where: Place) -> None:
    dense = matrix(device=where.device)
    s, t = randn(10, device=where.device), randn(12, seed=2, device=where.device)
    got = edge_gates(tw.SparseTensor.from_dense(dense), s, t)
    close(got.to_dense(), dense * (s[:, None] + t).sigmoid())


def test_dense_program(where: Place) -> None:
    x = randn(6, 9, device=where.device)
    m, y = normalise(x)
    close(m, x.logsumexp(1))
    close(y, x.softmax(1))


def test_kernels_show_every_stage(fast: Place) -> None:
    kernels = relu_max.kernels(
        matrix(device=fast.device).to_sparse_csr(), randn(12, 7, device=fast.device)
    )
    assert {"coord", "loops", "flat", "scheduled"} <= set(kernels[0].stages)


def test_kernels_are_those_that_served(fast: Place) -> None:
    """Whatever ran before, and also when nothing has to be built."""
    a = tw.SparseTensor.from_dense(matrix(device=fast.device))
    x = randn(12, 7, device=fast.device)
    for _ in range(3):
        for format in ("dcsr", "padded.4"):
            (kernel,) = relu_max.kernels(a.to_format(format), x)
            assert ("find(" in kernel.stages["loops"]) == (format == "dcsr")


def test_printed_as_written() -> None:
    relu_max.trace()
    assert "relu_max" in str(relu_max) and "max(j" in str(relu_max)


@tw.program
def through_edges(a: Any, x: Any, e: Any, y: Any) -> None:
    """The first statement gives values on a structure, the second reads them."""
    i, j, f = tw.axes("i j f")
    e[i, j] = a[i, j] * 2.0
    y[i, f] = tw.sum(j, e[i, j] * x[j, f])


def test_edges_between_statements(where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    _, y = through_edges(tw.SparseTensor.from_dense(dense), x)
    close(y, 2 * dense @ x)


def test_one_number_out(where: Place) -> None:
    dense = matrix(device=where.device)
    close(tw.einsum("ij->", dense.to_sparse_csr()), dense.sum())


@tw.program
def shadowed(x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, x[i, j] * tw.sum(j, x[i, j]))


def test_an_index_bound_twice(where: Place) -> None:
    """The inner sum has its own j."""
    x = randn(5, 7, device=where.device)
    close(shadowed(x), x.sum(1) * x.sum(1))


@tw.program
def weighted(a: Any, x: Any, y: Any, lse: Any) -> None:
    i, j, f = tw.axes("i j f")
    tw.outputs(y[i, f], lse[i], value=tw.softmax_sum_lse(j, a[i, j], x[j, f]))


def test_two_results_of_one_reduction(where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    y, lse = weighted(tw.SparseTensor.from_dense(dense), x)
    scores = torch.where(dense != 0, dense, -torch.inf)
    close(y, torch.softmax(scores, 1).nan_to_num(0) @ x)
    close(lse, torch.logsumexp(scores, 1))


@tw.program
def picked(x: Any, r: Any, y: Any) -> None:
    i, f = tw.axes("i f")
    y[i, f] = x[r[i], f] * 1.0


def test_an_index_is_a_whole_number() -> None:
    x, r = randn(5, 3), torch.tensor([4, 0])
    close(picked(x, r), x[r])
    with pytest.raises(FormatError, match="r has dtype f32"):
        picked(x, r.float())


def test_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(relu_max)) is relu_max
    assert copy.deepcopy([relu_max])[0] is copy.copy(relu_max) is relu_max


def test_programs_inside_of_functions_are_not_pickled() -> None:
    @tw.program
    def inside(x: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y[i] = x[i]

    assert copy.deepcopy(inside) is inside
    with pytest.raises(FormatError, match="a program at the top of a module"):
        pickle.dumps(inside)


@tw.program
def scaled(a: Any, x: Any, s: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f]) * s + s * s


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.uint8, np.bool_, np.float64])
def test_numbers_of_numpy(kind: Any) -> None:
    dense, x = matrix(), randn(12, 7)
    given = dense.to_sparse_csr()
    assert torch.equal(scaled(given, x, kind(1)), scaled(given, x, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_tensors_without_dimensions(dtype: torch.dtype, where: Place) -> None:
    """They are read where they live; beside floats of more dimensions their dtype does not count, as in torch."""
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    s = torch.tensor(3, dtype=dtype, device=where.device)
    got = scaled(dense.to_sparse_csr(), x, s)
    assert got.dtype == (x * s).dtype
    close(got, dense @ x * 3 + 9)


def test_gradient_of_a_tensor_without_dimensions(where: Place) -> None:
    dense, x = matrix(device=where.device), randn(12, 7, device=where.device)
    s = torch.tensor(3.0, dtype=torch.float64, device=where.device, requires_grad=True)
    scaled(dense.to_sparse_csr(), x, s).sum().backward()
    assert s.grad is not None
    close(s.grad.float(), (dense @ x + 6).sum())


def test_a_tensor_that_lacks_its_indices() -> None:
    with pytest.raises(tw.TilewrightError, match="s is indexed by 0 axes"):
        scaled(matrix().to_sparse_csr(), randn(12, 7), randn(7))
    with pytest.raises(tw.TilewrightError, match="3: a, x, s"):
        scaled(matrix().to_sparse_csr(), randn(12, 7))


@pytest.mark.parametrize(
    "statement",
    [
        lambda x, y, i, k: tw.append(x, y, i, where=y[i] != 0.0, over=i),
        lambda x, y, i, k: y.__setitem__(i, tw.sum(k, x[i, k] == 0.0)),
        lambda x, y, i, k: y.__setitem__(i, x[i, i] == 0.0),
        lambda x, y, i, k: y.__setitem__(i, tw.where(x[i, i] != 0.0, 1.0, 0.0)),
    ],
    ids=["append", "sum", "value", "where"],
)
def test_what_python_makes_of_equality_is_no_term(statement: Any) -> None:
    def program(x: Any, y: Any) -> None:
        statement(x, y, *tw.axes("i k"))

    with pytest.raises(tw.TilewrightError, match="not_equal"):
        trace(program)


@tw.program
def column(x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] = x[i, 2] * 2.0


@tw.program
def backwards(x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] = x[i, -1]


def test_a_number_as_an_index_is_inside() -> None:
    """Kernels would read beside the operand."""
    x = randn(3, 3)
    assert torch.equal(column(x), x[:, 2] * 2)
    for program, given, number in ((column, x[:, :2], 2), (backwards, x, -1)):
        with pytest.raises(tw.TilewrightError, match=f"index of x = {number}"):
            program(given)


@tw.program
def twice(x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] = x[i] * 2.0
    y[i] = y[i] + x[i]


def test_outputs_are_read_once_they_are_written() -> None:
    x = randn(5)
    close(twice(x), 3 * x)

    @tw.program
    def before(x: Any, t: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y[i] = x[i] * t[i]
        t[i] = x[i]

    with pytest.raises(tw.TilewrightError, match="t is read before it is written"):
        before(x)


def test_inputs_by_name() -> None:
    dense, x = matrix(), randn(12, 7)
    a = dense.to_sparse_csr()
    assert torch.equal(scaled(a, s=2.0, x=x), scaled(a, x, 2.0))
    for named in ({"x": x, "z": 2.0}, {"s": 2.0}, {"x": x, "s": 2.0, "y": x}):
        with pytest.raises(tw.TilewrightError, match="inputs"):
            scaled(a, **named)


@pytest.mark.parametrize(
    "given", [None, "2", 1j, [1.0], np.ones((12, 7))], ids=lambda g: type(g).__name__
)
def test_what_is_no_input_is_told(given: Any) -> None:
    with pytest.raises(tw.TilewrightError, match="a tensor, dense or sparse, or a number"):
        scaled(matrix().to_sparse_csr(), given, 2.0)


@pytest.mark.parametrize("word", [torch.relu, torch.sigmoid, math.exp, torch.nn.functional.gelu])
def test_words_of_others_are_told(word: Any) -> None:
    @tw.program
    def foreign(x: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y[i] = word(x[i])

    with pytest.raises(TypeError, match=r"use tw\.exp"):
        foreign(randn(3))


def test_leaky_relu_at_zero() -> None:
    """As torch has it: zeros are usual after another ReLU."""

    @tw.program
    def leaky(x: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y[i] = tw.leaky_relu(x[i])

    x = torch.tensor([-1.0, 0.0, 2.0, float("nan")], requires_grad=True)
    want = torch.nn.functional.leaky_relu(x)
    torch.testing.assert_close(leaky(x), want, equal_nan=True)
    (got,) = torch.autograd.grad(leaky(x).sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(want.sum(), x)[0])


def sums_of(count: Any) -> Any:
    @tw.program
    def sums(x: Any, y: Any) -> None:
        (I,) = tw.axes("I")
        y[I] = tw.sum(i := tw.part(I, count, "i"), x[i])

    return sums


def first_of(declared: bool) -> Any:
    j, k = tw.axes("j")[0], tw.axes("j")[0]  # two axes of one name

    @tw.program
    def first(x: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y.typed("i32" if declared else "f32")
        y[i] = tw.sum(j, x[i, j] * tw.max(k, x[i, k] - x[i, j if declared else k]))

    return first


def test_programs_of_one_text() -> None:
    """They differ by what statements do not show."""
    x = torch.arange(1.0, 7.0)
    for count in (3, np.int64(2)):
        want = torch.stack([part.sum() for part in x.split(int(count))])
        torch.testing.assert_close(sums_of(count)(x), want)
    y, declared = (first_of(d)(x.view(2, 3)) for d in (False, True))
    assert y.tolist() == [0.0, 0.0] and y.dtype == torch.float32
    assert declared.tolist() == [4, 13] and declared.dtype == torch.int32


def test_a_float_is_no_index() -> None:
    @tw.program
    def second(x: Any, y: Any) -> None:
        (i,) = tw.axes("i")
        y[i] = x[i, 2.0]

    with pytest.raises(tw.TilewrightError, match="axes and whole numbers"):
        second(torch.ones(2, 3))


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_parts_of_no_size(count: Any) -> None:
    with pytest.raises(tw.TilewrightError, match="from 1 on"):
        sums_of(count)(torch.ones(4))
