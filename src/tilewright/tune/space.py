"""Search spaces: the settings that may be tried, as a product of parameters with rules.

In: parameters with their values, rules with their reasons. Out: points, which are plain dictionaries of small
integers (`Setting`), in a fixed order; of any other dictionary, why it is not one of them.

    lists = Space("lists", (Param("rows", (2, 4, 8)), Param("warps", (1, 2))),
                  (Rule("a row for each warp, at least", lambda p: p["rows"] >= p["warps"]),))
    list(lists.points())         # [{"rows": 2, "warps": 1}, {"rows": 2, "warps": 2}, ...]
    lists.why_not({"rows": 3})   # "rows=3: one of 2, 4, 8"
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.schedule.options import Setting


@dataclass(frozen=True)
class Param:
    """A name and the values it may have. format: it changes what is stored, not only the schedule."""

    name: str
    values: tuple[int, ...]
    format: bool = False


@dataclass(frozen=True)
class Rule:
    """What must hold of a point, and the words for it."""

    reason: str
    holds: Callable[[Setting], bool]


@dataclass(frozen=True)
class Space:
    """The product of parameters, less what rules forbid."""

    name: str
    params: tuple[Param, ...]
    rules: tuple[Rule, ...] = ()

    def points(self) -> Iterator[Setting]:
        """Every legal point, the last parameter fastest."""
        for values in itertools.product(*(p.values for p in self.params)):
            point = dict(zip((p.name for p in self.params), values, strict=True))
            if self.broken(point) is None:
                yield point

    def why_not(self, point: Setting) -> str | None:
        """The reason why a dictionary is not a point of this space, or None."""
        known = {p.name: p.values for p in self.params}
        for name, value in point.items():
            if name not in known:
                return f"{name}: no parameter of {self.name} ({', '.join(known)})"
            if value not in known[name]:
                return f"{name}={value}: one of {', '.join(map(str, known[name]))}"
        for name in known:
            if name not in point:
                return f"{name} is missing"
        return self.broken(point)

    def broken(self, point: Setting) -> str | None:
        """The first rule that a point breaks, or None."""
        return next((r.reason for r in self.rules if not r.holds(point)), None)

    @cached_property
    def size(self) -> int:
        return sum(1 for _ in self.points())

    def __str__(self) -> str:
        wide = max(len(p.name) for p in self.params)
        lines = [f"space {self.name}: {self.size} points"]
        for p in self.params:
            kind = "format  " if p.format else "schedule"
            lines.append(f"  {p.name:<{wide}}  {kind}  {', '.join(map(str, p.values))}")
        return "\n".join([*lines, *(f"  rule: {r.reason}" for r in self.rules)])
