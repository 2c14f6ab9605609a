"""Lines of the user's source: where a frame stands, the text of a place, a line under what is meant.

In: a frame, or a place "file:line" and words to look for. Out: a place, or its text.

    place_of(sys._getframe(1))              ->  "model.py:31"
    quote("model.py:31", ("x[j]", "x"))     ->  model.py:31
                                                y[i] = tw.sum(j, a[i, j] * x[j])
                                                                           ^^^^
"""

from __future__ import annotations

import ast
import linecache
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

LINES = 6
OURS = ("tilewright", "torch", "triton")
BETWEEN = ("functools", "contextlib")
PACKAGE = str(Path(__file__).parents[1])


def is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to the package or to what runs it, and not to the user."""
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return root in OURS or root.startswith("tilewright_kernel_")


def is_package(path: str) -> bool:
    """Whether a file is of the package."""
    return path.startswith(PACKAGE)


def is_between(frame: FrameType) -> bool:
    """Whether a frame only passes a call on."""
    return frame.f_globals.get("__name__") in BETWEEN


def place_of(frame: FrameType | None) -> str:
    """file:line of the user's frame at or above this one."""
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def statement_of(frame: FrameType) -> str:
    """file:line of a statement of a user's program; nothing for the package's own programs."""
    return "" if is_ours(frame) else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def place_of_code(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


def quote(place: str, words: Sequence[str] = ()) -> str:
    """The place, the text of its statement, and a line under the first of the words found in it."""
    path, _, line = place.rpartition(":")
    said = text_at(path, int(line))
    if not said:
        return place
    return "\n".join([place, *underlined(said, words)])


def text_at(path: str, line: int) -> list[str]:
    """The lines of the statement that begins at a line; the line alone when it does not end soon."""
    first = linecache.getline(path, line)
    lines = [first] if first.strip() else []
    for n in range(1, LINES + 1 if lines else 0):
        if _whole(lines):
            break
        lines.append(linecache.getline(path, line + n))
    else:
        lines = lines[:1]
    return textwrap.dedent("".join(lines)).splitlines()


def _whole(lines: list[str]) -> bool:
    said = textwrap.dedent("".join(lines))
    if said.startswith("@") or said.rstrip().endswith(":"):
        return lines[-1].lstrip().startswith("def ")
    try:
        ast.parse(said)
    except SyntaxError:
        return False
    return True


def underlined(lines: list[str], words: Sequence[str]) -> list[str]:
    for pattern in patterns(words):
        for n, line in enumerate(lines):
            found = re.search(pattern, line)
            if found:
                mark = " " * found.start() + "^" * (found.end() - found.start())
                return [*lines[: n + 1], mark, *lines[n + 1 :]]
    return lines


def patterns(words: Sequence[str]) -> list[str]:
    """What to look for: an access such as x[j, f] as the words have it, any access of a name, the name."""
    made = []
    for word in words:
        access = re.search(r"\w+\[(?:[^\[\]]|\[[^\[\]]*\])*\]", word)
        if access:
            made.append(r"\b" + re.escape(access[0]).replace(r"\ ", r"\s*"))
        elif word.isidentifier():
            made += [rf"\b{word}\[(?:[^\[\]]|\[[^\[\]]*\])*\]", rf"\b{word}\b"]
    return made
