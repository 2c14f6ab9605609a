"""A statement on real tensors: which kernel serves it, and running that.

In: tensors and integers by name. Out: its outputs. Kernels are kept by their key: settings, width classes,
alignment; never by sizes of structures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from tilewright import driver
from tilewright.analysis.domain import covers
from tilewright.formats.storage import stored_dims
from tilewright.ir.expr import Bin, Cast, Const, Expr, Var
from tilewright.ir.node import walk
from tilewright.ir.text import text
from tilewright.ops.backend import cores, on_device, precision
from tilewright.ops.dtypes import TORCH
from tilewright.ops.ready import Ready
from tilewright.ops.settings import ceil_pow2, feature_width, unpack
from tilewright.ops.statement import Statement
from tilewright.ops.vendor import Served, served
from tilewright.ops.views import derive_views
from tilewright.runtime import build_c
from tilewright.schedule.options import Setting, gather_registers
from tilewright.schedule.shape import block_product
from tilewright.support import knobs

EXACT = 512
NARROW = 1 << 31
UNTOLD = 1 << 30  # an extent that is no part of a kernel's key: longer than any tile
REMEMBERED = 4096
VECTOR = 16
WHOLE = 256  # a multiple of it is whole tiles
DEPTH = 64  # of one step of a product over thin blocks
DEEP = 16  # blocks that are a step of their own
EDGE_TILE = 1024  # numbers that a program makes where there is nothing to add up


PRODUCT = {"bm": 64, "bn": 64, "bk": 32, "group": 8, "warps": 4, "stages": 3}
HALF_PRODUCT = {"bm": 64, "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 4}


class Asked(NamedTuple):
    """What a Triton kernel is compiled for, beside its program: a setting, facts about sizes, widths that are known."""

    setting: tuple[tuple[str, int], ...]
    divisors: tuple[tuple[str, int], ...]
    exact: tuple[tuple[str, int], ...]
    small: bool
    aligned: bool
    precision: str


class Step(Statement):
    """A bound statement, ready to run on lists of tensors."""

    def begin(self) -> None:
        self.kernels: dict[tuple[Any, ...], Ready] = {}
        self.quick: dict[tuple[Any, ...], Ready] = {}

    def __call__(
        self,
        tensors: Sequence[Tensor],
        ints: Sequence[int],
        floats: Sequence[float],
        outs: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """Into new outputs, or into those that an earlier statement began."""
        if self.vendor is not None:
            named = dict(zip(self.names, tensors, strict=False))
            return [self.vendor(named) if outs is None else self.vendor(named, outs[0])]
        if self.missing:
            tensors = [*tensors, *self.derive(tensors, ints)]
        for piece in self.pieces:
            sizes = piece.sizes(tensors, ints)
            outs = piece.ready(ints, sizes).run(tensors, sizes, ints, floats, outs)
        assert outs is not None
        return outs

    @cached_property
    def vendor(self) -> Served | None:
        """The library's function, where it serves."""
        return served(self.traced, self.bound.program, self.backend)

    def ready(self, ints: Sequence[int], sizes: Sequence[int], aligned: bool = True) -> Ready:
        """The kernel for these sizes: found by the sizes that matter, else by what the compiler would be told.

        Addresses are taken to be multiples of 16; a launch that finds others asks again.
        """
        mark = self.mark(sizes)
        if self.backend == "triton":
            mark = (*mark, aligned, self.packed(ints), precision())
        else:
            mark = (*mark, self.packed(ints))
        made = self.quick.get(mark)
        if made is None:
            named = dict(zip(self.size_names, sizes, strict=True))
            with self.locating():
                made = self.find(self.packed(ints), named, aligned)
            if len(self.quick) >= REMEMBERED:
                self.quick.clear()
            self.quick[mark] = made
        return made

    def find(self, packed: int, sizes: dict[str, int], aligned: bool) -> Ready:
        """The kernel, made if there is none. What it is made for is its key: C knows exact widths up to 512, Triton
        a setting and classes of sizes."""
        if self.backend == "c":
            exact = {n: sizes[n] for n in self.widths if sizes[n] <= EXACT}
            key: tuple[Any, ...] = (*exact.items(), packed)
            return self.kernels.get(key) or self.keep(key, self.make_c(exact, packed))
        asked = self.asked(packed, sizes, aligned)
        return self.kernels.get(asked) or self.keep(asked, self.make_triton(asked))

    def keep(self, key: tuple[Any, ...], made: Ready) -> Ready:
        self.kernels[key] = made
        return made

    def asked(self, packed: int, sizes: dict[str, int], aligned: bool) -> Asked:
        setting = self.setting(unpack(packed), sizes)
        divisors = {n: d for n in self.narrow if (d := self.divisor(n, sizes[n])) > 1}
        divisors |= {n: b for n, b in self.blocked.items() if sizes[n] and sizes[n] % b == 0}
        exact = {n: sizes[n] for n in self.widths if _told_by_class(sizes[n])}
        small = all(sizes[n] < NARROW for n in self.narrow)
        facts = [tuple(sorted(made.items())) for made in (setting, divisors, exact)]
        return Asked(facts[0], facts[1], facts[2], small, aligned, precision())

    def divisor(self, name: str, size: int) -> int:
        """The class of a width; other lengths and strides have few classes, since they change from call to call."""
        made = divisor(size)
        if name in self.widths:
            return made
        if made < VECTOR or (name in self.plain and name != self.last):
            return 1
        return WHOLE if made >= WHOLE and name in self.coarse else VECTOR

    @cached_property
    def mark(self) -> Callable[[Sequence[int]], tuple[Any, ...]]:
        """The sizes that may change the kernel, as one generated function."""
        names = {*self.narrow, *self.blocked, *self.spans}
        at = [k for k, n in enumerate(self.size_names) if n in names]
        return eval(f"lambda s: ({''.join(f's[{k}], ' for k in at)})")

    @cached_property
    def narrow(self) -> list[str]:
        """Sizes that fit 32 bits when they are below 2**31: widths and strides."""
        strides = (r.size for r in self.bound.rules if r.stride)
        return [*self.widths, *self.coarse, *self.plain, *strides]

    @cached_property
    def spans(self) -> list[str]:
        """The sizes that a setting may be made for: of the last dense spatial loop, and of reductions."""
        loops = (*self.nest.free[-1:], *(r.loop for r in self.nest.reductions))
        return [n.name for n in walk(tuple(x.hi for x in loops)) if isinstance(n, Var)]

    def packed(self, ints: Sequence[int]) -> int:
        """The setting: that of a work list, or one for all statements, or several for one each."""
        at = self.setting_at
        several = self.lists is None and len(ints) > at + 1
        return ints[at + self.nth if several else at] if at < len(ints) else 0

    @cached_property
    def setting_at(self) -> int:
        if self.lists is not None:
            return self.int_names.index(f"{self.lists[0]}setting")
        return len(self.int_names)

    def make_c(self, exact: dict[str, int], packed: int) -> Ready:
        p = self.bound.program
        if knobs.fallback() and not build_c.available():
            return Ready(self, driver.compile_slow(p))
        table = f"{self.walked.removesuffix('indptr')}indices" if self.visits else ""
        asked = driver.COptions.of(unpack(packed))
        options = replace(asked, visit=table, vector=build_c.vector())
        return Ready(self, driver.compile_c(p, exact, options))

    def make_triton(self, asked: Asked) -> Ready:
        setting = dict(asked.setting)
        options = driver.TritonOptions(
            setting.get("warps", 4),
            setting.get("stages", 3),
            asked.precision,
            registers=self.registers(setting),
        )
        known: dict[str, Expr] = {n: Var(n, "i32") for n in self.narrow if asked.small}
        known |= {n: Const(v, "i32") for n, v in asked.exact}
        told = setting, dict(asked.divisors), known, asked.aligned
        with on_device(self.device):
            made = driver.compile_triton(self.bound.program, *told, None, options)
        return Ready(self, made, asked.aligned)

    def registers(self, setting: Setting) -> int | None:
        """The bound on registers: for rows from a list."""
        if self.lists is None or self.nest.rows is None:
            return None
        return gather_registers(setting, self.half)

    @property
    def kind(self) -> str:
        """The shape of the nest that a setting is for; empty where nothing is to be set."""
        if self.backend == "c":
            return "c"
        if self.product is not None:
            return "product"
        if self.nest.blocks:
            return "blocks"
        if self.nest.rows is not None:
            return "padded" if self.lists is None else "lists"
        return "entries" if self.nest.reductions else ""

    @cached_property
    def whole(self) -> int:
        """Whether tiles over blocks have all features: sums inside of sums do."""
        return int(any(r.depth for r in self.nest.reductions) or "softmax" in str(self.traced))

    @cached_property
    def last(self) -> str | None:
        """The size that the last dense spatial loop has."""
        return text(self.nest.free[-1].hi) if self.nest.free else None

    def span(self, sizes: dict[str, int]) -> int:
        """The extent of the last dense spatial loop."""
        return most(self.nest.free[-1].hi, sizes) if self.nest.free else 1

    def setting(self, given: Setting, sizes: dict[str, int]) -> Setting:
        """The given tile setting, with what it leaves open filled in from sizes."""
        made = dict(given)
        span = self.span(sizes)
        if self.product is not None:
            made = {**(HALF_PRODUCT if self.half else PRODUCT), **made}
            if (made.get("pieces") or made.get("tail")) and self.device >= 0:
                made["cores"] = cores(self.device)
        elif self.nest.blocks:
            made.setdefault("width", max(16, feature_width(span, self.half)))
            if not self.nest.reductions and "width" not in given:
                inside = max(int(b.hi.value) for b in self.nest.blocks)  # type: ignore[attr-defined]
                made["width"] = max(16, min(made["width"], EDGE_TILE // ceil_pow2(inside)))
            made.setdefault("whole", self.whole)
            if made["whole"]:
                made["width"] = max(16, ceil_pow2(span))
            held = block_product(self.nest)
            if held is not None and isinstance(held.loop.hi, Const):
                inside = int(held.loop.hi.value)
                made.setdefault("blocks", 1 if inside >= DEEP else max(1, DEPTH // inside))
        else:
            told = (*self.widths, *(self.ends if self.nest.reductions else ()), None)
            span = span if self.last in told else UNTOLD
            made.setdefault("width", feature_width(span, self.half))
            if self.nest.rows is not None and span <= made["width"]:
                made["whole"] = 1
        if self.lists is not None:
            made["listed"] = 1
        dense = [r for r in self.nest.reductions if not r.variable and not r.constant]
        if any(r.depth for r in dense) and self.nest.blocks:
            made = {"bm": 64, "bn": 64, **made}
        held_whole = [r for r in dense if r.depth or "inner" in made]
        if held_whole:
            least = max(ceil_pow2(most(r.loop.hi, sizes)) for r in held_whole)
            made["inner"] = max(16, least, made.get("inner", 0))
        if (
            self.nest.reductions
            and not self.nest.rows
            and self.product is None
            and "edges" not in made
        ):
            made["edges"] = 32
            reduce = [r for r in dense if not r.depth]
            if reduce:
                told_of = {n: sizes[n] for n in self.widths}
                extent = max(most(r.loop.hi, told_of) for r in reduce)
                made["width"] = given.get("width", min(128, max(16, ceil_pow2(extent))))
                longest = max(extent, span) if self.nest.blocks else extent
                made["whole"] = int(longest <= made["width"])
        if not self.nest.reductions and len(self.nest.free) > 1:
            made.setdefault("edges", max(1, EDGE_TILE // made["width"]))
        made.setdefault("rows", 8 if self.nest.rows is not None else 1)
        made.setdefault("warps", 4)
        made.setdefault("stages", 3)
        return {k: v for k, v in made.items() if v}

    def derive(self, tensors: Sequence[Tensor], ints: Sequence[int]) -> list[Tensor]:
        """Views that were not prepared, made now: one device pass, nothing kept."""
        from_names = dict(zip(self.names, tensors, strict=True))
        made: dict[str, Tensor] = {}
        for name in self.views:
            arg = self.args[name]
            sizes = (f"{name}.n{d}" for d in range(stored_dims(arg.kind)))
            shape = tuple(ints[self.int_names.index(n)] for n in sizes)
            made.update(derive_views(name, arg, from_names, shape, self.missing))
        return [made[n] for n in self.missing]

    def outputs(self, sizes: Sequence[Any], like: Tensor, fake: bool = False) -> list[Tensor]:
        table = dict(zip(self.size_names, sizes, strict=True))
        made = []
        for t in self.bound.program.outputs:
            assert t.values is not None
            shape = [_evaluate(e, table) for e in t.values.shape]
            whole = fake or covers(self.bound.program, t, self.traced.unique)
            new = like.new_empty if whole else like.new_zeros
            made.append(new(shape, dtype=TORCH[t.dtype]))
        return made


def most(extent: Expr, sizes: Mapping[str, int]) -> int:
    """How far a loop may go; UNTOLD where the device says so, or a size is not among those given."""
    match extent:
        case Const(value):
            return int(value)
        case Var(name):
            return sizes.get(name, UNTOLD)
        case Cast(_, a):
            return most(a, sizes)
        case Bin("min", a, b):
            return min(most(a, sizes), most(b, sizes))
        case Bin("+", a, b):
            return min(most(a, sizes) + most(b, sizes), UNTOLD)
        case Bin("//", a, Const(value)):
            return -(-most(a, sizes) // int(value))
    return UNTOLD


def divisor(size: int) -> int:
    """The width class: the largest power of two that divides a size, up to 512."""
    return min(size & -size, EXACT) if size else 1


def _told_by_class(size: int) -> bool:
    """Whether divisor and span together leave only this size: a power of two up to 512."""
    return 0 < size <= EXACT and divisor(size) == size


def _evaluate(e: Expr, table: dict[str, Any]) -> Any:
    return eval(text(e), {}, table)
