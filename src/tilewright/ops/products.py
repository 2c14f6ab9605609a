"""Products over lists: y[i, n] = sum(k, x[i, k] * w[n, k]) where one axis runs over what a list names, with gradients.

In: the axis, how many of its values an entry stands for, whose values have lists of their own, and what the list means.
Out: registered programs, and calls of them.

    given       what is not listed is no part of the computation: it gets no gradient
    detected    what is not listed is 0: gradients are those of the whole product

    name = listed_product("k", 1, 32)        # for each 32 rows of x, the k's that their list names
    y = run(*arguments(name, x, w, {"k_list": positions, "k_count": counts}))[0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from torch import Tensor

from tilewright.language import functions as fn
from tilewright.language.grad import Gradient
from tilewright.language.trace import Param, Traced, axes, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend_of
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.pit.compact import Group, compact
from tilewright.schedule.options import Setting

LARGE: Setting = {"bm": 128, "bn": 256, "bk": 64, "group": 8, "warps": 8, "stages": 4}
SMALL: Setting = {"bm": 64, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 4}
# The list is read ahead of what it names, which takes two of the stages.
K_LISTS: Setting = {**LARGE, "stages": 5}
MANY = 1024  # rows, from which on tiles are large


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


def _served(program: Callable[..., None]) -> Traced:
    return replace(trace(program), vendor=True)


PRODUCT, TO_X, TO_W = map(_served, (listed_linear, listed_linear_to_x, listed_linear_to_w))
KEPT, TO_W_KEPT = trace(listed_linear_kept), _served(listed_linear_to_w_kept)


def listed_product(axis: str, tile: int = 1, size: int = 0, detected: bool = False) -> str:
    """The name of the product over a list of an axis (i, n or k); of k, over a list for each `size` rows of x."""
    return _listed_product(axis, tile, size, detected)


@cache
def _listed_product(axis: str, tile: int, size: int, detected: bool) -> str:
    group: Group | None = ("i", size) if size else None
    made = compact(PRODUCT, axis, "w" if axis == "n" else "x", tile, group)
    if axis == "k":
        gradient = _of_k(tile, group, detected)
    elif axis == "i":
        to_x = TO_X if detected else compact(TO_X, "i", "d_y", tile)
        gradient = Gradient((), {"x": (to_x,), "w": (compact(TO_W, "i", "x", tile),)})
    else:
        to_w = TO_W if detected else compact(TO_W, "n", "d_y", tile)
        gradient = Gradient((), {"x": (compact(TO_X, "n", "w", tile),), "w": (to_w,)})
    named = replace(made, name=made.name + ("_detected" if detected else ""))
    register(named, gradient)
    return named.name


def _of_k(tile: int, group: Group | None, detected: bool) -> Gradient:
    """The gradients of a product over lists of k. Lists given for groups of rows cut x, and w sees what is kept."""
    if detected:
        to_w = TO_W if group else compact(TO_W, "k", "x", tile)
        return Gradient((), {"x": (TO_X,), "w": (to_w,)})
    to_x = compact(TO_X, "k", None, tile, group)
    if group is None:
        return Gradient((), {"x": (to_x,), "w": (compact(TO_W, "k", None, tile),)})
    return Gradient((compact(KEPT, "k", None, tile, group),), {"x": (to_x,), "w": (TO_W_KEPT,)})


def masked_product(ns: int, k: int, ks: int, n: int) -> str:
    """The name of the product by a weight with a mask: k_list has, for each `ns` n's, entries that stand for `k` k's;
    n_list, which the gradient of x reads, has for each `ks` k's entries that stand for `n` n's."""
    return _masked_product(ns, k, ks, n)


@cache
def _masked_product(ns: int, k: int, ks: int, n: int) -> str:
    made = compact(PRODUCT, "k", "w", k, ("n", ns))
    made = replace(made, name=f"{made.name}_masked")
    to_x = compact(TO_X, "n", "w", n, ("k", ks))
    to_w = compact(TO_W, "k", None, k, ("n", ns))
    register(made, Gradient((), {"x": (to_x,), "w": (to_w,)}))
    return made.name


listed_product._dynamo_marked_constant = True  # type: ignore[attr-defined]
masked_product._dynamo_marked_constant = True  # type: ignore[attr-defined]


def arguments(
    name: str, x: Tensor, w: Tensor, lists: Mapping[str, Tensor], setting: Setting | None = None
) -> tuple[str, list[Tensor], list[int]]:
    """What the registered operator gets."""
    given = {"x": x, "w": w, **{n: t.contiguous() for n, t in lists.items()}}
    text = program_text(name, tuple(dense_arg(n, t) for n, t in given.items()))
    if setting is None:
        setting = usual(x, x.shape[0], "k_list" in lists)
    return text, list(given.values()), [pack(setting)] if setting else []


def usual(x: Tensor, rows: int, k_lists: bool = False) -> Setting:
    """Tiles by the number of rows."""
    if backend_of(x.device) != "triton" or x.dtype.itemsize != 2:
        return {}
    if k_lists:
        return K_LISTS
    return LARGE if rows >= MANY else SMALL


def k_major(t: Tensor) -> Tensor:
    """The same matrix [rows, k] with all rows of one k side by side, as GPUs gather k's."""
    if backend_of(t.device) != "triton" or t.stride(0) == 1:
        return t
    return t.t().contiguous().t()
