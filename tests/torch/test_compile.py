"""torch.compile(fullgraph=True, dynamic=True): same results and gradients, and nothing made anew for new sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from ops.calls import launches
from ops.matrices import close, randn
from ops.places import INTERPRETER, Place
from torch import Tensor

import tilewright as tw
from tilewright import driver
from tilewright.ops import again
from tilewright.ops.backend import backend
from tilewright.ops.entry import entry
from tilewright.runtime.counters import counters
from tilewright.runtime.kernel import Kernel

WIDTH = 16
# Lengths that change with the data have three classes on GPUs: multiples of 256, of 16, and others. Some inputs have 40
# rows more than asked for.
WARM = [(7, 18), (20, 30), (24, 18), (32, 20), (216, 24), (256, 30), (992, 24)]
SIZES = [(15, 17), (16, 33), (17, 16), (33, 15), (1000, 48), (40, 1000), (472, 20), (512, 21)]
NARROW = [(2, 1), (2, 40), (40, 1)]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@tw.program
def both(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, (a[i, j] + b[i, j]) * x[j, f])


@tw.program
def degrees(a: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j])


@tw.program
def never_called(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * tw.tanh(x[j, f]))


def sparse(rows: int, cols: int, seed: int, device: Any) -> tw.SparseTensor:
    """A new pattern with new values; every row holds something; arrays start at multiples of 16."""
    made = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, cols, generator=made) * (torch.rand(rows, cols, generator=made) < 0.2)
    dense[:, seed % cols] = 1.0
    a = dense.to(device).to_sparse_csr()
    arrays = (t.clone() for t in (a.crow_indices(), a.col_indices(), a.values()))
    return tw.SparseTensor.from_torch(torch.sparse_csr_tensor(*arrays, dense.shape))


def leaf(*shape: int, seed: int, device: Any) -> Tensor:
    return randn(*shape, seed=seed, device=device).requires_grad_()


Made = tuple[list[Any], list[Tensor]]


def graph_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    A = sparse(rows, cols, seed, device)
    A = A.with_values(A.values.clone().requires_grad_())
    x = leaf(cols, WIDTH, seed=seed, device=device)
    return [A, x], [A.values, x]


def entry_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    A = sparse(rows, cols, seed, device)
    x, z = (
        leaf(rows, WIDTH, seed=seed, device=device),
        leaf(cols, WIDTH, seed=seed + 1, device=device),
    )
    return [A, x, z], [x, z]


def row_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    x, w = (
        leaf(rows, WIDTH, seed=seed, device=device),
        leaf(24, WIDTH, seed=seed + 1, device=device),
    )
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[: rows // 2].to(
        device
    )
    return [x, w, chosen], [x, w]


def relu_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    # several groups of rows: one would be a graph of its own
    [x, w, _], wanted = row_inputs(rows + 40, cols, seed, device)
    return [x, w], wanted


def mask_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    [x, w, chosen], wanted = row_inputs(rows, cols, seed, device)
    mask = torch.zeros(rows, dtype=torch.bool, device=device)
    mask[chosen] = True
    return [x, w, mask], wanted


def batch_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    x, w = leaf(rows, 6, WIDTH, seed=seed, device=device), leaf(24, WIDTH, seed=1, device=device)
    return [x, w, torch.arange(rows, device=device) % 7], [x, w]


def weight_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    x, w = (leaf(n, WIDTH, seed=n, device=device) for n in (rows + 40, 48))
    made = torch.rand(48, WIDTH, generator=torch.Generator().manual_seed(seed)) < 0.3
    return [x, w, made.to(device)], [x, w]


def expert_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    rows = min(rows, 60)  # tiles of more places are a kernel, and a graph, of their own
    x, w = leaf(rows, WIDTH, seed=seed, device=device), leaf(4, WIDTH, 24, seed=1, device=device)
    ids = torch.randint(0, 4, (rows, 2), generator=torch.Generator().manual_seed(seed))
    return [x, w, ids.to(device)], [x, w]


def two_layers(x: Tensor, w: Tensor) -> Tensor:
    h, index = tw.ops.linear_relu(x, w)
    return tw.linear(h, w.t(), sparse=index)


def by_index(x: Tensor, w: Tensor) -> Tensor:
    x = torch.relu(x - 1)
    return tw.linear(x, w, sparse=tw.Index.from_values(x, (32, 1), grouped=True))


def experts(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    return tw.ops.grouped_matmul(x, w, tw.Index.from_choices(ids, 4))


def block_inputs(rows: int, cols: int, seed: int, device: Any) -> Made:
    # odd: sizes of 1 are graphs of their own, lengths of whole blocks are kernels of their own
    rows, cols = (min(rows, 100) + 40) | 1, (min(cols, 100) + 40) | 1
    shape = (-(-rows // 16), -(-cols // 16))
    bits = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    bits[:, 0] = True
    mask = tw.block_mask(bits.to(device), 16, (rows, cols)).prepare()
    q, k, v = (leaf(2, n, WIDTH, seed=seed + n, device=device) for n in (rows, cols, cols))
    return [q, k, v, mask], [q, k, v]


OPS: dict[str, tuple[Callable[..., Tensor], Callable[..., Made]]] = {
    "spmm": (lambda A, x: tw.spmm(A, x), graph_inputs),
    "spmm-mean": (lambda A, x: tw.spmm(A, x, reduce="mean"), graph_inputs),
    "sddmm": (lambda A, x, z: tw.sddmm(A, x, z).values, entry_inputs),
    "linear-rows": (lambda x, w, rows: tw.linear(x, w, sparse=rows), row_inputs),
    "linear-detected": (
        lambda x, w: tw.linear(torch.relu(x - 1), w, w[:, 0], sparse="rows"),
        relu_inputs,
    ),
    "linear-k": (lambda x, w: tw.linear(torch.relu(x - 1), w, w[:, 0], sparse="k"), relu_inputs),
    "linear-index": (by_index, relu_inputs),
    "linear-mask": (lambda x, w, mask: tw.linear(x, w, sparse=mask), mask_inputs),
    "linear-lengths": (lambda x, w, size: tw.linear(x, w, sparse=size), batch_inputs),
    "linear-relu": (two_layers, relu_inputs),
    "masked-linear": (lambda x, w, mask: tw.ops.masked_linear(x, w, mask), weight_inputs),
    "grouped": (experts, expert_inputs),
    "attention": (lambda q, k, v, mask: tw.attention(q, k, v, mask=mask), block_inputs),
    "program": (lambda A, x: relu_max(A, x), graph_inputs),
}


def compiled(op: Callable[..., Tensor], backend: str = "aot_eager") -> Callable[..., Tensor]:
    relu_max.trace()
    return torch.compile(op, fullgraph=True, dynamic=True, backend=backend)


def step(op: Callable[..., Tensor], given: list[Any], wanted: list[Tensor]) -> list[Tensor]:
    y = op(*given)
    g = randn(*y.shape, seed=3, device=y.device)
    return [y.detach(), *torch.autograd.grad(y, wanted, g)]


@pytest.mark.parametrize("name", OPS)
def test_forward(name: str, fast: Place) -> None:
    op, make = OPS[name]
    given, _ = make(20, 30, 0, fast.device)
    with torch.no_grad():
        close(compiled(op)(*given), op(*given))


@pytest.mark.parametrize("name", OPS)
def test_backward(name: str, fast: Place) -> None:
    op, make = OPS[name]
    made = make(20, 30, 0, fast.device)
    for got, want in zip(step(compiled(op), *made), step(op, *made), strict=True):
        close(got, want)


@pytest.mark.parametrize("name", OPS)
def test_new_structures_and_sizes(name: str, fast: Place) -> None:
    """One graph and no new kernel for rows, entries, patterns and values that were never seen."""
    op, make = OPS[name]
    fn = compiled(op)
    for seed, (rows, cols) in enumerate(WARM):
        made = make(rows, cols, seed, fast.device)
        step(fn, *made)
        op(*made[0])  # the judge below
    counters.reset()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for seed, (rows, cols) in enumerate(SIZES):
        made = make(rows, cols, seed, fast.device)
        close(step(fn, *made)[0], op(*made[0]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs == 1
    assert (counters.c_builds, counters.triton_builds) == (0, 0)


@pytest.mark.parametrize("name", OPS)
def test_eager_makes_nothing_anew(name: str, fast: Place) -> None:
    op, make = OPS[name]
    for seed, (rows, cols) in enumerate(WARM):
        step(op, *make(rows, cols, seed, fast.device))
    counters.reset()
    for seed, (rows, cols) in enumerate([*SIZES, *NARROW]):
        step(op, *make(rows, cols, seed, fast.device))
    assert (counters.c_builds, counters.triton_builds) == (0, 0)


@INTERPRETER
@pytest.mark.parametrize("name", OPS)
def test_triton_makes_nothing_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of a GPU, where there is none: kernels are chosen as there, and launches do nothing."""
    made: list[str] = []
    real = driver.compile_triton

    def noted(p: Any, *how: Any) -> Kernel:
        made.append(p.name)
        return real(p, *how)

    monkeypatch.setattr(driver, "compile_triton", noted)
    monkeypatch.setattr(Tensor, "new_empty", Tensor.new_zeros)  # nothing is written
    op, make = OPS[name]
    entry.cache_clear()
    again.forget()
    with backend("triton"):
        for sizes in (WARM, [*SIZES, *NARROW]):
            made.clear()
            for seed, (rows, cols) in enumerate(sizes):
                given = make(rows, cols, seed, CPU)
                launches(lambda given=given: step(op, *given))
            assert bool(made) == (sizes is WARM), made


