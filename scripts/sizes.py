"""Sizes of the code: lines for each part, the longest files and the longest functions.

python scripts/sizes.py          # src/tilewright
python scripts/sizes.py tests
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tilewright"
Row = tuple[int, str]


def files(top: Path = SOURCE) -> list[Row]:
    """(lines, path) of every Python file, longest first."""
    found = ((len(p.read_text().splitlines()), str(p.relative_to(ROOT))) for p in top.rglob("*.py"))
    return sorted(found, reverse=True)


def functions(top: Path = SOURCE) -> list[Row]:
    """(lines, path:line name) of every function, longest first."""
    return sorted((row for p in top.rglob("*.py") for row in functions_of(p)), reverse=True)


def functions_of(path: Path) -> Iterator[Row]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def parts(top: Path = SOURCE) -> list[Row]:
    """(lines, part) of every folder or module right under `top`, largest first."""
    total: dict[str, int] = {}
    for lines, path in files(top):
        part = Path(path).relative_to(top.relative_to(ROOT)).parts[0]
        total[part] = total.get(part, 0) + lines
    return sorted(((n, part) for part, n in total.items()), reverse=True)


def table(title: str, rows: list[Row]) -> str:
    return "\n".join([title, *(f"{n:7} {name}" for n, name in rows)])


def report(top: Path = SOURCE, count: int = 10) -> str:
    by_file, by_function = files(top), functions(top)
    middle = [median([n for n, _ in rows] or [0]) for rows in (by_file, by_function)]
    return "\n".join(
        [
            table("parts", parts(top)),
            table("longest files", by_file[:count]),
            table("longest functions", by_function[:count]),
            f"{sum(n for n, _ in by_file)} lines in {len(by_file)} files; "
            f"median file {middle[0]:g}, median function {middle[1]:g}",
        ]
    )


if __name__ == "__main__":
    print(report(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SOURCE))
