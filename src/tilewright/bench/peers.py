"""What runs on the CPU beside the operators: torch, SciPy, Numba where it is installed, and a plain loop.

The plain loop is this compiler's own output before any schedule: loops as the statement has them, rows over
threads, everything else left to the C compiler's -O3.

    calls = spmm_peers(run, graph, values, x, "sum"); calls["torch"]()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilewright import driver
from tilewright.bench.graphs import Graph
from tilewright.bench.suite import Run
from tilewright.bench.timing import Fn
from tilewright.ir.flat import Loop
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.ops.bound import Launch
from tilewright.ops.ready import Ready
from tilewright.schedule import loop as step

TORCH_REDUCE = {"mean": "mean", "max": "amax", "min": "amin"}


def spmm_peers(run: Run, graph: Graph, values: Tensor, x: Tensor, reduce: str) -> dict[str, Fn]:
    """Calls by name; those that are not there are told and left out."""
    a = graph.torch_csr(values)
    if reduce != "sum":
        how = TORCH_REDUCE[reduce]
        return {"torch": lambda: torch.sparse.mm(a, x, how)}
    calls: dict[str, Fn] = {"torch": lambda: a @ x}
    with run.peer("SciPy"):
        import scipy.sparse

        arrays = values.numpy(), graph.indices.numpy(), graph.indptr.numpy()
        a_scipy = scipy.sparse.csr_array(arrays, shape=(graph.rows, graph.cols))
        dense = x.numpy()
        calls["scipy"] = lambda: a_scipy @ dense
    with run.peer("Numba"):
        calls["numba"] = _numba_spmm(graph, values, x)
    return calls


def sddmm_peers(run: Run, graph: Graph, x: Tensor, z: Tensor) -> dict[str, Fn]:
    """torch.sparse.sampled_addmm with the pattern's values ignored (beta = 0), and Numba."""
    a, zt = graph.torch_csr(torch.zeros(graph.nnz)), z.t()
    calls: dict[str, Fn] = {"torch": lambda: torch.sparse.sampled_addmm(a, x, zt, beta=0.0)}
    with run.peer("Numba"):
        calls["numba"] = _numba_sddmm(graph, x, z)
    return calls


def plain(plan: Launch) -> tuple[Fn, Tensor]:
    """The launch of the same statement without a schedule, and its output."""
    flat = lower_to_flat(lower_to_position(plan.step.bound.program))
    first = flat.body[0]
    assert isinstance(first, Loop)
    kernel = driver.compile_c(step.kind(flat, first.var.name, "grid"), {})
    ready, out = Ready(plan.step, kernel), torch.empty_like(plan.out)
    launch = lambda: ready.into(plan.tensors, [out], plan.sizes, plan.ints, plan.floats)
    return launch, out


def _numba_spmm(graph: Graph, values: Tensor, x: Tensor) -> Fn:
    import numba

    def product(indptr: Any, indices: Any, values: Any, x: Any, out: Any) -> None:
        for i in numba.prange(indptr.shape[0] - 1):
            for f in range(x.shape[1]):
                out[i, f] = 0.0
            for p in range(indptr[i], indptr[i + 1]):
                j, v = indices[p], values[p]
                for f in range(x.shape[1]):
                    out[i, f] += v * x[j, f]

    size = graph.rows, x.shape[1]
    return _numba(product, (graph.indptr, graph.indices, values, x), size)


def _numba_sddmm(graph: Graph, x: Tensor, z: Tensor) -> Fn:
    import numba

    def product(indptr: Any, indices: Any, x: Any, z: Any, out: Any) -> None:
        for i in numba.prange(indptr.shape[0] - 1):
            for p in range(indptr[i], indptr[i + 1]):
                j, total = indices[p], x.dtype.type(0.0)
                for f in range(x.shape[1]):
                    total += x[i, f] * z[j, f]
                out[p] = total

    return _numba(product, (graph.indptr, graph.indices, x, z), (graph.nnz,))


def _numba(product: Callable[..., None], tensors: tuple[Tensor, ...], size: tuple[int, ...]) -> Fn:
    """Compiled in parallel with fast arithmetic, as its users would; each call makes its output, as all do."""
    import numba

    numba.set_num_threads(min(torch.get_num_threads(), numba.get_num_threads()))
    made = numba.njit(parallel=True, fastmath=True)(product)
    arrays = [t.numpy() for t in tensors]
    return lambda: made(*arrays, np.empty(size, np.float32))
