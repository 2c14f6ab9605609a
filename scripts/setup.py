"""Makes the virtual environment that the Makefile uses, or says in one line what to install first.

    python3 scripts/setup.py .venv .venv/.tilewright-ready

A torch >= 2.11 that the calling Python can import is used and never replaced: the new environment
then sees that Python's packages, and only what is missing is installed. Otherwise constraints.txt
decides. The stamp is written when all is there.
"""

from __future__ import annotations  # this file must still start on an old Python, to say so

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

TORCH_FITS = """
import re, torch
raise SystemExit(tuple(map(int, re.findall(r"\\d+", torch.__version__)[:2])) < (2, 11))
"""
INSTALLED = """
from importlib.metadata import distributions
from pip._vendor.packaging.version import InvalidVersion, Version
for d in distributions():
    try:
        print(d.metadata["Name"], Version(d.version))
    except (InvalidVersion, TypeError):
        pass
"""
SUMMARY = """
import platform, torch
try:
    import triton
    words = "triton " + triton.__version__
except ImportError:
    words = "no triton"
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
python = platform.python_version()
print(f"ready: Python {python}, torch {torch.__version__}, {words}, {gpu}")
"""


def stop(line: str) -> None:
    raise SystemExit("tilewright: " + line)


def note(line: str) -> None:
    print("tilewright: " + line, file=sys.stderr)


def runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def packages(venv: Path) -> Path:
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    return Path(output(str(venv / "bin/python"), "-c", where).strip())


def probe_python() -> None:
    if sys.platform == "win32":
        stop("native Windows is not supported; use WSL2")
    if sys.version_info < (3, 11):
        stop(f"needs Python 3.11 or newer, {NAME} found; try: make PYTHON=python3.12")


def probe_venv() -> None:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(f"the venv module is missing: apt install {NAME}-venv")


def probe_tools() -> None:
    """Compiler and headers. Neither stops the set-up, since a slower or smaller way is left."""
    given = os.environ.get("CC", "").split() or [
        next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), "")
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <math.h>\ndouble probe(double x) { return exp(x); }\n")
        build = [*given, "-shared", "-fPIC", str(source), "-o", str(source.with_suffix(".so"))]
        if not shutil.which(given[0]) or not runs(*build):
            mac = sys.platform == "darwin"
            cure = "xcode-select --install" if mac else "apt install gcc libc6-dev"
            note(f"no working C compiler, CPU tensors will be slow: {cure}, or set CC")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        note(f"no Python headers, Triton cannot launch on a GPU: apt install {NAME}-dev")


def create(venv: Path) -> None:
    """A plain environment, or one that sees the caller's packages if a fitting torch is there."""
    probe_venv()
    if not runs(sys.executable, "-c", TORCH_FITS):
        note(f"new environment in {venv.name}")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        return
    note(f"new environment in {venv.name} over the torch of {sys.executable}")
    command = [sys.executable, "-m", "venv", "--system-site-packages", str(venv)]
    subprocess.run(command, check=True)
    if sys.prefix != sys.base_prefix:
        # The caller is a virtual environment itself, and a new one sees only its base Python.
        paths = sysconfig.get_paths()
        outer = dict.fromkeys([paths["purelib"], paths["platlib"]])
        lines = [f"import site; site.addsitedir({p!r})" for p in outer]
        (packages(venv) / "tilewright-outer.pth").write_text("\n".join(lines) + "\n")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(venv: Path) -> str:
    """constraints.txt, except that what must stay is pinned to the version that is there."""
    python = str(venv / "bin/python")
    there: dict[str, str] = {}
    for line in output(python, "-c", INSTALLED).splitlines():
        name, version = line.split()
        there.setdefault(canonical(name), version)  # the first on the path is what Python imports
    shares = "include-system-site-packages = true" in (venv / "pyvenv.cfg").read_text()
    if not shares:
        fits = runs(python, "-c", TORCH_FITS)
        there = {n: v for n, v in there.items() if fits and n in ("torch", "triton")}
    if int(there.get("setuptools", "0").split(".")[0]) < 77:
        there.pop("setuptools", None)
    there.pop("tilewright", None)
    text = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = dict(line.split("==") for line in text if "==" in line and line[0] != "#")
    wanted = {canonical(name): version for name, version in wanted.items()}
    return "".join(f"{n}=={v}\n" for n, v in sorted({**wanted, **there}.items()))


def install(venv: Path) -> bool:
    """The package in place, and its tools. False: without the tools, but torch and NumPy are there."""
    python = str(venv / "bin/python")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        chosen = Path(folder, "constraints.txt")
        chosen.write_text(pins(venv))
        note("installing what is missing (torch takes a minute or two)")
        for what in (["setuptools>=77"], ["--no-build-isolation", "-e", f"{ROOT}[dev]"]):
            if subprocess.run([*pip, "-c", str(chosen), *what], check=False).returncode == 0:
                continue
            if not runs(python, "-c", "import numpy" + TORCH_FITS):
                stop("pip could not install the packages (see above); is there a network?")
            (packages(venv) / "tilewright-source.pth").write_text(f"{ROOT / 'src'}\n")
            note("some tools could not be installed (see above); going on without them")
            return False
    return True


def main(venv: Path, stamp: Path) -> None:
    probe_python()
    probe_tools()
    if not venv.exists():
        create(venv)
    elif not runs(str(venv / "bin/python"), "-m", "pip", "--version"):
        stop(f"{venv} is broken: rm -rf {venv} and run make again")
    complete = install(venv)
    note(output(str(venv / "bin/python"), "-c", SUMMARY).strip())
    if complete:
        stamp.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
