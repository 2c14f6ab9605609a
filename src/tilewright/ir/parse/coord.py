"""Stage I from text; `ir/text/program.py` tells its forms.

In: Python's syntax tree. Out: axes, tensors and statements. A name that is neither a size nor a scalar is an index.

    CoordReader(...).stmt(tree of "y[i] = sum(j, a[i, j])")  ->  Assign((y[i],), (Reduce(sum, (j,), ...),))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir import coord
from tilewright.ir.coord import Axis, Index, Met, Tensor
from tilewright.ir.expr import Buffer, Expr, Load
from tilewright.ir.parse.expr import Reader
from tilewright.ir.parse.types import TypeReader
from tilewright.ir.text.program import FLAGS, usual_coords

AXIS = ("under", "indptr", "indices", "mask", *FLAGS, "extent", "name")
METHODS = ("on", "at", "stored", "strides", "values", "perm", "holes", "parts", "met")


class CoordReader(TypeReader, Reader):
    """`arrays` are index arrays and odd values; `buffers` are tensors."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.axes: dict[str, Axis] = {}
        self.arrays: dict[str, Buffer] = {}
        self.indices: dict[str, Index] = {}
        self.lists: dict[str, ast.Call] = {}

    def unknown(self, n: ast.Name) -> Expr:
        return self.index(n)

    def index(self, n: Any) -> Index:
        name = self.word(n, "an index")
        return self.indices.setdefault(name, Index(name))

    # --- where things are stored ------------------------------------------------------------------

    def declare(self, s: ast.stmt) -> bool:
        """Arrays and axes; False for a statement."""
        match s:
            case ast.AnnAssign(ast.Name(name), told, None):
                if not isinstance(told, ast.Name):
                    self.arrays[name] = self.typed_buffer(name, told)
                return True
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("dense" | "sparse")) as call):
                self.axes[name] = self.axis(name, call)
                return True
            case ast.Assign([ast.Name(name)], ast.Call() as call) if "on" in _chain(call):
                self.lists[name] = call
                return True
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("part"), [outer, count])):
                self.indices[name] = Index(name, within=(self.index(outer), self.whole(count)))
                return True
        return False

    def axis(self, name: str, n: ast.Call) -> Axis:
        keys = {k.arg: k.value for k in n.keywords}
        if len(n.args) > 1 or not set(keys) <= set(AXIS):
            self.fail(n, f"`{ast.unparse(n)}` has other arguments", f"a length, {', '.join(AXIS)}")
        length = self.size(n.args[0]) if n.args else None
        parent = self.known(self.axes, keys["under"], "axis") if "under" in keys else None
        ptr, idx, mask = (
            self.known(self.arrays, keys[k], "array") if k in keys else None
            for k in ("indptr", "indices", "mask")
        )
        flags = {k: bool(ast.literal_eval(keys[k])) for k in FLAGS if k in keys}
        extent = "fixed" if ptr is None else "variable"
        if "extent" in keys:
            extent = self.word(keys["extent"], "fixed or variable")
        if "name" in keys:
            name = ast.literal_eval(keys["name"])
        assert isinstance(n.func, ast.Name)
        return Axis(name, n.func.id, extent, length, parent, ptr, idx, mask=mask, **flags)

    def known(self, table: dict[str, Any], n: ast.expr, what: str) -> Any:
        name = self.word(n, f"the name of an {what}")
        if name not in table:
            self.fail(n, f"there is no {what} {name}", f"one of {', '.join(table)}")
        return table[name]

    def tensor(self, name: str, told: ast.expr) -> Tensor:
        role, dtype, shape, calls = self.typed(told)
        for method, n in calls.items():
            if method not in METHODS:
                self.fail(n, f".{method}(...) is not known here", ", ".join(METHODS))
        given = {m: n.args for m, n in calls.items()}
        strides = tuple(map(self.size, given["strides"])) if "strides" in given else None
        values = None
        if "values" in given:
            (held_by,) = given["values"]
            none = isinstance(held_by, ast.Constant)
            values = None if none else self.known(self.arrays, held_by, "array")
        elif "stored" in given or not ("on" in given or "parts" in given):
            held = tuple(map(self.size, given["stored"])) if "stored" in given else shape
            values = Buffer(name, dtype, held, role, strides)
        parts = []
        for said in given.get("parts", ()):
            own = _chain(self.known(self.lists, said, "part"))
            axes, coords, perm = self.path(own)
            part = self.word(said, "the name of a part")
            holes = "holes" in own
            parts.append(Tensor(part, dtype, shape, role, axes, coords, values, perm, holes))
        axes, coords, perm = self.path(given)
        holes = "holes" in given
        met = tuple(self.met(given.get("met", ())))
        return Tensor(
            name, dtype, shape, role, axes, coords, values, perm, holes, tuple(parts), met
        )

    def met(self, n: Sequence[ast.expr]) -> Iterator[Met]:
        """b_at_a, j, False"""
        for at, axis, turned in zip(n[::3], n[1::3], n[2::3], strict=True):
            array = self.known(self.arrays, at, "array")
            yield Met(array, self.known(self.axes, axis, "axis"), bool(ast.literal_eval(turned)))

    def path(self, given: dict[str, list[ast.expr]]) -> tuple[tuple[Axis, ...], Any, Any]:
        """Axes, the coordinates they make, and the order of the values."""
        axes = tuple(self.known(self.axes, n, "axis") for n in given.get("on", ()))
        coords = usual_coords(axes)
        if "at" in given:
            coords = tuple(tuple(self.sum_of(n)) for n in given["at"])
        order = given.get("perm", given.get("holes"))
        perm = None if order is None else self.known(self.arrays, order[0], "array")
        return axes, coords, perm

    def sum_of(self, n: Any) -> list[tuple[Axis, int]]:
        """i_b * 4 + i_in"""
        match n:
            case ast.Constant(0):
                return []
            case ast.BinOp(a, ast.Add(), b):
                return [*self.sum_of(a), *self.sum_of(b)]
            case ast.BinOp(a, ast.Mult(), b):
                return [(self.known(self.axes, a, "axis"), self.whole(b))]
        return [(self.known(self.axes, n, "axis"), 1)]

    # --- statements -------------------------------------------------------------------------------

    def special(self, n: ast.Call) -> Expr | None:
        match n:
            case ast.Call(ast.Name("stored" | "place" as word), [access, *d]):
                load = self.expr(access)
                if not isinstance(load, Load):
                    self.fail(n, f"`{ast.unparse(access)}` is not an access", f"{word}(a[i, j])")
                if word == "place":
                    return coord.Place(load)
                return coord.Stored(load, self.dtype(d[0]) if d else "f32")
            case ast.Call(ast.Name("nth"), indices):
                return coord.Nth(tuple(map(self.index, indices)))
            case ast.Call(m, [over, *args]) if self.has_monoid(m) and not n.keywords:
                found = tuple(self.index(v) for v in self.several(over))
                return coord.Reduce(self.monoid(m), found, self.many(args))
        return None

    def subscript(self, n: ast.Subscript) -> Expr:
        """a[i, j], or the second result of a reduction: softmax_sum(j, s, v)[1]"""
        if not isinstance(n.value, ast.Call):
            return super().subscript(n)
        made = self.expr(n.value)
        if not isinstance(made, coord.Reduce):
            self.fail(n, f"`{ast.unparse(n.value)}` is not a reduction", "sum(j, ...)[part]")
        return coord.Reduce(made.monoid, made.over, made.args, self.whole(n.slice))

    def body(self, lines: Sequence[ast.stmt]) -> tuple[coord.Stmt, ...]:
        made: list[coord.Stmt] = []
        waiting: list[coord.Listed] = []
        for s in lines:
            match s:
                case ast.Pass():
                    continue
                case ast.Assign([ast.Name() as name], ast.Call(ast.Name("listed")) as call):
                    waiting.append(self.listed(name, call))
                    continue
            got = self.stmt(s)
            if waiting and isinstance(got, coord.Assign):
                got = replace(got, listed=tuple(waiting))
            made.append(got)
            waiting = []
        return tuple(made)

    def listed(self, name: ast.Name, n: ast.Call) -> coord.Listed:
        said = {k.arg: k.value for k in n.keywords}
        at = self.target(n.args[0])
        below = self.target(said["below"]) if "below" in said else None
        tile = self.whole(said["tile"]) if "tile" in said else 1
        return coord.Listed(self.index(name), at, self.index(said["place"]), below, tile)

    def stmt(self, s: ast.stmt) -> coord.Stmt:
        match s:
            case ast.Assign([target], value):
                targets = [self.target(t) for t in self.several(target)]
                values = self.several(value) if isinstance(target, ast.Tuple) else [value]
                if len(values) != len(targets):
                    self.fail(s, f"{len(values)} values", f"{len(targets)}, one for each target")
                return coord.Assign(tuple(targets), self.many(values))
            case ast.AugAssign(target, ast.Add(), value):
                return coord.Assign((self.target(target),), (self.expr(value),), adds=True)
            case ast.Expr(ast.Call(ast.Name("append")) as call):
                return self.append(call)
        self.fail(s, "this is not a statement of stage I", "y[i, f] = value, or append(...)")

    def append(self, n: ast.Call) -> coord.Append:
        said = {k.arg: k.value for k in n.keywords if k.arg in ("start", "ordered")}
        keys = ("group", "over", "where", *said)
        into, count, value, *lists, where = self.args(n, 3, *keys)[:6]
        group, over = (tuple(map(self.index, self.several(v))) for v in lists)
        held, counter = self.buffer(into), self.buffer(count)
        start = self.expr(said["start"]) if "start" in said else None
        ordered = bool(ast.literal_eval(said["ordered"])) if "ordered" in said else True
        told = self.expr(where), self.expr(value)
        return coord.Append(held, counter, group, over, *told, "", start, ordered)

    def target(self, n: ast.expr) -> Load:
        made = self.expr(n) if isinstance(n, ast.Subscript) else None
        if not isinstance(made, Load):
            self.fail(n, f"`{ast.unparse(n)}` cannot be assigned", "y[i, f] = value")
        return made


def _chain(n: ast.expr) -> dict[str, list[ast.expr]]:
    """on(i, j).perm(order)  ->  {"on": [i, j], "perm": [order]}"""
    match n:
        case ast.Call(ast.Attribute(before, method), args):
            return {**_chain(before), method: args}
        case ast.Call(ast.Name(method), args):
            return {method: args}
    return {}
