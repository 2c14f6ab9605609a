"""Texts next to each other: as many columns as fit, the rest in rows below.

In: texts by title, and a width. Out: lines no wider than that; long lines are folded and indented.

    print(side_by_side({"stage I": "...", "stage II": "..."}, 120))
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

LEAST = 36
GAP = " | "


def terminal_width(given: int | None = None) -> int:
    return given or shutil.get_terminal_size((120, 40)).columns


def heading(title: str, width: int = 100) -> str:
    return f"--- {title} ".ljust(width, "-")[:width]


def side_by_side(texts: Mapping[str, str], width: int | None = None) -> str:
    """Columns in order, as many in a row as are at least 36 wide."""
    width = terminal_width(width)
    most = max((width + len(GAP)) // (LEAST + len(GAP)), 1)
    titles = list(texts)
    rows = [titles[n : n + most] for n in range(0, len(titles), most)]
    return "\n\n".join(_row([(t, texts[t]) for t in row], width) for row in rows)


def _row(columns: Sequence[tuple[str, str]], width: int) -> str:
    wanted = [max(map(len, [f"--- {t} ---", *said.splitlines()])) for t, said in columns]
    widths = shares(wanted, width - len(GAP) * (len(columns) - 1))
    folded = [[heading(t, w), *fold(said, w)] for (t, said), w in zip(columns, widths, strict=True)]
    lines = zip_longest(*folded, fillvalue="")
    return "\n".join(
        GAP.join(f"{part:{w}}" for part, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """What each column gets: all it wants, or an equal part of what the narrow ones leave.

    >>> shares([10, 50, 90], 100)
    [10, 45, 45]
    """
    made = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    for done, n in enumerate(order):
        made[n] = max(min(wanted[n], room // (len(order) - done)), 1)
        room -= made[n]
    return made


def fold(said: str, width: int) -> list[str]:
    """The lines of a text; what is too long goes on below, indented."""
    made: list[str] = []
    for line in said.strip("\n").splitlines():
        lead = " " * min(len(line) - len(line.lstrip()) + 4, width // 2)
        made += textwrap.wrap(line, width, drop_whitespace=False, subsequent_indent=lead) or [""]
    return made
