"""On a GPU: nothing but construction waits for the device, and results are those of the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from formats.patterns import tensor
from formats.test_trees import TREES, matrix

from tilewright.formats import SparseTensor, block_mask, ragged

pytestmark = pytest.mark.gpu
DTYPES = (torch.int32, torch.int64)


@pytest.fixture(autouse=True)
def waiting_is_allowed_again() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def no_waiting() -> None:
    torch.cuda.set_sync_debug_mode("error")


def waits(make: Callable[[], object]) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make()
    return len(seen)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_conversion_never_waits(format: str, dtype: torch.dtype) -> None:
    a = tensor("duplicates", (60, 40), dtype)
    made, expected = a.to("cuda"), a.to_dense()
    no_waiting()
    made = made.to_format(format).prepare()
    back = SparseTensor(made.structure.transposed, made.values).to_dense()
    dense, turned = made.to_dense(), made.T.to_format("csr").to_dense()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(dense.cpu(), expected)
    assert torch.equal(turned.cpu(), expected.T) and torch.equal(back.cpu(), expected.T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_wait_only_when_made(dtype: torch.dtype) -> None:
    a = tensor("mixed", (60, 40), dtype)
    made = a.to("cuda").to_format("bsr", (4, 5))
    fresh = a.values.cuda() * 2
    no_waiting()
    dense, turned = made.with_entries(fresh).to_dense(), made.prepare().T.to_dense()
    plain = made.to_format("csc").to_dense()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(dense.cpu(), 2 * a.to_dense())
    assert torch.equal(turned.cpu(), a.to_dense().T) and torch.equal(plain.cpu(), a.to_dense())


def test_packing_never_waits() -> None:
    lengths, x = torch.tensor([3, 0, 4]).cuda(), torch.randn(3, 6, 2).cuda()
    no_waiting()
    r = ragged(lengths=lengths, max_len=4, total=7, check=False)
    packed = r.pack(x)
    r.pad(packed)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(packed, torch.cat((x[0, :3], x[2, :4])))


def test_construction_waits_once() -> None:
    at, bits = torch.tensor([0, 1]).cuda(), torch.eye(3, dtype=torch.bool).cuda()
    assert waits(lambda: SparseTensor.from_coo(at, at, None, (2, 2))) == 1
    assert waits(lambda: block_mask(bits, 8)) == 1
    assert waits(lambda: ragged(lengths=at)) == 1


def test_csr_leaf_gets_a_csr_gradient() -> None:
    leaf = torch.eye(4).cuda().to_sparse_csr().requires_grad_()
    for times in (1, 2):
        (SparseTensor.from_torch(leaf).to_dense() ** 2).sum().backward()
        assert leaf.grad.layout == torch.sparse_csr
        assert torch.equal(leaf.grad.values(), 2 * times * leaf.values().detach())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*TREES, "two_four"])
def test_trees_are_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    a = matrix("two of four", (60, 44), dtype, (2,), 5)
    made, expected = a.to("cuda").to_format(name), a.to_format(name)
    assert made.format == expected.format
    for key, array in expected.structure.arrays.items():
        assert torch.equal(made.structure.arrays[key].cpu(), array)
    assert torch.equal(made.to_dense().cpu(), a.to_dense())
    assert torch.equal(made.to_format("csc").to_dense().cpu(), a.to_dense())


@pytest.mark.parametrize("name", ["dcsr", "ell", "padded.3"])
def test_lists_read_without_waiting(name: str) -> None:
    a = matrix("mixed", (60, 44), torch.int32, (), 5)
    made = a.to("cuda").to_format(name)
    no_waiting()
    csr, dense = SparseTensor(made.structure.as_csr(), made.values).to_dense(), made.to_dense()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(csr.cpu(), a.to_dense()) and torch.equal(dense.cpu(), a.to_dense())
