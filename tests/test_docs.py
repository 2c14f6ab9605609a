"""README and docs: their Python runs, their links lead somewhere, their trees, tables and stages are the real ones.

pytest tests/test_docs.py --accept     # writes the real stages of the product into docs/architecture.md
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tilewright as tw
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.entry import entry
from tilewright.ops.sparse import bundle
from tilewright.support import knobs
from tilewright.view import stages
from tilewright.view.cases import case

ROOT = Path(__file__).resolve().parent.parent
README, ARCHITECTURE = ROOT / "README.md", ROOT / "docs" / "architecture.md"
PAGES = [
    README,
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGES.md",
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)[^)]*\)")
OPTIONAL = {"py.typed", "__init__.py", "__main__.py", "__pycache__"}


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_runs(page: Path) -> None:
    """All blocks of a page, in order, as one script (programs need their source: a real file name)."""
    space: dict[str, object] = {"__name__": "page"}
    text = page.read_text()
    for body in blocks(page, "python"):
        line = text[: text.index(body)].count("\n")
        exec(compile("\n" * line + body, str(page), "exec"), space)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    missing = [t for t in links if not (page.parent / t).exists()]
    assert not missing, missing


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


def real_stages() -> dict[str, str]:
    """The stages of tw.spmm on the CPU, and its tile form and Triton text."""
    a, x = case("uniform", 64, 4), torch.randn(64, 32)
    told = dict(tw.spmm.plan(a, x).kernel.stages)
    arg, tensors, ints = bundle("a", a)
    step = entry(program_text("spmm_sum", (arg, dense_arg("x", x))), "triton").steps[0]
    told |= stages.gpu_stages(step, [*tensors, x], ints)
    return {stage: stages.readable(stage, text) + "\n" for stage, text in told.items()}


def test_stages_are_the_real_ones(accept: bool) -> None:
    real = real_stages()
    if accept:
        page = FENCE.sub(
            lambda m: f"```{m[1]}\n{real.get(m[1], m[2])}```", ARCHITECTURE.read_text()
        )
        ARCHITECTURE.write_text(page)
    told = {stage: "".join(blocks(ARCHITECTURE, stage)) for stage in real}
    assert told == real, "run: pytest tests/test_docs.py --accept, and read the difference"


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