@INTERPRETER
@pytest.mark.parametrize("name", ["linear-k", "linear-index", "linear-relu"])
def test_traced_for_triton(name: str) -> None:
    """Layouts and lists that only GPUs have."""
    op, make = OPS[name]
    with backend("triton"):
        given, wanted = make(1, 30, 0, CPU)
        for got, want in zip(
            step(compiled(op), given, wanted), step(op, given, wanted), strict=True
        ):
            close(got, want)
        with torch.no_grad():
            close(compiled(op)(*given), op(*given))


def test_blocks_without_preparation(fast: Place) -> None:
    """Views that were not prepared are made inside the operator; shapes must be known without them."""
    mask = tw.block_mask(torch.ones(2, 2, device=fast.device), 16, (20, 30))
    q, k, v = (leaf(2, n, WIDTH, seed=n, device=fast.device) for n in (20, 30, 30))
    op = OPS["attention"][0]
    for got, want in zip(
        step(compiled(op), [q, k, v, mask], [q, k, v]),
        step(op, [q, k, v, mask], [q, k, v]),
        strict=True,
    ):
        close(got, want)


def test_a_program_that_was_never_called(fast: Place) -> None:
    given, _ = graph_inputs(20, 30, 0, fast.device)
    with torch.no_grad():
        got = compiled(lambda A, x: never_called(A, x))(*given)
        close(got, never_called(*given))


