"""What tilewright finds on this machine, as text.

print(describe())
"""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch

from tilewright.runtime import build_c
from tilewright.support import knobs
from tilewright.support.errors import BackendError

PACKAGES = ("tilewright", "torch", "triton", "numpy", "scipy", "matplotlib")


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu() -> str:
    """The C back end: compiler, threads and whose OpenMP."""
    try:
        path, said = build_c.compiler()
    except BackendError as why:
        return f"none: {str(why).splitlines()[0]}"
    openmp = "torch's OpenMP" if build_c.openmp() else "the compiler's OpenMP"
    return f"C through {path} ({said}), {torch.get_num_threads()} threads, {openmp}"


def gpu() -> str:
    """The Triton back end: device, or what is missing."""
    if not torch.cuda.is_available():
        return "none: torch sees no CUDA device"
    if version("triton") == "not installed":
        return "none: Triton is not installed"
    major, minor = torch.cuda.get_device_capability()
    return f"Triton on {torch.cuda.get_device_name()} (sm_{major}{minor})"


def cache_folder() -> str:
    folder = knobs.cache()
    if not folder.is_dir():
        return f"{folder} (not made yet)"
    kernels = [p for p in folder.glob("*.so")]
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    usable = "" if os.access(folder, os.W_OK | os.X_OK) else ", cannot be written"
    return f"{folder} ({len(kernels)} C kernels, {size / 2**20:.1f} MiB{usable})"


def describe() -> str:
    """Versions, back ends, cache folder and knobs."""
    lines = [
        f"{'python':12}{platform.python_version()} on {platform.system()} {platform.machine()}"
    ]
    lines += [f"{p:12}{version(p)}" for p in PACKAGES]
    lines += [f"{'CPU':12}{cpu()}", f"{'GPU':12}{gpu()}", f"{'cache':12}{cache_folder()}", "knobs"]
    wide = max(map(len, knobs.KNOBS)) + 2
    for name, meaning in knobs.KNOBS.items():
        now = f" [now {os.environ[name]}]" if os.environ.get(name) else ""
        lines.append(f"  {name:{wide}}{meaning}{now}")
    return "\n".join(lines)
