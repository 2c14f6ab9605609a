"""@tw.program: an operator of the user's own, from index notation to a differentiable torch function.

@program
def relu_max(a, x, y):
    i, j, f = axes("i j f")
    y[i, f] = fn.max(j, a[i, j] * fn.relu(x[j, f]))
y = relu_max(A, X)
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.ir.coord import Index, Stmt
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.language.trace import Traced, source_of, trace
from tilewright.ops.args import Arg, dense_arg, program_text
from tilewright.ops.backend import backend_of
from tilewright.ops.entry import entry
from tilewright.ops.library import run
from tilewright.ops.plans import listed, may_list
from tilewright.ops.registry import TEMPLATES, register
from tilewright.ops.sparse import as_sparse, bundle, prepare_at_second_use, rows_first
from tilewright.support.errors import TilewrightError, error
from tilewright.support.names import plain
from tilewright.support.places import located, public


class Program:
    """A traced function that runs on tensors. `print` shows its statements."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__
        self.params = tuple(inspect.signature(fn).parameters)
        self.traced: dict[tuple[str, ...], Traced] = {}
        self.key = f"{fn.__module__}.{fn.__qualname__}#{len(_PROGRAMS)}"
        _PROGRAMS[self.key] = self

    @public
    def __call__(self, *inputs: Any) -> Any:
        """The outputs, in the order of the parameters: dense tensors, or SparseTensors on an input's structure."""
        name, given, floats = self.inputs(*inputs)
        try:
            return call(name, given, list(floats.values()))
        except TilewrightError as why:
            self.relocate(why, tuple(floats))
            raise

    def inputs(self, *inputs: Any) -> tuple[str, dict[str, Any], dict[str, float]]:
        """The program's registered name, its tensors by name and its scalars by name."""
        scalars = tuple(
            n for n, v in zip(self.params, inputs, strict=False) if isinstance(v, int | float)
        )
        name, needed = traced_for(self.key, scalars)
        given = [v for n, v in zip(self.params, inputs, strict=False) if n not in scalars]
        if len(given) != len(needed):
            raise error(
                "argument",
                where=f"{self.__name__}({', '.join(self.params)})",
                name="inputs",
                got=len(inputs),
                expected=f"{len(needed) + len(scalars)}: {', '.join(needed + scalars)}",
            )
        floats = {n: float(v) for n, v in zip(self.params, inputs, strict=False) if n in scalars}
        return name, dict(zip(needed, given, strict=True)), floats

    def relocate(self, why: TilewrightError, scalars: tuple[str, ...]) -> None:
        """Another program with the same statements may have been bound first: the place is this one's."""
        if why.vague:
            why.where = f"{self.__name__}({', '.join(self.params)})"
        for s in self.traced[scalars].body:
            if why.marked and why.statement == str(s):
                why.place = source_of(s)

    def trace(self, scalars: tuple[str, ...] = ()) -> Traced:
        """The program over references; traced once for each choice of scalar parameters."""
        if scalars not in self.traced:
            made = trace(self.fn, scalars)
            mark = hashlib.sha256(str(made).encode()).hexdigest()[:8]
            made = replace(made, name=f"{made.name}_{mark}")
            register(made)
            self.traced[scalars] = made
        return self.traced[scalars]

    def kernels(self, *inputs: Any) -> list[Any]:
        """Run once and return the kernels that served, with every stage's text."""
        self(*inputs)
        traced = next(iter(self.traced.values()))
        found = []
        for (program, _), e in list(_ENTRIES.items()):
            if program.startswith(traced.name + "|"):
                found += [r.kernel for step in e.steps for r in step.kernels.values()]
        return found

    def __str__(self) -> str:
        return str(next(iter(self.traced.values()))) if self.traced else f"program {self.__name__}"