def test_einsum_of_a_string_that_was_never_seen(fast: Place) -> None:
    given, _ = graph_inputs(20, 30, 0, fast.device)
    with torch.no_grad():
        got = compiled(lambda A, x: tw.einsum("pq,qr->rp", A, x))(*given)
        close(got, tw.spmm(*given).T)


def test_inside_a_larger_graph(fast: Place) -> None:
    """Operators next to torch's own, and a SparseTensor made inside."""

    def layer(A: tw.SparseTensor, x: Tensor, w: Tensor) -> Tensor:
        e = tw.sddmm(A, x[: A.shape[0]], x)
        return tw.spmm(e.map(torch.tanh), torch.relu(x @ w)).sum(0)

    A = sparse(20, 30, 0, fast.device)
    x, w = leaf(30, WIDTH, seed=1, device=fast.device), leaf(WIDTH, 8, seed=2, device=fast.device)
    for got, want in zip(
        step(compiled(layer), [A, x, w], [x, w]), step(layer, [A, x, w], [x, w]), strict=True
    ):
        close(got, want, torch.float16)


def test_torch_sparse_inside_is_refused(fast: Place) -> None:
    """Dynamo refuses torch's sparse tensors itself, or the catalogue does."""
    A = torch.eye(4, device=fast.device).to_sparse_csr()
    x = randn(4, 2, device=fast.device)
    with pytest.raises(Exception, match=r"(?i)sparse"):
        compiled(lambda x: tw.spmm(A, x))(x)


def test_matmul(fast: Place) -> None:
    """torch.compile asks the same for A @ x and x @ A, so that neither is guessed."""
    A, x = sparse(20, 20, 0, fast.device), randn(20, WIDTH, device=fast.device)
    with torch.no_grad():
        close(compiled(lambda A, x: torch.matmul(A, x))(A, x), tw.spmm(A, x))
        for op in (lambda A, x: A @ x, lambda A, x: x.T @ A):
            with pytest.raises(Exception, match=r"write tw.spmm\(A, x\) for A @ x"):
                compiled(op)(A, x)
        parts = torch.compile(lambda A, x: (A @ x).relu(), backend="aot_eager")
        close(parts(A, x), tw.spmm(A, x).relu())


