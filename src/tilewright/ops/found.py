"""Products that find what they skip: detector, lists and product are the statements of one program.

In: x [rows, k], w [n, k], b [n] or nothing, and the axis to look along. Out: y = x @ w.T + b, with the gradients of the
whole product: nothing but zeros is skipped.

    i    rows of x that are not all 0                        append(i_list); y[i, n] = b[n]; y[i, n] = ... for i listed
                                                             (on GPUs the first two are one launch)
    k    for each 32 rows of x, the k's where one is not 0   append(k_list); x_packed[p, i] = x[i, k]; y[i, n] = ...
    n    rows of w that are not all 0                        append(n_list); y[i, n] = ... for n listed

    y = found_product("k", x, w, b)
    index = found_lists(x)                    # the lists alone, for a product of x that follows

What a list of k's names is packed, unless x has its k's side by side already. Lists of k's on GPUs are made in one pass
or, where they are few, of flags; so are those of up to 8192 rows where their order matters: on CPUs, and where
gradients add them up. Other rows come in any order; if torch asks for deterministic algorithms, gradients leave out
nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from tilewright.ir.node import substitute
from tilewright.language.grad import Gradient
from tilewright.language.trace import Ref, Traced
from tilewright.ops.again import again
from tilewright.ops.backend import backend_of
from tilewright.ops.index import FEW, Index, one_pass_by, rows_by, straight
from tilewright.ops.kept import multiplied
from tilewright.ops.library import wants_grad
from tilewright.ops.packing import apart, from_packed, packing, places
from tilewright.ops.products import (
    PRODUCT,
    TO_W,
    TO_X,
    biased_gradient,
    k_lists,
    rows_tiles,
    with_bias,
    with_zeros,
)
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.pit.compact import compact
from tilewright.pit.detect import ALONE, flags, one_pass, raised, tiles

GROUP = 32  # rows that share a list of k's


def found_product(axis: str, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x @ w.T + b, of which only what x (for n: w) holds along an axis is computed."""
    if b is not None and not x.dtype == w.dtype == b.dtype:
        return found_product(axis, x, w) + b
    packed = axis == "k" and apart(x)
    given = {"x": x, "w": multiplied(w, axis)}
    if b is not None:
        given["b"] = b
    flagged = _flagged(axis, x, w)
    whole = axis == "k" or (not flagged and torch.are_deterministic_algorithms_enabled())
    begun = axis == "i" and not flagged and backend_of(x.device) == "triton"
    name, before = _program(axis, packed, b is not None, flagged, whole, begun)
    return again(name, given, lambda *_: _settings(axis, x, w.shape[0], before, packed))[0]


def found_rows(
    x: Tensor, w: Tensor, b: Tensor | None = None, expected: int = 0
) -> tuple[Tensor, Index]:
    """x @ w.T + b on a GPU, computed for the rows of x that are not all 0, and the index of these; without gradients.

    Operands have one dtype; rows begin as b (or 0) in the launch that looks at them. expected: about how many are found
    """
    given = {"x": x, "w": multiplied(w, "i")} | ({} if b is None else {"b": b})
    name, _ = _program("i", False, b is not None, False, True, True)
    product = rows_tiles(x, expected or x.shape[0], w.shape[0])
    asked = lambda *_: [rows_by(x), pack(product)]
    y, positions, counts = again(name, given, asked, kind=tuple(product.values()))
    return y, Index(positions, counts, tuple(x.shape), (1, None), False)


def found_lists(x: Tensor) -> Index:
    """For each 32 rows of x the k's where one is not 0; with what they name of x, where one launch makes both."""
    if backend_of(x.device) != "triton" or not (apart(x) and _in_one_pass(x)):
        return Index.from_values(x, (GROUP, 1), grouped=True)
    asked = lambda *_: [one_pass_by(x, GROUP)]
    packed, positions, counts = again(_packed_lists(), {"x": x.detach()}, asked)
    return Index(positions, counts, tuple(x.shape), (GROUP, 1), packed=packed)


@cache
def _packed_lists() -> str:
    lists = _renamed(tiles(GROUP, 1, grouped=True), {"found": "k_list", "count": "k_count"})
    made = _joined(f"packed_lists_for_{GROUP}", [packing(GROUP), lists])
    return register(made).traced.name


def _flagged(axis: str, x: Tensor, w: Tensor) -> bool:
    """Whether lists are made of flags, in order. On a GPU whole rows are not, unless a gradient adds them up."""
    gpu = backend_of(x.device) == "triton"
    if axis == "k":
        return gpu and not _in_one_pass(x)
    if gpu and not wants_grad((x, w)):
        return False
    return True if (w if axis == "n" else x).shape[0] <= ALONE else False  # noqa: SIM210 - a branch


