"""Errors of programs show the user's statement; tracebacks end at the user's call."""

from __future__ import annotations

import linecache
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright import driver
from tilewright.language.trace import append, source_of
from tilewright.ops.backend import backend
from tilewright.schedule.edit import illegal
from tilewright.support.errors import (
    FormatError,
    LanguageError,
    NoGradient,
    ScheduleError,
    TilewrightError,
    error,
)
from tilewright.support.places import located, locating
from tilewright.support.source import quote


def eye(n: int = 3) -> torch.Tensor:
    return torch.eye(n).to_sparse_csr()


def line_of(fn: Any, text: str) -> int:
    """The number of the line of a program that holds a text."""
    code = getattr(fn, "fn", fn).__code__
    lines = linecache.getlines(code.co_filename)
    for n in range(code.co_firstlineno, len(lines) + 1):
        if text in lines[n - 1]:
            return n
    raise AssertionError(text)


@tw.program
def wrong_rank(a: Any, x: Any, y: Any) -> None:
    i, j = tw.axes("i j")
    y[i] = tw.sum(j, a[i, j] * x[j])


@tw.program
def unknown_axis(a: Any, x: Any, y: Any) -> None:
    i, j, f, g = tw.axes("i j f g")
    y[i, g] = tw.sum((j, f), a[i, j] * x[j, f])