SUMS: dict[str, Callable[..., tw.SparseTensor]] = {
    "add": lambda A, B: A + B,
    "subtract": lambda A, B: A - B,
    "multiply": lambda A, B: A * B,
    "matmul": lambda A, B: torch.matmul(A, B.T),
}


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_sums_and_products_of_sparse_matrices(name: str, repeated: bool, fast: Place) -> None:
    """Their places are found inside of the graph, where nobody can ask whether entries are in order or alone."""
    op = lambda A, B: SUMS[name](A, B).to_dense()
    fn = compiled(op)
    for rows, cols in ((20, 30), (15, 17)):
        A, B = (sparse(rows, cols, seed, fast.device) for seed in (0, 2))
        if repeated:
            at = torch.tensor([3, 1, 1, 0, 3], device=fast.device)
            A = tw.SparseTensor.from_coo(at, at, A.values[:5].clone(), (rows, cols))
        A, B = (t.with_values(t.values.detach().requires_grad_()) for t in (A, B))
        wanted = [A.values, B.values]
        for got, want in zip(step(fn, [A, B], wanted), step(op, [A, B], wanted), strict=True):
            close(got, want)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_product_of_sparse_matrices_keeps_the_order_of_values(fast: Place) -> None:
    rows = torch.tensor([2, 0, 1, 0], device=fast.device)
    A = tw.SparseTensor.from_coo(rows, rows.flip(0), randn(4, device=fast.device, seed=0), (3, 3))
    B = sparse(3, 3, 1, fast.device)
    made = compiled(lambda A, B: (A * B).values)(A, B)
    close(made, (A * B).values)


def test_entries_out_of_order_in_a_union(fast: Place) -> None:
    """A search in them would miss some, and nobody can ask whether they are in order."""
    rows, cols = torch.tensor([[0, 2, 0, 0, 1], [4, 1, 2, 0, 3]], device=fast.device)
    A = tw.SparseTensor.from_coo(rows, cols, torch.ones(5, device=fast.device), (3, 6))
    x = randn(6, 3, device=fast.device)
    made = compiled(lambda A, B, x: both(A, B, x))(A, A.to_format("dcsr"), x)
    close(made, 2 * A.to_dense() @ x)


def test_a_matrix_of_ones_alone(fast: Place) -> None:
    """No argument has values, from which the result could take what it needs."""
    A = sparse(20, 30, 0, fast.device).with_values(None)
    close(compiled(lambda A: degrees(A))(A), degrees(A))


def test_decomposed_in_a_program(fast: Place) -> None:
    A, x = sparse(20, 30, 0, fast.device), randn(30, WIDTH, device=fast.device)
    parts = A.decompose(tw.rules.blocks(2), tw.rules.hyb(1, 2))
    with torch.no_grad():
        close(compiled(lambda A, x: never_called(A, x))(parts, x), never_called(A, x))


@pytest.mark.slow
def test_inductor(fast: Place) -> None:
    given, wanted = graph_inputs(20, 30, 0, fast.device)
    op = lambda A, x: tw.spmm(A, torch.relu(x)) * 2.0
    for got, want in zip(
        step(compiled(op, "inductor"), given, wanted), step(op, given, wanted), strict=True
    ):
        close(got, want)


SCALES: dict[str, Callable[..., tw.SparseTensor]] = {
    "times": lambda A, t: A * t,
    "of": lambda A, t: t * A,
    "over": lambda A, t: A / t,
    "torch.mul": torch.mul,
    "torch.div": torch.div,
}


@pytest.mark.parametrize("name", SCALES)
def test_a_tensor_without_dimensions_scales(name: str) -> None:
    A, t = sparse(6, 5, 0, torch.device("cpu")), torch.tensor(3.0, requires_grad=True)
    op = lambda A, t: SCALES[name](A, t).values
    for got, want in zip(step(compiled(op), [A, t], [t]), step(op, [A, t], [t]), strict=True):
        close(got, want)
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = t / A  # type: ignore[operator]


@pytest.mark.parametrize("how", ["rows", "auto", "mask"])
def test_export_of_any_number_of_rows(how: str) -> None:
    w = randn(3, 8, seed=1)

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return tw.linear(x, w, sparse=x[:, 0] > 0 if how == "mask" else how)

    rows = {0: torch.export.Dim("rows", min=2, max=2048)}
    made = torch.export.export(Layer(), (randn(20, 8),), dynamic_shapes=(rows,)).module()
    close(made(x := randn(33, 8)), Layer()(x))
