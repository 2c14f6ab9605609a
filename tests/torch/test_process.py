"""What a process pays and leaves behind: imports, first calls, the cache on disk, stage dumps, missing compilers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from ops.matrices import matrix, randn

import tilewright as tw

PROGRAM = """
    import json, sys, time
    import torch
    torch.set_num_threads(1)
    began = time.perf_counter()
    import tilewright as tw
    imported = time.perf_counter() - began
    A = tw.SparseTensor.from_torch(torch.eye(4).to_sparse_csr())
    x = torch.randn(4, 5)
    began = time.perf_counter()
    y = tw.spmm(A, x)
    called = time.perf_counter() - began
    assert torch.equal(y, x)
    from tilewright.runtime.counters import counters
    print(json.dumps({
        "import": imported, "call": called, "dynamo": "torch._dynamo" in sys.modules,
        "builds": counters.c_builds, "hits": counters.disk_hits,
    }))
"""


def environment(cache: Path, **more: str) -> dict[str, str]:
    made = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWRIGHT_", "TRITON_"))}
    return {**made, "TILEWRIGHT_CACHE": str(cache), "PYTHONWARNINGS": "ignore", **more}


def start(code: str, cache: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(cache, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, cache: Path, **more: str) -> Any:
    started = start(code, cache, **more)
    out, err = started.communicate(timeout=120)
    assert started.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same program with an empty cache, and again in a new process."""
    cache = tmp_path_factory.mktemp("cache")
    return run(PROGRAM, cache), run(PROGRAM, cache)


def test_dynamo_is_not_imported(measured: tuple[Any, Any]) -> None:
    assert not measured[0]["dynamo"]


def test_import_time(measured: tuple[Any, Any]) -> None:
    took = min(m["import"] for m in measured)
    print(f"import beyond torch: {took:.3f} s")
    assert took < 2 * 0.5


def test_first_call_of_a_new_program(measured: tuple[Any, Any]) -> None:
    print(f"cold call: {measured[0]['call']:.3f} s, {measured[0]['builds']} builds")
    assert measured[0]["builds"] == 1 and measured[0]["call"] < 2 * 2.0


def test_first_call_from_disk(measured: tuple[Any, Any]) -> None:
    print(f"call from the disk cache: {measured[1]['call'] * 1e3:.1f} ms")
    assert (measured[1]["builds"], measured[1]["hits"]) == (0, 1)
    assert measured[1]["call"] < 2 * 0.050


def test_call_overhead() -> None:
    import time

    A, x = tw.SparseTensor.from_dense(torch.ones(1, 1)), torch.ones(1, 1)
    tw.spmm(A, x)
    best = min(_time(lambda: tw.spmm(A, x), time.perf_counter) for _ in range(20))
    print(f"spmm on 1 x 1: {best * 1e6:.1f} us")
    assert best < 60e-6


def _time(fn: Any, clock: Any, many: int = 200) -> float:
    began = clock()
    for _ in range(many):
        fn()
    return float(clock() - began) / many


def test_cache_under_concurrent_processes(tmp_path: Path) -> None:
    """Four processes build the same program at once: all succeed, and nothing half-made is left."""
    started = [start(PROGRAM, tmp_path) for _ in range(4)]
    for p in started:
        _, err = p.communicate(timeout=120)
        assert p.returncode == 0, err
    left = sorted(f.suffix for f in tmp_path.iterdir())
    assert left == [".c", ".so"], sorted(f.name for f in tmp_path.iterdir())


def test_a_failed_build_leaves_no_library(tmp_path: Path) -> None:
    """The source is kept, as the error says; no library that a later process would load."""
    bad = tmp_path / "cc"
    bad.write_text('#!/bin/sh\n[ "$1" = --version ] && echo bad 1.0 && exit 0\nexit 1\n')
    bad.chmod(0o755)
    cache = tmp_path / "cache"
    p = start(PROGRAM, cache, CC=str(bad))
    _, err = p.communicate(timeout=120)
    assert p.returncode != 0 and "the C compiler failed" in err
    assert [f.suffix for f in cache.iterdir()] == [".c"]


