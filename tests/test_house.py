"""House rules, read from the source: layering, imports, origin of kernels, sizes, errors, words."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import sizes

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tilewright"
FILES = sorted(SOURCE.rglob("*.py"))

LADDER = (
    "support ir analysis language formats lowering schedule codegen runtime driver "
    "pit tune ops nn model view bench cli"
).split()
TOP = ("__init__", "__main__")  # above the ladder: may import every part
NO_TORCH = {"support", "ir", "analysis", "lowering", "schedule", "codegen"}
OPTIONAL = {"triton", "scipy", "rich", "matplotlib", "cupy", "torch_geometric", "tqdm", "numba"}
# Device code lives in codegen, which prints it, and in these runtime primitives. Nowhere else.
PRIMITIVES: tuple[str, ...] = ()
KERNEL_TEXT = re.compile(
    r"@triton\.jit|\btl\.program_id|#\s*pragma|#\s*include|__global__|extern \"C\"|\bfor \(int\b"
)
KERNEL_FILES = {".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".ptx"}
FORBIDDEN = re.compile(
    r"(?<![\w.}])/(?:home|root|work|Users)/"
    r"|\bpypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.org|\bartifactory\b"
)
MAX_LINES, MAX_NAMES, MAX_TOP_LINES = 500, 24, 70


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def part_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def at(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def no(findings: list[str]) -> None:
    """Fails with one finding a line."""
    assert not findings, "\n" + "\n".join(findings)


def imported(path: Path, node: ast.AST) -> list[str]:
    """Full dotted names that one import statement, or import_module("..."), asks for."""
    match node:
        case ast.Import(names):
            return [a.name for a in names]
        case ast.ImportFrom(module, names, level):
            package = ["tilewright", *path.relative_to(SOURCE).parent.parts]
            base = package[: len(package) - level + 1] if level else []
            stem = ".".join([*base, *([module] if module else [])])
            return [f"{stem}.{a.name}" for a in names]
        case ast.Call(ast.Name("__import__") | ast.Attribute(attr="import_module"), [first, *_]):
            return [first.value] if isinstance(first, ast.Constant) else []
    return []


def imports(path: Path, top: ast.AST | None = None) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(top or tree(path)):
        for name in imported(path, node):
            yield node, name


def test_imports_point_back_along_the_ladder() -> None:
    findings = []
    for path in FILES:
        part = part_of(path)
        if part in TOP:
            continue
        if part not in LADDER:
            findings.append(f"{at(path, tree(path))} {part} is not on the ladder")
            continue
        for node, name in imports(path):
            root, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if root != "tilewright":
                continue
            if target not in LADDER:
                findings.append(f"{at(path, node)} {part} imports from the top: {name}")
            elif LADDER.index(target) > LADDER.index(part):
                findings.append(f"{at(path, node)} {part} imports {target}, which comes later")
    no(findings)


def test_compiler_knows_no_torch() -> None:
    no(
        [
            f"{at(path, node)} {part_of(path)} imports {name}"
            for path in FILES
            if part_of(path) in NO_TORCH
            for node, name in imports(path)
            if name.partition(".")[0] in ("torch", "triton")
        ]
    )


def test_imports_stand_at_the_top_of_the_file() -> None:
    """Optional packages and torch's private modules may be imported where they are used."""
    no(
        [
            f"{at(path, node)} {name} is imported inside {function.name}"
            for path in FILES
            for function in ast.walk(tree(path))
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node, name in imports(path, function)
            if isinstance(node, ast.Import | ast.ImportFrom)
            if name.partition(".")[0] not in OPTIONAL and not name.startswith("torch._")
        ]
    )


def docstrings(module: ast.Module) -> set[int]:
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {
        id(n.body[0].value)
        for n in ast.walk(module)
        if isinstance(n, owners) and n.body and isinstance(n.body[0], ast.Expr)
    }


