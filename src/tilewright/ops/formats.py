"""Formats as parameters of a space: what a csr matrix may be read as instead, what that costs, and making it.

    columns=c    ranges of columns one after the other: another list of work and nothing else (`runtime/ranges.py`)
    block=b      full blocks of b x b entries apart, the rest as csr: parts, made once and kept with the structure

In: a csr structure. Out: the values that are worth a try, the cost model over them, the structure in parts. Values keep
their order in all of them, so that nothing is converted again when they change.

    blocks_of(s)      # (0, 16): a quarter of the entries or more is in full blocks of 16 x 16
    in_blocks(A, 16).format     # "parts+dbsr.16.16+csr"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from tilewright.formats.decompose import decompose
from tilewright.formats.index import ceil_div, expand
from tilewright.formats.rules import blocks
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.transforms import outside
from tilewright.ops.choice import Choice
from tilewright.runtime.ranges import follow_each_other
from tilewright.schedule.options import Setting
from tilewright.tune import cost
from tilewright.tune.cost import Model, Terms, rank
from tilewright.tune.machine import Machine, machine_of
from tilewright.tune.space import Param, Space
from tilewright.tune.statistics import statistics_of

BLOCKS = (16, 32)
LEAST = 0.25  # the share of entries in full blocks that is worth parts of their own
CLEARLY = 0.7  # of what is used without a choice of formats: an estimate that may be trusted
COLUMNS = (2, 4)
ROOM, PARTIAL = 1 << 30, 4  # bytes that partial rows may take, and of a number in them
EXACT, SAMPLED = 1 << 22, 16  # entries that are all looked at; rows of blocks that stand for more


def ranges(s: Structure, span: int) -> tuple[int, ...]:
    """1, and the numbers of ranges that columns can be cut in, with room for what waits to be combined."""
    most = min(s.shape[1], ROOM // max(s.shape[0] * span * PARTIAL, 1))
    return (1, *(c for c in COLUMNS if c <= most and may_cut(s, c)))


def may_cut(s: Structure, columns: int) -> bool:
    """Whether the entries of each row lie range of columns after range. Kept with the structure; waits once."""
    key = ("ranges", columns)
    if key not in s.plans:
        assert s.indptr is not None and s.indices is not None
        s.plans[key] = follow_each_other(s.indptr, s.indices, s.shape[1], columns)
    found: bool = s.plans[key]
    return found


def worth_cutting(s: Structure, span: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The numbers of ranges of columns that may help: x does not stay in cache, and rows can be cut."""
    stays = s.shape[1] * span * dtype.itemsize <= machine_of(s.device).cache
    return () if stays or s.plans.get("columns", 1) > 1 else ranges(s, span)[1:]


def in_cache(s: Structure, span: int, dtype: torch.dtype) -> int:
    """The ranges of columns of which each is read from half of the cache, as far as rows can be cut in so many; 1
    where they cannot, and where nothing is to be gained."""
    if s.plans.get("columns", 1) > 1:
        return 1
    read, room = s.shape[1] * span * dtype.itemsize, machine_of(s.device).cache / 2
    return max((c for c in COLUMNS if read > room * c / 2 and may_cut(s, c)), default=1)


def blocks_of(s: Structure) -> tuple[int, ...]:
    """0, and the sizes of blocks that hold enough of a structure. Kept with it; waits for the device once each."""
    if s.format != "csr":
        return (0,)
    return (0, *takewhile(lambda b: full_share(s, b) >= LEAST, BLOCKS))


def full_share(s: Structure, b: int) -> float:
    """The share of the entries that is in full blocks of b x b, from a sample where there are many."""
    key = ("full blocks", b)
    if key not in s.plans:
        s.plans[key] = _full_share(s, b)
    share: float = s.plans[key]
    return share


def _full_share(s: Structure, b: int) -> float:
    told = statistics_of(s)
    if sum(told.entries[b.bit_length() :]) < LEAST * max(told.nnz, 1):  # rows that could be full
        return 0.0
    assert s.indptr is not None and s.indices is not None
    if told.nnz <= EXACT:
        return _held(expand(s.indptr, told.nnz), s.indices, s.shape[1], b)
    high = ceil_div(told.rows, b)
    first = torch.arange(SAMPLED, device=s.device) * (high // SAMPLED) * b
    ends = torch.stack([first, (first + b).clamp(max=told.rows)]).flatten()
    bounds = s.indptr[ends].view(2, -1).tolist()
    rows = [torch.full((hi - lo,), n * b) for n, (lo, hi) in enumerate(zip(*bounds, strict=True))]
    cols = [s.indices[lo:hi] for lo, hi in zip(*bounds, strict=True)]
    return _held(torch.cat(rows).to(s.device), torch.cat(cols), s.shape[1], b)


def _held(rows: Tensor, cols: Tensor, width: int, b: int) -> float:
    if not len(rows):
        return 0.0
    at = torch.div(rows, b, rounding_mode="floor").long() * ceil_div(width, b)
    at += torch.div(cols, b, rounding_mode="floor")
    counts = torch.unique(at, return_counts=True)[1]
    return int(counts[counts >= b * b].sum()) / len(rows)


def in_blocks(a: SparseTensor, b: int) -> SparseTensor:
    """Full blocks and the rest; made once, kept with the structure."""
    s = a.structure
    key = ("in blocks", b)
    if key not in s.plans:
        s.plans[key] = _in_blocks(s, b)
    return SparseTensor(s.plans[key], a.values)


@outside
def _in_blocks(s: Structure, b: int) -> Structure:
    made = decompose(s, None, blocks(b, 1.0), "csr")[0]
    return made.prepare() if s.transposed is not None else made


def with_blocks(space: Space, sizes: tuple[int, ...]) -> Space:
    """The space with blocks as a parameter, where a structure has any."""
    if len(sizes) < 2:
        return space
    return replace(space, params=(Param("block", sizes, format=True), *space.params))


def block_model(rows: Model, s: Structure, span: int, itemsize: int, m: Machine) -> Model:
    """A model of rows, for settings with blocks too: the rest at the model's cost, and a launch for the blocks."""
    told = statistics_of(s)

    def terms(p: Setting) -> Terms:
        b = p.get("block", 0)
        if not b:
            return rows(p)
        share = full_share(s, b)
        apart = cost.blocks(told.rows, told.nnz * share, b, span, itemsize, m)
        return rows(p).scaled(1 - share) + apart

    return terms


def alternatives(settings: Iterable[Setting], name: str, values: Iterable[int]) -> list[Setting]:
    """The settings in each other format."""
    return [{**s, name: v} for v in values for s in settings]


def clearly(choice: Choice, model: Model, others: Iterable[Setting]) -> Choice:
    """A modelled choice, or another setting that is modelled to be much faster."""
    tried = (*choice.candidates, *others)
    best, terms = rank(model, tried)[0]
    if terms.total >= CLEARLY * model(choice.setting).total:
        return choice
    return Choice(best, "model", None, model, tried)


def possible(choice: Choice, s: Structure | None) -> Choice:
    """A choice without the formats that this structure cannot have: it may be of another one of its class."""
    made = dict(choice.setting)
    if made.get("columns", 1) > 1 and (s is None or not may_cut(s, made["columns"])):
        del made["columns"]
    if made.get("block") and (s is None or made["block"] not in blocks_of(s)):
        del made["block"]
    return choice if made == choice.setting else replace(choice, setting=made)
