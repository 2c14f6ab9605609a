"""Where an error happened: the statement is added on the way out, and the compiler's frames are left behind.

In: exceptions that pass. Out: the same exceptions, with a place, a piece of IR and a short traceback.

    with locating(statement.where, statement):      # ops.step, driver: whatever is raised in here
        kernel = compile_c(program)

    @public                                          # every function that users call
    def spmm(A, x): ...

TILEWRIGHT_DEBUG=1 keeps every frame.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from tilewright.support import knobs
from tilewright.support.errors import NoGradient, TilewrightError, clip
from tilewright.support.source import is_between, is_ours, place_of, quote

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
NOTE = "while compiling"


def located(why: E, place: str, ir: object = None) -> E:
    """The exception with the place and the IR of a statement, unless it has them; foreign ones get a note."""
    if isinstance(why, TilewrightError):
        if place and not why.place:
            why.place, why.marked, why.statement = place, True, str(ir)
        theirs = bool(place) or not isinstance(why, NoGradient)  # gradients are of our own making
        why.ir = why.ir or (clip(str(ir)) if theirs and ir is not None else "")
    elif not any(n.startswith(NOTE) for n in getattr(why, "__notes__", ())):
        at = f"\n  at: {quote(place)}".replace("\n", "\n      ") if place else ""
        why.add_note(f"{NOTE}: {clip(str(ir))}{at}")
    return why


class locating:
    """Exceptions that leave the block get the place and the IR of a statement."""

    def __init__(self, place: str, ir: object = None) -> None:
        self.place, self.ir = place, ir

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        why: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(why, Exception):
            located(why, self.place, self.ir)


def public(fn: Callable[P, T]) -> Callable[P, T]:
    """An entry point: its errors name the user's call, and their traceback ends there."""

    @functools.wraps(fn)
    def entered(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except TilewrightError as why:
            tell(why, fn)
            raise

    return entered


def tell(why: TilewrightError, fn: Callable[..., object]) -> None:
    """Fill in the call, and drop the frames that are not the user's.

    A bare `raise` after this adds no frame, so that nothing of the package is left.
    """
    if why.vague:
        names = [n for n in inspect.signature(fn).parameters if n != "self"]
        why.where = f"{fn.__name__}({', '.join(names)})"
    why.place = why.place or place_of(sys._getframe(1))
    if not knobs.debug():
        why.__cause__, why.__suppress_context__ = None, True
        why.__traceback__ = users(why.__traceback__)


def users(trace: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are the user's."""
    if trace is None:
        return None
    rest = users(trace.tb_next)
    if is_ours(trace.tb_frame) or is_between(trace.tb_frame):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
