"""torch.compile reads the package's own code: what it takes as constants, and how mistakes are told to it.

In: functions of constants, and entries of the catalogue raised while it reads. Out: a break of the graph that says the
catalogue's text. With fullgraph=True that is what the user sees, the error itself is its cause; otherwise the code
runs eagerly from there on (with torch 2.11 the whole function), and raises the error as always.

    @constant
    def traced_for(key, scalars): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from tilewright.support import errors
from tilewright.support.source import is_package

P = ParamSpec("P")
T = TypeVar("T")


def constant(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of constants, whose result torch.compile takes as it is."""

    @functools.wraps(fn)
    def folded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except errors.TilewrightError as why:
            if _read():
                _tell(why)
            raise

    folded._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return folded


def _read() -> bool:
    """Whether torch.compile, which breaks graphs, runs this function; torch.export shows errors as they are."""
    return torch._guards.TracingContext.try_get() is not None and not torch.compiler.is_exporting()


def refuse(entry: str, where: str, ir: str, names: tuple[tuple[str, str], ...]) -> None:
    """The error of an entry, told to torch.compile: for `errors.error`, which it reads."""
    _tell(errors.made(entry, where, ir, dict(names)))


def _tell(why: errors.TilewrightError) -> None:
    from torch._dynamo.exc import SkipFrame, Unsupported
    from torch._dynamo.symbolic_convert import InstructionTranslator

    frames = torch._guards.TracingContext.extract_stack()
    mine = [f for f in frames if not is_package(f.filename)]
    if mine and not why.place:
        why.place = f"{mine[-1].filename}:{mine[-1].lineno}"
    if torch.__version__ < "2.12" and not InstructionTranslator.current_tx().one_graph:
        raise SkipFrame(str(why)) from why  # it does not compile the raise that follows a break
    raise Unsupported(str(why)) from why


refuse._dynamo_marked_constant = True  # type: ignore[attr-defined]
errors.TRACER.reading, errors.TRACER.refuse = torch.compiler.is_dynamo_compiling, refuse
