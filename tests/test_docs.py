"""README and docs: their Python runs, their links lead somewhere, what they show is the real thing.

A block ```output is what the ```python block before it prints. A link to a Python file may name things in it, in
backticks: [bind.py `bind`](...). A block ```loop of docs/formats.md is the one in the docstring of its format.

pytest tests/test_docs.py --accept     # writes the real outputs and loops into the pages; read the difference
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import linecache
import math
import os
import re
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tilewright as tw
from tilewright.support import knobs

layout = importlib.import_module("tilewright.formats.layout")

ROOT = Path(__file__).resolve().parent.parent
README, ARCHITECTURE = ROOT / "README.md", ROOT / "docs" / "architecture.md"
FORMATS = ROOT / "docs" / "formats.md"
PAGES = [
    README,
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGES.md",
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
NAMED = re.compile(r"\[([^\]]*`[^\]]*)\]\(([^)#]+\.py)\)")
OPTIONAL = {"py.typed", "__init__.py", "__main__.py", "__pycache__"}


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name_of)
def test_python_runs(
    page: Path, accept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All blocks of a page, in order, as one script (programs need their source: a real file name)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    space: dict[str, object] = {"__name__": "page"}
    said, at = "", 0
    while found := FENCE.search(text := page.read_text(), at):
        kind, body = found.groups()
        at = found.end()
        if kind == "python":
            said = printed("\n" * text[: found.start(2)].count("\n") + body, page, space)
        elif kind == "output" and accept:
            page.write_text(text[: found.start(2)] + said + text[found.end(2) :])
            linecache.checkcache(str(page))
            at += len(said) - len(body)
        elif kind == "output":
            assert body == said, "run: pytest tests/test_docs.py --accept, and read the difference"


def printed(source: str, page: Path, space: dict[str, object]) -> str:
    """What a block prints; paths start at the root, no line ends in spaces."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, str(page), "exec"), space)
    lines = out.getvalue().replace(f"{ROOT}/", "").splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    missing = [t for t in links if not (page.parent / t).exists()]
    assert not missing, missing


@cache
def names_in(path: Path) -> set[str]:
    """Functions, classes and what they hold (Class.method), and names that are set at the top."""
    found: set[str] = set()
    for n in ast.parse(path.read_text()).body:
        if isinstance(n, ast.FunctionDef | ast.ClassDef):
            found.add(n.name)
        if isinstance(n, ast.ClassDef):
            found |= {f"{n.name}.{m.name}" for m in n.body if isinstance(m, ast.FunctionDef)}
        set_here = n.targets if isinstance(n, ast.Assign) else [getattr(n, "target", None)]
        found |= {m.id for m in set_here if isinstance(m, ast.Name)}
    return found


@pytest.mark.parametrize("page", [p for p in PAGES if NAMED.search(p.read_text())], ids=name_of)
def test_named_functions_exist(page: Path) -> None:
    missing = [
        f"{path}: {name}"
        for label, path in NAMED.findall(page.read_text())
        for name in re.findall(r"`([\w.]+)`", label)
        if name not in names_in((page.parent / path).resolve())
    ]
    assert not missing, missing


def loop_of(format: str) -> str:
    """The loop in the docstring of a format."""
    said = inspect.getdoc(getattr(layout, format))
    assert said is not None
    return textwrap.dedent(said.partition("\n\n")[2]).strip("\n") + "\n"


def test_formats_are_all_told(accept: bool) -> None:
    """A section of each format has its loop."""
    part = re.compile(r"^(## `([\w.]+)`.*?^```loop\n)(.*?)^```$", re.M | re.S)
    ragged = {"ragged.n": "ragged_tree"}
    named = lambda m: loop_of(ragged.get(m[2], m[2].partition(".")[0]))
    if accept:
        FORMATS.write_text(part.sub(lambda m: f"{m[1]}{named(m)}```", FORMATS.read_text()))
    found = list(part.finditer(FORMATS.read_text()))
    assert {m[2].removesuffix(".n") for m in found} == {*layout.FORMATS, *layout.FAMILIES}
    assert [m[2] for m in found if m[3] != named(m)] == [], (
        "run: pytest tests/test_docs.py --accept"
    )


def stored(format: str) -> tw.SparseTensor:
    """A small tensor of a format."""
    rows = torch.tensor([0, 0, 1, 1, 2, 6, 6, 7, 7])
    cols = torch.tensor([0, 4, 1, 5, 2, 6, 2, 7, 3])
    at = torch.tensor([[0, 0, 0, 2, 2], [1, 1, 3, 0, 0], [0, 4, 2, 1, 5]])
    if format.startswith("ragged"):
        deep = {"indptr1": torch.tensor([0, 2, 3]), "indptr2": torch.tensor([0, 3, 4, 6])}
        flat = {"indptr": torch.tensor([0, 3, 3, 6])}
        given, shape = (deep, (2, 2, 3)) if format == "ragged.3" else (flat, (3, 5))
        return tw.SparseTensor.from_arrays(format, shape, torch.arange(1.0, 7.0), **given)
    if format in ("csf.3", "bucket.2", "grouped.3.1"):
        return tw.SparseTensor.from_coords(at, torch.arange(1.0, 6.0), (3, 4, 6), format)
    made = tw.SparseTensor.from_coo(rows, cols, torch.arange(1.0, 10.0), (8, 8))
    return made.to_format(format, (2, 2) if format in layout.BLOCKED else None)


