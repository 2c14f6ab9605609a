"""The cache in front of operators."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from formats.patterns import tensor

from tilewright.formats import StructureCache

pytestmark = pytest.mark.filterwarnings("ignore:.*[Ss]parse.*:UserWarning")
FORMATS = ("csr", "csc", "coo", "bsr")


def make(format: str = "csr") -> torch.Tensor:
    a = tensor("mixed", (8, 6)).to_format(format, (2, 2) if format == "bsr" else None)
    return a.to_torch()


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_tensor_is_a_hit(format: str) -> None:
    cache, a = StructureCache(), make(format)
    first, uses = cache.lookup(a)
    again, more = cache.lookup(a)
    assert first is again and (uses, more) == (1, 2)


def test_new_values_over_the_same_indices_are_a_hit() -> None:
    cache = StructureCache()
    crow, col = make().crow_indices(), make().col_indices()
    seen = set()
    for _ in range(3):
        a = torch.sparse_csr_tensor(crow, col, torch.randn(col.shape[0]), (8, 6))
        seen.add(id(cache.lookup(a)[0]))
        del a
    assert len(seen) == 1


def test_equal_contents_are_a_miss() -> None:
    cache, a = StructureCache(), make()
    assert cache.lookup(a)[0] is not cache.lookup(a.clone())[0]


def test_another_shape_over_the_same_indices_is_a_miss() -> None:
    cache, a = StructureCache(), make()
    wide = torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), a.values(), (8, 60))
    assert cache.lookup(a)[0] is not cache.lookup(wide)[0]


@pytest.mark.parametrize("format", FORMATS)
def test_a_change_in_place_is_a_miss(format: str) -> None:
    cache, a = StructureCache(), make(format)
    first, _ = cache.lookup(a)
    get = {"coo": a._indices, "csc": a.row_indices}.get(format, a.col_indices)
    get().zero_()
    again, uses = cache.lookup(a)
    assert again is not first and uses == 1 and len(cache) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_what_the_user_dropped_is_dropped(format: str) -> None:
    cache, a = StructureCache(), make(format)
    cache.lookup(a)[0].prepare()
    cache.sweep()
    assert len(cache) == 1
    del a
    gc.collect()
    cache.sweep()
    assert len(cache) == 0


def test_an_address_used_again_is_no_hit() -> None:
    cache, addresses, repeated = StructureCache(), set(), 0
    for _ in range(200):
        a = torch.eye(8)[:, torch.randperm(8)].to_sparse_csr()
        structure, uses = cache.lookup(a)
        address = a.col_indices().untyped_storage()._cdata
        repeated += address in addresses
        addresses.add(address)
        assert uses == 1 and torch.equal(structure.indices, a.col_indices())
        del a, structure
    assert repeated > 0


def test_the_table_is_bounded() -> None:
    cache = StructureCache(capacity=3)
    held = [make() for _ in range(5)]
    for a in held:
        cache.lookup(a)
    assert len(cache) == 3
    assert cache.lookup(held[-1])[1] == 2 and cache.lookup(held[0])[1] == 1
    cache.clear()
    assert len(cache) == 0


def test_inference_tensors_have_no_version() -> None:
    cache = StructureCache()
    with torch.inference_mode():
        a = make()
        assert cache.lookup(a)[0] is cache.lookup(a)[0]


def test_lookup_is_cheap() -> None:
    """Target 4 us (measured 2.9); the bound leaves room for a busy machine."""
    cache, a = StructureCache(), make()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            cache.lookup(a)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 12e-6