def traced_for(key: str, scalars: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(template, inputs) of a program; a constant to torch.compile, so it takes and gives constants."""
    traced = _PROGRAMS[key].trace(scalars)
    return traced.name, traced.inputs


traced_for._dynamo_marked_constant = True  # type: ignore[attr-defined]

_PROGRAMS: dict[str, Program] = {}
_ENTRIES: dict[tuple[str, str], Any] = {}


def program(fn: Callable[..., None]) -> Program:
    """Make an operator of a function over index notation."""
    return Program(fn)


def call(name: str, inputs: dict[str, Any], floats: list[float]) -> Any:
    """Run a registered program on tensors, sparse or dense."""
    text, tensors, ints, lead = arguments(name, inputs)
    outs = run(text, tensors, ints, floats)
    device = tensors[0].device
    made = _entry(text, backend_of(device), -1 if device.index is None else device.index)
    wrapped = [
        SparseTensor(lead.structure, o) if sparse and lead is not None else o
        for o, sparse in zip(outs, made, strict=True)
    ]
    return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)


def arguments(
    name: str, inputs: dict[str, Any]
) -> tuple[str, list[Tensor], list[int], SparseTensor | None]:
    """What `run` takes, and the sparse input whose structure sparse outputs have."""
    args: list[Arg] = []
    tensors: list[Tensor] = []
    ints: list[int] = []
    lead: SparseTensor | None = None
    dense = [v for v in inputs.values() if isinstance(v, Tensor) and v.layout == torch.strided]
    grad = torch.is_grad_enabled() and any(v.requires_grad for v in dense)
    where = title_of(name, tuple(inputs))
    for label, value in inputs.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            args.append(dense_arg(label, value))
            tensors.append(value)
            continue
        sparse = rows_first(as_sparse(value, where, label))
        prepare_at_second_use(sparse.structure, grad)
        arg, more, sizes = bundle(label, sparse)
        if lead is None:
            arg, more, sizes = with_lists(arg, more, sizes, sparse, inputs)
        lead = lead or sparse
        args.append(arg)
        tensors += more
        ints += sizes
    _check(args, tensors, where)
    _check_sizes(name, inputs, where)
    return program_text(name, tuple(args)), tensors, ints, lead


def with_lists(
    arg: Arg, tensors: list[Tensor], ints: list[int], a: SparseTensor, inputs: dict[str, Any]
) -> tuple[Arg, list[Tensor], list[int]]:
    """The same argument with the work lists of a prepared structure, for programs over its rows."""
    dense = [v for v in inputs.values() if isinstance(v, Tensor) and v.dim() > 1]
    s = a.structure
    if not dense or not may_list(s, dense[-1]):
        return arg, tensors, ints
    x = dense[-1]
    grad = torch.is_grad_enabled() and any(v.requires_grad for v in dense)
    names, more, numbers = listed(s, x.shape[-1], x.dtype, grad)
    at = len(arg.arrays)
    made = replace(arg, arrays=(*arg.arrays, *names))
    return made, [*tensors[:at], *more, *tensors[at:]], [*ints, *numbers]


def _check(args: list[Arg], tensors: list[Tensor], where: str) -> None:
    first = tensors[0].device
    names = [n for a in args for n in a.names]
    for name, t in zip(names, tensors, strict=True):
        if t.device != first:
            raise error(
                "device", where=where, name=name, got=t.device, other=names[0], expected=first
            )


def _check_sizes(program: str, inputs: dict[str, Any], where: str) -> None:
    """One size for one axis, over all arguments that it addresses."""
    for axis, places in places_of(program):
        first, rest = places[0], places[1:]
        for other in rest:
            a, b = (_extent(inputs[name], dim) for name, dim in (first, other))
            if a != b:
                got = f"{a} in {first[0]} (dimension {first[1]}) and {b} in {other[0]} (dimension {other[1]})"
                why = error("axis-size", where=where, name=axis, got=got)
                s = statement_with(program, axis, other[0])
                raise located(why, source_of(s), s)


def statement_with(program: str, axis: str, tensor: str) -> Stmt:
    """The first statement in which an axis addresses a tensor."""
    for s in TEMPLATES[program].traced.body:
        for n in walk(s):
            if isinstance(n, Load) and n.buffer.name == tensor:
                if any(isinstance(ix, Index) and ix.name == axis for ix in n.indices):
                    return s
    return TEMPLATES[program].traced.body[0]


def title_of(name: str, inputs: tuple[str, ...]) -> str:
    """A call as users write it, without the program's mark; a constant to torch.compile."""
    return f"{plain(name)}({', '.join(inputs)})"


title_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _extent(value: Any, dim: int) -> int:
    if isinstance(value, SparseTensor) and dim >= 2 and value.values is not None:
        return value.values.shape[dim - 1]
    return value.shape[dim] if dim < len(value.shape) else -1


@functools.cache
def _places(name: str) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    traced = TEMPLATES[name].traced
    found: dict[Index, dict[tuple[str, int], None]] = {}
    for n in walk(traced.body):
        if isinstance(n, Load) and n.buffer.name in traced.inputs:
            for dim, ix in enumerate(n.indices):
                if isinstance(ix, Index):
                    found.setdefault(ix, {}).setdefault((n.buffer.name, dim))
    return tuple((ix.name, tuple(places)) for ix, places in found.items())


def places_of(name: str) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """Where each axis of a program addresses an argument directly; a constant to torch.compile."""
    return _places(name)


places_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _entry(text: str, backend: str, index: int) -> tuple[bool, ...]:
    """Which outputs are sparse."""
    made = _ENTRIES.setdefault((text, backend), entry(text, backend, index))
    outs = {t.name: t.sparse for s in made.steps for t in s.bound.program.outputs}
    return tuple(outs[n] for n in TEMPLATES[text.split("|")[0]].traced.outputs)


_entry._dynamo_marked_constant = True  # type: ignore[attr-defined]
