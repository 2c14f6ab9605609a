"""Programs of every stage as text: a decorator that names the stage, parameters with their types, the body.

In: a program. Out: lines of Python.

    @flat(divisors={n_f: 16}, order=(i, f_o), swizzle=8)
    def spmm(
        a_indptr: index[i32[n_i + 1]],       a buffer: its role (none: in), dtype and shape
        x: f32[n_j, n_f].strides(x_s, 1),    row major unless told
        y: out[f32[n_i, n_f]],
        n_i, n_j, n_f: size[i32],            sizes are i64 unless told
        scale: scalar[f32],
    ):
        top: f32                             a variable whose first use does not tell its dtype

Tile form has `@tile(grid=(n_i + 7) // 8, dims={r: 8, f: 32})`. In stage I the parameters are tensors;
where they are stored stands above the statements:

    @coord
    def spmm_sum(a: f32[n_i, n_j].on(i, j).stored(a_nnz), x: f32[n_j, n_f], y: out[f32[n_i, n_f]]):
        a_indptr: index[i32[n_i + 1]]
        a_indices: index[i32[a_nnz]]
        i = dense(n_i)
        j = sparse(under=i, indptr=a_indptr, indices=a_indices)
        y[i, f] = sum(j, a[i, j] * x[j, f])

`.on(axes)` is the path to a value, `.at(i_b * 4 + i_in, j)` how axes make coordinates (one for one unless
told), `.stored(shape)` the shape of the stored values (none: all ones), `.perm(array)` their order,
`.holes(array)` an order that is -1 where there is no entry. A tensor in parts names them: `a: f32[n_i,
n_j].parts(a_0, a_1).stored(n)`; a line above the statements tells where each is: `a_0 = on(i, j).perm(a_0_perm)`.
`.met(array, axis, turned)` their places at the entries of another tensor, known by its last axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.ir import coord, flat, loops, tile
from tilewright.ir.coord import Axis, Tensor
from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.node import walk
from tilewright.ir.text.expr import tupled
from tilewright.ir.text.stmt import INDENT, Stmts

WIDTH = 96
FLAGS = ("padded", "shared", "repeats", "ordered")


class Programs(Stmts):
    """Whole programs."""

    def nest(self, p: loops.Program | flat.Program | tile.Program) -> list[str]:
        self.used |= {b.name for b in p.buffers}
        for v in (*p.sizes, *p.scalars):
            self.claim(v)
        facts = [v for v, _ in p.divisors] if isinstance(p, flat.Program) else []
        shapes = [e for b in p.buffers for e in (*b.shape, *(b.strides or ()))]
        self.sizes([*facts, *shapes])
        buffers = [f"{b.name}: {self.buffer(b)}" for b in p.buffers]
        sizes = [self.name(v) + _unless(v.dtype, "i64", ": size[{}]") for v in p.sizes]
        scalars = [f"{self.name(v)}: scalar[{v.dtype}]" for v in p.scalars]
        if isinstance(p, tile.Program):
            self.types = dict(p.types)
        body = [line for s in p.body for line in self.stmt(s)]
        return [self.stage(p), *_define(p.name, buffers, sizes, scalars), *self.whole(body)]

    def stage(self, p: loops.Program | flat.Program | tile.Program) -> str:
        """The decorator; the names of loops are known once the body is written."""
        if isinstance(p, loops.Program):
            return "@loops"
        if isinstance(p, tile.Program):
            dims = ", ".join(f"{d}: {n}" for d, n in p.dims)
            return f"@tile(grid={self.expr(p.grid)}, dims={{{dims}}})"
        made = []
        if p.divisors:
            facts = ", ".join(f"{self.name(v)}: {d}" for v, d in p.divisors)
            made.append(f"divisors={{{facts}}}")
        if p.order:
            loop_names = {v.name: n for v, n in self.names.items() if isinstance(v, Var)}
            made.append(f"order={tupled(loop_names.get(n, n) for n in p.order)}")
        if p.swizzle:
            made.append(f"swizzle={p.swizzle}")
        if p.tensor:
            made.append(f"tensor={tupled(p.tensor)}")
        if p.streams:
            made.append(f"streams={tupled(p.streams)}")
        if p.scan:
            made.append(f"scan={p.scan}")
        if p.balance:
            made.append(f"balance={p.balance}")
        return f"@flat({', '.join(made)})" if made else "@flat"

    def whole(self, body: list[str]) -> list[str]:
        """The body under the declarations that its names need."""
        above = []
        for v in self.loose:
            dims = self.types.get(v, ())
            above.append(f"{self.names[v]}: {v.dtype}" + (f"[{', '.join(dims)}]" if dims else ""))
        return [INDENT + line for line in [*above, *body] or ["pass"]]

    def sizes(self, shapes: Iterable[Expr]) -> None:
        """Sizes that only shapes name; those that have a parameter's name are the parameter."""
        held = {v.name: v for v in self.names if isinstance(v, Var)}
        for v in walk(tuple(shapes)):
            if isinstance(v, Var) and v not in self.names:
                if v.name in held:
                    self.names[v] = self.names[held[v.name]]
                    continue
                held[v.name] = v
                self.claim(v)
                if v.dtype != "i64":
                    self.loose.append(v)

    def buffer(self, b: Buffer) -> str:
        made = f"{b.dtype}[{self.index(b.shape)}]"
        if b.strides is not None:
            made += f".strides({self.many(b.strides)})"
        return made if b.role == "in" else f"{b.role}[{made}]"

    # --- stage I ----------------------------------------------------------------------------------

    def coord(self, p: coord.Program) -> list[str]:
        self.used |= {t.name for t in p.tensors}
        for v in p.scalars:
            self.claim(v)
        self.axes: dict[Axis, str] = {}
        self.arrays: dict[Buffer, None] = {}
        for t in p.tensors:
            for part in t.whole:
                self.sizes(_sizes_of(part))
                for ax in part.axes:
                    self.axis_name(ax)
                met = [m.at for m in t.met]
                for b in (part.perm, *met, *([] if self.inline(t) else [t.values])):
                    if b is not None:
                        self.arrays.setdefault(b)
        tensors = [f"{t.name}: {self.tensor(t)}" for t in p.tensors]
        scalars = [f"{self.name(v)}: scalar[{v.dtype}]" for v in p.scalars]
        head = [f"{b.name}: {self.buffer(b)}" for b in self.arrays]
        head += [f"{n} = {self.axis(ax, n)}" for ax, n in self.axes.items()]
        listed = [part for t in p.tensors for part in t.parts]
        head += [f"{part.name} = {self.path(part)[1:]}{self.order(part)}" for part in listed]
        head += self.parts(p.body)
        body = [line for s in p.body for line in self.stmt(s)]
        return ["@coord", *_define(p.name, tensors, [], scalars), *self.whole(head + body)]

    def parts(self, body: Any) -> list[str]:
        """Indices that run over a part of their range for each value of another."""
        found = dict.fromkeys(n for n in walk(body) if isinstance(n, coord.Index))
        pairs = [(n, n.within) for n in found if n.within is not None]
        return [f"{self.name(n)} = part({self.name(o)}, {count})" for n, (o, count) in pairs]

    def axis_name(self, ax: Axis) -> None:
        """Parents first; a second axis of one name gets a number."""
        if ax in self.axes:
            return
        if ax.parent is not None:
            self.axis_name(ax.parent)
        taken, n, made = set(self.axes.values()), 0, ax.name
        while made in taken:
            n += 1
            made = f"{ax.name}_{n}"
        self.axes[ax] = made
        for b in ax.arrays:
            self.arrays.setdefault(b)

    def axis(self, ax: Axis, made: str) -> str:
        said = [] if ax.length is None else [self.expr(ax.length)]
        said += [] if ax.parent is None else [f"under={self.axes[ax.parent]}"]
        said += [] if ax.indptr is None else [f"indptr={ax.indptr.name}"]
        said += [] if ax.indices is None else [f"indices={ax.indices.name}"]
        said += [] if ax.mask is None else [f"mask={ax.mask.name}"]
        said += [f"{flag}=True" for flag in FLAGS if getattr(ax, flag)]
        usual = "fixed" if ax.indptr is None else "variable"
        said += [] if ax.extent == usual else [f"extent={ax.extent}"]
        said += [] if ax.name == made else [f'name="{ax.name}"']
        return f"{ax.kind}({', '.join(said)})"

    def inline(self, t: Tensor) -> bool:
        """Whether the tensor's own line tells its values."""
        v = t.values
        if v is None:
            return t.sparse
        same = (v.name, v.dtype, v.role) == (t.name, t.dtype, t.role)
        return same and (t.sparse or v.shape == t.shape)

    def tensor(self, t: Tensor) -> str:
        made = f"{t.dtype}[{self.index(t.shape)}]{self.path(t)}"
        if t.parts:
            made += f".parts({', '.join(part.name for part in t.parts)})"
        v = t.values
        if not self.inline(t):
            made += f".values({'None' if v is None else v.name})"
        elif v is not None:
            made += f".stored({self.many(v.shape)})" if t.sparse else ""
            made += "" if v.strides is None else f".strides({self.many(v.strides)})"
        made += self.order(t)
        if t.met:
            told = (f"{m.at.name}, {self.axes[m.axis]}, {m.turned}" for m in t.met)
            made += f".met({', '.join(told)})"
        return made if t.role == "in" else f"{t.role}[{made}]"

    def path(self, t: Tensor) -> str:
        """Where the entries are."""
        made = f".on({', '.join(self.axes[ax] for ax in t.axes)})" if t.axes else ""
        if t.coords != usual_coords(t.axes):
            made += f".at({', '.join(self.sum_of(c) for c in t.coords)})"
        return made

    def order(self, t: Tensor) -> str:
        """The order of the values."""
        return "" if t.perm is None else f".{'holes' if t.holes else 'perm'}({t.perm.name})"

    def sum_of(self, parts: tuple[tuple[Axis, int], ...]) -> str:
        told = (self.axes[ax] + (f" * {n}" if n != 1 else "") for ax, n in parts)
        return " + ".join(told) or "0"


def usual_coords(axes: tuple[Axis, ...]) -> tuple[tuple[tuple[Axis, int], ...], ...]:
    """One axis for each dimension."""
    return tuple(((ax, 1),) for ax in axes)


def _sizes_of(t: Tensor) -> list[Expr]:
    held = [*(b for ax in t.axes for b in ax.arrays), t.values, t.perm, *(m.at for m in t.met)]
    made = [e for b in held if b is not None for e in (*b.shape, *(b.strides or ()))]
    return [*t.shape, *(ax.length for ax in t.axes if ax.length is not None), *made]


def _unless(said: str, usual: str, form: str) -> str:
    return "" if said == usual else form.format(said)


def _define(name: str, first: list[str], sizes: list[str], scalars: list[str]) -> list[str]:
    """On one line where it fits; else a line for each of `first`."""
    whole = f"def {name}({', '.join([*first, *sizes, *scalars])}):"
    if len(whole) <= WIDTH:
        return [whole]
    rows = [*first, *([", ".join(sizes)] if sizes else []), *scalars]
    return [f"def {name}(", *(f"{INDENT}{row}," for row in rows), "):"]