def test_no_compiler(tmp_path: Path) -> None:
    p = start(PROGRAM, tmp_path, CC="/nonexistent", TILEWRIGHT_FALLBACK="0")
    _, err = p.communicate(timeout=120)
    assert p.returncode != 0
    assert "no working C compiler (CC=/nonexistent)" in err and "hint:" in err


def test_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TILEWRIGHT_DUMP: a folder for each compilation, a file for each stage."""
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    width = 211  # compiled by nobody else
    tw.spmm(matrix().to_sparse_csr(), randn(12, width))
    (folder,) = tmp_path.iterdir()
    names = sorted(f.name for f in folder.iterdir())
    assert names == [
        "01_coord.py",
        "02_loops.py",
        "03_flat.py",
        "04_scheduled.py",
        "05_c.c",
        "schedule.py",
    ]
    assert all(f.read_text().strip() for f in folder.iterdir())


def test_dump_of_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ops.backend import backend

    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles in this run")
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    with backend("triton"):
        tw.spmm(matrix().to_sparse_csr(), randn(12, 21))
    (folder,) = tmp_path.iterdir()
    stages = [f.name[3:] for f in sorted(folder.glob("0*"))]
    assert stages == [
        "coord.py",
        "loops.py",
        "flat.py",
        "scheduled.py",
        "tile.py",
        "triton.py",
    ]


INTERPRETED = """
    import json, torch, tilewright as tw

    torch.manual_seed(0)
    D = torch.randn(6, 5) * (torch.rand(6, 5) < 0.5)
    A, x, z = tw.SparseTensor.from_dense(D), torch.randn(5, 3), torch.randn(6, 3)
    w, q = torch.randn(4, 3), torch.randn(1, 1, 8, 4)
    mask = tw.block_mask(torch.ones(2, 2, dtype=torch.bool), block=4)
    parts = A.decompose(tw.rules.blocks(2), tw.rules.hyb(1, 2))
    dense = torch.nn.functional.scaled_dot_product_attention
    cases = {
        "spmm": (lambda x: tw.spmm(A, x), lambda x: D @ x, x),
        "columns": (lambda x: tw.spmm(A.T, x), lambda x: D.T @ x, z),
        "parts": (lambda x: tw.spmm(parts, x), lambda x: D @ x, x),
        "ell": (lambda x: tw.spmm(A.to_format("ell"), x), lambda x: D @ x, x),
        "half": (lambda x: tw.spmm(A, x.bfloat16()).float(), lambda x: D @ x.bfloat16().float(), x),
        "sddmm": (lambda x: tw.sddmm(A, z, x).to_dense(), lambda x: D * (z @ x.T), x),
        "rows": (lambda x: tw.linear(x.relu(), w, sparse="rows"), lambda x: x.relu() @ w.T, x),
        "attention": (lambda q: tw.attention(q, q, q, mask=mask), lambda q: dense(q, q, q), q),
    }
    wrong = []
    for name, (ours, theirs, given) in cases.items():
        a, b = (given.clone().requires_grad_() for _ in "ab")
        y, t = ours(a), theirs(b)
        y.square().sum().backward()
        t.square().sum().backward()
        near = lambda u, v: torch.allclose(u, v, rtol=2e-2, atol=2e-2)
        wrong += [] if near(y, t) and near(a.grad, b.grad) else [name]
    print(json.dumps(wrong))
"""


def test_without_a_compiler_results_are_the_same(tmp_path: Path) -> None:
    """The interpreter that stands in for C: gradients, several launches into one output, 16 bits."""
    assert run(INTERPRETED, tmp_path, CC="/nonexistent") == []


def test_a_compiler_may_have_options(tmp_path: Path) -> None:
    p = start(PROGRAM, tmp_path, CC="cc -O1", TILEWRIGHT_FALLBACK="0")
    _, err = p.communicate(timeout=120)
    assert p.returncode == 0, err
