"""The cost model: what a setting would take, from the statistics of a structure and the constants of a machine.

In: statistics, a setting, sizes, a machine. Out: `Terms`: seconds by cause, and their sum as the model adds them.
Nothing is measured, so a plan can be made at once; `scripts/fit_cost.py` fits the constants and says how far
its choices are from the best.

    rank(lists(statistics, 128, 4, H200), settings)[0]       # the setting with the smallest total

    launch    the same for all                  memory    every byte once, at the memory's rate
    busy      programs in waves, each waiting   gather    bytes read through indices, by whether x stays in cache
              for rounds of gathers             tail      the longest program, and pieces of a cut row in turn
    issue     instructions of all warps
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil, hypot, log2, sqrt

from tilewright.schedule.options import Setting, gather_registers
from tilewright.schedule.work import fewest
from tilewright.tune.machine import Machine
from tilewright.tune.statistics import Statistics

WARPS, PROGRAMS, REGISTERS = 64, 32, 65536  # that a multiprocessor holds at once
INDEX, PARTIAL = 4, 4
MEETING = 0.08  # more of everything, each time that twice as many warps make a program: the slowest is waited for
PRODUCTS = 0.25  # of the plain operations of a machine, in small products of 32 bits


@dataclass(frozen=True)
class Terms:
    """Seconds by cause. Those that overlap count as the root of their squares, the launch in addition."""

    launch: float = 0.0
    busy: float = 0.0
    issue: float = 0.0
    gather: float = 0.0
    memory: float = 0.0
    tail: float = 0.0

    @property
    def total(self) -> float:
        return self.launch + hypot(self.busy, self.issue, self.gather, self.memory, self.tail)

    def scaled(self, by: float) -> Terms:
        """The same for a part of the entries; a launch stays one."""
        return Terms(self.launch, *(by * s for n, s in self.items() if n != "launch"))

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(a + b for (_, a), (_, b) in zip(self.items(), other.items(), strict=True)))

    def items(self) -> Iterator[tuple[str, float]]:
        yield from ((n, getattr(self, n)) for n in self.__dataclass_fields__)


Model = Callable[[Setting], Terms]


def rank(model: Model, settings: Iterable[Setting]) -> list[tuple[Setting, Terms]]:
    """Settings with their terms, the cheapest first."""
    return sorted(((s, model(s)) for s in settings), key=lambda made: made[1].total)


@dataclass(frozen=True)
class _Programs:
    """Programs of one kind: how many, the steps of a lane in each, whether they are pieces of cut rows, and whether
    their last round of steps may be a short one."""

    many: float
    steps: float
    cut: bool = False
    exact: bool = False


def lists(s: Statistics, span: int, itemsize: int, m: Machine) -> Model:
    """Products over a work list: short rows in groups, long ones in pieces; all of them in ranges of columns."""

    def terms(p: Setting) -> Terms:
        kinds, longest, pieces = [], 0.0, 0
        ranges = p.get("columns", 1)
        for top, many, mean in _classes(s):
            if top <= p["long"]:
                parts = min(ranges, max(1, ceil(mean * p["rows"])))
                steps = ceil(mean) if parts == 1 else ceil(mean / parts + sqrt(mean / parts))
                kinds.append(_Programs(many * parts / p["rows"], steps, parts > 1, True))
                longest = max(longest, min(top, s.longest))
                continue
            cuts = ceil(mean / ranges / p["chunk"]) * ranges
            kinds.append(_Programs(many * cuts, ceil(mean / cuts / p["rows"]), True))
            longest = max(longest, ceil(min(s.longest, p["chunk"]) / p["rows"]))
            pieces = ceil(s.longest / p["chunk"])
        return _rows(s, p, kinds, longest, pieces, span, itemsize, m)

    return terms


def padded(s: Statistics, span: int, itemsize: int, m: Machine) -> Model:
    """Products over neighbouring rows: a group takes as many steps as its longest row."""

    def terms(p: Setting) -> Terms:
        kinds, below = [], 0.0
        for _, many, mean in _classes(s):
            share = below + many / max(s.rows, 1)
            groups = (share ** p["rows"] - below ** p["rows"]) * s.rows / p["rows"]
            kinds.append(_Programs(groups, ceil(mean)))
            below = share
        return _rows(s, p, kinds, s.longest, 0, span, itemsize, m)

    return terms


def _classes(s: Statistics) -> Iterator[tuple[int, int, float]]:
    """(longest length, rows, mean length) of each length class that has rows."""
    for c, (many, entries) in enumerate(zip(s.counts, s.entries, strict=True)):
        if many:
            yield (1 << c) >> 1, many, entries / many


def _rows(
    s: Statistics,
    p: Setting,
    kinds: list[_Programs],
    longest: float,
    pieces: int,
    span: int,
    itemsize: int,
    m: Machine,
) -> Terms:
    tiles = ceil(span / p["width"])
    held = p["rows"] * p["width"] / (32 * p["warps"])
    unroll = p.get("unroll", 1)
    per_round = m.step + m.value * unroll * held
    per_entry = m.entry + m.each * held * (0.6 if itemsize == 2 else 1.0)
    waiting = instructions = many = 0.0
    for k in kinds:
        rounds, at_once = ceil(k.steps / unroll), fewest(unroll) if k.exact else unroll
        many += k.many * tiles
        waiting += k.many * tiles * (m.start + rounds * per_round + m.join * k.cut)
        copies = ceil(k.steps / at_once) * at_once
        instructions += k.many * tiles * p["warps"] * (m.begin + copies * per_entry)
    ranges = p.get("columns", 1)
    row = s.cols * itemsize / ranges
    near = 1 / (1 + (row * (p["width"] if p.get("outer") else span) / m.cache) ** 2)
    moved = s.nnz * (INDEX + itemsize) * tiles + (s.cols + s.rows) * span * itemsize
    if ranges > 1:  # what is left for the last unit of a group, written and read
        moved += 2 * ranges * s.rows * span * PARTIAL
    ends = m.join + m.combine * pieces if pieces else 0.0
    made = Terms(
        m.launch,
        waiting / min(resident(p, itemsize, held) * m.cores, max(many, 1.0)),
        instructions / (m.cores * m.issue),
        s.nnz * span * itemsize / (m.gather * near + m.far * (1 - near)),
        moved / m.memory,
        m.start + ceil(longest / unroll) * per_round + ends,
    )
    return made.scaled(1 + MEETING * log2(p["warps"]))


def resident(p: Setting, itemsize: int, held: float) -> int:
    """Programs that a multiprocessor holds at once: bounded by programs, warps and registers."""
    guess = 24 + held * (1 + p.get("unroll", 1) * itemsize / 4)
    registers = gather_registers(p, itemsize == 2) or min(255, max(32, guess))
    warps = min(WARPS, PROGRAMS * p["warps"], REGISTERS // (32 * registers))
    return int(max(1, warps // p["warps"]))


def entries(s: Statistics, span: int, itemsize: int, m: Machine) -> Model:
    """Products at stored entries: two gathered rows and a sum over features for each."""

    def terms(p: Setting) -> Terms:
        held = p["edges"] * min(p["width"], span) / (32 * p["warps"])
        rounds = ceil(span / p["width"])
        many = ceil(s.nnz / p["edges"])
        each = m.start + rounds * (m.step + 2 * m.value * held) + m.join
        instructions = many * p["warps"] * (m.begin + rounds * (m.entry + 4 * m.each * held))
        near = 1 / (1 + ((s.rows + s.cols) * span * itemsize / m.cache) ** 2)
        return Terms(
            m.launch,
            many * each / min(max(1, min(PROGRAMS, WARPS // p["warps"])) * m.cores, max(many, 1)),
            instructions / (m.cores * m.issue),
            2 * s.nnz * span * itemsize / (m.gather * near + m.far * (1 - near)),
            (s.nnz * (2 * INDEX + itemsize) + (s.rows + s.cols) * span * itemsize) / m.memory,
            each,
        )

    return terms


def blocks(rows: int, entries: float, b: int, span: int, itemsize: int, m: Machine) -> Terms:
    """Full blocks of b x b times dense columns, added to what is there: a row of x serves the b rows of a block."""
    steps = entries / (b * max(rows, 1))
    programs = ceil(rows / b) * ceil(span / 128)
    each = m.start + steps * m.step
    return Terms(
        m.launch,
        each * programs / min(8 * m.cores, max(programs, 1)),
        2 * entries * span / (PRODUCTS * m.flops),
        entries / b * span * itemsize / m.far,
        (entries * (INDEX + itemsize) + 2 * rows * span * itemsize) / m.memory,
        each,
    )


def product(rows: int, cols: int, inner: int, itemsize: int, m: Machine) -> Model:
    """A product of dense tiles: waves of tiles over the multiprocessors, operands read through the cache."""

    def terms(p: Setting) -> Terms:
        tiles = ceil(rows / p["bm"]) * ceil(cols / p["bn"])
        waves = ceil(tiles / m.cores)
        steps = ceil(inner / p["bk"])
        compute = 2 * p["bm"] * p["bn"] * p["bk"] * m.cores / m.matrix
        fetch = (p["bm"] + p["bn"]) * p["bk"] * itemsize * m.cores / m.gather
        exposed = m.step / max(p.get("stages", 1), 1)
        moved = (rows * inner + inner * cols + rows * cols) * itemsize
        return Terms(
            m.launch,
            waves * steps * compute,
            0.0,
            waves * steps * fetch,
            moved / m.memory,
            m.start + steps * exposed,
        )

    return terms


def native(s: Statistics, span: int, itemsize: int, m: Machine) -> Model:
    """Rows in C: `grain` rows a thread at once, feature tiles of `width`, gathers asked for `prefetch` KB ahead."""

    def terms(p: Setting) -> Terms:
        width = max(min(p["width"], span), 1)
        tiles = ceil(span / width)
        shares = ceil(s.rows / p["grain"]) * tiles
        near = 1 / (1 + (s.cols * width * itemsize / m.cache) ** 2)
        rate = m.gather * near + m.far * (1 - near)
        early = sqrt(1 + (1 - near) / (1 + p["prefetch"]))
        share = s.nnz * width * itemsize / max(s.rows, 1) * p["grain"] / (rate / m.cores)
        return Terms(
            m.launch,
            2 * s.nnz * span / (m.flops * m.cores),
            s.rows * tiles * m.start / m.cores / 4,
            s.nnz * span * itemsize / rate * early,
            s.nnz * (INDEX + itemsize) * tiles / m.memory,
            shares * m.start + (share / 2 if m.cores > 1 else 0.0),
        )

    return terms
