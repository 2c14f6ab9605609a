"""y = x @ w.T + b over zeros of x that change from call to call: dense, or the family that suits them.

In: x [..., k], w [n, k], b [n]. `auto` chooses (`pit/choice.py`) between torch's dense product and the families of
`ops/families.py`, from what earlier calls of the same sizes found. Out: y, with the gradients of the dense product:
a value that is 0 has one too.

    y = tw.linear.auto(x, w, b)
    y = tw.linear.auto(h, w, b, index=index)  # where an index of all that is not 0 is there already: it, or dense
    print(tw.linear.auto.explain(x, w))       # what such calls use now, and why

All families are looked for in the first call and in every 32nd after it; the one in use tells what it found in
every eighth. On a GPU the numbers arrive while later calls run, so the first calls are dense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.dtypes import name_of
from tilewright.ops.families import FAMILIES, Family
from tilewright.ops.index import Index
from tilewright.ops.library import plainly, wants_grad
from tilewright.ops.linear import check_operands, linear
from tilewright.ops.pattern import Pattern
from tilewright.pit.choice import Chooser, Site, Statistics
from tilewright.pit.tiles import Costs, costs_of, estimated
from tilewright.pit.watch import Watch
from tilewright.support.errors import error
from tilewright.support.places import public
from tilewright.tune.machine import device_name, machine_of


@public
def auto(x: Tensor, w: Tensor, b: Tensor | None = None, *, index: Index | None = None) -> Tensor:
    """y = x @ w.T + b, skipping zeros of x where that is expected to pay.

    x: [..., k]; w: [n, k]; b: [n]. A family does not multiply what is 0 in x, whatever w holds there. Inside
    torch.compile, under autocast and transforms the product is dense; a CUDA graph keeps what was chosen before.

    index: of rows, or for each group of rows of its k's or blocks of them, that names all of x that is not 0, as
    `tw.ops.linear_relu` makes it. Nothing is looked for then; the choice is between it and dense.

    >>> y = auto(torch.relu(h), w, b)
    """
    _check(x, w, b)
    flat = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    given = "" if index is None else _given(index, flat)
    if x.numel() == 0 or w.numel() == 0 or not _ordinary(x, w):
        return functional.linear(x, w, b)
    plan = _chosen(flat.detach(), w) if index is None else _kept(flat, w, index, given)
    if plan is None:
        return functional.linear(x, w, b)
    grad = wants_grad((x, w) if b is None else (x, w, b))
    y = _Product.apply(flat, w, b, plan) if grad else plan.run(flat, w, b)
    return y.view(*x.shape[:-1], w.shape[0])


@public
def explain(x: Tensor, w: Tensor, index: Index | None = None) -> str:
    """What calls of these sizes use now, and why."""
    _check(x, w, None)
    flat = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    given = "" if index is None else _given(index, flat)
    return CHOOSER.explain(_place(flat, w, given, index).site)


auto.explain = explain  # type: ignore[attr-defined]
linear.auto = auto  # type: ignore[attr-defined]


def _ordinary(x: Tensor, w: Tensor) -> bool:
    return plainly((x, w)) and not torch.is_autocast_enabled(x.device.type)


def _check(x: Tensor, w: Tensor, b: Tensor | None) -> None:
    where = "linear.auto(x, w, b)"
    check_operands(x, w, b, where, least=1)
    for name, t in (("w", w), ("b", b)):
        if t is not None and t.dtype != x.dtype and _ordinary(x, w):
            raise error("dtype", where=where, name=name, got=t.dtype, expected=f"{x.dtype}, as x")


def _given(index: Index, x: Tensor) -> str:
    """The family that multiplies over an index of x."""
    where = "linear.auto(x, w, b, index=...)"
    if not isinstance(index, Index):
        expected = "a tw.Index of x"
        raise error("argument", where=where, name="index", got=repr(index), expected=expected)
    lists = index.positions.dim() == 2
    if index.ends is not None or (not lists and index.tile[1] is not None):
        expected = "an index of rows, or of columns for each group of rows (grouped=True)"
        raise error("argument", where=where, name="index", got=index, expected=expected)
    Pattern.given(index, x, where, "index")
    return "rows" if not lists else "k" if index.tile[1] == 1 else "blocks"


class _Product(torch.autograd.Function):
    """A family's product; its gradient is the dense one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, plan: Plan) -> Tensor:
        ctx.save_for_backward(x, w)
        return plan.run(x, w, b)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w = ctx.saved_tensors
        dx = grads[0] @ w if ctx.needs_input_grad[0] else None
        dw = grads[0].t() @ x if ctx.needs_input_grad[1] else None
        db = grads[0].sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None


