"""Where a test runs: C on the CPU, Triton's interpreter on the CPU, or a GPU. One suite serves all three.

    def test_product(where): y = tw.spmm(A.to(where.device), x.to(where.device))

The fixture sends CPU tensors to the place's back end while the test runs. With TILEWRIGHT_TEST_GPU=1
Triton compiles, so its interpreter is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from tilewright.ops.backend import backend

GPU_RUN = os.environ.get("TILEWRIGHT_TEST_GPU", "0") not in ("", "0")
INTERPRETER = pytest.mark.skipif(GPU_RUN, reason="Triton compiles in this run")
PLACES = [
    pytest.param("c"),
    pytest.param("triton", marks=INTERPRETER),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
COMPILED = [pytest.param("c"), pytest.param("cuda", marks=pytest.mark.gpu)]
TILED = "cuda" if GPU_RUN else "triton"  # the one of this run that Triton serves
TRITON = [
    pytest.param("triton", marks=INTERPRETER),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@dataclass(frozen=True)
class Place:
    """A device and the back end that serves it."""

    name: str

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.name == "cuda" else "cpu")

    @property
    def backend(self) -> str:
        return "c" if self.name == "c" else "triton"

    @property
    def slow(self) -> bool:
        """Triton's interpreter: milliseconds for each program."""
        return self.name == "triton"


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every place."""
    yield from enter(request.param)


@pytest.fixture(params=COMPILED)
def fast(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Places that run native code: for gradcheck and larger sizes."""
    yield from enter(request.param)


@pytest.fixture(params=TRITON)
def tiled(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Places that Triton serves: for work lists."""
    yield from enter(request.param)


def enter(name: str) -> Iterator[Place]:
    with at(name) as place:
        yield place


@contextmanager
def at(name: str) -> Iterator[Place]:
    """A place without a fixture, for drawn examples."""
    place = Place(name)
    with backend(place.backend if place.device.type == "cpu" else "c"):
        yield place
