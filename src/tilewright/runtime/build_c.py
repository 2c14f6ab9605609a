"""C text -> a function in this process. One OpenMP runtime: torch's own, when it has one.

In: C source and the function's name. Out: a ctypes function, from the cache when it is there.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import torch

from tilewright.runtime import cache, caches
from tilewright.runtime.counters import counters
from tilewright.support import knobs
from tilewright.support.errors import error

FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-w")


@functools.cache
def compiler() -> tuple[str, str]:
    """(command, version) of the C compiler; $CC may have options, or a wrapper first: CC="ccache gcc"."""
    asked = knobs.compiler()
    for name in [asked] if asked else ["cc", "gcc", "clang"]:
        first, *more = [name] if shutil.which(name) else shlex.split(name) or [""]
        path = shutil.which(first)
        if path is not None:
            got = subprocess.run([path, *more, "--version"], capture_output=True, text=True)
            if got.returncode == 0 and got.stdout:
                return shlex.join([path, *more]), got.stdout.splitlines()[0]
    raise error("no-compiler", got=f"CC={asked}" if asked else "none of cc, gcc, clang")


def available() -> bool:
    """Whether C can be compiled here."""
    try:
        compiler()
    except Exception:
        return False
    return True


@functools.cache
def _flags() -> str:
    """The line of the processor's features, where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@functools.cache
def cpu_features() -> str:
    """What -march=native means here; part of every key."""
    told = platform.machine(), _flags()
    return cache.key_of(*told) if _flags() else platform.machine() + platform.processor()


@functools.cache
def vector() -> int:
    """Bytes of a vector."""
    held = _flags().split()
    return 64 if "avx512f" in held else 32 if "avx2" in held else 16


@functools.cache
def openmp() -> str | None:
    """The OpenMP library that torch itself has loaded, so that there is one pool of threads."""
    roots = [Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"]
    for root in roots:
        for path in sorted(root.glob("libgomp*.so*")) + sorted(root.glob("libomp*.so*")):
            return str(path)
    return None


@functools.cache
def far() -> int:
    """Bytes that are too many to stay in the last cache beside all else: half of it (measured)."""
    return max(caches.sizes().values()) // 2


def target_flags() -> tuple[str, ...]:
    """gcc would jam loops around lanes that are vectors already: a quarter of the speed (measured)."""
    native = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ("-mcpu=native",)
    wide = ("-mprefer-vector-width=512",) if native[0] == "-march=native" else ()
    apart = () if "clang" in compiler()[1] else ("-fno-loop-unroll-and-jam",)
    return (*FLAGS, *native, *wide, *apart, f"-DTW_FAR={far()}")


def build(source: str, name: str, fuse: bool = True, any_order: bool = False) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    """The function, compiled or found. any_order: sums over lanes may be taken as suits the vectors."""
    path, version = compiler()
    order = ("-fassociative-math", "-fno-signed-zeros") if any_order and fuse else ()
    flags = (*target_flags(), *order, f"-ffp-contract={'fast' if fuse else 'off'}")
    key = cache.key_of(source, flags, path, version, cpu_features(), openmp())
    library = cache.entry(key, "so")
    if library.exists():
        counters.disk_hits += 1
    else:
        counters.c_builds += 1
        text = cache.store(cache.entry(key, "c"), lambda made: _write(made, source))
        cache.store(library, lambda made: _compile(path, flags, text, made, name))
    try:
        return getattr(ctypes.CDLL(str(library)), name)
    except OSError as why:
        raise error("cache-folder", name=str(library.parent), got=str(why)) from why


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _compile(cc: str, flags: tuple[str, ...], source: Path, out: Path, name: str) -> None:
    own = openmp()
    library = out.with_suffix(".o")
    steps = [[*shlex.split(cc), *flags, "-fopenmp", "-c", str(source), "-o", str(library)]]
    link = [own, f"-Wl,-rpath,{os.path.dirname(own)}"] if own else ["-fopenmp"]
    steps.append([*shlex.split(cc), "-shared", str(library), "-o", str(out), *link, "-lm"])
    try:
        for step in steps:
            got = subprocess.run(step, capture_output=True, text=True)
            if got.returncode:
                raise error("c-build", name=name, got=got.stderr.strip()[:400], path=str(source))
    finally:
        library.unlink(missing_ok=True)
