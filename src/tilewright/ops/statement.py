"""One statement on arguments: which views it reads, which arrays and sizes it has, which loops.

In: a traced statement and its arguments. Out: `Statement`, which `step` runs.

    s = Statement(traced, args, names, "c"); s.bound.program     # stage I, over the chosen storage orders
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from torch import Tensor

from tilewright.analysis.domain import drivers, leading, overwritten, unions
from tilewright.analysis.follow import growing
from tilewright.formats.bind import Bound, Spec, bind, met_name
from tilewright.formats.storage import parts_of, stored_dims
from tilewright.ir.coord import Assign, Listed, Program
from tilewright.ir.coord import Tensor as Tensor_
from tilewright.ir.drive import rank, stored
from tilewright.ir.expr import Buffer, Expr, Load, Var
from tilewright.ir.loops import Lookup
from tilewright.ir.node import walk
from tilewright.ir.text import text
from tilewright.language.trace import Traced, source_of
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.parameters import sizes_of
from tilewright.lowering.parts import apart
from tilewright.lowering.position import lower_to_position
from tilewright.ops.args import E_LIST, LIST, T_LIST, T_VISITS, VISITS, Arg
from tilewright.ops.meeting import Pair
from tilewright.ops.views import VIEWS, is_crossed, rows_view, sorted_view, view_of
from tilewright.schedule.edit import loops
from tilewright.schedule.shape import nest_of, product_of
from tilewright.support.errors import TilewrightError
from tilewright.support.places import locating


class Statement:
    """A statement over arguments: everything but its kernels."""

    def __init__(
        self,
        traced: Traced,
        args: Sequence[Arg],
        names: Sequence[str],
        backend: str,
        device: int = -1,
        nth: int = 0,
    ) -> None:
        self.traced, self.backend, self.device, self.nth = traced, backend, device, nth
        self.args = {a.name: a for a in args}
        self.names = list(names)
        self.int_names = [n for a in args for n in a.ints]
        self.begin()
        with self.locating():
            self.bind(args)

    def begin(self) -> None:
        """Nothing is kept yet."""

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
        self.used = used
        leads: set[str] = set()
        self.unions: set[str] = set()
        if sparse:
            program = self.bind_views().program
            leads, self.unions = leading(program), unions(program) & set(borrowers)
        for a in sparse:
            mine = {a.name, *borrowers[a.name]}
            if mine & leads:
                listed = f"{a.name}.{E_LIST[0]}" in self.names
                nested = backend == "c" or listed or is_crossed(traced, mine)
                self.views[a.name] = view_of(traced, a, nested, borrowers[a.name])
            else:
                self.searched.append(a.name)
                self.views[a.name] = sorted_view(a.kind)
        for n in self.searched:
            if self.args[n].ordered and not self.grows(n):
                self.views[n] = rows_view(self.args[n].kind)
        try:
            self.settle()
        except TilewrightError:
            whole = {n: "csr" for n, v in self.views.items() if v.startswith("parts+")}
            if not whole or any(stored_dims(self.args[n].kind) != 2 for n in whole):
                raise
            self.views |= whole  # parts that cannot be walked here are read as one list of rows
            self.settle()
        self.sizes = self.size_function()
        programs = apart(self.bound.program)
        self.pieces: list[Any] = [self] if len(programs) == 1 else [self.piece(p) for p in programs]

    def settle(self) -> None:
        """The program over the chosen views, and the arrays that it reads."""
        self.bound: Bound = self.bind_views()
        self.wanted = [self.source(b) for b in self.bound.arrays]
        self.missing = [n for n in self.wanted if n not in self.names]
        self.classify()

    def piece(self, p: Program) -> Self:
        """The same step over one of the programs that a tensor in parts makes of its statement."""
        made = copy.copy(self)
        made.bound = replace(self.bound, program=p)
        made.pieces = [made]
        made.begin()
        made.classify()
        made.sizes = made.size_function()
        return made

    def bind_views(self) -> Bound:
        return bind(self.traced, {n: self.spec(self.args[n]) for n in self.used})

    def grows(self, name: str) -> bool:
        """Whether an argument, as it is viewed now, is searched for keys that grow over a range that stays."""
        nest = lower_to_flat(lower_to_position(self.bind_views().program))
        found = (s.value for loop in loops(nest) for s in growing(loop))
        return any(isinstance(e, Lookup) and e.buffer.name == f"{name}_indices" for e in found)

    def spec(self, a: Arg) -> Spec:
        view = self.views.get(a.name, a.kind)
        if view.startswith("parts+"):
            return Spec(view, a.dtype, a.rank, a.index, values=a.values, parts=a.parts)
        perm = VIEWS.get(view, {"perm": "perm"}).get("perm") in a.arrays
        if view in ("csc", "bsc"):
            perm = "t_perm" in a.arrays or "t_indptr" not in a.arrays
        if view == "csr" and a.kind != "csr":
            perm = True
        met = self.met(self.args.get(a.kind.removeprefix("like:"), a))
        made = Spec(view, a.dtype, a.rank, a.index, a.blocks, perm, a.values, a.strided)
        return replace(made, ordered=a.ordered, met=met)

    def met(self, a: Arg) -> tuple[tuple[str, bool], ...]:
        """The arguments here at whose entries those of another one are known."""
        told = ((n, turned) for n in self.views for turned in (False, True))
        return tuple(m for m in told if met_name(*m) in a.arrays)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """(searched, driving, by swapped indices): arguments whose entries could be known instead of searched."""
        csr = [n for n in self.views if self.args[n].kind == "csr"]
        told = ((b, a, t) for b in csr for a in csr for t in (False, True) if a != b)
        return tuple(pair for pair in told if self.would_read(pair))

    def would_read(self, pair: Pair) -> bool:
        """Whether the statement would read the array of a pair, if it had it."""
        name, other, turned = pair
        fresh, label = copy.copy(self), met_name(other, turned)
        arg = self.args[name]
        if label not in arg.arrays:
            arg = replace(arg, arrays=(*arg.arrays, label))
        fresh.args = {**self.args, name: arg}
        nest = lower_to_position(fresh.bind_views().program)
        return any(isinstance(n, Buffer) and n.name == f"{name}_{label}" for n in walk(nest.body))

    def source(self, buffer: str) -> str:
        """The name, among the op's tensors, of an array of the bound program."""
        for name, view in self.views.items():
            if view not in VIEWS and buffer in {f"{name}_{a}" for a in self.args[name].arrays}:
                return f"{name}.{buffer[len(name) + 1 :]}"
            for other, turned in self.met(self.args[name]):
                if buffer == f"{name}_{met_name(other, turned)}":
                    return f"{name}.{met_name(other, turned)}"
            for what, held in VIEWS.get(view, {}).items():
                if buffer == f"{name}_{what}":
                    return f"{name}.{held}"
        return buffer

    def classify(self) -> None:
        """The shape of the nest, which sizes are compiled by class, and whether there are rows to list."""
        p = self.bound.program
        flat = lower_to_flat(lower_to_position(p))
        arrays = {n.buffer.name for n in walk(flat.body) if isinstance(n, Lookup)}
        self.found = [t.name for t in p.tensors if t.name in self.views and arrays & entries_of(t)]
        self.overwritten = overwritten(p)
        first = replace(flat, body=flat.body[:1]) if len(p.body) > 1 else flat
        self.nest = nest_of(first)
        self.product = product_of(self.nest)
        self.measure(p)
        blocked = [a for a in self.args.values() if a.block != "1x1"]
        self.blocked = self.block_sizes(blocked)
        rows = self.nest.rows is not None or self.nest.edges is not None
        self.listed = rows and not self.nest.blocks and self.product is None
        self.half = any(t.dtype in ("f16", "bf16") for t in p.tensors)
        self.lists = self.list_names()
        self.visits = self.visit_names()

    def measure(self, p: Program) -> None:
        """Which sizes are widths, coarse or plain; rows and columns of structures are neither.

        Widths are the contiguous dimensions of inputs, dense ones and those inside of stored entries. Coarse are those
        that may change with the data: the rows of a product, what is contiguous in an operand that lies turned, what is
        only moved, an output's own last dimension. Plain are the lengths of outputs of one dimension.
        """
        held = {self.name_of_size(e) for t in p.tensors if t.sparse for e in t.shape[: rank(t)]}
        lists = {n.at.buffer for n in walk(p.body) if isinstance(n, Listed)}
        widths: dict[str, None] = {}
        turned: dict[str, None] = {}
        for t in p.tensors:
            listing = t in lists or (len(t.shape) == 1 and t.dtype in ("i32", "i64", "u8"))
            if t.role == "in" and not t.sparse and t.shape and not listing:
                unit = self.unit_of(t)
                size = self.name_of_size(t.shape[unit])
                straight = unit == len(t.shape) - 1
                (widths if straight and self.tells(size) else turned).setdefault(size)
            elif t.role == "in" and t.sparse and len(t.shape) > rank(t):
                widths.setdefault(self.name_of_size(t.shape[-1]))
        if self.backend == "c":
            widths, turned = widths | turned, {}
        self.widths = [w for w in widths if w not in held]
        turned |= dict.fromkeys(ends(p, 2))
        self.coarse = [n for n in turned if n not in held and n not in self.widths]
        self.plain = [n for n in ends(p) if n not in {*held, *self.widths, *self.coarse}]
        self.ends = ends(p)

    def unit_of(self, t: Tensor_) -> int:
        """The dimension of a dense operand whose elements lie side by side."""
        strided = self.args[t.name].strided
        return len(t.shape) - 1 if strided is None or strided < 0 else strided

    def tells(self, size: str) -> bool:
        """Whether the width of a dense operand is worth a kernel: not if it is the rows of a product, nor where values
        are only moved."""
        if self.product is not None:
            outs = self.bound.program.outputs
            return size not in {self.name_of_size(t.shape[0]) for t in outs if len(t.shape) > 1}
        moves = isinstance(self.traced.body[0], Assign) and not self.nest.reductions
        return bool(self.views) or not moves

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
        homes = {**{n: n for n in self.views}, **self.list_parts()}
        found = next((a.buffer for a in lead if a.buffer.name in homes), None)
        if found is None or found.parts:
            return None
        name = homes[found.name]
        if self.source(self.walked).partition(".")[0] != name:
            return None  # rows of another argument are walked
        labels = E_LIST if self.nest.rows is None else LIST
        if self.views.get(name) == "csc":
            labels = T_LIST
        made = tuple(f"{name}.{n}" for n in labels)
        return (made[0].removesuffix("units"), made) if made[0] in self.names else None

    def visit_names(self) -> dict[str, str]:
        """The arrays of rows in another order, with their tensors, when they came along."""
        if not self.listed or self.backend != "c":
            return {}
        name, _, array = self.source(self.walked).partition(".")
        labels = {"indptr": VISITS, "t_indptr": T_VISITS}.get(array, ())
        made = {n: f"{name}.{held}" for n, held in zip(VISITS, labels, strict=False)}
        return made if {*made.values()} <= {*self.names} else {}

    @property
    def walked(self) -> str:
        """The array that bounds the entries of a row."""
        entries = self.nest.rows[1].loop if self.nest.rows is not None else self.nest.edges[1]  # type: ignore[index]
        assert isinstance(entries.lo, Load)
        name: str = entries.lo.buffer.name
        return name

    def list_parts(self) -> dict[str, str]:
        """The parts that are lists of rows, with the arguments that they are parts of."""
        return {
            f"{name}_{nth}": name
            for name, view in self.views.items()
            if view.startswith("parts+")
            for nth, format in enumerate(parts_of(view))
            if format == "csr"
        }

    def size_function(self) -> Callable[[Sequence[Tensor], Sequence[int]], tuple[int, ...]]:
        """All run-time sizes of the program, in order, as one generated function."""
        rules = {r.size: r for r in self.bound.rules}
        at = {n: k for k, n in enumerate([*self.names, *self.missing])}
        source_of = {r: self.source(b) for r, b in ((b, b) for b in self.bound.arrays)}
        made = []
        self.size_names = [v.name for v in sizes_of(self.bound.program)]
        given = self.given
        for name in self.size_names:
            if name in rules:
                r = rules[name]
                k = at[source_of.get(r.array, r.array)]
                what = f"t[{k}].stride({r.dim})" if r.stride else f"t[{k}].shape[{r.dim}]"
                made.append(f"{what}{r.offset:+d}" if r.offset else what)
            else:
                made.append(f"ints[{given[name]}]")
        return eval(f"lambda t, ints: ({''.join(f'{size}, ' for size in made)})")

    @cached_property
    def given(self) -> dict[str, int]:
        """Where the logical sizes of sparse arguments stand among the integers."""
        made = {}
        for name in self.views:
            t = next(t for t in self.bound.program.tensors if t.name == name)
            for d in range(rank(t)):
                made[self.name_of_size(t.shape[d])] = self.int_names.index(f"{name}.n{d}")
            if f"{name}.entries" in self.int_names:
                made[f"{name}_entries"] = self.int_names.index(f"{name}.entries")
        return made


def ends(p: Program, least: int = 1) -> list[str]:
    """The last sizes of the dense outputs of so many dimensions or more, each once."""
    outs = (t for t in p.outputs if not t.sparse and len(t.shape) >= least)
    return list({e.name: None for t in outs if isinstance(e := t.shape[-1], Var)})


def entries_of(t: Tensor_) -> set[str]:
    """The index array of the last stored axis: the only one whose coordinates may stand in any order."""
    last = [[ax for ax in part.axes if stored(ax)][-1] for part in t.whole]
    return {ax.indices.name for ax in last if ax.indices is not None}
