"""One statement on real tensors: which views it reads, which sizes it has, which kernel serves it.

In: tensors and integers by name. Out: its outputs. Kernels are kept by their key: settings, width classes,
alignment; never by sizes of structures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from tilewright import driver
from tilewright.analysis.domain import covers, drivers, leading, sizes_of
from tilewright.formats.bind import Bound, Spec, bind
from tilewright.ir.coord import Tensor as Tensor_
from tilewright.ir.drive import rank, stored
from tilewright.ir.expr import Const, Expr, Var
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk
from tilewright.ir.text import text
from tilewright.language.trace import Traced, source_of
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.ops.args import Arg
from tilewright.ops.backend import on_device, precision
from tilewright.ops.dtypes import TORCH
from tilewright.ops.ready import Ready
from tilewright.ops.settings import ceil_pow2, feature_width, unpack
from tilewright.ops.views import VIEWS, derive_views, is_crossed, rows_view, sorted_view, view_of
from tilewright.runtime import build_c
from tilewright.schedule.options import Setting, gather_registers
from tilewright.schedule.shape import nest_of, product_of
from tilewright.support import knobs
from tilewright.support.places import locating

EXACT = 512
NARROW = 1 << 31
REMEMBERED = 4096
VECTOR = 16


class Step:
    """A bound statement, ready to run on lists of tensors."""

    def __init__(
        self,
        traced: Traced,
        args: Sequence[Arg],
        names: Sequence[str],
        backend: str,
        device: int = -1,
    ) -> None:
        self.traced, self.backend, self.device = traced, backend, device
        self.args = {a.name: a for a in args}
        self.names = list(names)
        self.kernels: dict[tuple[Any, ...], Ready] = {}
        self.quick: dict[tuple[Any, ...], Ready] = {}
        self.int_names = [n for a in args for n in a.ints]
        with self.locating():
            self.bind(args)

    def locating(self) -> locating:
        """What is raised inside names the statement."""
        s = self.traced.body[0]
        return locating(source_of(s), s)

    # --- what the statement is made of ------------------------------------------------------------

    def bind(self, args: Sequence[Arg]) -> None:
        """Views, formats, arrays and sizes."""
        traced, backend = self.traced, self.backend
        lends = [a.kind[5:] for a in args if a.name in traced.inputs and a.kind.startswith("like:")]
        used = [*traced.inputs, *(n for n in lends if n not in traced.inputs)]
        sparse = [
            a
            for a in args
            if a.name in used and a.kind != "dense" and not a.kind.startswith("like:")
        ]
        borrowers = {a.name: [b.name for b in args if b.kind == f"like:{a.name}"] for a in sparse}
        self.searched: list[str] = []
        self.views = {a.name: rows_view(a.kind) for a in sparse}
        leads: set[str] = set()
        if sparse:
            leads = leading(bind(traced, {n: self.spec(self.args[n]) for n in used}).program)
        for a in sparse:
            mine = {a.name, *borrowers[a.name]}
            if mine & leads:
                nested = backend == "c" or is_crossed(traced, mine)
                self.views[a.name] = view_of(traced, a, nested, borrowers[a.name])
            else:
                self.searched.append(a.name)
                self.views[a.name] = sorted_view(a.kind)
        self.bound: Bound = bind(traced, {n: self.spec(self.args[n]) for n in used})
        self.wanted = [self.source(b) for b in self.bound.arrays]
        self.missing = [n for n in self.wanted if n not in self.names]
        self.classify()
        self.sizes = self.size_function()

    def spec(self, a: Arg) -> Spec:
        view = self.views.get(a.name, a.kind)
        perm = VIEWS.get(view, {"perm": "perm"}).get("perm") in a.arrays
        if view in ("csc", "bsc"):
            perm = "t_perm" in a.arrays or "t_indptr" not in a.arrays
        return Spec(view, a.dtype, a.rank, a.index, a.blocks, perm, a.values, a.strided)

    def source(self, buffer: str) -> str:
        """The name, among the op's tensors, of an array of the bound program."""
        for name, view in self.views.items():
            if view not in VIEWS and buffer in {f"{name}_{a}" for a in self.args[name].arrays}:
                return f"{name}.{buffer[len(name) + 1 :]}"
            for what, held in VIEWS.get(view, {}).items():
                if buffer == f"{name}_{what}":
                    return f"{name}.{held}"
        return buffer

    def classify(self) -> None:
        """Which sizes are widths (compiled by class) and whether there are rows to list.

        Widths are the contiguous dimensions of dense inputs; an output's own last dimension is a coarse one.
        """
        p = self.bound.program
        flat = lower_to_flat(lower_to_position(p))
        arrays = {n.buffer.name for n in walk(flat.body) if isinstance(n, Lookup)}
        self.found = [t.name for t in p.tensors if t.name in self.views and arrays & entries_of(t)]
        self.nest = nest_of(flat)
        self.product = product_of(self.nest)
        held = {self.name_of_size(e) for t in p.tensors if t.sparse for e in t.shape[: rank(t)]}
        widths: dict[str, None] = {}
        for t in p.tensors:
            listing = len(t.shape) == 1 and t.dtype in ("i32", "i64")
            if t.role == "in" and not t.sparse and t.shape and not listing:
                arg = self.args.get(t.name)
                unit = -1 if arg is None or arg.strided is None or arg.strided < 0 else arg.strided
                widths.setdefault(self.name_of_size(t.shape[unit]))
        self.widths = [w for w in widths if w not in held]
        ends = [t.shape[-1] for t in p.outputs if not t.sparse and t.shape]
        last = [e.name for e in ends if isinstance(e, Var)]
        self.coarse = [n for n in last if n not in held and n not in self.widths]
        blocked = [a for a in self.args.values() if a.block != "1x1"]
        self.blocked = self.block_sizes(blocked)
        self.listed = self.nest.rows is not None and not self.nest.blocks and self.product is None
        self.half = any(t.dtype in ("f16", "bf16") for t in p.tensors)
        self.lists = self.list_names()

    def block_sizes(self, blocked: list[Arg]) -> dict[str, int]:
        """Sizes that blocks cut, with the block: a length counts as whole blocks, or as not."""
        made = {}
        for a in blocked:
            for t in self.bound.program.tensors:
                if t.name == a.name:
                    for e, b in zip(t.shape[:2], a.blocks, strict=True):
                        made[self.name_of_size(e)] = b
        return made

    @staticmethod
    def name_of_size(e: Expr) -> str:
        return e.name if isinstance(e, Var) else text(e)

    def list_names(self) -> tuple[str, tuple[str, ...]] | None:
        """(prefix of the plan's names, the tensors of the work list), when one came along."""
        if not self.listed or self.backend == "c":
            return None
        lead = drivers(self.bound.program.body[0])
        name = lead[0].buffer.name
        t = "t_" if self.views.get(name) == "csc" else ""
        made = tuple(f"{name}.{t}{n}" for n in ("units", "segs", "done", "work"))
        return (f"{name}.{t}", made) if made[0] in self.names else None

    def size_function(self) -> Callable[[Sequence[Tensor], Sequence[int]], tuple[int, ...]]:
        """All run-time sizes of the program, in order, as one generated function."""
        rules = {r.size: r for r in self.bound.rules}
        at = {n: k for k, n in enumerate([*self.names, *self.missing])}
        source_of = {r: self.source(b) for r, b in ((b, b) for b in self.bound.arrays)}
        made = []
        self.size_names = [v.name for v in sizes_of(self.bound.program)]
        given = self.given_ints()
        for name in self.size_names:
            if name in rules:
                r = rules[name]
                k = at[source_of.get(r.array, r.array)]
                what = f"t[{k}].stride({r.dim})" if r.stride else f"t[{k}].shape[{r.dim}]"
                made.append(f"{what}{r.offset:+d}" if r.offset else what)
            else:
                made.append(f"ints[{given[name]}]")
        return eval(f"lambda t, ints: ({', '.join(made)},)")

    def given_ints(self) -> dict[str, int]:
        """Where the logical sizes of sparse arguments stand among the integers."""
        made = {}
        for name in self.views:
            t = next(t for t in self.bound.program.tensors if t.name == name)
            for d in range(rank(t)):
                made[self.name_of_size(t.shape[d])] = self.int_names.index(f"{name}.n{d}")
        return made

    # --- running ----------------------------------------------------------------------------------

    def __call__(
        self, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
    ) -> list[Tensor]:
        if self.missing:
            tensors = [*tensors, *self.derive(tensors, ints)]
        sizes = self.sizes(tensors, ints)
        return self.ready(ints, sizes).run(tensors, sizes, ints, floats)

    def ready(self, ints: Sequence[int], sizes: Sequence[int], aligned: bool = True) -> Ready:
        """The kernel for these sizes: found by the sizes that matter, else by their classes.

        Addresses are taken to be multiples of 16; a launch that finds others asks again.
        """
        mark = self.mark(sizes)
        if self.backend == "triton":
            mark = (*mark, aligned, self.packed(ints), precision())
        made = self.quick.get(mark)
        if made is None:
            key = self.key(mark, sizes)
            made = self.kernels.get(key)
            if made is None:
                named = dict(zip(self.size_names, sizes, strict=True))
                with self.locating():
                    made = self.kernels[key] = self.make(ints, named, mark)
            if len(self.quick) >= REMEMBERED:
                self.quick.clear()
            self.quick[mark] = made
        return made

    def key(self, mark: tuple[Any, ...], sizes: Sequence[int]) -> tuple[Any, ...]:
        """Everything a kernel is compiled for. C: exact widths up to 512. Triton: classes of widths."""
        if self.backend == "c":
            return tuple([sizes[k] if sizes[k] <= EXACT else -1 for k in self.width_at])
        classes = tuple([self.divisor(self.size_names[k], sizes[k]) for k in self.narrow_at])
        whole = tuple([sizes[k] % self.blocked[self.size_names[k]] == 0 for k in self.blocked_at])
        spans = tuple(
            [ceil_pow2(min(n, 2 * EXACT)) if (n := sizes[k]) else 0 for k in self.width_at]
        )
        small = all([sizes[k] < NARROW for k in self.narrow_at])
        return (classes, whole, spans, small, *mark[-3:])

    def divisor(self, name: str, size: int) -> int:
        """The class of a width; lengths that only an output has are not told apart below 16."""
        made = divisor(size)
        return 1 if made < VECTOR and name in self.coarse else made

    @cached_property
    def mark(self) -> Callable[[Sequence[int]], tuple[Any, ...]]:
        """The sizes that may change the kernel, as one generated function."""
        at = sorted({*self.width_at, *self.blocked_at, *self.narrow_at})
        return eval(f"lambda s: ({''.join(f's[{k}], ' for k in at)})")

    @cached_property
    def width_at(self) -> list[int]:
        made = [k for k, n in enumerate(self.size_names) if n in self.widths]
        return made

    @cached_property
    def narrow(self) -> list[str]:
        """Sizes that fit 32 bits when they are below 2**31: widths and strides."""
        return [*self.widths, *self.coarse, *(r.size for r in self.bound.rules if r.stride)]

    @cached_property
    def narrow_at(self) -> list[int]:
        return [k for k, n in enumerate(self.size_names) if n in self.narrow]

    @cached_property
    def blocked_at(self) -> list[int]:
        return [k for k, n in enumerate(self.size_names) if n in self.blocked]

    def packed(self, ints: Sequence[int]) -> int:
        at = self.setting_at
        return ints[at] if at < len(ints) else 0

    @cached_property
    def setting_at(self) -> int:
        if self.lists is not None:
            return self.int_names.index(f"{self.lists[0]}setting")
        return len(self.int_names)

    def make(self, ints: Sequence[int], sizes: dict[str, int], mark: tuple[Any, ...]) -> Ready:
        p = self.bound.program
        if self.backend == "c" and knobs.fallback() and not build_c.available():
            return Ready(self, driver.compile_slow(p))
        if self.backend == "c":
            exact = {n: sizes[n] for n in self.widths if sizes[n] <= EXACT}
            return Ready(self, driver.compile_c(p, exact))
        setting = self.setting(unpack(self.packed(ints)), sizes)
        divisors = {n: d for n in self.narrow if (d := self.divisor(n, sizes[n])) > 1}
        divisors |= {n: b for n, b in self.blocked.items() if sizes[n] and sizes[n] % b == 0}
        options = driver.TritonOptions(
            setting.get("warps", 4),
            setting.get("stages", 3),
            precision(),
            registers=gather_registers(setting, self.half) if self.lists is not None else None,
        )
        small = all(sizes[n] < NARROW for n in self.narrow)
        known: dict[str, Expr] = {n: Var(n, "i32") for n in self.narrow if small}
        known |= {n: Const(sizes[n], "i32") for n in self.widths if _told_by_class(sizes[n])}
        with on_device(self.device):
            made = driver.compile_triton(p, setting, divisors, known, mark[-3], None, options)
        return Ready(self, made, mark[-3])

    def setting(self, given: Setting, sizes: dict[str, int]) -> Setting:
        """The given tile setting, with what it leaves open filled in from sizes."""
        made = dict(given)
        last = self.nest.free[-1] if self.nest.free else None
        span = sizes.get(text(last.hi), EXACT) if last is not None else 1
        if self.product is not None:
            made = {"bm": 64, "bn": 64, "bk": 32, "group": 8, "warps": 4, "stages": 3, **made}
        elif self.nest.blocks:
            made.setdefault("width", max(16, feature_width(span, self.half)))
            whole = any(r.depth for r in self.nest.reductions) or "softmax" in str(self.traced)
            made.setdefault("whole", int(whole))
            if made["whole"]:
                made["width"] = max(16, ceil_pow2(span))
        else:
            made.setdefault("width", feature_width(span, self.half))
            if self.nest.rows is not None and span <= made["width"]:
                made["whole"] = 1
        if self.lists is not None:
            made["listed"] = 1
        inner = [r for r in self.nest.reductions if r.depth and not r.variable and not r.constant]
        if inner and self.nest.blocks:
            made = {"bm": 64, "bn": 64, **made}
        if inner and "inner" not in made:
            made["inner"] = max(16, max(ceil_pow2(sizes.get(text(r.loop.hi), 64)) for r in inner))
        if (
            self.nest.reductions
            and not self.nest.rows
            and self.product is None
            and "edges" not in made
        ):
            made["edges"] = 32
            reduce = [
                r for r in self.nest.reductions if not r.variable and not r.constant and not r.depth
            ]
            if reduce:
                extent = sizes.get(text(reduce[0].loop.hi), 64)
                made["width"] = given.get("width", min(128, max(16, ceil_pow2(extent))))
                made["whole"] = int(extent <= made["width"])
        made.setdefault("rows", 8 if self.nest.rows is not None else 1)
        made.setdefault("warps", 4)
        made.setdefault("stages", 3)
        return {k: v for k, v in made.items() if v}

    def derive(self, tensors: Sequence[Tensor], ints: Sequence[int]) -> list[Tensor]:
        """Views that were not prepared, made now: one device pass, nothing kept."""
        from_names = dict(zip(self.names, tensors, strict=True))
        made: dict[str, Tensor] = {}
        for name in self.views:
            shape = tuple(ints[self.int_names.index(f"{name}.n{d}")] for d in range(2))
            made.update(derive_views(name, self.args[name], from_names, shape, self.missing))
        return [made[n] for n in self.missing]

    def outputs(self, sizes: Sequence[Any], like: Tensor, fake: bool = False) -> list[Tensor]:
        table = dict(zip(self.size_names, sizes, strict=True))
        made = []
        for t in self.bound.program.outputs:
            assert t.values is not None
            shape = [_evaluate(e, table) for e in t.values.shape]
            new = like.new_empty if fake or covers(self.bound.program, t) else like.new_zeros
            made.append(new(shape, dtype=TORCH[t.dtype]))
        return made


def entries_of(t: Tensor_) -> set[str]:
    """The index array of the last stored axis: the only one whose coordinates may stand in any order."""
    last = [ax for ax in t.axes if stored(ax)][-1]
    return {last.indices.name} if last.indices is not None else set()


def divisor(size: int) -> int:
    """The width class: the largest power of two that divides a size, up to 512."""
    return min(size & -size, EXACT) if size else 1


def _told_by_class(size: int) -> bool:
    """Whether divisor and span together leave only this size: a power of two up to 512."""
    return 0 < size <= EXACT and divisor(size) == size


def _evaluate(e: Expr, table: dict[str, Any]) -> Any:
    return eval(text(e), {}, table)
