"""Rules: which entries of a tensor a part takes, and the format it is stored in.

Owns: `Rule`, `Left`, and the rules that come with the package. In: what earlier rules have left. Out: a boolean
for each entry. Nothing here waits for the device.

    A.decompose(rules.blocks(16, density=0.5), rules.hyb(1, 3))

A rule of your own is a function over `Left` and a format:

    heavy = Rule(lambda left: left.along(1) > 100, "csr")       # columns with more than 100 entries
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.entries import Entries
from tilewright.formats.layout import name_of
from tilewright.support.errors import error

Rules = tuple["Rule", ...]
WHERE = "decompose(rules)"


@dataclass(frozen=True)
class Left:
    """The entries that are left: a coordinate for each dimension, and what rules ask about them."""

    entries: Entries

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entries.shape

    @property
    def coords(self) -> tuple[Tensor, ...]:
        return self.entries.coords

    def along(self, *dims: int, among: Tensor | None = None) -> Tensor:
        """How many entries (of those in `among`) agree with each one in these dimensions: row lengths for 0."""
        return self._counted([self.coords[d].long() for d in dims], among)

    def in_blocks(self, b0: int, b1: int) -> Tensor:
        """How many entries are in the block of b0 x b1 of each one."""
        if len(self.shape) != 2:
            expected = "two dimensions, to be cut in blocks"
            raise error("shape", where=WHERE, name="tensor", got=self.shape, expected=expected)
        rows, cols = self.coords
        return self._counted([index.split(rows, b0)[0].long(), index.split(cols, b1)[0].long()])

    def _counted(self, keys: list[Tensor], among: Tensor | None = None) -> Tensor:
        key = keys[0]
        for other in keys[1:]:
            key = key * (int(max(self.shape)) + 1) + other
        if among is not None:
            key = torch.where(among, key, -1)
        order = torch.argsort(key, stable=True)
        first = index.starts(key.index_select(0, order))
        group = torch.empty_like(order).scatter_(0, order, torch.cumsum(first, 0).sub_(1))
        counts = torch.zeros_like(group).index_add_(0, group, torch.ones_like(group))
        found = counts.index_select(0, group)
        return found if among is None else torch.where(among, found, 0)


def everything(left: Left) -> Tensor:
    return torch.ones_like(left.coords[0], dtype=torch.bool)


@dataclass(frozen=True)
class Rule:
    """`takes` gives a boolean for each entry that is left; `format` is that of the part.

    columns: of how many ranges of columns it takes one.
    """

    takes: Callable[[Left], Tensor]
    format: str
    columns: int = 1


def hyb(columns: int = 1, widest: int = 5) -> Rules:
    """Columns in so many ranges; in each, rows of 1, 2, 4 .. 2 ** widest entries as rows of one width.

    Longer rows are cut in pieces of the widest. Tensors of three dimensions: the same for (relation, row).
    """
    _at_least("hyb(columns, widest)", columns=(columns, 1), widest=(widest, 0))
    made: list[Rule] = []
    for nth in range(columns):
        for power in range(widest + 2):
            longest = power > widest
            width = 1 << min(power, widest)
            limits = (width if longest else width // 2, None if longest else width)
            made.append(_Bucket((nth, columns), limits, width).rule)
    return tuple(made)


@dataclass(frozen=True)
class _Bucket:
    """The rows of some columns whose length is above the first and not above the second limit."""

    columns: tuple[int, int]
    limits: tuple[int, int | None]
    width: int

    @property
    def rule(self) -> Rule:
        family = "dpadded" if self.limits[1] is None else "dell"
        return Rule(self.takes, name_of(family, self.width), self.columns[1])

    def takes(self, left: Left) -> Tensor:
        mine = in_range(left, *self.columns)
        lengths = left.along(*range(len(left.shape) - 1), among=mine)
        above, upto = self.limits
        return mine & (lengths > above) & (lengths <= upto if upto is not None else True)


def column_parts(columns: int, format: str = "dcsr") -> Rules:
    """Columns in so many ranges of equal width, each a part of its own."""
    _at_least("column_parts(columns)", columns=(columns, 1))
    return tuple(
        Rule(partial(in_range, nth=nth, columns=columns), format, columns) for nth in range(columns)
    )


def in_range(left: Left, nth: int, columns: int) -> Tensor:
    """Entries in the n-th of so many ranges of the last dimension."""
    width = index.ceil_div(left.shape[-1], columns)
    at = left.coords[-1]
    return (at >= nth * width) & (at < (nth + 1) * width)


def blocks(size: int | tuple[int, int], density: float = 0.5) -> Rules:
    """Blocks of which at least `density` is entries, as dbsr."""
    b0, b1 = (size, size) if isinstance(size, int) else size
    _at_least("blocks(size, density)", size=(min(b0, b1), 1))
    least = density * b0 * b1
    return (Rule(lambda left: left.in_blocks(b0, b1) >= least, name_of("dbsr", b0, b1)),)


def srbcrs(t: int, g: int, least: int = 1) -> Rules:
    """Strips of t rows and one column with `least` entries or more, in groups of g."""
    _at_least("srbcrs(t, g)", t=(t, 1), g=(g, 1))
    return (Rule(lambda left: left.in_blocks(t, 1) >= least, name_of("srbcrs", t, g)),)


def padded(t: int) -> Rules:
    """All that is left, in rows whose lengths are multiples of t."""
    _at_least("padded(t)", t=(t, 1))
    return (Rule(everything, name_of("padded", t)),)


def band(width: int) -> Rules:
    """The diagonals from -width to width."""
    _at_least("band(width)", width=(width, 0))
    return (Rule(lambda left: (left.coords[1] - left.coords[0]).abs() <= width, "dia"),)


def long_rows(n: int) -> Rules:
    """Rows of more than n entries, in pieces of n."""
    _at_least("long_rows(n)", n=(n, 1))
    return (Rule(lambda left: left.along(0) > n, name_of("dpadded", n)),)


def _at_least(where: str, **given: tuple[int, int]) -> None:
    for name, (number, least) in given.items():
        if number < least:
            raise error("argument", where=where, name=name, got=number, expected=f"{least} or more")
