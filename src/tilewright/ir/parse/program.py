"""A program from its text, whatever its stage; `ir/text/program.py` tells the forms.

In: the text that was printed, perhaps edited. Out: a program that prints as the same text.
Mistakes raise `parse` of the error catalogue, with the line, what is wrong there and what was expected.

    parse(text(program))                        # an equal program
    parse(source, {"mine": my_monoid})          # monoids that are not built in are given by name
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir import coord, flat, loops, tile
from tilewright.ir.expr import Buffer, Var
from tilewright.ir.monoid import Monoid
from tilewright.ir.parse.coord import CoordReader
from tilewright.ir.parse.expr import Reader
from tilewright.ir.parse.nest import LoopsReader, NestReader
from tilewright.ir.parse.tile import TileReader
from tilewright.ir.parse.types import TypeReader
from tilewright.ir.text.expr import DTYPES

Program = coord.Program | loops.Program | flat.Program | tile.Program


def parse(source: str, monoids: Mapping[str, Monoid] | None = None, place: str = "") -> Program:
    """The program of a text; `place` (a file's name) is told in mistakes."""
    given = (source, monoids or {}, place)
    head = Reader(*given)
    try:
        tree = ast.parse(source)
    except SyntaxError as why:
        raise head.mistake(why.lineno or 1, str(why.msg), "Python's own syntax") from None
    stages = ", ".join(f"@{s}" for s in READERS)
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    if len(found) != 1 or len(tree.body) != 1 or len(found[0].decorator_list) != 1:
        head.fail(tree, "the text is not one program", f"one function under {stages}")
    (function,), (said,) = found, found[0].decorator_list
    name = said.func if isinstance(said, ast.Call) else said
    stage = head.word(name, stages)
    if stage not in READERS:
        head.fail(said, f"@{stage} is not a stage", stages)
    reader = READERS[stage](*given)
    facts = {k.arg or "": k.value for k in said.keywords} if isinstance(said, ast.Call) else {}
    for key in facts:
        if key not in FACTS[stage]:
            head.fail(said, f"{key}= is not known here", ", ".join(FACTS[stage]) or "nothing")
    return reader.read(function, facts)


Head = tuple[str, tuple[Buffer, ...], tuple[Var, ...], tuple[Var, ...]]


class _Head(TypeReader):
    """The parameters of stages II, III and tile form."""

    sizes: list[Var]
    scalars: list[Var]

    def declared(self, body: Sequence[ast.stmt]) -> None:
        """Variables that are declared above everything; shapes may name them."""
        for s in body:
            match s:
                case ast.AnnAssign(ast.Name(name), ast.Name(d), None) if d in DTYPES:
                    self.vars[name] = Var(name, d)

    def parameters(self, args: Sequence[ast.arg]) -> list[tuple[str, ast.expr]]:
        """Sizes and scalars are set; what is left has a type of its own."""
        self.sizes, self.scalars, left = [], [], []
        for a in args:
            match a.annotation:
                case None:
                    self.sizes.append(self.vars.setdefault(a.arg, Var(a.arg)))
                case ast.Subscript(ast.Name("size"), d):
                    self.sizes.append(self.vars.setdefault(a.arg, Var(a.arg, self.dtype(d))))
                case ast.Subscript(ast.Name("scalar"), d):
                    self.scalars.append(self.vars.setdefault(a.arg, Var(a.arg, self.dtype(d))))
                case told:
                    left.append((a.arg, told))
        return left

    def head(self, n: ast.FunctionDef) -> Head:
        """Name, buffers, sizes, scalars."""
        self.declared(n.body)
        for name, told in self.parameters(n.args.args):
            self.buffers[name] = self.typed_buffer(name, told)
        return n.name, tuple(self.buffers.values()), tuple(self.sizes), tuple(self.scalars)

    def pairs(self, n: Any) -> list[tuple[ast.expr, int]]:
        """{name: number}"""
        if not isinstance(n, ast.Dict):
            self.fail(n, f"`{ast.unparse(n)}` is not a table", "{name: number}")
        return [(k, self.whole(v)) for k, v in zip(n.keys, n.values, strict=True) if k is not None]


class _Loops(_Head, LoopsReader):
    def read(self, n: ast.FunctionDef, facts: dict[str, Any]) -> loops.Program:
        return loops.Program(*self.head(n), self.body(n.body))


class _Flat(_Head, NestReader):
    def read(self, n: ast.FunctionDef, facts: dict[str, Any]) -> flat.Program:
        head = self.head(n)
        body = self.body(n.body)
        divisors = self.pairs(facts["divisors"]) if "divisors" in facts else ()
        return flat.Program(
            *head,
            body,
            tuple((self.var(v), d) for v, d in divisors),
            self.names(facts.get("order")),
            self.whole(facts["swizzle"]) if "swizzle" in facts else 0,
            self.names(facts.get("tensor")),
            self.names(facts.get("streams")),
            self.whole(facts["scan"]) if "scan" in facts else 0,
            self.word(facts["balance"], "an array") if "balance" in facts else "",
        )

    def names(self, n: Any) -> tuple[str, ...]:
        given = () if n is None else self.several(n)
        return tuple(self.word(v, "a name") for v in given)


class _Tile(_Head, TileReader):
    def read(self, n: ast.FunctionDef, facts: dict[str, Any]) -> tile.Program:
        for key in FACTS["tile"]:
            if key not in facts:
                self.fail(n.decorator_list[0], f"{key}= is missing", "@tile(grid=..., dims={...})")
        head = self.head(n)
        dims = [(self.word(d, "a dimension"), size) for d, size in self.pairs(facts["dims"])]
        self.dims = dict(dims)
        grid = self.expr(facts["grid"])
        body = self.body(n.body)
        return tile.Program(*head, tuple(dims), tuple(self.known.items()), grid, body)


class _Coord(_Head, CoordReader):
    def read(self, n: ast.FunctionDef, facts: dict[str, Any]) -> coord.Program:
        self.declared(n.body)
        tensors = self.parameters(n.args.args)
        lines = [s for s in n.body if not self.declare(s)]
        for name, told in tensors:
            self.buffers[name] = self.tensor(name, told)
        if self.sizes:
            self.fail(n, f"{self.sizes[0].name} has no type", "a tensor's type, or scalar[f32]")
        held = tuple(self.buffers.values())
        return coord.Program(n.name, held, tuple(self.scalars), self.body(lines))


READERS: dict[str, Any] = {"coord": _Coord, "loops": _Loops, "flat": _Flat, "tile": _Tile}
FACTS = {
    "coord": (),
    "loops": (),
    "flat": ("divisors", "order", "swizzle", "tensor", "streams", "scan", "balance"),
    "tile": ("grid", "dims"),
}
