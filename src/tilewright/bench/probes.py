"""Hand-written kernels to compare with, loaded from the folder of --probes when a suite runs.

Owns: importing a probe, compiling a C probe, their launches in this package's terms.

    units = load(folder, "spmm_units")
    launch, out = spmm_units(units, plan, indices, values, x, setting)
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

Launch = Callable[[], object]
C_FLAGS = "-O3 -march=native -mprefer-vector-width=512 -ffast-math -fopenmp -fPIC".split()


def load(folder: Path | None, name: str) -> ModuleType | None:
    """The probe as a module; None without a folder, or where it has no such file."""
    path = folder / f"{name}.py" if folder else None
    if path is None or not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"probe_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def feature_tile(width: int, wanted: int) -> int:
    """The widest power of two that divides the width and is at most the one wanted."""
    tile = 1
    while tile * 2 <= wanted and width % (tile * 2) == 0:
        tile *= 2
    return tile


def spmm_plan(probe: ModuleType, indptr: Tensor, setting: dict[str, Any]) -> tuple[Any, ...]:
    """Segments, units and workspace slots; depends on rows, long and chunk only."""
    made: tuple[Any, ...] = probe.plan(
        indptr.long(), setting["rows"], setting["long"], setting["chunk"], dev=indptr.device
    )
    return made


def spmm_units(
    probe: ModuleType,
    plan: tuple[Any, ...],
    indices: Tensor,
    values: Tensor,
    x: Tensor,
    rows: int,
    setting: dict[str, Any],
    warm: bool = False,
) -> tuple[Launch, Tensor]:
    """The work-unit kernel at a setting that has width and outer too; warm: compile, no launch."""
    seg, unit, slots = plan
    width = x.shape[1]
    tile = feature_tile(width, setting.get("width") or width)
    tiles = width // tile
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    done = torch.zeros(slots * tiles, dtype=torch.int32, device=x.device)
    work = torch.empty(slots * width, dtype=torch.float32, device=x.device)
    args = seg, unit, done, work, x, out, indices, values
    named = {"F": width, "BF": tile, "R": setting["rows"], "U": setting["unroll"], "NF": tiles}
    named |= {"FT_OUTER": int(bool(setting.get("outer", 0))), "num_warps": setting["warps"]}
    grid = (unit.shape[0] * tiles,)
    if warm:
        return lambda: probe.spmm.warmup(*args, grid=grid, **named), out
    return lambda: probe.spmm[grid](*args, **named), out


def rows_matmul(
    probe: ModuleType, x: Tensor, weight_t: Tensor, rows: Tensor, setting: dict[str, Any]
) -> tuple[Launch, Tensor]:
    """out[rows] = x[rows] @ weight_t; other rows of out are not written."""
    (m, k), n = (rows.numel(), x.shape[1]), weight_t.shape[1]
    out = torch.empty(x.shape[0], n, dtype=x.dtype, device=x.device)
    args = x, rows, weight_t, out, m, n, k
    named = {"BM": setting["bm"], "BN": setting["bn"], "BK": setting["bk"]}
    named |= {"GROUP": setting["group"], "num_warps": setting["warps"]}
    grid = (-(-m // setting["bm"]) * -(-n // setting["bn"]),)
    return lambda: probe.rows_matmul[grid](*args, **named, num_stages=setting["stages"]), out


def k_matmul(
    probe: ModuleType,
    x_t: Tensor,
    ends: Tensor,
    columns: Tensor,
    weight_t: Tensor,
    setting: dict[str, Any],
) -> tuple[Launch, Tensor]:
    """out = x @ weight_t over the columns listed for each bm rows; x_t: [k, rows], weight_t: [k, n]"""
    m, n = x_t.shape[1], weight_t.shape[1]
    out = torch.empty(m, n, dtype=x_t.dtype, device=x_t.device)
    named = {"BM": setting["bm"], "BN": setting["bn"], "BK": setting["bk"]}
    named |= {"num_warps": setting["warps"], "num_stages": setting["stages"]}
    grid = (n // setting["bn"], m // setting["bm"])
    args = x_t, ends, columns, weight_t, out, m, n
    return lambda: probe.k_matmul[grid](*args, **named), out


def attention(
    probe: ModuleType,
    qkv: tuple[Tensor, Tensor, Tensor],
    block_rows: tuple[Tensor, Tensor],
    scale: float,
    block: int,
    setting: dict[str, Any],
) -> tuple[Launch, Tensor]:
    """Block-sparse attention; q, k, v: [1, heads, tokens, d], block_rows: int32 CSR of the blocks."""
    q, k, v = qkv
    _, heads, tokens, d = q.shape
    out = torch.empty_like(q)
    args = q, k, v, out, *block_rows, tokens, scale, tokens // block
    named = {"BLK": block, "D": d, "BM": setting["bm"], "BN": setting["bn"]}
    named |= {"num_warps": setting["warps"], "num_stages": setting["stages"]}
    grid = (tokens // setting["bm"], heads)
    return lambda: probe.attention[grid](*args, **named), out


def bsr_matmul(
    probe: ModuleType,
    blocks: tuple[Tensor, Tensor, Tensor],
    x: Tensor,
    setting: dict[str, Any],
) -> tuple[Launch, Tensor]:
    """The block product; blocks: int32 CSR of the blocks, and the blocks themselves."""
    indptr, indices, values = blocks
    rows, b, columns = indptr.numel() - 1, values.shape[1], x.shape[1]
    out = torch.empty(rows * b, columns, dtype=x.dtype, device=x.device)
    named = {"B": b, "BN": setting["width"]}
    named |= {"num_warps": setting["warps"], "num_stages": setting["stages"]}
    grid = (rows * -(-columns // setting["width"]),)
    args = indptr, indices, values, x, out, columns, rows
    return lambda: probe.bsr_matmul[grid](*args, **named), out


def compile_spmm_c(folder: Path | None, width: int) -> Any:
    """The C probe for one width, by its documented flags; None where there is no probe or no compiler.

    Linked apart from -ffast-math, which would have the library change the process's rounding modes.
    """
    source = folder / "spmm_cpu.c" if folder else None
    if source is None or not source.is_file():
        return None
    compiler = os.environ.get("CC") or "gcc"
    sizes = [f"-DF={width}", f"-DT={min(width, 128)}"]
    with tempfile.TemporaryDirectory(prefix="tilewright-probe-") as made:
        object_file, library = f"{made}/spmm.o", f"{made}/spmm.so"
        try:
            _run([compiler, *C_FLAGS, *sizes, "-c", str(source), "-o", object_file])
            _run([compiler, "-shared", "-fopenmp", object_file, "-o", library])
        except (OSError, subprocess.CalledProcessError):
            return None
        loaded = ctypes.CDLL(library)
    loaded.omp_set_num_threads(torch.get_num_threads())
    return loaded


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def spmm_c(
    library: Any, indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor
) -> tuple[Launch, Tensor]:
    out = torch.empty(indptr.numel() - 1, x.shape[1])
    tensors = indptr, indices, values, x, out
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    rows = ctypes.c_int(indptr.numel() - 1)

    def launch(_keep: tuple[Tensor, ...] = tensors) -> None:
        library.spmm(rows, *pointers)

    return launch, out
