"""cuSPARSE, bound by ctypes: the vendor's CSR products at their best.

Owns: finding the library, descriptors, buffers made once, preprocessing. Every algorithm is a call
that repeats the product into its own output.

    for name, make in spmm_calls(indptr, indices, values, x).items():
        call = make(); call.run(); call.out
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Values of cusparse.h and library_types.h.
SPMM_ALGORITHMS = {"default": 0, "csr1": 4, "csr2": 6, "csr3": 12}
DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
INDEX_32, BASE_0, ROW_MAJOR, PLAIN, TRANSPOSED, SDDMM_DEFAULT = 2, 0, 2, 0, 1, 0


class VendorError(RuntimeError):
    """The library is not there, or refuses a product."""


def _places() -> Iterator[str]:
    """Where the library may be: what torch has loaded, its packages, the system."""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        yield from (line.split()[-1] for line in maps.read_text().splitlines() if "/" in line)
    spec = importlib.util.find_spec("nvidia")
    for base in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(glob.glob(f"{base}/**/libcusparse.so*", recursive=True))
    yield from sorted(glob.glob(str(Path(torch.__file__).parent / "lib" / "libcusparse*.so*")))
    for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        yield from sorted(glob.glob(f"{root}/**/libcusparse.so*", recursive=True)) if root else ()
    named = ctypes.util.find_library("cusparse")
    yield from (name for name in (named, "libcusparse.so.12", "libcusparse.so") if name)


def _is_library(place: str) -> bool:
    return Path(place).name.startswith(("libcusparse.so", "libcusparse-"))


@cache
def _library() -> tuple[Any, ctypes.c_void_p]:
    """The library and a handle."""
    if not torch.cuda.is_available():
        raise VendorError("cuSPARSE wants a GPU")
    for place in dict.fromkeys(filter(_is_library, _places())):
        try:
            lib = ctypes.CDLL(place)
        except OSError:
            continue
        handle = ctypes.c_void_p()
        torch.cuda.init()
        _check(lib.cusparseCreate(ctypes.byref(handle)), "cusparseCreate")
        return lib, handle
    raise VendorError("cuSPARSE is not found")


def version() -> str | None:
    """As major.minor.patch, None without the library."""
    try:
        lib, handle = _library()
    except VendorError:
        return None
    number = ctypes.c_int()
    _check(lib.cusparseGetVersion(handle, ctypes.byref(number)), "cusparseGetVersion")
    return f"{number.value // 1000}.{number.value // 100 % 10}.{number.value % 100}"


def _check(status: int, what: str) -> None:
    if status:
        raise VendorError(f"{what}: status {status}")


def _ptr(t: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(t.data_ptr())


def _csr(lib: Any, indptr: Tensor, indices: Tensor, values: Tensor, cols: int) -> ctypes.c_void_p:
    made, i64 = ctypes.c_void_p(), ctypes.c_int64
    sizes = i64(indptr.numel() - 1), i64(cols), i64(indices.numel())
    arrays = _ptr(indptr), _ptr(indices), _ptr(values)
    kinds = INDEX_32, INDEX_32, BASE_0, DATA_TYPE[values.dtype]
    _check(lib.cusparseCreateCsr(ctypes.byref(made), *sizes, *arrays, *kinds), "cusparseCreateCsr")
    return made


def _dense(lib: Any, t: Tensor) -> ctypes.c_void_p:
    made, i64 = ctypes.c_void_p(), ctypes.c_int64
    rows, cols = t.shape
    args = i64(rows), i64(cols), i64(t.stride(0)), _ptr(t), DATA_TYPE[t.dtype], ROW_MAJOR
    _check(lib.cusparseCreateDnMat(ctypes.byref(made), *args), "cusparseCreateDnMat")
    return made


def _scalar(dtype: torch.dtype, value: float) -> Any:
    return ctypes.c_double(value) if dtype == torch.float64 else ctypes.c_float(value)


class Call:
    """One product with its buffer; keeps alive all that the library points into."""

    def __init__(
        self, name: str, head: tuple[Any, ...], tail: tuple[Any, ...], out: Tensor, keep: list[Any]
    ) -> None:
        self.lib, self.handle = _library()
        self.name, self.out, self.keep = name, out, keep
        self.args = (self.handle, *head, *tail)
        size = ctypes.c_size_t()
        self._bind()
        _check(self._routine("_bufferSize")(*self.args, ctypes.byref(size)), f"{name}_bufferSize")
        self.buffer = torch.empty(max(size.value, 16), dtype=torch.uint8, device=out.device)
        self._routine("_preprocess")(*self.args, _ptr(self.buffer))  # optional: may be refused
        self.run()
        torch.cuda.synchronize()

    def _routine(self, suffix: str = "") -> Any:
        return getattr(self.lib, self.name + suffix)

    def _bind(self) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(self.lib.cusparseSetStream(self.handle, stream), "cusparseSetStream")

    def run(self) -> None:
        """Enqueue the product on the current stream."""
        self._bind()
        _check(self._routine()(*self.args, _ptr(self.buffer)), self.name)


def spmm(indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor, algorithm: int = 0) -> Call:
    """out = A x; x: [cols, features], row-major."""
    lib, _ = _library()
    out = torch.empty(indptr.numel() - 1, x.shape[1], dtype=x.dtype, device=x.device)
    a, b, c = _csr(lib, indptr, indices, values, x.shape[0]), _dense(lib, x), _dense(lib, out)
    one, zero = _scalar(x.dtype, 1), _scalar(x.dtype, 0)
    compute = DATA_TYPE[torch.float64 if x.dtype == torch.float64 else torch.float32]
    head = PLAIN, PLAIN, ctypes.byref(one), a, b, ctypes.byref(zero), c
    keep = [indptr, indices, values, x, one, zero]
    return Call("cusparseSpMM", head, (compute, algorithm), out, keep)


def spmm_calls(
    indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor
) -> dict[str, Callable[[], Call]]:
    """One maker for each algorithm; a maker may raise VendorError."""
    return {
        name: partial(spmm, indptr, indices, values, x, number)
        for name, number in SPMM_ALGORITHMS.items()
    }


def sddmm(indptr: Tensor, indices: Tensor, x: Tensor, z: Tensor) -> Call:
    """out[p] = sum_f x[i, f] z[j, f] for every entry p = (i, j); x, z row-major."""
    lib, _ = _library()
    out = torch.zeros(indices.numel(), dtype=x.dtype, device=x.device)
    c = _csr(lib, indptr, indices, out, z.shape[0])
    a, b = _dense(lib, x), _dense(lib, z)
    one, zero = _scalar(x.dtype, 1), _scalar(x.dtype, 0)
    compute = DATA_TYPE[torch.float64 if x.dtype == torch.float64 else torch.float32]
    head = PLAIN, TRANSPOSED, ctypes.byref(one), a, b, ctypes.byref(zero), c
    keep = [indptr, indices, x, z, one, zero]
    return Call("cusparseSDDMM", head, (compute, SDDMM_DEFAULT), out, keep)
