"""Products over lists: y[i, n] = sum(k, x[i, k] * w[n, k]) where one axis runs over what a list names, with gradients.

In: the axis, how many of its values an entry stands for, and whose values have lists of their own. What is not listed
is no part of the computation: it gets no gradient (`ops/found.py` has lists of what is not 0). Out: registered
programs, and calls of them.

    name = listed_product("k", 1, 32)        # for each 32 rows of x, the k's that their list names
    y = times(name, {"x": x, "w": w, "k_list": positions, "k_count": counts})

A bias is added where the sums are stored: y[i, n] = sum(...) + b[n]; rows that are not named begin as b. With `packed`,
what lists name of x comes side by side (`ops/packing.py`); x then only serves gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from tilewright.ir.coord import Assign, spatial
from tilewright.ir.expr import Expr, Load, const
from tilewright.language import functions as fn
from tilewright.language.grad import Gradient
from tilewright.language.trace import Param, Ref, Traced, axes, trace
from tilewright.ops.again import again
from tilewright.ops.args import dense_text
from tilewright.ops.backend import backend_of
from tilewright.ops.block_tiles import BUSY, WIDTHS
from tilewright.ops.packing import from_packed
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.ops.subject import DENSE, chosen
from tilewright.pit.compact import Group, compact
from tilewright.schedule.default_triton import NARROW
from tilewright.schedule.options import CORES, Setting

LARGE: Setting = {"bm": 128, "bn": 256, "bk": 64, "group": 8, "warps": 8, "stages": 4}
MIDDLE: Setting = {"bm": 128, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 6}
SMALL: Setting = {"bm": 64, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 7}
# 32 bits: sums of lanes, without tensor cores
LANES: Setting = {"bm": 64, "bn": 128, "bk": 32, "group": 8, "warps": 8, "stages": 3}
FEW_LANES: Setting = {"bm": 64, "bn": 64, "bk": 32, "group": 8, "warps": 4, "stages": 3}
SPLIT: Setting = {**LANES, "pieces": 8}  # sums of few tiles in pieces
# For listed rows, by the bytes of a number: tiles, and the microseconds that a wave of them takes for 64 k's, of
# products of up to 8192 k's and of longer ones (H200)
FEW: Setting = {"bm": 64, "bn": 64, "bk": 64, "group": 8, "warps": 4, "stages": 7}
DEEP: Setting = {"bm": 64, "bn": 128, "bk": 128, "group": 8, "warps": 4, "stages": 4}
LOW: Setting = {"bm": 64, "bn": 256, "bk": 64, "group": 8, "warps": 4, "stages": 4}
AFTER: Setting = {**FEW, "pieces": 1}  # tile after tile: most programs would find nothing to do
ENDED: Setting = {**LARGE, "tail": 64}  # a short last tile begins no wave of its own
TIMED = {
    2: (
        (FEW, 0.22, 0.22),
        (AFTER, 0.29, 0.29),
        (DEEP, 0.31, 0.31),
        (LOW, 0.43, 0.4),
        (MIDDLE, 0.41, 0.45),
        (ENDED, 0.72, 0.72),
    ),
    4: ((FEW_LANES, 1.62, 1.62), (LANES, 3.1, 3.1), (SPLIT, 3.1, 3.1)),
}
STEP, LONG = 64, 8192
SKIPPED_US = 0.25  # of a wave of programs that find nothing to do
SPLIT_US = 32.0  # that joining pieces takes
NARROW_US, ALONE_US = 0.17, 0.26  # of a part of a short last tile, for 64 k's; of an only tile
# Over lists of k's. The list is read ahead of what it names, which takes two of the stages; by the rows of a list.
K_LISTS: dict[int, Setting] = {
    32: {"bm": 32, "bn": 128, "bk": 32, "group": 64, "warps": 4, "stages": 2},
    64: {"bm": 64, "bn": 64, "bk": 32, "group": 8, "warps": 4, "stages": 5},
    128: {"bm": 128, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 5},
}
LANE_LISTS: Setting = {"bm": 32, "bn": 128, "bk": 16, "group": 8, "warps": 4, "stages": 3}
WIDE_LISTS: Setting = {**LARGE, "warps": 4, "stages": 4}  # short lists want many programs at once
WIDE = 64  # k's for an entry of a list, from which on each is a step


def listed_linear(x: Param, w: Param, y: Param) -> None:
    i, n, k = axes("i n k")
    y[i, n] = fn.sum(k, x[i, k] * w[n, k])


def listed_linear_to_x(d_y: Param, w: Param, d_x: Param) -> None:
    i, n, k = axes("i n k")
    d_x[i, k] = fn.sum(n, d_y[i, n] * w[n, k])


def listed_linear_to_w(d_y: Param, x: Param, d_w: Param) -> None:
    i, n, k = axes("i n k")
    d_w[n, k] = fn.sum(i, d_y[i, n] * x[i, k])


def listed_linear_kept(x: Param, x_kept: Param) -> None:
    i, k = axes("i k")
    x_kept[i, k] = x[i, k]


def listed_linear_to_w_kept(d_y: Param, x_kept: Param, d_w: Param) -> None:
    i, n, k = axes("i n k")
    d_w[n, k] = fn.sum(i, d_y[i, n] * x_kept[i, k])


def listed_linear_to_b(d_y: Param, d_b: Param) -> None:
    i, n = axes("i n")
    d_b[n] = fn.sum(i, d_y[i, n])


def _served(program: Callable[..., None]) -> Traced:
    return replace(trace(program), vendor=True)


PRODUCT, TO_X, TO_W = map(_served, (listed_linear, listed_linear_to_x, listed_linear_to_w))
TO_B = _served(listed_linear_to_b)
KEPT, TO_W_KEPT = trace(listed_linear_kept), _served(listed_linear_to_w_kept)


def listed_product(
    axis: str,
    tile: int = 1,
    size: int = 0,
    *,
    packed: bool = False,
    biased: bool = False,
) -> str:
    """The name of the product over a list of an axis (i, n or k); of k, over a list for each `size` rows of x."""
    return _listed_product(axis, tile, size, packed, biased)


@cache
def _listed_product(axis: str, tile: int, size: int, packed: bool, biased: bool) -> str:
    group: Group | None = ("i", size) if size else None
    made = compact(PRODUCT, axis, "w" if axis == "n" else "x", tile, group)
    if axis == "k":
        gradient = _of_k(tile, group)
    elif axis == "i":
        of_x, of_w = compact(TO_X, "i", "d_y", tile), compact(TO_W, "i", "x", tile)
        gradient = Gradient((), {"x": (of_x,), "w": (of_w,)})
    else:
        of_x, of_w = compact(TO_X, "n", "w", tile), compact(TO_W, "n", "d_y", tile)
        gradient = Gradient((), {"x": (of_x,), "w": (of_w,)})
    made = from_packed(made) if packed else made
    return _registered(made, gradient, biased)


def _registered(made: Traced, gradient: Gradient, biased: bool) -> str:
    """The name of the product; the one without a bias is what is tuned."""
    plain = register(made, gradient)
    if not biased:
        return plain.traced.name
    return register(with_bias(made), biased_gradient(gradient)).traced.name


def biased_gradient(of: Gradient) -> Gradient:
    """The gradients of a product with those of its bias: b is in every row, named or not."""
    return replace(of, of={**of.of, "b": (TO_B,)})


def with_bias(t: Traced) -> Traced:
    """y[i, n] = v  ->  y[i, n] = v + b[n], and where only some of y is named y[i, n] = b[n] before it"""
    (s,) = t.body
    assert isinstance(s, Assign)
    b, y = Ref("b"), s.targets[0]
    made = replace(
        t,
        name=f"{t.name}_biased",
        params=(*t.inputs, b.name, *t.outputs),
        inputs=(*t.inputs, b.name),
        refs=(*t.refs, b),
        body=(replace(s, values=(s.values[0] + Load(b, (y.indices[1],)),)),),
    )
    if not t.unique and not any(n.index in spatial(s) for n in s.listed):
        return made
    return _begun(made, y.buffer, lambda n: Load(b, (n,)))


def with_zeros(t: Traced) -> Traced:
    """y[i, n] = v for some i  ->  y[i, n] = 0 for all of them before it"""
    (s,) = t.body
    assert isinstance(s, Assign)
    return _begun(t, s.targets[0].buffer, lambda _: const(0.0))


def _begun(t: Traced, y: Any, value: Callable[[Any], Expr]) -> Traced:
    i, n = axes("i n")
    begun = Assign((Load(y, (i, n)),), (value(n),))
    return replace(t, body=(begun, *t.body), sized=((y.name, (("x", 0), ("w", 0))),))


def _of_k(tile: int, group: Group | None) -> Gradient:
    """The gradients of a product over lists of k. Lists for groups of rows cut x, and w sees what is kept."""
    to_x = compact(TO_X, "k", None, tile, group)
    if group is None:
        return Gradient((), {"x": (to_x,), "w": (compact(TO_W, "k", None, tile),)})
    return Gradient((compact(KEPT, "k", None, tile, group),), {"x": (to_x,), "w": (TO_W_KEPT,)})


def masked_product(ns: int, k: int, ks: int, n: int, *, biased: bool = False) -> str:
    """The name of the product by a weight with a mask: k_list has, for each `ns` n's, entries that stand for `k` k's;
    n_list, which the gradient of x reads, has for each `ks` k's entries that stand for `n` n's."""
    return _masked_product(ns, k, ks, n, biased)


@cache
def _masked_product(ns: int, k: int, ks: int, n: int, biased: bool) -> str:
    made = compact(PRODUCT, "k", "w", k, ("n", ns))
    made = replace(made, name=f"{made.name}_masked")
    to_x = compact(TO_X, "n", "w", n, ("k", ks))
    to_w = compact(TO_W, "k", None, k, ("n", ns))
    return _registered(made, Gradient((), {"x": (to_x,), "w": (to_w,)}), biased)


listed_product._dynamo_marked_constant = True  # type: ignore[attr-defined]
masked_product._dynamo_marked_constant = True  # type: ignore[attr-defined]


def times(name: str, given: Mapping[str, Tensor], tile: int = 1, expected: int = 0) -> Tensor:
    """The product. given: operands and lists by name. tile: k's for an entry of a list. expected: rows, if known"""
    if not expected:
        return again(name, given, lambda *_: _packed(_chosen(name, given, tile)))[0]
    made = rows_tiles(given["x"], expected, given["w"].shape[0])
    asked = lambda *_: _packed(_chosen(name, given, tile, made))
    return again(name, given, asked, kind=tuple(made.values()))[0]


