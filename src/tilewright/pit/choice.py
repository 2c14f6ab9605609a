"""The online choice: which family multiplies, from what the index of an earlier call held.

In: a call site, what each family's index held, the tile costs of the device. Out: a family, and why. Nothing is
measured and nothing waits: numbers in, a word out (`pit/watch.py` brings the numbers).

    dense      the vendor's product over everything; always a candidate
    rows       rows that are there, gathered: tiles of kept rows, outputs set to 0 first
    k          for each group of rows its own k's, gathered
    blocks     for each group of rows its own blocks of k's

    choose = Chooser(lambda site: costs)
    choose(site, {"rows": Seen(400, 4096)})        # "rows"
    print(choose.explain(site))

An estimate is product (tile steps over all multiprocessors), gather (what gathering adds to them), tail (the last
wave, the longest group, or steps that wait where tiles are few), zeros (outputs set to 0), stores (outputs of groups),
index, start. A family is left for another only if that is a tenth cheaper: the numbers are one call old. The first
choice is dense unless a family is expected to save a twentieth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf

from tilewright.analysis.cost import BYTES
from tilewright.pit.tiles import Costs, Tile

FAMILIES = ("dense", "rows", "k", "blocks")
MARGIN = 0.1
DOUBT = 0.05
# A step over lists of a weight beyond the cache, over one that is not
FAR = {"k": 1.25, "blocks": 1.6}
REMEMBERED = 4096
# Tiles over rows that programs share at the end (ops/products.py): rows, and columns, of a last one; of a step of it a
# step of such a part; microseconds that pieces of sums take to be joined.
SHARED, SPLIT = (128, 256, 64), (64, 128, 32)
SHORT, PART, JOIN = 64, 0.24, 32.0


@dataclass(frozen=True)
class Site:
    """A call: program, rows x columns x inner of the product, dtype, device; the family whose index comes along."""

    program: str
    rows: int
    columns: int
    inner: int
    dtype: str
    device: str
    given: str = ""

    def __str__(self) -> str:
        size = f"{self.rows} x {self.columns} x {self.inner}"
        given = f", an index for {self.given} given" if self.given else ""
        return f"{self.program} {size}, {self.dtype} on {self.device}{given}"


@dataclass(frozen=True)
class Seen:
    """What an index held: micro-tiles kept, of how many; the most in one group, of how many groups."""

    kept: int
    of: int
    longest: int = 0
    groups: int = 1

    @property
    def share(self) -> float:
        return self.kept / self.of if self.of else 0.0


Statistics = Mapping[str, Seen]


@dataclass(frozen=True)
class Estimate:
    """Microseconds of a family by cause, with the tile that gives the least."""

    family: str
    tile: Tile
    product: float = 0.0
    gather: float = 0.0
    tail: float = 0.0
    zeros: float = 0.0
    stores: float = 0.0
    index: float = 0.0
    start: float = 0.0
    scale: float = 1.0

    @property
    def total(self) -> float:
        whole = self.product + self.gather + self.tail + self.zeros + self.stores
        return (whole + self.index + self.start) * self.scale


@dataclass(frozen=True)
class Choice:
    """What was chosen and why: estimates, the cheapest first, and what they were made from."""

    family: str
    why: str
    estimates: tuple[Estimate, ...]
    statistics: Statistics = field(default_factory=dict)


def decide(site: Site, seen: Statistics, costs: Costs, before: str | None = None) -> Choice:
    """The cheapest family; the one before, unless another is cheaper by more than the margin. At first, dense unless
    another is cheaper by more than estimates are to be trusted."""
    ranked = tuple(sorted(estimates(site, seen, costs), key=lambda e: e.total))
    best = ranked[0]
    held = next((e for e in ranked if e.family == before), None)
    dense = next(e for e in ranked if e.family == "dense")
    if held is None and (1 - DOUBT) * dense.total < best.total < dense.total:
        why = f"{best.family} would be cheaper, but by less than {DOUBT:.0%}"
        return Choice("dense", why, ranked, dict(seen))
    if held is None or held is best:
        return Choice(best.family, "the cheapest estimate", ranked, dict(seen))
    if best.total >= (1 - MARGIN) * held.total:
        why = f"kept: {best.family} would be cheaper, but by less than {MARGIN:.0%}"
        return Choice(held.family, why, ranked, dict(seen))
    why = f"{best.family} is {held.total / best.total:.2f} times cheaper than {held.family}, used before"
    return Choice(best.family, why, ranked, dict(seen))


def estimates(site: Site, seen: Statistics, costs: Costs) -> list[Estimate]:
    """One of dense and one of each family that was looked for.

    The vendor's product is taken to be as good as any plain tile, so that skipping nothing never pays; and to split
    sums where its tiles are few, so that it has no tail.
    """
    vendor, *plain = (
        _tiled("dense", site, site.rows, t, costs, gathers=False)
        for t in (costs.dense, *costs.tiles)
    )
    made = [_best([replace(vendor, tail=0.0), *plain])]
    if "rows" in seen:
        made.append(_best([_rows(site, seen["rows"], t, costs) for t in costs.tiles]))
    for family in ("k", "blocks"):
        if family in seen:
            fitting = group_tiles(family, site, seen[family], costs)
            made.append(_best([_groups(family, site, seen[family], t, costs) for t in fitting]))
    return made


def _best(made: list[Estimate]) -> Estimate:
    return min(made, key=lambda e: e.total)


def group_tiles(family: str, site: Site, seen: Seen, costs: Costs) -> list[Tile]:
    """Tiles as high as a group of rows, the nearest where there are none; of those the thinnest, or for blocks the
    thickest."""
    high = ceil(site.rows / max(seen.groups, 1))
    nearest = min(abs(t.bm - high) for t in costs.tiles)
    fitting = [t for t in costs.tiles if abs(t.bm - high) == nearest]
    deep = (max if family == "blocks" else min)(t.bk for t in fitting)
    return [t for t in fitting if t.bk == deep]


def _tiled(
    family: str, site: Site, rows: int, t: Tile, costs: Costs, gathers: bool, **more: float
) -> Estimate:
    """Tiles over so many rows and all columns, in waves over the multiprocessors."""
    tiles = ceil(rows / t.bm) * ceil(site.columns / t.bn)
    steps = ceil(site.inner / t.bk)
    even = tiles / costs.cores * steps
    each = t.gathered if gathers else t.step
    return Estimate(
        family,
        t,
        product=even * t.step,
        gather=even * (each - t.step),
        tail=max(ceil(tiles / costs.cores) * each, t.alone) * steps - even * each,
        start=t.start,
        scale=costs.scale.get(family, 1.0),
        **more,
    )


def _rows(site: Site, seen: Seen, t: Tile, costs: Costs) -> Estimate:
    more = {"zeros": _written(site, costs), "index": _index(site, costs)}
    rows = min(seen.kept * ceil(site.rows / max(seen.of, 1)), site.rows)
    made = _tiled("rows", site, rows, t, costs, True, **more)
    return replace(made, tail=min(made.tail, _ended(made, site, rows, costs)))


def _ended(made: Estimate, site: Site, rows: int, costs: Costs) -> float:
    """The tail where programs share what is left: a short last tile by its columns, sums of 32 bits by pieces."""
    t, across = made.tile, ceil(site.columns / made.tile.bn)
    (whole, left), shape = divmod(rows, t.bm), (t.bm, t.bn, t.bk)
    if shape == SPLIT:
        return JOIN
    if shape != SHARED or not whole or not 0 < left <= SHORT:
        return inf
    before = ceil(whole * across / costs.cores)
    parts, room = across * t.bn // SHORT, before * costs.cores - whole * across
    after = ceil(max(parts - room * int(1 / PART), 0) / costs.cores) * PART
    return ceil(site.inner / t.bk) * (before + after) * t.gathered - made.product - made.gather


def _written(site: Site, costs: Costs) -> float:
    return site.rows * site.columns * BYTES[site.dtype] / costs.write


def _groups(family: str, site: Site, seen: Seen, t: Tile, costs: Costs) -> Estimate:
    """Groups of rows in waves, each with steps of its own: as many as the mean, and one wave as long as the longest.

    A block takes whole steps; k's of a group fill them, but for half a step at its end.
    """
    k = family == "k"
    groups = max(seen.groups, 1)
    wide = site.inner * groups / max(seen.of, 1)  # of a micro-tile
    per = wide / t.bk if k else ceil(wide / t.bk)
    mean = seen.kept * per / groups + (0.5 if k and seen.kept else 0.0)
    units = groups * ceil(site.columns / t.bn) / costs.cores
    item = BYTES[site.dtype]
    far = item == 2 and site.columns * site.inner * item > costs.cache  # others wait for sums
    each = t.gathered * (FAR[family] if far else 1.0)
    longest = max(ceil(seen.longest * per), mean)
    waves = (ceil(units) - 1) * mean + longest
    return Estimate(
        family,
        t,
        product=units * mean * t.step,
        gather=units * mean * (each - t.step),
        tail=max(waves * each, longest * t.alone) - units * mean * each,
        stores=_written(site, costs),
        index=_index(site, costs),
        start=max(t.start, costs.dense.start),
        scale=costs.scale.get(family, 1.0),
    )


def _index(site: Site, costs: Costs) -> float:
    if site.given:
        return 0.0
    return costs.detect + site.rows * site.inner * BYTES[site.dtype] / costs.look


class Chooser:
    """The choice of each site, remembered for hysteresis and for explanations."""

    def __init__(self, costs: Callable[[Site], Costs]) -> None:
        self.costs = costs
        self.made: dict[Site, Choice] = {}

    def __call__(self, site: Site, statistics: Statistics) -> str:
        """The family of the next call at a site."""
        before = self.made.get(site)
        if before is not None and before.statistics == statistics:
            return before.family
        if before is None and len(self.made) >= REMEMBERED:
            self.made.clear()
        told = None if before is None else before.family
        made = self.made[site] = decide(site, statistics, self.costs(site), told)
        return made.family

    def explain(self, site: Site) -> str:
        """What was chosen, why, and what each family was expected to take."""
        if site not in self.made:
            return f"{site}: nothing was chosen yet"
        made = self.made[site]
        lines = [f"{site}: {made.family} ({made.why}; tiles {self.costs(site).source})"]
        causes = ("product", "gather", "tail", "zeros", "stores", "index", "start")
        for e in made.estimates:
            seen = made.statistics.get(e.family)
            share = "all" if seen is None else f"{seen.share:.1%} kept"
            parts = ", ".join(f"{n} {v:.1f}" for n in causes if (v := getattr(e, n)) >= 0.05)
            tile = f"{e.tile.bm}x{e.tile.bn}x{e.tile.bk}"
            lines.append(f"  {e.family:<7} {e.total:8.1f} us  {share:>11}, {tile}: {parts}")
        return "\n".join(lines)
