"""Random programs of several statements, over lists, index arrays and a sparse matrix, for their gradients.

    chain = draw_chain(7)
    print(chain.source)            # statements that read what earlier ones wrote
    chain.run(*numbers(chain))     # all float outputs; gradcheck is the judge

Kinds of tensors: m [i, f], r [i], c [f], e on the structure of a [i, j].
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tilewright as tw

ROWS, WIDTH = 6, 3
INPUTS = {"a": "e", "x": "m", "w": "w", "b": "c", "s": "r"}
LISTS = ("at", "rows", "count")
WORDS = ("tw.tanh({})", "tw.sigmoid({})", "({0} * {0})", "{}", "(0.5 * {})", "tw.relu({})")
REDUCTIONS = ("sum", "sum", "mean", "max", "logsumexp")


@dataclass(frozen=True)
class Chain:
    """tile: values for each entry of the list; listed: how many entries count."""

    number: int
    statements: tuple[str, ...]
    outputs: tuple[str, ...]
    tile: int
    listed: int

    @property
    def source(self) -> str:
        lines = [
            f"def drawn({', '.join((*INPUTS, *LISTS, *self.outputs))}):",
            '    i, j, f, g, p = tw.axes("i j f g p")',
            f'    t = tw.listed("t", rows[p], p, below=count[0], tile={self.tile})',
            *(f"    {s}" for s in self.statements),
        ]
        return "\n".join(lines) + "\n"

    @cached_property
    def program(self) -> Any:
        name, space = f"<chain {self.number}>", {"tw": tw}
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        exec(compile(self.source, name, "exec"), space)
        return tw.program(space["drawn"])

    def run(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The outputs, of values a on a fixed structure and dense x, w, b, s."""
        made = self.program(pattern().with_values(given[0]), *given[1:], *self.lists)
        outs = made if isinstance(made, tuple) else (made,)
        return tuple(o.values if isinstance(o, tw.SparseTensor) else o for o in outs)

    @cached_property
    def lists(self) -> tuple[Tensor, Tensor, Tensor]:
        """An index array with repetitions; a list, and how much of it counts."""
        rng = np.random.default_rng([5, self.number])
        at = torch.from_numpy(rng.integers(0, ROWS, ROWS))
        rows = torch.from_numpy(rng.permutation(ROWS // self.tile)).int()
        return at, rows, torch.tensor([self.listed], dtype=torch.int32)


def pattern() -> tw.SparseTensor:
    held = np.random.default_rng(3).random((ROWS, ROWS)) < 0.4
    held[:, 0] = True  # a maximum of nothing has no slope
    return tw.SparseTensor.from_dense(torch.from_numpy(held * 1.0))


def numbers(chain: Chain) -> tuple[Tensor, ...]:
    rng = np.random.default_rng([9, chain.number])
    shapes = ((pattern().nnz,), (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,), (ROWS,))
    return tuple(torch.from_numpy(rng.normal(size=s)).requires_grad_() for s in shapes)


# --- drawing ----------------------------------------------------------------------------------------


def draw_chain(number: int) -> Chain:
    rng = np.random.default_rng([1, number])
    known = dict(INPUTS)
    statements: list[str] = []
    for nth in range(int(rng.integers(2, 5))):
        kind = str(rng.choice(["m", "m", "m", "r", "c", "e"]))
        name = f"h{nth}"
        statements.append(_statement(rng, known, name, kind))
        known[name] = kind
    outputs = tuple(n for n in known if n not in INPUTS)
    tile = int(rng.choice([1, 1, 2]))
    return Chain(number, tuple(statements), outputs, tile, int(rng.integers(1, ROWS // tile + 1)))


def _statement(rng: np.random.Generator, known: dict[str, str], name: str, kind: str) -> str:
    i = "t" if rng.random() < 0.5 else "i"
    fold = str(rng.choice(REDUCTIONS))
    match kind:
        case "m":
            return f"{name}[{i}, f] = {_value(rng, known, i, 'f')}"
        case "r":
            return f"{name}[{i}] = tw.{fold}(g, {_value(rng, known, i, 'g')})"
        case "c":
            return f"{name}[f] = tw.{fold}({i}, {_value(rng, known, i, 'f')})"
        case _:
            inner = f"tw.sum(g, {_leaf(rng, known, 'i', 'g')} * {_leaf(rng, known, 'j', 'g')})"
            return f"{name}[i, j] = {_of(rng, known, 'e')}[i, j] * tw.tanh({inner})"


def _value(rng: np.random.Generator, known: dict[str, str], i: str, f: str) -> str:
    """An expression at [i, f]: leaves, products and sums of them, a product with w, or one with an edge."""
    while True:
        pick, a = rng.random(), _leaf(rng, known, i, f)
        if pick < 0.25 and f == "f":
            a = f"tw.sum(g, {_leaf(rng, known, i, 'g')} * w[f, g])"
        elif pick < 0.5 and i == "i":
            a = f"tw.sum(j, {_of(rng, known, 'e')}[i, j] * {_leaf(rng, known, 'j', f)})"
        b = _leaf(rng, known, i, f)
        made = f"{str(rng.choice(WORDS)).format(a)} {rng.choice(['*', '+', '-'])} {b}"
        if f"[{i}" in made and f"{f}]" in made:  # something says how large they are
            return made


def _leaf(rng: np.random.Generator, known: dict[str, str], i: str, f: str) -> str:
    pick = rng.random()
    if pick < 0.5:
        return f"{_of(rng, known, 'm')}[{i}, {f}]"
    if pick < 0.7:
        return f"{_of(rng, known, 'm')}[at[{i}], {f}]"
    return f"{_of(rng, known, 'r')}[{i}]" if pick < 0.85 else f"{_of(rng, known, 'c')}[{f}]"


def _of(rng: np.random.Generator, known: dict[str, str], kind: str) -> str:
    return str(rng.choice([n for n, k in known.items() if k == kind]))
