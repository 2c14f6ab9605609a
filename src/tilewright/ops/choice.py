"""Which setting a call gets: what was measured for such calls, else what the cost model or a rule says.

In: a call's program, arguments and structure. Out: a `Choice`, kept by whoever asked, so that calls that come again
pay nothing. Nothing is measured here: the database is asked once, and only if it knows such a program.

    recall(Case(program, "c", (x.shape,), structure, device))       # Record | None
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tilewright.formats.structure import Structure
from tilewright.ops.args import Arg
from tilewright.ops.backend import backend_of
from tilewright.ops.settings import ceil_pow2
from tilewright.schedule.options import Setting
from tilewright.tune import store
from tilewright.tune.cost import Model
from tilewright.tune.machine import device_name
from tilewright.tune.space import Space
from tilewright.tune.statistics import known, statistics_of
from tilewright.tune.store import Key, Record

EXACT = 512


@dataclass(frozen=True)
class Case:
    """A call as the database sees it: program with arguments, kind of setting, dense shapes, structure, device."""

    program: str
    space: str
    shapes: tuple[Sequence[int], ...]
    structure: Structure | None
    device: torch.device

    def key(self, structure: str) -> Key:
        sizes = ";".join(",".join(map(size_class, shape)) for shape in self.shapes)
        name = device_name(self.device, backend_of(self.device))
        return Key(self.program, self.space, sizes, structure, name)

    def whole_key(self) -> Key:
        """The key with the structure's class; waits for the device once for each structure."""
        s = self.structure
        return self.key("" if s is None else statistics_of(s).label)


def size_class(size: int) -> str:
    """Exact up to 512; above, the power of two that is not less, and what divides the size."""
    return str(size) if size <= EXACT else f"{ceil_pow2(size)}/{min(size & -size, EXACT)}"


def program_key(name: str, args: Sequence[Arg]) -> str:
    """A program with its first sparse argument and its dense ones, whatever was prepared for them."""
    lead = [a for a in args if a.kind != "dense"][:1]
    dense = [a for a in args if a.kind == "dense"]
    return "|".join([name, *(a.text().rpartition(":")[0] for a in (*lead, *dense))])


@dataclass(frozen=True)
class Choice:
    """A setting and where it is from: `given`, `default`, `model` or `measured`."""

    setting: Setting
    source: str
    record: Record | None = None
    model: Model | None = None
    candidates: tuple[Setting, ...] = ()


def recall(case: Case) -> Record | None:
    """What was measured for such a call, if anything was; never waits for a GPU to know a structure's class."""
    if store.empty() or not store.knows(case.key("")):
        return None
    s = case.structure
    if s is not None and s.transposed is None and s.device.type != "cpu" and not known(s):
        return None
    return store.find(case.whole_key())


def decide(case: Case, otherwise: Callable[[], Choice]) -> Choice:
    """The measured setting, or another choice."""
    record = recall(case)
    return otherwise() if record is None else Choice(record.setting, "measured", record)


@dataclass(frozen=True)
class Subject:
    """What a search needs to know of a call: make(setting) is the call at a setting, first what it uses now."""

    title: str
    case: Case
    space: Space
    first: Setting
    make: Callable[[Setting], Callable[[], list[Tensor]]]
    model: Model | None = None
    complete: Callable[[Setting], Setting] = field(default=lambda s: s)
    shown: tuple[Setting, ...] = ()  # settings that have served well elsewhere
    near: Callable[[Setting], list[Setting]] = field(default=lambda s: [])  # what is like one
    homes: tuple[Structure, ...] = ()  # other structures that keep calls: as given, as merged