NAMES = (
    *("csr", "csc", "coo", "bsr", "block_mask", "ragged", "dcsr", "dbsr.3.2", "ell.3", "padded.4"),
    *("dell.3", "dpadded.4"),
    *("srbcrs.3.2", "dia", "two_four", "bitmap", "csf.3", "bucket.2", "grouped.3.1", "ragged.3"),
)


@pytest.mark.parametrize("format", NAMES)
def test_loops_rebuild_the_dense_tensor(format: str) -> None:
    """The loop of a format, run on the arrays of a tensor; there is room for blocks that stick out."""
    a = stored(format)
    s, want = a.structure, a.to_dense()
    want = torch.nn.functional.pad(want, (0, 4) * want.dim())
    function = "ragged_tree" if format == "ragged.3" else format.partition(".")[0]
    names = list(inspect.signature(getattr(layout, function)).parameters)
    numbers = s.block if s.blocked else layout.parse(s.format)[1]
    held = {n: getattr(s, n, None) for n in ("indptr", "indices", "rows", "nnz")}
    space = {"ceil": math.ceil, "v": a.stored_values(), "dense": torch.zeros_like(want)}
    space |= {"n": s.shape[0], "m": s.shape[1], **held, **getattr(s, "arrays", {})}
    exec(loop_of(function), space | dict(zip(names, numbers, strict=False)))
    assert torch.equal(space["dense"], want)


def tree() -> set[str]:
    """The paths of the tree in the docs, from the root."""
    found, above = set(), ""
    for line in blocks(ARCHITECTURE, "tree")[0].splitlines():
        name = line.split()[0]
        above = above if line.startswith(" ") else name
        found.add((above + name if line.startswith(" ") else name).rstrip("/"))
    return found


def test_tree_is_the_real_one() -> None:
    package = ROOT / "src" / "tilewright"
    inside = [
        p
        for p in package.iterdir()
        if p.name not in OPTIONAL and (p.suffix == ".py" or any(p.glob("*.py")))
    ]
    outside = [ROOT / name for name in ("examples", "docs", "scripts", "tests")]
    assert tree() == {str(p.relative_to(ROOT)) for p in [package, *inside, *outside]}


def test_ladder_is_the_enforced_one() -> None:
    house = load(ROOT / "tests" / "test_house.py")
    for page in (ARCHITECTURE, ROOT / "CONTRIBUTING.md"):
        written = re.search(r"^    (support <.*?)\n\n", page.read_text(), re.M | re.S)
        assert written is not None
        assert re.findall(r"\w+", written[1]) == house.LADDER


def test_knobs_are_all_told() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", README.read_text(), re.M))
    assert {k: v for k, v in rows.items() if k in knobs.KNOBS} == knobs.KNOBS


def test_knobs_without_effect_are_told() -> None:
    sources = [p for p in (ROOT / "src").rglob("*.py") if p.name != "knobs.py"]
    text = "\n".join(p.read_text() for p in sources)
    names = {k: k.removeprefix("TILEWRIGHT_").lower() for k in knobs.KNOBS if k != "CC"}
    idle = {k for k, name in names.items() if f"knobs.{name}()" not in text}
    told = re.findall(
        r"^- Knobs that are declared and have no effect yet: (.*)\.$", README.read_text(), re.M
    )
    assert set(re.findall(r"`(\w+)`", "".join(told))) == idle


def test_public_names_are_told() -> None:
    """Every public name stands in the README."""
    text = README.read_text()
    quiet = {"ops"}
    assert [n for n in tw.__all__ if f"tw.{n}" not in text and n not in quiet] == []


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_own_operator() -> None:
    assert load(ROOT / "examples" / "own_operator.py").main(nodes=60, features=5) < 1e-4


def test_example_graph_layer() -> None:
    first, last = load(ROOT / "examples" / "graph_layer.py").main(nodes=50, edges=200, steps=5)
    assert last < first


def test_example_block_attention() -> None:
    share, difference = load(ROOT / "examples" / "block_attention.py").main(length=60, block=16)
    assert 0 < share < 1
    assert difference < 1e-5


def test_every_example_is_run() -> None:
    tests = {
        name.removeprefix("test_example_") for name in globals() if name.startswith("test_example_")
    }
    assert {p.stem for p in (ROOT / "examples").glob("*.py")} == tests
