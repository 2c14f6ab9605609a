"""tw.Index: positions worth computing, listed on the device once and used by many operators.

In: values, a mask, lengths or routing choices. Out: positions, their counts, the micro-tile they stand for. Lists have
room for everything; how much of them counts is a number on the device, and only `compact` waits for it.

    Index.from_values(x, (16, None))      # groups of 16 rows of x that are not all 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilewright.language.trace import Traced, trace
from tilewright.ops.again import again
from tilewright.ops.backend import backend_of
from tilewright.ops.changing import NUMBERS, as_tensor, changing
from tilewright.ops.dtypes import NAMES
from tilewright.ops.kept import numbers
from tilewright.ops.library import eager
from tilewright.ops.registry import register
from tilewright.ops.settings import ceil_pow2, floor_pow2, pack
from tilewright.ops.sparse import check_dense, device_of
from tilewright.pit.detect import (
    HIGH,
    SPLIT,
    choices,
    chunk_of,
    flags,
    lengths,
    one_pass,
    raised,
    raised_by,
    tiles,
)
from tilewright.schedule.options import COptions
from tilewright.support.errors import error
from tilewright.support.places import public

MOST = 1 << 31
FEW = pack(
    COptions(grain=4).setting
)  # groups, each with much to look at, that a thread takes at once
LOW = 32  # rows of a micro-tile up to which several warps look at a strip; high ones have enough to do for one each
WIDEST = 1024  # sides up to here are part of a kernel as they are
STRIP = 512  # bytes side by side that a warp looks at
Tile = tuple[int | None, int | None]


@dataclass(frozen=True, repr=False, eq=False)
class Index:
    """Positions of micro-tiles, row by row; or a list for each group, one behind the other or each in a row of its own.

    positions: [room], counts: [1]               one list; a position is row * columns + column of a micro-tile
    positions: [groups, room], counts: [groups]  a list in each row, of columns of micro-tiles
    positions: [room], ends: [groups]            lists one behind the other; ends[g] is where g ends

    tile: rows and columns of a micro-tile, None for all. shape: of what was looked at. expected: about how many
    positions there are, 0 where nobody knows; tiles of products are chosen for so many, results do not depend on it.
    packed: what lists of k's name of the x that they were made of, side by side, where the product of that x follows.
    """

    positions: Tensor
    counts: Tensor
    shape: tuple[int, ...]
    tile: Tile = (1, 1)
    ordered: bool = True
    ends: Tensor | None = None
    expected: int = 0
    packed: Tensor | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """How many micro-tiles there are in each direction."""
        return grid_of(self.shape, self.tile)

    @property
    def groups(self) -> int:
        """How many lists there are."""
        return (self.counts if self.ends is None else self.ends).shape[0]

    @public
    def compact(self) -> Tensor | tuple[Tensor, ...]:
        """The positions alone, cut to their number; a tensor for each group. Waits for the device."""
        if self.ends is not None:
            stops = [0, *self.ends.tolist()]
            return tuple(self.positions[a:b] for a, b in pairwise(stops))
        if self.positions.dim() == 1:
            return self.positions[: int(self.counts)]
        return tuple(p[:n] for p, n in zip(self.positions, self.counts.tolist(), strict=True))

    def __str__(self) -> str:
        tile = " x ".join("all" if t is None else str(t) for t in self.tile)
        grid, shape = (" x ".join(map(str, s)) for s in (self.grid, self.shape))
        lists = "one list" if self.groups == 1 else f"{self.groups} lists"
        order = "in order" if self.ordered else "in any order"
        held = "their number is on the device"
        if self.positions.device.type == "cpu":
            total = 1
            for n in self.grid:
                total *= n
            kept = int(self.counts.sum())
            held = f"{kept} of {total}" + (f" ({kept / total:.1%})" if total else "")
        room = self.positions.numel() * self.positions.element_size()
        return (
            f"Index: micro-tiles of {tile} in {shape} (a grid of {grid}): {held}\n"
            f"  {lists}, {order}; {room} bytes of room on {self.positions.device}"
        )

    __repr__ = __str__

    # --- making one -------------------------------------------------------------------------------

    @staticmethod
    @public
    def from_values(
        x: Tensor,
        tile: Tile = (1, 1),
        *,
        threshold: float | Tensor = 0,  # with dynamic=True, 0.0 would be a number that changes
        grouped: bool = False,
        ordered: bool = True,
    ) -> Index:
        """Micro-tiles of x: [rows, columns] in which some |value| is above the threshold (NaN always is).

        threshold: a number, or a tensor without dimensions, which is read where it lies.
        grouped: for each row of micro-tiles a list of its columns. ordered=False: in any order, in one launch.

        >>> Index.from_values(x, (None, 1))     # columns of x that are not all 0
        """
        where = "Index.from_values(x, tile)"
        check_dense(where, "x", x, 2, device_of(x), "x", floating=False)
        tile = tuple(tile) if isinstance(tile, list) else tile
        above, held, floats = _threshold(threshold, x, where)
        shape = tuple(x.shape)
        detector = _known_detector if eager() else _detector
        backend = backend_of(x.device)
        name = detector(shape, x.dtype, tile, grouped, ordered, above, backend, straight(x))
        x = _plain(x.detach())
        if name.startswith("raised"):
            return _raised(x, shape, tile)
        asked = lambda _, held: _asked(held[0], tile, grouped, ordered)
        outs = again(name, {"x": x, **held}, asked, floats)
        if name.startswith("flags") and not grouped:
            return _raised(outs[0], shape, tile)
        if grouped or not ordered:
            return Index(outs[0], outs[1], shape, tile, ordered)
        return Index(outs[2], last_of(outs[3]), shape, tile)

    @staticmethod
    @public
    def from_mask(
        mask: Tensor, tile: Tile = (1, 1), shape: tuple[int, int] | None = None, **how: Any
    ) -> Index:
        """Micro-tiles that a mask names, one element for each; shape: of the tensor that the mask cuts in tiles."""
        where = "Index.from_mask(mask, tile, shape)"
        rank = 1 if getattr(mask, "ndim", 2) == 1 else 2
        check_dense(where, "mask", mask, rank, device_of(mask), "mask", floating=False)
        _check_tile(tile, where)
        if how.get("grouped") and None in tile:
            expected = "two numbers, to group by rows"
            raise error("argument", where=where, name="tile", got=tile, expected=expected)
        flat = mask[:, None] if mask.dim() == 1 else mask
        made = Index.from_values(flat, (1, 1), **how)
        sizes = shape or tuple(n * (t or 1) for n, t in zip(flat.shape, tile, strict=True))
        full = Index(made.positions, made.counts, tuple(sizes), tile, made.ordered)
        if full.grid != tuple(flat.shape):
            raise error(
                "shape",
                where=where,
                name="mask",
                got=tuple(mask.shape),
                expected=f"{full.grid}, one for each micro-tile",
            )
        return full

    @staticmethod
    @public
    def from_lengths(size: Tensor, longest: int) -> Index:
        """The places b * longest + s of a padded batch [batch, longest] with s < size[b]; a list for each b."""
        _check_whole(size, 1, "size", "Index.from_lengths(size, longest)")
        _check_count(longest, "longest", "Index.from_lengths(size, longest)")
        at = numbers(longest, torch.int32, size)
        number, found, ends = again(_LENGTHS, {"size": size, "at": at}, _few)
        return Index(found, number, (size.shape[0], longest), ends=ends)

    @staticmethod
    @public
    def from_offsets(offsets: Tensor, longest: int) -> Index:
        """The same from offsets [batch + 1], as in cu_seqlens."""
        _check_whole(offsets, 1, "offsets", "Index.from_offsets(offsets, longest)")
        return Index.from_lengths(offsets[1:] - offsets[:-1], longest)

    @staticmethod
    @public
    def from_choices(ids: Tensor, experts: int) -> Index:
        """For each expert e the places t * slots + s with ids[t, s] == e, in order. ids: [tokens, slots]"""
        _check_whole(ids, 2, "ids", "Index.from_choices(ids, experts)")
        _check_count(experts, "experts", "Index.from_choices(ids, experts)")
        names = numbers(experts, ids.dtype, ids)
        number, found, ends = again(_CHOICES, {"ids": ids.reshape(-1), "names": names}, _few)
        return Index(found, number, tuple(ids.shape), ends=ends)


_LENGTHS, _CHOICES = (register(trace(p)).traced.name for p in (lengths, choices))


DETECTORS: dict[str, Callable[..., Traced]] = {"tiles": tiles, "flags": flags, "raised": raised}


@cache
def _registered(program: str, *asked: int | str) -> str:
    return register(DETECTORS[program](*asked)).traced.name


def _name(program: str, *asked: int | str) -> str:
    """The name of a detector; a constant to torch.compile."""
    return _registered(program, *asked)


_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _detector(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tile: Tile,
    grouped: bool,
    ordered: bool,
    above: str,
    backend: str,
    straight: bool,
) -> str:
    """The name of the detector that suits, once what is asked makes sense."""
    where = "Index.from_values(x, tile)"
    _check_tile(tile, where)
    if grouped and None in tile:
        expected = "two numbers, to group by rows"
        raise error("argument", where=where, name="tile", got=tile, expected=expected)
    if above and not dtype.is_floating_point:
        expected = "a floating point dtype for a threshold"
        raise error("dtype", where=where, name="x", got=dtype, expected=expected)
    grid = grid_of(shape, tile)
    if _product(grid) >= MOST:
        expected = f"fewer than {MOST} micro-tiles"
        raise error("argument", where=where, name="tile", got=grid, expected=expected)
    rows, columns = (_looked_at(t, n) for t, n in zip(tile, shape, strict=True))
    by_flags = columns == 0 or (rows * columns != 1 and backend == "triton")
    if by_flags and straight and _by_list(shape, tile, grouped):
        by_flags, ordered = False, True
    if ordered and by_flags:
        return _name("flags", rows or SPLIT, columns, above, grouped)
    if ordered and rows * columns == 1 and backend == "triton" and not (grouped or above):
        return _name("raised", raised_by(_product(grid)))  # values are flags themselves
    chunk = chunk_of(grid[0] if tile[0] is not None else grid[1])
    chunk = chunk if ordered and not grouped else 1
    return _name("tiles", rows, columns, grouped, ordered, chunk, above)


def _looked_at(side: int | None, size: int) -> int:
    """A side of a micro-tile, 0 for all; one that is far larger than x ends where x does."""
    if side is None:
        return 0
    return side if side <= WIDEST else min(side, max(ceil_pow2(size), WIDEST))


_known_detector = lru_cache(4096)(_detector)


def _threshold(t: Any, x: Tensor, where: str) -> tuple[str, dict[str, Tensor], list[float]]:
    """What kind a threshold is, with what it adds to a detector's tensors and numbers."""
    if isinstance(t, NUMBERS) and changing(t):
        t = as_tensor(t, x.device)
    if isinstance(t, Tensor):
        check_dense(where, "threshold", t, 0, x.device, "x")
        return "tensor", {"t": t.detach()}, []
    if not isinstance(t, NUMBERS):
        expected = "a number, or a tensor without dimensions"
        raise error("argument", where=where, name="threshold", got=repr(t), expected=expected)
    return ("number", {}, [float(t)]) if t else ("", {}, [])


