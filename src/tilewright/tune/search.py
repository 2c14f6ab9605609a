"""Measured search within a budget, by successive halving.

In: settings in the order of the cost model, a function that makes the call of one, a budget. Out: `Found`: every
trial, the best first. The first setting is what would be used without a search; it stays to the end, so that the
gain over it is measured side by side, and its output is what all others must agree with.

    found = search([first, *others], make, torch.device("cpu"), budget_s=10)
    found.best.setting, found.gain

At least half of the budget goes to trying settings with few repeats; then the better half stays and the repeats are
doubled, until the last two were compared for long, time is over, or the user interrupts: what was found is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from tilewright.schedule.options import Setting
from tilewright.tune import measure

FIRST, MOST = 3, 64  # calls in the first round, at least and at most
LOOK_S, LONG_S = (
    5e-3,
    0.25,
)  # of calls in the first round; of calls after which the last two are told apart
NEAREST = 3  # fastest of the first settings, of which others that are like them are tried
SLOW = 4.0  # times the best: not tried again
CLEARLY = 0.98  # of the first: what gains less may be noise


@dataclass
class Trial:
    """A setting, its call, the seconds of its calls and the rounds it stayed in; or why it was dropped."""

    setting: Setting
    call: measure.Fn | None = None
    times: list[float] = field(default_factory=list)
    rounds: int = 0
    build_s: float = 0.0
    why: str = ""

    @property
    def seconds(self) -> float:
        """The shortest: what else the machine does only adds time."""
        return min(self.times, default=inf)


@dataclass
class Found:
    """All trials; how the search ended."""

    trials: list[Trial]
    spent_s: float = 0.0
    ended: str = ""

    @property
    def right(self) -> list[Trial]:
        """Those that were measured and agreed, the fastest first."""
        return sorted((t for t in self.trials if t.times and not t.why), key=lambda t: t.seconds)

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The fastest of those that stayed to the last round, if it is clearly faster than the first."""
        last = max((t.rounds for t in self.right), default=0)
        made = next((t for t in self.right if t.rounds == last), self.first)
        return made if made.seconds < CLEARLY * self.first.seconds else self.first

    @property
    def gain(self) -> float:
        return self.first.seconds / self.best.seconds if self.best.times else 1.0


Make = Callable[[Setting], measure.Fn]
Near = Callable[[Setting], list[Setting]]
Tell = Callable[[str, Found, float], None]


@dataclass
class _Order:
    """The settings in turn, with those that are near to the fastest of the first ones behind these."""

    settings: Sequence[Setting]
    near: Near
    after: int
    found: Found
    more: int = 0

    def __len__(self) -> int:
        return len(self.settings) + self.more

    def __iter__(self) -> Iterator[Setting]:
        known = {tuple(sorted(s.items())) for s in self.settings}
        for n, setting in enumerate(self.settings):
            yield setting
            if n + 1 != self.after:
                continue
            for t in self.found.right[:NEAREST]:
                for s in self.near(t.setting):
                    if tuple(sorted(s.items())) not in known:
                        known.add(tuple(sorted(s.items())))
                        self.more += 1
                        yield s


def search(
    settings: Sequence[Setting],
    make: Make,
    device: torch.device,
    budget_s: float,
    cold: bool = False,
    tell: Tell = lambda stage, found, spent: None,
    near: Near = lambda setting: [],
    after: int = 0,
) -> Found:
    """Try settings, then compare the better ones ever longer.

    When the first `after` settings were tried, what is near to the fastest of them comes before the others.
    """
    began = time.perf_counter()
    found = Found([])
    spent = lambda: time.perf_counter() - began
    order = _Order(settings, near, after, found)
    try:
        for stage in _stages(found, order, make, device, budget_s, cold, spent):
            tell(stage, found, spent())
        tried = f"{len(found.trials)} of {len(order)} settings"
        found.ended = tried if len(found.trials) < len(order) else f"all {tried}"
    except KeyboardInterrupt:
        if not found.right:
            raise
        found.ended = f"{len(found.right)} of {len(settings)} settings until interrupted"
    found.spent_s = spent()
    for t in found.trials:
        t.call = None
    return found


def _stages(
    found: Found,
    settings: _Order,
    make: Make,
    device: torch.device,
    budget_s: float,
    cold: bool,
    spent: Callable[[], float],
) -> Iterator[str]:
    expected: list[Tensor] = []
    for n, setting in enumerate(settings):
        if n > 1 and spent() + _longest(found) + _reserve(found, budget_s) > budget_s:
            break
        trial = Trial(setting)
        found.trials.append(trial)
        expected = _try(trial, make, device, cold, expected)
        yield "trying"
    kept = found.right
    repeats = max((len(t.times) for t in kept), default=FIRST)
    while len(kept) > 1 and spent() < budget_s:
        kept = kept[: max(2, -(-len(kept) // 2))]
        kept = [t for t in kept if t.seconds < SLOW * kept[0].seconds]
        if found.first not in kept:
            kept.append(found.first)
        if spent() + sum(t.seconds for t in kept) * repeats > max(budget_s, 0.0):
            break
        calls = [t.call for t in kept if t.call is not None]
        for t, times in zip(kept, measure.seconds(calls, repeats, device, cold), strict=True):
            t.times += times
            t.rounds += 1
        kept = sorted(kept, key=lambda t: t.seconds)
        yield "comparing"
        if len(kept) <= 3 and sum(kept[0].times) > LONG_S:
            break
        repeats *= 2


def _reserve(found: Found, budget_s: float) -> float:
    """What comparing will need: some time, more where calls are long, half of the budget at most."""
    return min(budget_s / 2, 4 * LONG_S + 100 * min(found.best.seconds, budget_s))


def _longest(found: Found) -> float:
    """What the next setting may take: as long as the slowest but the first, which may compile more."""
    return max((t.build_s + sum(t.times) for t in found.trials[1:]), default=0.0)


def _try(
    trial: Trial, make: Make, device: torch.device, cold: bool, expected: list[Tensor]
) -> list[Tensor]:
    """Build, check against the first output, and time a few calls; the output to expect from now on."""
    began = time.perf_counter()
    try:
        trial.call = make(trial.setting)
        outs = trial.call()
    except Exception as why:
        if not expected:  # what is used without a search must work
            raise
        trial.why = str(why).splitlines()[0] if str(why) else type(why).__name__
        trial.build_s = time.perf_counter() - began
        return expected
    outs = list(outs) if isinstance(outs, list | tuple) else [outs]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    trial.build_s = time.perf_counter() - began
    trial.why = (measure.differs(outs, expected) or "") if expected else ""
    trial.times = measure.seconds([trial.call], FIRST, device, cold)[0]
    more = min(MOST, int(LOOK_S / max(trial.seconds, 1e-9))) - FIRST
    if more > 0:
        trial.times += measure.seconds([trial.call], more, device, cold)[0]
    return expected or outs