def kernels(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Device code in one file: Python (`@triton.jit`, `tl.program_id`) or text in a string."""
    spoken = docstrings(tree(path))
    for node in ast.walk(tree(path)):
        match node:
            case ast.Attribute(ast.Name(owner), "jit" | "program_id") if owner != "torch":
                yield node, f"{owner}.{node.attr}"
            case ast.ImportFrom("triton", names) if any(a.name == "jit" for a in names):
                yield node, "from triton import jit"
            case ast.Constant(str(text)) if id(node) not in spoken and KERNEL_TEXT.search(text):
                yield node, repr(text[:60])


def test_kernels_are_generated() -> None:
    allowed = {SOURCE / p for p in PRIMITIVES}
    no([f"{p} is not a runtime file" for p in PRIMITIVES if not p.startswith("runtime/")])
    written = [
        f"{at(p, n)} {what}"
        for p in FILES
        if p not in allowed and part_of(p) != "codegen"
        for n, what in kernels(p)
    ]
    native = [f"{p.relative_to(ROOT)}" for p in SOURCE.rglob("*") if p.suffix in KERNEL_FILES]
    no(written + native)


def test_public_surface_is_small() -> None:
    top = SOURCE / "__init__.py"
    assert len(top.read_text().splitlines()) <= MAX_TOP_LINES
    names = importlib.import_module("tilewright").__all__
    assert len(names) <= MAX_NAMES, names


def test_public_names_exist() -> None:
    package = importlib.import_module("tilewright")
    no([name for name in package.__all__ if not hasattr(package, name)])


@pytest.mark.parametrize("folder", ["src", "tests", "scripts", "benchmarks", "examples"])
def test_files_are_short(folder: str) -> None:
    long = [f"{name}: {n} lines" for n, name in sizes.files(ROOT / folder) if n > MAX_LINES]
    assert not long, "\n".join(["", *long, sizes.report(ROOT / folder)])


def raised() -> Iterator[tuple[str, str]]:
    """(entry, place) of every call error("entry", ...)."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(ast.Name("error") | ast.Attribute(attr="error"), [first, *_]):
                    for c in ast.walk(first):
                        if isinstance(c, ast.Constant) and isinstance(c.value, str):
                            yield c.value, at(path, node)


def test_every_error_tells_its_cure() -> None:
    catalogue = importlib.import_module("tilewright.support.errors").CATALOGUE
    fields = ("what", "expected", "cure")
    no([f"{n}: {f} is empty" for n, e in catalogue.items() for f in fields if not getattr(e, f)])


def test_every_error_is_raised() -> None:
    catalogue = importlib.import_module("tilewright.support.errors").CATALOGUE
    used = dict(raised())
    no([f"{name} is never raised" for name in catalogue if name not in used])


def test_every_raised_error_is_in_the_catalogue() -> None:
    catalogue = importlib.import_module("tilewright.support.errors").CATALOGUE
    no([f"{place} {name}" for name, place in raised() if name not in catalogue])


def tracked() -> list[Path]:
    """Files that git tracks or would track; outside a checkout, all but hidden and built ones."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return [
            p for p in (ROOT / name for name in found.stdout.split("\0") if name) if p.is_file()
        ]
    skipped = (".venv", ".git", "__pycache__", "build", "dist")
    return [p for p in ROOT.rglob("*") if p.is_file() and not set(skipped) & set(p.parts)]


def test_files_name_no_place_of_their_author() -> None:
    findings = []
    for path in tracked():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        hits = ((i, FORBIDDEN.search(line)) for i, line in enumerate(lines, 1))
        findings += [f"{path.relative_to(ROOT)}:{i} {hit.group()}" for i, hit in hits if hit]
    no(findings)


def test_random_tensors_of_tests_lie_where_they_run() -> None:
    """In a test that runs in several places, `randn` says on which device; on a CPU nothing else would show it."""
    findings = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in (n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef)):
            if not {a.arg for a in test.args.args} & {"where", "fast", "tiled"}:
                continue
            called = (n for n in ast.walk(test) if isinstance(n, ast.Call))
            made = (n for n in called if isinstance(n.func, ast.Name) and n.func.id == "randn")
            findings += [at(path, n) for n in made if "device" not in {k.arg for k in n.keywords}]
    no(findings)