def _plain(x: Tensor) -> Tensor:
    """The same as numbers that kernels read: narrow floats are widened, others are asked whether they are 0."""
    if x.dtype not in NAMES:
        x = x.float() if x.dtype.is_floating_point else x != 0
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def _raised(seen: Tensor, shape: tuple[int, ...], tile: Tile) -> Index:
    """The list of what flags name; of whole columns there is a flag for each part of one."""
    if tile[0] is None:
        (seen,) = again(_name("flags", 0, 1), {"x": seen}, _few)
    chunk = raised_by(seen.numel())
    outs = again(_name("raised", chunk), {"seen": seen.reshape(-1)}, _few)
    return Index(outs[0], last_of(outs[1]) if chunk else outs[1], shape, tile)


def grid_of(shape: tuple[int, ...], tile: Tile) -> tuple[int, ...]:
    """How many micro-tiles there are in each direction."""
    return tuple(1 if t is None else -(-n // t) for n, t in zip(shape, tile, strict=True))


def last_of(ends: Tensor) -> Tensor:
    """Where the last list ends: how many entries there are in all."""
    return ends[-1:] if ends.shape[0] else ends.new_zeros(1)


def straight(x: Tensor) -> bool:
    """Whether the elements of a row of x lie side by side."""
    return True if x.stride(-1) == 1 else False  # noqa: SIM210 - a branch to torch.compile


def one_pass_by(x: Tensor, rows: int) -> int:
    """The setting where a program makes a list in one pass: more warps for more rows, as far as there are columns."""
    strips = max(x.shape[1] * x.element_size() // STRIP, 1)
    most = 4 if rows <= HIGH else 8 if rows <= 2 * HIGH else 16
    return pack({"warps": min(most, floor_pow2(strips))})


def _asked(x: Tensor, tile: Tile, grouped: bool, ordered: bool) -> list[int]:
    """The setting of a detector."""
    if backend_of(x.device) == "c":
        return [FEW]
    by_list = straight(x) and _by_list(tuple(x.shape), tile, grouped)
    if by_list:
        return [one_pass_by(x, tile[0] or 0)]
    if not ordered and tile == (1, None):
        return [rows_by(x)]
    return [] if ordered else [_warps(*(t or WIDEST for t in tile))]


def rows_by(x: Tensor) -> int:
    """The setting of a list of whole rows in any order: as many rows in a program as keep memory busy."""
    k = x.shape[1]
    return pack({"warps": 8, "rows": 8 if k <= 2 * WIDEST else 4 if k <= 4 * WIDEST else 2})


def _warps(rows: int, columns: int) -> int:
    """The setting of a list in any order."""
    if columns == 1:
        return pack({"warps": 4, "rows": 4 * (rows > 1)} if rows <= LOW else {"warps": 1})
    return pack({"warps": 8 if rows <= LOW // 2 else 4})


def _by_list(shape: tuple[int, ...], tile: Tile, grouped: bool) -> bool:
    """Whether a GPU makes each list of x by a program of its own, where rows of x lie side by side."""
    rows, columns = (t or 0 for t in tile)
    return grouped and one_pass(grid_of(shape, tile)[0], rows, columns)


def _few(_: str, held: list[Tensor]) -> list[int]:
    return [FEW] if backend_of(held[0].device) == "c" else []


def _product(sizes: tuple[int, ...]) -> int:
    made = 1
    for n in sizes:
        made *= n
    return made


def _check_tile(tile: Any, where: str) -> None:
    ok = isinstance(tile, tuple) and len(tile) == 2 and tile != (None, None)
    if not ok or any(t is not None and (not isinstance(t, int) or t < 1) for t in tile):
        raise error(
            "argument",
            where=where,
            name="tile",
            got=tile,
            expected="(rows, columns), each a number or None for all",
        )


def _check_whole(t: Any, rank: int, name: str, where: str) -> None:
    check_dense(where, name, t, rank, device_of(t), name, floating=False)
    if t.dtype not in (torch.int32, torch.int64):
        raise error("index-dtype", where=where, name=name, got=t.dtype)


def _check_count(n: int, name: str, where: str) -> None:
    if not isinstance(n, int | torch.SymInt | np.integer) or n < 0:
        raise error("argument", where=where, name=name, got=n, expected="a whole number, 0 or more")