def arguments(
    name: str,
    given: Mapping[str, Tensor],
    setting: Setting | None = None,
    tile: int = 1,
    expected: int = 0,
) -> tuple[str, list[Tensor], list[int]]:
    """What the registered operator gets for it."""
    if setting is None:
        made = rows_tiles(given["x"], expected, given["w"].shape[0]) if expected else None
        setting = _chosen(name, given, tile, made)
    return dense_text(name, given), list(given.values()), _packed(setting)


def _packed(setting: Setting) -> list[int]:
    return [pack(setting)] if setting else []


def _chosen(
    name: str, given: Mapping[str, Tensor], tile: int, made: Setting | None = None
) -> Setting:
    """What was measured for such a product, or the usual; a bias makes no difference."""
    x = given["x"]
    if backend_of(x.device) != "triton":
        return {}
    if made is None and "k_list" in given:
        made = _k_lists(given, tile)
    elif made is None:
        made = rows_tiles(x, x.shape[0], given["w"].shape[0])
    if torch.compiler.is_compiling():
        return made
    plain = {n: t for n, t in given.items() if n != "b"}
    text, tensors = dense_text(name.removesuffix("_biased"), plain), list(plain.values())
    at = (text, tuple([t.shape for t in tensors]), x.get_device(), tuple(made.values()))
    choice = DENSE.get(at) or chosen(DENSE, at, text, tensors, None, made)
    return choice.setting


