"""Templates: every traced program by name, with its gradient, made once.

register(traced)                 # under its name; users' programs carry a hash
register(traced, own)            # with a gradient of its own, in programs as well
template("spmm_sum").reverse()   # reverse mode of a statement, when somebody asks
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.ir.coord import Listed
from tilewright.ir.node import walk
from tilewright.language.grad import Gradient, gradient, reads, results, writes
from tilewright.language.trace import Ref, Traced, source_of
from tilewright.pit.joins import joins
from tilewright.support.errors import TilewrightError, error
from tilewright.support.names import plain
from tilewright.support.places import locating

WORDS = {  # programs of gradients, in the words of those who call them
    "listed_linear_": "tw.linear(sparse=), tw.ops.matmul or masked_linear",
    "grouped_product_": "tw.ops.grouped_matmul",
}


@dataclass(frozen=True)
class Template:
    """A traced program and what follows from it. own: a gradient written by hand, instead of reverse mode."""

    traced: Traced
    own: Gradient | None = None

    @cached_property
    def steps(self) -> tuple[Traced, ...]:
        """One program for each statement; later ones read what earlier ones wrote."""
        return tuple(self._step(n, n + 1) for n in range(len(self.traced.body)))

    @cached_property
    def joined(self) -> tuple[Traced, ...]:
        """The same, where a statement that shares a kernel with the one before it comes with that."""
        body, sized, made, n = self.traced.body, self.traced.sized, list[Traced](), 0
        while n < len(body):
            both = n + 1 < len(body) and joins(body[n], body[n + 1], sized)
            end = n + 2 if both else n + 1
            made.append(self._step(n, end))
            n = end
        return tuple(made)

    def _step(self, n: int, end: int) -> Traced:
        t, body = self.traced, self.traced.body[n:end]
        if len(t.body) == len(body):
            return t
        refs = {m.name: m for m in walk(body) if isinstance(m, Ref)}
        outs = {name for s in body for name in writes(s)}
        for asked in (dims for n, dims in t.sized if n in outs and t.ref(n) in refs.values()):
            refs |= {n: t.ref(n) for n, _ in asked}
        inputs = tuple(x for x in refs if x not in outs)
        outputs = tuple(x for x in refs if x in outs)
        scalars = tuple(v for v in t.scalars if any(m is v for m in walk(body)))
        params = (*inputs, *(v.name for v in scalars), *outputs)
        name = f"{t.name}_{n}"
        return replace(
            t,
            name=name,
            params=params,
            inputs=inputs,
            outputs=outputs,
            scalars=scalars,
            refs=tuple(refs.values()),
            body=body,
        )

    @cached_property
    def reads(self) -> tuple[set[str], ...]:
        """The names that each statement reads."""
        return tuple(map(reads, self.traced.body))

    @cached_property
    def writes(self) -> tuple[set[str], ...]:
        """The names that each statement assigns."""
        return tuple(map(writes, self.traced.body))

    @cached_property
    def early(self) -> tuple[str, ...]:
        """Of each statement what it reads before it is written to the end, if there is such a thing."""
        each = enumerate(self.reads)
        return tuple(min(set().union(*self.writes[n:]) & read, default="") for n, read in each)

    @cached_property
    def saved(self) -> tuple[int, ...]:
        """Which outputs the gradient reads, or later statements: they are kept for it."""
        names = (
            set().union(*self.reads, results(self.traced)) if self.own is None else self.own.saved
        )
        return tuple(k for k, n in enumerate(self.traced.outputs) if n in names)

    @cached_property
    def reverses(self) -> dict[tuple[int, int], Gradient]:
        return {}

    def reverse(self, nth: int = 0, part: int = 0) -> Gradient:
        """The gradient of a target of a statement, made once; one of its own is that of the whole program."""
        if self.own is not None:
            return self.own
        if (nth, part) not in self.reverses:
            self.reverses[nth, part] = self._reverse(nth, part)
        return self.reverses[nth, part]

    def _reverse(self, nth: int, part: int) -> Gradient:
        s, name = self.traced.body[nth], self.traced.name
        with locating(source_of(s), s):
            if name in ONCE:
                got = "it has a gradient once"
                raise error("no-gradient", name=f"the gradient of {ONCE[name]}", got=got)
            try:
                return gradient(self.traced, nth, part)
            except TilewrightError as why:
                why.names["name"] = plain(why.names.get("name", ""))
                raise


TEMPLATES: dict[str, Template] = {}
# Programs over lists in gradients that operators bring: where a list leaves out zeros, their second gradients are not 0
ONCE: dict[str, str] = {}


def register(traced: Traced, own: Gradient | None = None) -> Template:
    made = TEMPLATES[traced.name] = Template(traced, own)
    if own is not None:
        told = next((words for n, words in WORDS.items() if traced.name.startswith(n)), traced.name)
        for p in own.programs(own.of):
            if any(isinstance(n, Listed) for n in walk(p.body)):
                ONCE[p.name] = told
    return made


def template(name: str) -> Template:
    return TEMPLATES[name]
