"""What tests stand on: Triton's interpreter, a cache of their own, seeds, markers, --accept.

TILEWRIGHT_TEST_GPU=1 asks for a run on a GPU: Triton then compiles, and tests marked `gpu` run.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

GPU_RUN = os.environ.get("TILEWRIGHT_TEST_GPU", "0") not in ("", "0")
FIRST = "PYTEST_XDIST_WORKER" not in os.environ  # workers inherit what the first process sets

if not GPU_RUN:
    os.environ["TRITON_INTERPRET"] = "1"
if FIRST:
    os.environ["TILEWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="tilewright-test-")
    os.environ["TRITON_CACHE_DIR"] = os.path.join(os.environ["TILEWRIGHT_CACHE"], "triton")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tile_sizes import MOST, largest  # noqa: E402

from tilewright import driver  # noqa: E402
from tilewright.ir import flat  # noqa: E402
from tilewright.ops.registry import TEMPLATES  # noqa: E402
from tilewright.schedule.options import WARPS  # noqa: E402
from tilewright.schedule.record import apply, parse_steps, show_steps  # noqa: E402
from tilewright.tune import store  # noqa: E402

torch.set_num_threads(2)
IMPORTED = tuple(TEMPLATES)  # before tests make programs of their own


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="rewrite golden files with what came out"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device and TILEWRIGHT_TEST_GPU=1")
    config.addinivalue_line("markers", 'slow: takes seconds; leave out with -m "not slow"')
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("tilewright", deadline=None, derandomize=True)
    settings.load_profile("tilewright")


def pytest_unconfigure() -> None:
    if FIRST:
        shutil.rmtree(os.environ["TILEWRIGHT_CACHE"], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU its tests are left out: to skip thousands of them takes its time."""
    if GPU_RUN and torch.cuda.is_available():
        return
    left = [item for item in items if item.get_closest_marker("gpu")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(autouse=True, scope="session")
def replayed() -> Iterator[None]:
    """Every schedule of every kernel that the tests build is replayed from its text: the same program comes out."""
    real = driver._schedule

    def checked(p: flat.Program, log: Any, given: Any, default: Any) -> flat.Program:
        made = real(p, log, given, default)
        assert str(apply(p, parse_steps(show_steps(log.steps)))) == str(made)
        return made

    with mock.patch.object(driver, "_schedule", checked):
        yield


@pytest.fixture(autouse=True, scope="session")
def bounded() -> Iterator[None]:
    """No default schedule makes a Triton program whose threads hold more than they have registers for."""
    real = driver.to_tile

    def checked(p: Any, setting: Any, *given: Any, **named: Any) -> Any:
        made = real(p, setting, *given, **named)
        if given[3:] in ((), (None,)) and named.get("schedule") is None:
            held, value = largest(made, setting.get("warps", WARPS))
            assert held <= MOST, f"{made.name}: {held} bytes a thread in {value}"
        return made

    with mock.patch.object(driver, "to_tile", checked):
        yield


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def registered() -> tuple[str, ...]:
    """The programs that operators bring with them."""
    return IMPORTED


@pytest.fixture
def accept(request: pytest.FixtureRequest) -> bool:
    """True when golden files are to be rewritten."""
    return bool(request.config.getoption("--accept"))


@pytest.fixture
def own_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database of the test's own; kernels stay in the common cache."""
    monkeypatch.setattr(store, "root", lambda: tmp_path / "plans")
    store.forget()
    yield
    store.forget()
