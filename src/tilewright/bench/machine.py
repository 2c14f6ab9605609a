"""What a result was measured on, and the files results are kept in.

Owns: the machine's description, JSON in and out. A file is {"suite", "machine", "date", "rows",
"summary"}.

    write(path, result("spmm", "cpu", rows, summary)); read(path)["machine"]["cpu"]
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tilewright.support.errors import error


@cache
def describe(device: str) -> dict[str, Any]:
    """Processor, GPU and versions."""
    said: dict[str, Any] = {
        "device": device,
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "scipy": _version("scipy"),
        "commit": _commit(),
    }
    if device == "cuda":
        said |= _gpu()
    return said


def _gpu() -> dict[str, Any]:
    p = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "gpu": p.name,
        "sms": p.multi_processor_count,
        "capability": f"{p.major}.{p.minor}",
        "memory_gib": round(p.total_memory / 2**30, 1),
        "l2_mib": getattr(p, "L2_cache_size", 0) / 2**20,
        "cuda": torch.version.cuda,
        "driver": (_output(query) or "").partition("\n")[0] or None,
    }


def busy_cores(seconds: float = 0.2) -> float | None:
    """How many cores others keep busy while this process sleeps; None where the system does not tell."""
    before = _cpu_seconds()
    time.sleep(seconds)
    after = _cpu_seconds()
    return (after - before) / seconds if before is not None and after is not None else None


def _cpu_seconds() -> float | None:
    """Time that all cores have worked: user, nice, system."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:4]
        return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit measured; where there is no checkout, the one that $TILEWRIGHT_COMMIT names."""
    return os.environ.get("TILEWRIGHT_COMMIT") or _output(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    )


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def result(
    suite: str, device: str, rows: list[dict[str, Any]], summary: dict[str, Any]
) -> dict[str, Any]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe(device)
    return {"suite": suite, "machine": machine, "date": date, "rows": rows, "summary": summary}


def writable(path: Path) -> Path:
    """A file that is to be written, once its folder is there: told before minutes of measuring, not after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise error("argument", where="bench", name="--json", got=path, expected="a file to write")
    return path


def write(path: Path, content: dict[str, Any]) -> None:
    """The file appears whole or not at all."""
    handle, name = tempfile.mkstemp(dir=writable(path).parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1, default=str)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert isinstance(content, dict), path
    return content
