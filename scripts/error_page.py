"""docs/errors.md from the catalogue of errors.

python scripts/error_page.py            # writes the page
python scripts/error_page.py --check    # says whether it is current
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tilewright.support.errors import CATALOGUE, Entry  # noqa: E402

PAGE = ROOT / "docs" / "errors.md"
HEAD = """# Errors

Made by `python scripts/error_page.py` from [the catalogue](../src/tilewright/support/errors.py).
Words in braces stand for your own names. Every message has these parts; `at` is the statement of a program or your
call, `ir` comes with errors that happen while a statement is compiled. `why.entry` is the name in the first column.

    x is indexed by 1 axes
      in: relu_max(a, x, y)
      at: model.py:31
          y[i] = tw.sum(j, a[i, j] * x[j])
                                     ^^^^
      expected: 2 axes for its shape
      got: 1
      ir: y[i] = sum(j: a[i, j] * x[j])
      hint: give one axis for each dimension
"""


def row(name: str, e: Entry) -> str:
    cells = (f"`{name}`", e.what, e.expected, e.cure)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def page() -> str:
    """docs/errors.md"""
    made = [HEAD]
    for kind in dict.fromkeys(e.kind for e in CATALOGUE.values()):
        said = (kind.__doc__ or "").strip()
        made += [f"## {kind.__name__}", "", said, ""]
        made += ["| entry | what | expected | hint |", "|---|---|---|---|"]
        made += [row(n, e) for n, e in CATALOGUE.items() if e.kind is kind] + [""]
    return "\n".join(made)


def main() -> int:
    current = PAGE.exists() and PAGE.read_text() == page()
    if "--check" in sys.argv:
        print("up to date" if current else "stale: errors.md")
        return int(not current)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
