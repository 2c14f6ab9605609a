"""Fresh names for one compilation: `i`, then `i1`, `i2`; the user's own names survive where they can."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

RESERVED = frozenset(
    "int float double char long short void for while if else do return const static struct union "
    "signed unsigned goto switch case default break continue register restrict inline auto extern "
    "enum sizeof typedef volatile typeof asm bool true false NULL EOF NAN INFINITY errno M_PI "
    "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t memcpy "
    "tl triton range min max exp log abs pow math x86 unix linux main".split()
)


PARTS = ("", "_o", "_i", "_p", "_t")  # of a loop that is split


class Names:
    """A counter for each stem; no name is given twice, be it as another stem: r1, then r, r2.

    taken: names that neither a loop nor a part of it may have; loops: names whose parts are not given to others.
    """

    def __init__(self, taken: Iterable[str] = (), loops: Iterable[str] = ()) -> None:
        self.used: dict[str, int] = {}
        self.given = {name + end for name in loops for end in PARTS[1:]}
        self.taken = frozenset(taken)

    def fresh(self, stem: str) -> str:
        stem = clean(stem)
        while True:
            n = self.used.get(stem, 0)
            self.used[stem] = n + 1
            made = f"{stem}{n}" if n else stem
            if made not in self.given and self.taken.isdisjoint(made + end for end in PARTS):
                self.given.add(made)
                return made


def plain(name: str) -> str:
    """A program's name as its author wrote it, without the mark that tells programs apart."""
    return re.sub("_[0-9a-f]{8}$", "", name)


def clean(stem: str) -> str:
    """A name that is an identifier in Python and in C."""
    stem = re.sub(r"\W", "_", stem)
    if re.match("_[A-Z_]|tw_|TW_", stem):  # of the C compiler, and of what kernels begin with
        return f"v{stem}"
    if not stem or stem[0].isdigit() or keyword.iskeyword(stem) or stem in RESERVED:
        stem = f"{stem}_"
    return stem