# --- the choice of a call -------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A family for one call: over an index, or over what it finds itself, about `expected` micro-tiles. told: is told
    what was found."""

    family: Family
    index: Index | None = None
    expected: int = 0
    told: Callable[[Index], None] | None = None

    def run(self, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        if self.index is not None:
            made: Tensor = self.family.run(x, w, self.index, b)
            return made
        made, index = self.family.found(x, w, b, self.expected)
        if self.told is not None:
            self.told(index)
        return made


@dataclass
class _Place:
    """A call site, what is known of it, the device that its name stands for, and the family of its next call."""

    site: Site
    watch: Watch
    device: torch.device
    family: Family | None = None
    expected: int = 0  # positions, by the numbers that the choice was made from

    def choose(self, seen: Statistics) -> None:
        self.family = FAMILIES.get(CHOOSER(self.site, seen))
        self.expected = seen[self.family.name].kept if self.family is not None else 0

    def frozen(self, w: Tensor, index: Index | None = None) -> Plan | None:
        """Inside a CUDA graph: as before, unless single k's are gathered and each replay would copy w for them."""
        if self.family is None or (self.family.name == "k" and w.stride(0) != 1):
            return None
        return self.plan(index)

    def plan(
        self, index: Index | None = None, told: Callable[[Index], None] | None = None
    ) -> Plan | None:
        """By the family in use; None for dense."""
        if self.family is None:
            return None
        held = None if index is None else replace(index, expected=self.expected)
        return Plan(self.family, held, self.expected, told)


_PLACES: dict[Any, _Place] = {}
_DEVICES: dict[str, torch.device] = {}
REMEMBERED = 4096


def _place(x: Tensor, w: Tensor, given: str = "", index: Index | None = None) -> _Place:
    tile = None if index is None else index.tile
    key = (x.shape, w.shape[0], x.dtype, x.device, cpu_backend(), given, tile)
    made = _PLACES.get(key)
    if made is None:
        if len(_PLACES) >= REMEMBERED:
            _PLACES.clear()
        name = device_name(x.device, backend_of(x.device))
        _DEVICES[name] = x.device
        if tile is not None:
            given = f"{given} of {' x '.join('all' if t is None else str(t) for t in tile)}"
        site = Site("linear", x.shape[0], w.shape[0], x.shape[1], name_of(x.dtype), name, given)
        made = _PLACES[key] = _Place(site, Watch(), x.device)
    return made


def costs_on(device: torch.device, dtype: str) -> Costs:
    """What tiles take on a device, by the IR's name of a dtype."""
    made = lambda: estimated(machine_of(device), dtype, device.type == "cuda")
    return costs_of(device_name(device, backend_of(device)), dtype, made)


CHOOSER = Chooser(lambda site: costs_on(_DEVICES[site.device], site.dtype))


def forget() -> None:
    """Calls of every size are new again."""
    _PLACES.clear()
    CHOOSER.made.clear()


def _chosen(x: Tensor, w: Tensor) -> Plan | None:
    """The plan of this call; None for dense. Nothing is asked of the device while it captures."""
    place = _place(x, w)
    watch = place.watch
    if place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return place.frozen(w)
    found = {f.name: f.detect(x) for f in FAMILIES.values()} if watch.due() else {}
    for name, made in found.items():
        _tell(watch, name, made)
    if watch.news():
        place.choose(watch.seen())
    if place.family is None:
        return None
    name = place.family.name
    telling = name not in found and watch.telling()
    return place.plan(found.get(name), partial(_tell, watch, name) if telling else None)


def _kept(x: Tensor, w: Tensor, index: Index, given: str) -> Plan | None:
    """The same where an index came along: its family, or None."""
    place = _place(x, w, given, index)
    watch = place.watch
    if place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return place.frozen(w, index)
    if watch.due() or watch.telling():
        _tell(watch, given, index)
    if watch.news():
        place.choose(watch.seen())
    return place.plan(index)


def _tell(watch: Watch, family: str, index: Index) -> None:
    watch.send(family, index.counts, prod(index.grid), index.grid[0])
