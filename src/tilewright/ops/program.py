"""@tw.program: an operator of the user's own, from index notation to a differentiable torch function.

@program
def relu_max(a, x, y):
    i, j, f = axes("i j f")
    y[i, f] = fn.max(j, a[i, j] * fn.relu(x[j, f]))
y = relu_max(A, X)
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.compiling import constant
from tilewright.formats.tensor import SparseTensor
from tilewright.language.names import told_apart
from tilewright.language.trace import Traced, source_of, trace
from tilewright.ops.call import call
from tilewright.ops.changing import NUMBERS, as_tensor, changing
from tilewright.ops.ready import served
from tilewright.ops.registry import register
from tilewright.runtime.kernel import Kernel
from tilewright.support.errors import TilewrightError, error
from tilewright.support.places import public


class Program:
    """A traced function that runs on tensors. `print` shows its statements."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__qualname__, self.__module__ = fn.__qualname__, fn.__module__
        self.__doc__ = fn.__doc__
        self.params = tuple(inspect.signature(fn).parameters)
        self.traced: dict[tuple[str, ...], Traced] = {}
        self.key = f"{fn.__module__}.{fn.__qualname__}#{len(_PROGRAMS)}"
        _PROGRAMS[self.key] = self

    @public
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The outputs, in the order of the parameters: dense tensors, or SparseTensors on an input's structure."""
        if named:
            inputs = self.in_order(inputs, named)
        name, given, floats = self.inputs(*inputs)
        try:
            return call(name, given, list(floats.values()))
        except TilewrightError as why:
            self.relocate(why, tuple(floats))
            raise

    def in_order(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All inputs by their places, those given by name behind the others."""
        rest = self.params[len(inputs) : len(inputs) + len(named)]
        if {*rest} != {*named}:
            got, expected = ", ".join(named), ", ".join(rest) or "no more inputs"
            where = f"{self.__name__}({', '.join(self.params)})"
            raise error("argument", where=where, name="inputs", got=got, expected=expected)
        return (*inputs, *(named[n] for n in rest))

    def inputs(self, *inputs: Any) -> tuple[str, dict[str, Any], dict[str, float]]:
        """The program's registered name, its tensors by name and its scalars by name."""
        if torch.compiler.is_compiling():
            inputs = _settled(inputs)
        scalars = tuple(
            n for n, v in zip(self.params, inputs, strict=False) if isinstance(v, NUMBERS)
        )
        name, needed = traced_for(self.key, scalars)
        given = [v for n, v in zip(self.params, inputs, strict=False) if n not in scalars]
        if len(given) != len(needed):
            count = len(needed) + len(scalars)
            raise error(
                "argument",
                where=f"{self.__name__}({', '.join(self.params)})",
                name="inputs",
                got=len(inputs),
                expected=f"{count}: {', '.join(self.params[:count])}",
            )
        floats = {n: float(v) for n, v in zip(self.params, inputs, strict=False) if n in scalars}
        return name, dict(zip(needed, given, strict=True)), floats

    def relocate(self, why: TilewrightError, scalars: tuple[str, ...]) -> None:
        """Another program with the same statements may have been bound first: the place is this one's."""
        if why.vague:
            why.where = f"{self.__name__}({', '.join(self.params)})"
        called = dict(self.traced[scalars].called)
        why.names = {k: called.get(v, v) for k, v in why.names.items()}
        for s in self.traced[scalars].body:
            if why.marked and why.statement == str(s):
                why.place = source_of(s)

    def trace(self, scalars: tuple[str, ...] = ()) -> Traced:
        """The program over references; traced once for each choice of scalar parameters."""
        if scalars not in self.traced:
            made = told_apart(trace(self.fn, scalars))
            mark = hashlib.sha256(made.told.encode()).hexdigest()[:8]
            made = replace(made, name=f"{made.name}_{mark}")
            register(made)
            self.traced[scalars] = made
        return self.traced[scalars]

    def kernels(self, *inputs: Any) -> list[Kernel]:
        """Run once and return the kernels that served, with every stage's text."""
        with served() as found:
            self(*inputs)
        return found

    def __reduce__(self) -> str:
        """As functions are pickled: by module and name."""
        held: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            held = getattr(held, part, None)
        if held is not self:
            got = f"{self.__qualname__}, which is not what {self.__module__} has by that name"
            expected = "a program at the top of a module, under the name of its function"
            raise error("argument", where="pickle", name="program", got=got, expected=expected)
        return self.__qualname__

    def __deepcopy__(self, memo: object) -> Program:
        return self

    def __str__(self) -> str:
        return str(next(iter(self.traced.values()))) if self.traced else f"program {self.__name__}"


def _settled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers that change inside torch.compile as tensors; beside whole numbers alone these would widen the result."""
    floats = [
        v for v in inputs if isinstance(v, Tensor | SparseTensor) and v.dtype.is_floating_point
    ]
    asked = [isinstance(v, NUMBERS) and changing(v) for v in inputs]
    if not floats or not any(asked):
        return inputs
    device = floats[0].device
    return tuple(as_tensor(v, device) if c else v for v, c in zip(inputs, asked, strict=True))


@constant
def traced_for(key: str, scalars: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(template, inputs) of a program; a constant to torch.compile, so it takes and gives constants."""
    traced = _PROGRAMS[key].trace(scalars)
    return traced.name, traced.inputs


_PROGRAMS: dict[str, Program] = {}


def program(fn: Callable[..., None]) -> Program:
    """Make an operator of a function over index notation."""
    return Program(fn)