def _in_one_pass(x: Tensor) -> bool:
    return straight(x) and one_pass(-(-x.shape[0] // GROUP), GROUP)


def _settings(axis: str, x: Tensor, columns: int, before: int, packed: bool) -> list[int]:
    """One for each launch, the product's after those before it; on a CPU one for all."""
    if backend_of(x.device) == "c":
        return [FEW]
    product = pack(
        k_lists(x.dtype, GROUP, 1) if axis == "k" else rows_tiles(x, x.shape[0], columns)
    )
    if axis == "k" and _in_one_pass(x):
        return [one_pass_by(x, GROUP), product]
    if axis == "i" and before == 1:
        return [rows_by(x), product]
    return [*[0] * (before - packed), *[places(x, GROUP)] * packed, product]


def _program(
    axis: str, packed: bool, biased: bool, flagged: bool, whole: bool, begun: bool
) -> tuple[str, int]:
    """The name of a program, and how many launches come before the product; constants to torch.compile."""
    return _registered(axis, packed, biased, flagged, whole, begun)


_program._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _registered(
    axis: str, packed: bool, biased: bool, flagged: bool, whole: bool, begun: bool
) -> tuple[str, int]:
    of, lists = "w" if axis == "n" else "x", (f"{axis}_list", f"{axis}_count")
    names = {"x": of, "found": lists[0], "count": lists[1]}
    parts = [_renamed(t, names) for t in _detectors(axis, flagged)]
    product = compact(PRODUCT, axis, of, 1, ("i", GROUP) if axis == "k" else None)
    if packed:
        parts.append(packing(GROUP))
        product = from_packed(product)
    gradient = _WHOLE if whole else _gradient(axis, lists)
    if biased:
        product, gradient = with_bias(product), biased_gradient(gradient)
    elif begun:
        product = with_zeros(product)
    name = f"{product.name}_found{'_by_flags' * flagged}{'_whole' * (whole and axis != 'k')}"
    made = register(_joined(f"{name}{'_begun' * begun}", [product, *parts]), gradient)
    return made.traced.name, len(made.joined) - 1


def _detectors(axis: str, flagged: bool) -> list[Traced]:
    """What lists the rows, or the k's of groups of rows: of flags, or of the operand itself."""
    if axis == "k":
        return [flags(GROUP, 1, grouped=True) if flagged else tiles(GROUP, 1, grouped=True)]
    return [flags(1, 0), raised()] if flagged else [tiles(1, 0, ordered=False)]


_WHOLE = Gradient((), {"x": (TO_X,), "w": (TO_W,)})


def _gradient(axis: str, lists: tuple[str, str]) -> Gradient:
    """Those of the whole product; where rows of an operand are 0, so are their products."""
    if axis == "i":
        return Gradient((), {"x": (TO_X,), "w": (compact(TO_W, "i", "x"),)}, lists)
    return Gradient((), {"x": (compact(TO_X, "n", "w"),), "w": (TO_W,)}, lists)


def _renamed(t: Traced, names: Mapping[str, str]) -> Traced:
    table = {r: Ref(names.get(r.name, r.name), r.dtype) for r in t.refs}
    new = lambda old: tuple(names.get(n, n) for n in old)
    return replace(
        t,
        params=new(t.params),
        inputs=new(t.inputs),
        outputs=new(t.outputs),
        refs=tuple(table.values()),
        body=substitute(t.body, table),
    )


def _joined(name: str, parts: list[Traced]) -> Traced:
    """One program of several: the first of them last; its outputs come first."""
    refs = {r.name: r for t in reversed(parts) for r in t.refs}
    outs = tuple(n for t in parts for n in t.outputs)
    inputs = tuple(dict.fromkeys(n for t in parts for n in t.inputs if n not in outs))
    ordered = sorted(inputs, key=("x", "w", "b").index)
    body = [
        s
        for t in (*parts[1:], parts[0])
        for s in substitute(t.body, {r: refs[r.name] for r in t.refs})
    ]
    return replace(
        parts[0],
        name=name,
        params=(*ordered, *outs),
        inputs=tuple(ordered),
        outputs=outs,
        refs=tuple(refs.values()),
        body=tuple(body),
        sized=tuple(d for t in parts for d in t.sized),
        typed=tuple(d for t in parts for d in t.typed),
    )