def _k_lists(given: Mapping[str, Tensor], tile: int) -> Setting:
    """Tiles over lists of k's: where an entry is a step, as wide as leaves enough programs."""
    lists, columns, dtype = given["k_count"].shape[0], given["w"].shape[0], given["x"].dtype
    if tile < WIDE or dtype.itemsize != 2:
        return k_lists(dtype, given["x"].shape[0], lists)
    fits = [n for n in WIDTHS if lists * -(-columns // n) >= BUSY]
    return {**WIDE_LISTS, "bn": fits[0] if fits else WIDTHS[-1]}


def k_lists(dtype: torch.dtype, rows: int, lists: int) -> Setting:
    """Tiles over lists of single k's: as high as the rows that share a list, or as the nearest that was measured."""
    if dtype.itemsize != 2:
        return LANE_LISTS if dtype == torch.float32 else {}
    for high, made in K_LISTS.items():
        if rows <= lists * high:
            return made
    return K_LISTS[128]


def rows_tiles(x: Tensor, rows: int, columns: int, room: int | None = None) -> Setting:
    """Tiles for some rows of x, in whole waves over the multiprocessors; room: rows that programs are launched for."""
    size = x.dtype.itemsize
    if backend_of(x.device) != "triton" or size not in TIMED or torch.compiler.is_compiling():
        return usual(x, rows, columns)
    return _in_waves(size, rows, columns, x.shape[1], x.shape[0] if room is None else room)


@lru_cache(4096)
def _in_waves(size: int, rows: int, columns: int, inner: int, room: int) -> Setting:
    def us(made: Setting, short: float, long: float) -> float:
        across = -(-columns // made["bn"])
        wave = short if inner <= LONG else long
        if made.get("pieces", 1) > 1:
            tiles = -(-rows // made["bm"]) * across
            return tiles / CORES * wave * inner / STEP + SPLIT_US
        programs = 0 if made.get("pieces") else -(-room // made["bm"]) * across
        return _waves_us(made, wave, rows, across) * inner / STEP + programs / CORES * SKIPPED_US

    made = min(TIMED[size], key=lambda t: us(*t))[0]
    if made in (FEW, FEW_LANES) and rows <= made["bm"]:  # those with rows would lie between others
        return {**made, "group": 1}
    return made


def _waves_us(made: Setting, wave: float, rows: int, across: int) -> float:
    """Whole waves of tiles; a short row of them behind goes where the last wave leaves room, or after it by parts."""
    tiles, (whole, left) = -(-rows // made["bm"]) * across, divmod(rows, made["bm"])
    waves = -(-tiles // CORES)
    before = -(-whole * across // CORES)
    if not 0 < left <= made.get("tail", 0) or before == waves:
        return waves * wave
    parts, room = across * made["bn"] // NARROW, before * CORES - whole * across
    if not whole:
        return -(-parts // CORES) * ALONE_US
    after = max(parts - room * int(wave / NARROW_US), 0)
    return before * wave + -(-after // CORES) * NARROW_US


def usual(x: Tensor, rows: int, columns: int) -> Setting:
    """The smallest tiles of which a device has all in work at once, or large ones."""
    if backend_of(x.device) != "triton":
        return {}
    if x.dtype == torch.float32:
        if torch.compiler.is_compiling():  # one graph for all sizes
            return LANES
        few = -(-rows // FEW_LANES["bm"]) * -(-columns // FEW_LANES["bn"]) <= BUSY // 4
        return FEW_LANES if few else LANES
    if x.dtype.itemsize != 2:
        return {}
    for made in (SMALL, MIDDLE):
        if -(-rows // made["bm"]) * -(-columns // made["bn"]) <= BUSY:
            return made
    return LARGE
