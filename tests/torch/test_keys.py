"""What makes a new kernel and what does not: structures never do; widths do, by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from ops.matrices import matrix, randn
from ops.places import INTERPRETER

import tilewright as tw
from tilewright import driver
from tilewright.ops.attention import _call as attention_call
from tilewright.ops.backend import backend
from tilewright.ops.entry import Entry
from tilewright.ops.linear import _call as linear_call
from tilewright.ops.products import arguments as listed_call
from tilewright.ops.products import listed_product
from tilewright.ops.sddmm import _call as sddmm_call
from tilewright.ops.spmm import _call as spmm_call


def keys(calls: list[tuple[Any, ...]], name: str) -> int:
    """How many kernels the calls compile, when nothing was compiled before."""
    entries: dict[str, Entry] = {}
    with (
        mock.patch.object(driver, "compile_c", wraps=driver.compile_c) as c,
        mock.patch.object(driver, "compile_triton", wraps=driver.compile_triton) as triton,
    ):
        for program, tensors, ints, *floats in calls:
            made = entries.setdefault(program, Entry(program, name))
            held = [
                t.clone() for t in tensors
            ]  # views may start at any address, which is a class of its own
            made.forward(held, ints, floats[0] if floats else [])
        return int(c.call_count + triton.call_count)


def product(rows: int, cols: int, width: int, seed: int = 0) -> tuple[Any, ...]:
    A = tw.SparseTensor.from_dense(matrix(rows, cols, 0.3, seed))
    return spmm_call(A, randn(cols, width), "sum", None)


def sampled(rows: int, cols: int, width: int) -> tuple[Any, ...]:
    A = tw.SparseTensor.from_dense(matrix(rows, cols, 0.3))
    return sddmm_call(A, randn(rows, width), randn(cols, width), "dot", None)


def some_rows(rows: int, cols: int, width: int) -> tuple[Any, ...]:
    return linear_call(randn(rows, width), randn(24, width), torch.arange(rows // 2), None)


def some_k(rows: int, cols: int, width: int) -> tuple[Any, ...]:
    """Lists of other lengths, of other groups: nothing that a kernel is made for."""
    x = randn(rows + cols, width)
    index = tw.Index.from_values(x > 1, (16, 1), grouped=True)
    given = {"x": x, "w": randn(24, width), "k_list": index.positions, "k_count": index.counts}
    return listed_call(listed_product("k", 1, 16), given)


def blocks(rows: int, cols: int, width: int) -> tuple[Any, ...]:
    bits = torch.ones(-(-rows // 16), -(-cols // 16))
    q, k = randn(1, rows, width), randn(1, cols, width)
    return attention_call(q, k, k, tw.block_mask(bits, 16, (rows, cols)), 1.0, None)


MAKERS: dict[str, Callable[[int, int, int], tuple[Any, ...]]] = {
    "spmm": product,
    "sddmm": sampled,
    "linear-rows": some_rows,
    "linear-k": some_k,
    "attention": blocks,
}


def kernels(name: str, backend_name: str) -> int:
    """One, or none where torch multiplies."""
    return int(backend_name == "triton" or name != "linear-k")


BACKENDS = ["c", pytest.param("triton", marks=INTERPRETER)]


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", MAKERS)
def test_sizes_of_structures(name: str, backend_name: str) -> None:
    """Rows and columns 1, 15, 17, 33: no multiple of anything; one kernel."""
    with backend(backend_name):
        calls = [MAKERS[name](r, c, 16) for r in (1, 15, 17, 33) for c in (1, 15, 17, 33)]
        assert keys(calls, backend_name) == kernels(name, backend_name)


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", MAKERS)
def test_divisibility_of_structures(
    name: str, backend_name: str, request: pytest.FixtureRequest
) -> None:
    """Lengths 18, 20, 24, 40: multiples of 2, 4 and 8, none of the block; still one kernel."""
    with backend(backend_name):
        calls = [MAKERS[name](n, n, 16) for n in (18, 20, 24, 40)]
        assert keys(calls, backend_name) == kernels(name, backend_name)


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_patterns(backend_name: str) -> None:
    with backend(backend_name):
        assert keys([product(12, 12, 16, seed) for seed in range(6)], backend_name) == 1


@INTERPRETER
def test_widths_of_one_class() -> None:
    """33 to 63 without a factor of two, one tile of 64: one kernel."""
    with backend("triton"):
        assert keys([product(12, 12, w) for w in (33, 35, 47, 63)], "triton") == 1


def test_exact_widths_in_c() -> None:
    assert keys([product(12, 12, w) for w in (15, 16, 17)], "c") == 3


def test_wide_ones_share_a_kernel_in_c() -> None:
    assert keys([product(12, 12, w) for w in (513, 514, 600, 1001)], "c") == 1