@tw.program
def mismatched(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.relu(
        a[i, j] * x[j, f],
    )


@tw.program
def listed_rows(x: Any, rows: Any, count: Any) -> None:
    (i,) = tw.axes("i")
    append(rows, count, i, where=x[i] > 0.0, over=i, start=2, ordered=False)


@tw.program
def second_statement(a: Any, x: Any, h: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    h[j, f] = tw.relu(x[j, f])
    y[i] = tw.sum(j, a[i, j] * h[j])


@tw.program
def through_an_index(x: Any, at: Any, y: Any) -> None:
    i, f = tw.axes("i f")
    y.sized(x.dim(0), x.dim(1))
    y[at[i], f] = x[i, f] * 2.0


@tw.program
def good(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * tw.tanh(x[j, f] * 0.125))


def no_gradient() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    through_an_index(x, torch.tensor([0, 0, 1])).sum().backward()


CASES: dict[str, tuple[Callable[[], Any], Any, type[Exception], str, str]] = {
    "rank": (
        lambda: wrong_rank(eye(), torch.ones(3, 2)),
        wrong_rank,
        LanguageError,
        "y[i] = tw.sum(j, a[i, j] * x[j])",
        "x[j]",
    ),
    "unknown axis": (
        lambda: unknown_axis(eye(), torch.ones(3, 2)),
        unknown_axis,
        LanguageError,
        "y[i, g] = tw.sum((j, f), a[i, j] * x[j, f])",
        "g",
    ),
    "sizes": (
        lambda: mismatched(eye(), torch.ones(4, 2)),
        mismatched,
        LanguageError,
        "y[i, f] = tw.relu(",
        "j",
    ),
    "unsupported": (
        lambda: listed_rows(torch.ones(3)),
        listed_rows,
        LanguageError,
        "append(rows, count, i, where=x[i] > 0.0, over=i, start=2, ordered=False)",
        "start",
    ),
    "second statement": (
        lambda: second_statement(eye(), torch.ones(3, 2)),
        second_statement,
        LanguageError,
        "y[i] = tw.sum(j, a[i, j] * h[j])",
        "h[j]",
    ),
    "no gradient": (
        no_gradient,
        through_an_index,
        NoGradient,
        "y[at[i], f] = x[i, f] * 2.0",
        "y[at[i], f]",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_statement(name: str) -> None:
    """File, line, text, a line under what is meant, and the statement in stage I."""
    action, fn, kind, text, under = CASES[name]
    with pytest.raises(kind) as caught:
        action()
    told = str(caught.value).splitlines()
    assert f"  at: {__file__}:{line_of(fn, text)}" in told
    assert any(line.strip() == text for line in told)
    marks = [n for n, line in enumerate(told) if line.strip() and not line.strip(" ^")]
    assert len(marks) == (under is not None)
    for n in marks:
        assert told[n - 1][told[n].index("^") : len(told[n])] == under
    assert any(line.startswith("  ir: ") for line in told)


def test_names_are_the_authors() -> None:
    """The mark that tells programs apart is not shown."""
    for action, fn, kind, _, _ in CASES.values():
        with pytest.raises(kind) as caught:
            action()
        marks = [t.name for t in fn.traced.values()]
        assert not any(m in str(caught.value) for m in marks)


def test_illegal_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step refused while a statement is compiled: the statement's line, and the IR of the step."""

    def refused(p: Any, setting: Any) -> Any:
        raise illegal("split(f)", "it is a lane already", ir=p.body[0])

    monkeypatch.setattr(driver, "schedule_triton", refused)
    with backend("triton"), pytest.raises(ScheduleError) as caught:
        good(eye(), torch.ones(3, 2))
    told = str(caught.value)
    assert f"at: {__file__}:{line_of(good, 'tw.tanh')}" in told
    assert "ir: for i in serial(n_i)" in told


def test_other_exceptions_get_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of the compiler keeps its frames and names the statement, once."""

    def broken(p: Any, options: Any) -> Any:
        raise KeyError("lost")

    monkeypatch.setattr(driver, "schedule_c", broken)
    with pytest.raises(KeyError) as caught:
        good(eye(), torch.ones(3, 3))
    (note,) = caught.value.__notes__
    assert note.startswith("while compiling: y[i, f] = ")
    assert f"at: {__file__}:{line_of(good, 'tw.tanh')}" in note
    assert ours(caught.value)


def test_same_statements_in_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that share a kernel do not share a place."""

    def made() -> Any:
        @tw.program
        def twice(a: Any, x: Any, y: Any) -> None:
            i, j = tw.axes("i j")
            y[i] = tw.sum(j, a[i, j] * x[j])

        return twice

    def refused(p: Any, options: Any) -> Any:
        raise illegal("split(f)", "it is a lane already", ir=p.body[0])

    first = made()

    @tw.program
    def twice(a: Any, x: Any, y: Any) -> None:
        i, j = tw.axes("i j")
        y[i] = tw.sum(j, a[i, j] * x[j])

    monkeypatch.setattr(driver, "schedule_c", refused)
    for fn in (first, twice):
        for x, kind in ((torch.ones(3, 2), LanguageError), (torch.ones(3), ScheduleError)):
            with pytest.raises(kind) as caught:
                fn(eye(), x)
            assert caught.value.place == f"{__file__}:{line_of(fn, 'y[i] = tw.sum')}"  # type: ignore[attr-defined]


def test_outputs_and_append_know_their_line() -> None:
    @tw.program
    def both(a: Any, x: Any, y: Any, m: Any) -> None:
        i, j, f = tw.axes("i j f")
        tw.outputs(y[i, f], m[i], value=tw.softmax_sum_lse(j, a[i, j], x[j, f]))

    @tw.program
    def kept(x: Any, found: Any, count: Any) -> None:
        (i,) = tw.axes("i")
        tw.append(found, count, i, where=x[i] > 0.0, over=i)

    for fn, text in ((both, "tw.outputs("), (kept, "tw.append(")):
        (statement,) = fn.trace().body
        assert source_of(statement) == f"{__file__}:{line_of(fn, text)}"


def test_own_programs_have_no_place() -> None:
    """An operator's error shows the user's call, never a file of the package."""
    with pytest.raises(FormatError) as caught:
        tw.spmm(eye(), torch.ones(4, 2))
    assert caught.value.place.startswith(f"{__file__}:")
    assert "^" not in str(caught.value)  # x is the operator's name, not one of this line


# --- tracebacks -------------------------------------------------------------------------------------


def ours(why: BaseException) -> list[str]:
    frames = traceback.extract_tb(why.__traceback__)
    return [f.filename for f in frames if "/tilewright/" in f.filename.replace("\\", "/")]


CALLS: dict[str, Callable[[], Any]] = {
    "spmm": lambda: tw.spmm(eye(), torch.ones(4, 2)),
    "plan": lambda: tw.spmm.plan(eye(), torch.ones(4, 2)),  # type: ignore[attr-defined]
    "matmul": lambda: tw.SparseTensor.from_torch(eye()) @ torch.ones(4, 2),
    "sddmm": lambda: tw.sddmm(eye(), torch.ones(4, 2), torch.ones(3, 2)),
    "linear": lambda: tw.linear(torch.ones(3, 2), torch.ones(3, 4), sparse=torch.tensor([0])),
    "attention": lambda: tw.attention(*(torch.ones(1, 3, 2) for _ in "qkv"), mask=None),  # type: ignore[arg-type]
    "einsum": lambda: tw.einsum("ij,jf->if", eye(), torch.ones(4, 2)),
    "program": lambda: wrong_rank(eye(), torch.ones(3, 2)),
    "from_coo": lambda: tw.SparseTensor.from_coo(
        torch.tensor([0]), torch.tensor([9]), None, (3, 3)
    ),
    "from_torch": lambda: tw.SparseTensor.from_torch(3),  # type: ignore[arg-type]
    "to_format": lambda: tw.SparseTensor.from_torch(eye()).to_format("nothing"),
    "with_values": lambda: tw.SparseTensor.from_torch(eye()).with_values(torch.ones(7)),
    "graph": lambda: tw.graph(torch.zeros(2, 5)),
    "block_mask": lambda: tw.block_mask(torch.ones(2, 2), block=0),
    "ragged": lambda: tw.ragged(),
    "tune": lambda: tw.tune(tw.sddmm, eye(), torch.ones(3, 2)),
    "backward": no_gradient,
}


@pytest.mark.parametrize("name", CALLS)
def test_frames_are_hidden(name: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        CALLS[name]()
    assert not ours(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    frames = traceback.extract_tb(caught.value.__traceback__)
    last = [f for f in frames if "/torch/" not in f.filename][-1]
    assert last.filename == __file__


@pytest.mark.parametrize("name", CALLS)
def test_frames_are_shown_on_request(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(TilewrightError) as caught:
        CALLS[name]()
    assert len(ours(caught.value)) >= 2


def test_a_users_own_frames_stay() -> None:
    """What is raised inside a program while it is traced leads through the program's own line."""

    @tw.program
    def refusing(a: Any, y: Any) -> None:
        raise error("argument", where="here", name="a", got="nothing", expected="something")

    with pytest.raises(FormatError) as caught:
        refusing(eye())
    names = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["test_a_users_own_frames_stay", "refusing"]


# --- pieces -----------------------------------------------------------------------------------------


def test_the_first_place_stays() -> None:
    why = located(located(error("rank", name="x", got=1, expected=2), "a.py:1", "one"), "b.py:2")
    assert (why.place, why.ir) == ("a.py:1", "one")


def test_long_ir_is_clipped() -> None:
    why = error("rank", name="x", got=1, expected=2, ir="\n".join("line" for _ in range(30)))
    assert why.ir.count("\n") == 8 and why.ir.endswith("...")


def test_a_place_without_source() -> None:
    assert quote("<nowhere>:3", ("x",)) == "<nowhere>:3"


def test_locating_lets_interrupts_pass() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, locating("a.py:1", "y = x"):
        raise KeyboardInterrupt
    assert not hasattr(caught.value, "__notes__")


def test_errors_travel_between_processes() -> None:
    with pytest.raises(LanguageError) as caught:
        wrong_rank(eye(), torch.ones(3, 2))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_second_gradients_show_no_statements_of_the_package() -> None:
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in "xw")
    y = tw.linear(x, w, sparse=torch.tensor([0, 2]))
    (g,) = torch.autograd.grad(y.square().sum(), w, create_graph=True)
    with pytest.raises(NoGradient) as caught:
        g.sum().backward()
    assert "\n  got: it has a gradient once" in str(caught.value)
    assert "\n  ir:" not in str(caught.value)
