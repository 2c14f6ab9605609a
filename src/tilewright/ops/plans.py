"""Prepared work: which setting and which work list an operator uses on a structure.

Plans live on the structure (`structure.plans`), so they are shared by all tensors on it and go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from tilewright.formats.merge import rows_of
from tilewright.formats.structure import Structure
from tilewright.formats.transforms import outside
from tilewright.ops.args import LIST, T_LIST, T_VISITS, VISITS
from tilewright.ops.backend import backend_of, stream_of
from tilewright.ops.choice import Case, Choice, decide
from tilewright.ops.formats import alternatives, clearly, may_cut, possible, worth_cutting
from tilewright.ops.settings import feature_width, pack
from tilewright.ops.spaces import SETTINGS, fits_registers
from tilewright.runtime.build_c import far
from tilewright.runtime.caches import sizes
from tilewright.runtime.likeness import ranks
from tilewright.runtime.ranges import make_range_list, range_of
from tilewright.runtime.visits import Visits, make_visits
from tilewright.runtime.worklist import WorkList, make_segments, make_work_list
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.tune.cost import Model, lists, rank
from tilewright.tune.machine import machine_of
from tilewright.tune.statistics import statistics_of
from tilewright.tune.turns import saved

L2_BYTES = 32 << 20
WHOLE_BYTES = 44 << 20
NARROWEST = 32
BUSY_WARPS = 4096
HELD = 16
LONG = 128  # mean entries of a row
FLYING = 64  # numbers of a thread in flight that 80 registers have room for
BUSY = 2  # mean entries of a column that make another order of rows worth a look
MakeCase = Callable[[], Case]


def modelled(s: Structure, span: int, dtype: torch.dtype) -> Choice:
    """The cheapest of the measured settings, by the cost model. Waits for the device: belongs in preparation.

    Ranges of columns are among them where x does not stay in cache, and taken where that is clearly better.
    """
    model = list_model(s, span, dtype)
    settings = tuple(completed(SETTINGS, s, span, dtype))
    made = Choice(rank(model, settings)[0][0], "model", None, model, settings)
    cut = completed(
        alternatives(SETTINGS, "columns", worth_cutting(s, span, dtype)), s, span, dtype
    )
    return clearly(made, model, cut) if cut else made


def completed(
    settings: Iterable[Setting], s: Structure, span: int, dtype: torch.dtype
) -> list[Setting]:
    full = (complete(setting, s, span, dtype) for setting in settings)
    return [setting for setting in full if fits_registers(setting, span)]


def list_model(s: Structure, span: int, dtype: torch.dtype) -> Model:
    return lists(statistics_of(s), span, dtype.itemsize, machine_of(s.device))


def complete(setting: Setting, s: Structure, span: int, dtype: torch.dtype) -> Setting:
    """Feature tile and grid order filled in.

    When x would not stay in the second-level cache, feature tiles are narrow enough to stay and outermost;
    when there are few rows, they are narrow enough to keep the whole device busy; a thread never holds more
    than 16 sums, so that registers leave room for many warps. Long rows want more gathers in flight instead.
    """
    made = dict(setting)
    ranges = made.get("columns", s.plans.get("columns", 1))
    if ranges > 1:
        made["columns"] = ranges
    row = s.shape[1] * dtype.itemsize // ranges
    room = HELD * 32 * made.get("warps", 1) // made["rows"]
    width = min(feature_width(span, dtype.itemsize == 2), max(room, NARROWEST))
    warps = made.get("warps", 1) * (s.shape[0] // made["rows"] + s.nnz // made["chunk"] + 1)
    spills = row * span > WHOLE_BYTES
    while width > NARROWEST and (
        (spills and row * width > L2_BYTES) or warps * span // width < BUSY_WARPS
    ):
        width //= 2
    made.setdefault("width", width)
    made.setdefault("outer", int(row * span > L2_BYTES))
    slow = dtype.itemsize > 2 and made["outer"] and made["rows"] >= 8 and made.get("warps", 1) == 1
    in_flight = made["rows"] * made["width"] // 32 * made.get("unroll", 1)
    if slow and s.nnz >= LONG * s.shape[0] and in_flight <= FLYING:
        made.setdefault("registers", 80)
    return made


def choose(
    s: Structure, span: int, dtype: torch.dtype, name: str = "", case: MakeCase | None = None
) -> Choice:
    """The setting of a structure for a width and dtype: measured for such a case of a program, or modelled.

    name: of the program, with the dtype of its values; its case is asked for once.
    """
    key = ("chosen", span, dtype, name) if case is not None else ("chosen", span, dtype)
    if key not in s.plans:
        shared = partial(choose, s, span, dtype)
        found = modelled(s, span, dtype) if case is None else decide(case(), shared)
        s.plans[key] = possible(found, s)
    made: Choice = s.plans[key]
    return made


@outside
def work_list_of(s: Structure, setting: Setting) -> WorkList:
    columns, alike = setting.get("columns", 1), setting.get("alike", 0)
    key = ("list", setting["rows"], setting["long"], setting["chunk"], columns, alike)
    if key not in s.plans:
        assert s.indptr is not None and s.indices is not None
        if columns == 1:
            s.plans[key] = make_work_list(s.indptr, setting, ranks_of(s) if alike else None)
        else:
            check_cut(s, columns)
            s.plans[key] = make_range_list(s.indptr, s.indices, s.shape[1], setting)
    made: WorkList = s.plans[key]
    return made


def check_cut(s: Structure, columns: int) -> None:
    """Ranges of columns follow each other in each row."""
    if not may_cut(s, columns):
        expected = "1 where columns are in no order, or A.decompose(rules.hyb(2, 5))"
        raise error("argument", where="setting", name="columns", got=columns, expected=expected)


@outside
def segments_of(s: Structure, setting: Setting) -> WorkList:
    """Parts of rows, for what is done entry by entry; of ranges of columns, one after the other."""
    alike, columns = setting.get("alike", 0), setting.get("columns", 1)
    key = ("segments", setting["rows"], setting["chunk"], setting["edges"], columns, alike)
    if key not in s.plans:
        assert s.indptr is not None and s.indices is not None
        of = None
        if columns > 1:
            check_cut(s, columns)
            of = range_of(s.indices, s.shape[1], columns)
        s.plans[key] = make_segments(s.indptr, setting, ranks_of(s) if alike else None, of)
    made: WorkList = s.plans[key]
    return made


@outside
def ranks_of(s: Structure) -> Tensor:
    """Places of the rows in an order in which neighbours share columns."""
    if "ranks" not in s.plans:
        assert s.indptr is not None and s.indices is not None
        s.plans["ranks"] = ranks(s.indptr, s.indices, s.shape[1])
    made: Tensor = s.plans["ranks"]
    return made


@outside
def visits_of(s: Structure) -> Visits:
    """The rows in an order in which neighbours share columns."""
    if "visits" not in s.plans:
        assert s.indptr is not None and s.indices is not None
        s.plans["visits"] = make_visits(s.indptr, s.indices, ranks_of(s))
    made: Visits = s.plans["visits"]
    return made


def may_visit(s: Structure) -> bool:
    """Another order of rows is for csr on a CPU; none inside torch.compile."""
    return s.format == "csr" and backend_of(s.device) == "c" and not torch.compiler.is_compiling()


def visiting(
    s: Structure,
    span: int,
    itemsize: int,
    setting: Setting,
    backward: bool = False,
    both: bool = False,
) -> tuple[tuple[str, ...], list[Tensor]]:
    """(array names, tensors) of another order of rows, where a call takes one along: as a setting says, or where a
    prepared structure is expected to gain by it.

    span: numbers that are gathered at an entry; both: rows read as many by their own number.
    """
    names: list[str] = []
    tensors: list[Tensor] = []
    for structure, labels in ((s, VISITS), (s.transposed if backward else None, T_VISITS)):
        if structure is None or not may_visit(structure):
            continue
        asked = setting.get("alike", s.transposed is not None)
        if asked and ("alike" in setting or alike_pays(structure, span * itemsize, itemsize, both)):
            names += labels
            tensors += visits_of(structure)
    return tuple(names), tensors


def in_turns(choice: Choice | None) -> Choice:
    """The choice of a call that takes another order of rows along."""
    if choice is None or choice.source == "default":
        return Choice({**(choice.setting if choice else {}), "alike": 1}, "model")
    return choice


def alike_pays(s: Structure, row_bytes: int, value_bytes: int, both: bool) -> bool:
    """Whether another order of rows is expected to pay; found once for each width. Nothing is measured."""
    if s.shape[1] * row_bytes <= sizes()[1] or s.nnz < BUSY * s.shape[1]:
        return False
    key = ("alike", row_bytes, value_bytes, both)
    if key not in s.plans:
        assert s.indices is not None
        held = sum(s.shape) * row_bytes
        read = row_bytes if both and held > max(sizes().values()) else 0
        alone = both or torch.get_num_threads() == 1 or held > far()
        told = s.shape[0], row_bytes, value_bytes, read, 0 if alone else row_bytes
        # To find the order takes many times what a call takes.
        may = saved(s.indices, None, *told) > 0
        s.plans[key] = may and saved(s.indices, visits_of(s).columns, *told) > 0
    found: bool = s.plans[key]
    return found


def may_list(s: Structure, x: Tensor, setting: Setting | None = None) -> bool:
    """Work lists are for prepared structures with rows first, or such a part; none inside torch.compile."""
    if backend_of(x.device) != "triton" or torch.compiler.is_compiling() or rows_of(s) is None:
        return False
    if x.is_meta:
        return False
    prepared = s.transposed is not None or s.plans.get("uses", 0) > 1
    return prepared if setting is None else "long" in setting


def listed(
    s: Structure,
    span: int,
    dtype: torch.dtype,
    backward: bool,
    setting: Setting | None = None,
    name: str = "",
    case: MakeCase | None = None,
) -> tuple[tuple[str, ...], list[Tensor], list[int]]:
    """(array names, tensors, integers) of the work lists that a call takes along."""
    names: list[str] = []
    tensors: list[Tensor] = []
    ints: list[int] = []
    stream = stream_of(s.device)
    for structure, labels, wanted, known in (
        (rows_of(s), LIST, True, case),
        (s.transposed, T_LIST, backward, None),
    ):
        if structure is None or not wanted:
            continue
        if setting is None:
            chosen = choose(structure, span, dtype, name, known).setting
        else:
            chosen = complete(setting, structure, span, dtype)
        work = work_list_of(structure, chosen)
        tiles = -(-span // chosen["width"])
        names += labels
        shared = int(chosen.get("columns", 1) > 1)
        held = chosen["rows"] if shared else 1
        space = work.space(held * tiles * chosen["width"], stream)
        tensors += [work.units, work.segs, work.done(tiles, stream), space]
        ints += [work.slots, pack({**chosen, "shared": shared})]
    return tuple(names), tensors, ints
