"""Prepared work: which setting and which work list an operator uses on a structure.

Plans live on the structure (`structure.plans`), so they are shared by all tensors on it and go with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats.structure import Structure
from tilewright.ops.args import LIST, T_LIST
from tilewright.ops.backend import backend_of, stream_of
from tilewright.ops.settings import feature_width, pack
from tilewright.runtime.worklist import WorkList, make_segments, make_work_list
from tilewright.schedule.options import Setting

L2_BYTES = 32 << 20
WHOLE_BYTES = 44 << 20
NARROWEST = 32
BUSY_WARPS = 4096
HELD = 16

# rows, unroll, long, chunk, warps: the settings that measured choice looks at
SETTINGS: list[Setting] = [
    {"rows": r, "unroll": u, "long": ln, "chunk": c, "warps": w}
    for r, u, ln, c, w in (
        (8, 4, 32, 512, 1),
        (16, 4, 32, 512, 2),
        (4, 4, 16, 256, 1),
        (4, 4, 64, 512, 1),
        (8, 4, 128, 2048, 2),
        (2, 4, 16, 128, 1),
        (4, 8, 32, 256, 1),
        (8, 2, 16, 256, 2),
        (16, 8, 8, 256, 2),
        (8, 8, 16, 128, 1),
    )
]


def default_setting(s: Structure, span: int, dtype: torch.dtype) -> Setting:
    """A setting from the average row and the dtype alone: short, middling and long rows."""
    mean = s.nnz / max(s.shape[0], 1)
    middling = SETTINGS[6] if dtype.itemsize == 2 else SETTINGS[2]
    pick = SETTINGS[7] if mean < 8 else middling if mean < 64 else SETTINGS[4]
    return complete(pick, s, span, dtype)


def complete(setting: Setting, s: Structure, span: int, dtype: torch.dtype) -> Setting:
    """Feature tile and grid order filled in.

    When x would not stay in the second-level cache, feature tiles are narrow enough to stay and outermost;
    when there are few rows, they are narrow enough to keep the whole device busy; a thread never holds more
    than 16 sums, so that registers leave room for many warps.
    """
    made = dict(setting)
    row = s.shape[1] * dtype.itemsize
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
    return made


def choose(s: Structure, span: int, dtype: torch.dtype) -> Setting:
    """The tuned setting of a structure for a width and dtype, or the default."""
    key = ("chosen", span, dtype)
    if key not in s.plans:
        s.plans[key] = default_setting(s, span, dtype)
    made: Setting = s.plans[key]
    return made


def work_list_of(s: Structure, setting: Setting) -> WorkList:
    key = ("list", setting["rows"], setting["long"], setting["chunk"])
    if key not in s.plans:
        assert s.indptr is not None
        s.plans[key] = make_work_list(s.indptr, setting)
    made: WorkList = s.plans[key]
    return made


def segments_of(s: Structure, setting: Setting) -> WorkList:
    """Parts of rows, for what is done entry by entry."""
    key = ("segments", setting["rows"], setting["chunk"], setting["edges"])
    if key not in s.plans:
        assert s.indptr is not None
        s.plans[key] = make_segments(s.indptr, setting)
    made: WorkList = s.plans[key]
    return made


def may_list(s: Structure, x: Tensor, setting: Setting | None = None) -> bool:
    """Work lists are for prepared structures with rows first; inside torch.compile they are left out."""
    if backend_of(x.device) != "triton" or s.format != "csr" or torch.compiler.is_compiling():
        return False
    return s.transposed is not None or setting is not None


def listed(
    s: Structure, span: int, dtype: torch.dtype, backward: bool, setting: Setting | None = None
) -> tuple[tuple[str, ...], list[Tensor], list[int]]:
    """(array names, tensors, integers) of the work lists that a call takes along."""
    names: list[str] = []
    tensors: list[Tensor] = []
    ints: list[int] = []
    stream = stream_of(s.device)
    for structure, labels, wanted in ((s, LIST, True), (s.transposed, T_LIST, backward)):
        if structure is None or not wanted:
            continue
        chosen = (
            choose(structure, span, dtype) if setting is None else complete(setting, s, span, dtype)
        )
        work = work_list_of(structure, chosen)
        tiles = -(-span // chosen["width"])
        names += labels
        space = work.space(tiles * chosen["width"], stream)
        tensors += [work.units, work.segs, work.done(tiles, stream), space]
        ints += [work.slots, pack(chosen)]
    return tuple(names), tensors, ints
