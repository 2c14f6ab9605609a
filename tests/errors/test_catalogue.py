"""Every entry of the error catalogue is raised by something a user can do; its text has all its parts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.language.trace import append
from tilewright.ops.backend import backend
from tilewright.runtime import build_c, build_triton
from tilewright.support.errors import CATALOGUE, TilewrightError

ACTIONS: dict[str, Callable[[pytest.MonkeyPatch, Path], Any]] = {}


def raises(entry: str) -> Callable[[Any], Any]:
    def keep(action: Any) -> Any:
        ACTIONS[entry] = action
        return action

    return keep


@tw.program
def listed_rows(x: Any, rows: Any, count: Any) -> None:
    (i,) = tw.axes("i")
    append(rows, count, i, where=x[i] > 0.0, over=i, start=2, ordered=False)


def summed_up(x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] += x[i]


def eye(n: int = 3) -> torch.Tensor:
    return torch.eye(n).to_sparse_csr()


# --- tensors and structures -------------------------------------------------------------------------

ACTIONS |= {
    "shape": lambda m, p: tw.spmm(eye(), torch.ones(4, 2)),
    "dtype": lambda m, p: tw.spmm(eye(), torch.ones(3, 2, dtype=torch.int64)),
    "device": lambda m, p: tw.spmm(eye(), torch.ones(3, 2, device="meta")),
    "layout": lambda m, p: tw.attention(
        *(torch.ones(1, 3, 2) for _ in "qkv"), mask=tw.SparseTensor.from_torch(eye())
    ),
    "index-range": lambda m, p: tw.SparseTensor.from_coo(
        torch.tensor([0]), torch.tensor([9]), None, (3, 3)
    ),
    "index-dtype": lambda m, p: tw.graph(torch.zeros(2, 5)),
    "value-count": lambda m, p: tw.spmm(eye(), torch.ones(3, 2), values=torch.ones(7)),
    "block-size": lambda m, p: tw.block_mask(torch.ones(2, 2), block=0),
    "too-large": lambda m, p: tw.SparseTensor.from_coo(
        torch.tensor([0]), torch.tensor([0]), None, (2000, 2000)
    ).to_format("bitmap"),
    "unwritten": lambda m, p: tw.program(summed_up)(torch.ones(3)),
    "not-dense": lambda m, p: tw.spmm(eye(), torch.eye(3).to_sparse()),
    "not-sparse": lambda m, p: tw.spmm(torch.ones(3, 3), torch.ones(3, 2)),
    "dense-by-sparse": lambda m, p: torch.ones(2, 3) @ tw.SparseTensor.from_torch(eye()),
    "leaf-gradient": lambda m, p: tw.spmm(
        torch.eye(3).to_sparse_csc().requires_grad_(), torch.ones(3, 2)
    ),
    "argument": lambda m, p: tw.spmm(eye(), torch.ones(3, 2), reduce="median"),
    "einsum": lambda m, p: tw.einsum("ij,jf", eye(), torch.ones(3, 2)),
    "axis-size": lambda m, p: tw.einsum("ij,jf->if", eye(), torch.ones(4, 2)),
    "unsupported": lambda m, p: listed_rows(torch.ones(3)),
}


@raises("index-pointer")
def bad_pointer(m: pytest.MonkeyPatch, p: Path) -> None:
    at = torch.tensor([0, 3, 2]), torch.tensor([0, 1])
    tw.SparseTensor.from_torch(
        torch.sparse_csr_tensor(*at, torch.ones(2), (2, 3), check_invariants=False)
    )


@raises("sparse-in-compile")
def exported(m: pytest.MonkeyPatch, p: Path) -> None:
    """torch.compile refuses torch's sparse tensors itself; torch.export traces in Python and comes here."""

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tw.spmm(A, x)

    A = eye()
    torch.export.export(Layer(), (torch.ones(3, 2),), strict=False)


@raises("transform-in-compile")
def transformed(m: pytest.MonkeyPatch, p: Path) -> None:
    A = tw.SparseTensor.from_torch(eye())
    made = torch.func.grad(lambda x: tw.spmm(A, x).sum())
    torch.compile(lambda x: made(x), backend="eager")(torch.ones(3, 2))


@raises("jit-trace")
def recorded(m: pytest.MonkeyPatch, p: Path) -> None:
    A = tw.SparseTensor.from_torch(eye())
    torch.jit.trace(lambda x: tw.spmm(A, x), torch.ones(3, 2))


# --- language ---------------------------------------------------------------------------------------


@raises("unknown-axis")
def axis_of_nothing(m: pytest.MonkeyPatch, p: Path) -> None:
    @tw.program
    def spread(a: Any, x: Any, y: Any) -> None:
        i, j, f, g = tw.axes("i j f g")
        y[i, g] = tw.sum((j, f), a[i, j] * x[j, f])

    spread(eye(), torch.ones(3, 2))


@raises("rank")
def too_few_axes(m: pytest.MonkeyPatch, p: Path) -> None:
    @tw.program
    def flat(a: Any, x: Any, y: Any) -> None:
        i, j = tw.axes("i j")
        y[i] = tw.sum(j, a[i, j] * x[j])

    flat(eye(), torch.ones(3, 2))


@raises("program-output")
def nothing_assigned(m: pytest.MonkeyPatch, p: Path) -> None:
    @tw.program
    def idle(a: Any, x: Any, y: Any) -> None:
        pass

    idle(eye(), torch.ones(3, 2))


@raises("duplicates")
def searched_twice(m: pytest.MonkeyPatch, p: Path) -> None:
    at = torch.tensor([[0, 0], [1, 1], [2, 2]])
    tw.einsum("kji->ij", tw.SparseTensor.from_coords(at, torch.ones(2), (2, 3, 4), format="csf"))


@raises("monoid")
def not_associative(m: pytest.MonkeyPatch, p: Path) -> None:
    tw.monoid("apart", state="a", identity=0.0, lift=lambda x: x, combine=lambda a, b: a - 2.0 * b)


@raises("no-tangent")
def forward_mode(m: pytest.MonkeyPatch, p: Path) -> None:
    x = torch.ones(3, 2)
    A = tw.SparseTensor.from_dense(torch.eye(3))
    torch.func.jvp(lambda t: tw.spmm(A, t), (x,), (x,))


@raises("two-forms")
def dense_then_sparse(m: pytest.MonkeyPatch, p: Path) -> None:
    @tw.program
    def both(a: Any, b: Any, y: Any) -> None:
        i, j = tw.axes("i j")
        y[i, j] = b[i, j]
        y[i, j] = a[i, j] * 2.0

    both(eye(), torch.ones(3, 3))


@raises("no-gradient")
def through_an_index(m: pytest.MonkeyPatch, p: Path) -> None:
    @tw.program
    def pick(x: Any, at: Any, y: Any) -> None:
        i, f = tw.axes("i f")
        y.sized(x.dim(0), x.dim(1))
        y[at[i], f] = x[i, f] * 2.0

    x = torch.ones(3, 2, requires_grad=True)
    pick(x, torch.tensor([0, 0, 1])).sum().backward()


@raises("parse")
def text_of_nothing(m: pytest.MonkeyPatch, p: Path) -> None:
    """By hand: a stage's file that was edited and says nothing any more."""
    from tilewright.driver import resume

    edited = p / "03_flat.py"
    edited.write_text(
        "@flat\ndef f(y: out[f32[n]], n):\n    for i in rows(n):\n        y[i] = 1.0\n"
    )
    resume(edited)


# --- schedules and machines -------------------------------------------------------------------------


@raises("illegal")
def split_of_nothing(m: pytest.MonkeyPatch, p: Path) -> None:
    """By hand: a schedule step on a loop that is not there."""
    from builders import spmm

    from tilewright.lowering.flatten import lower_to_flat
    from tilewright.lowering.position import lower_to_position
    from tilewright.schedule.loop import split

    split(lower_to_flat(lower_to_position(spmm([[0]], 1, 2).program)), "nobody", 4)


@raises("no-compiler")
def no_compiler(m: pytest.MonkeyPatch, p: Path) -> None:
    m.setenv("CC", "/nonexistent")
    m.setenv("TILEWRIGHT_FALLBACK", "0")
    m.setenv("TILEWRIGHT_CACHE", str(p))
    tw.spmm(eye(), torch.ones(3, 231))


@raises("c-build")
def broken_compiler(m: pytest.MonkeyPatch, p: Path) -> None:
    bad = p / "cc"
    bad.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bad 1.0 && exit 0\necho no >&2; exit 1\n'
    )
    bad.chmod(0o755)
    m.setenv("CC", str(bad))
    m.setenv("TILEWRIGHT_CACHE", str(p))
    tw.spmm(eye(), torch.ones(3, 233))


@raises("cache-folder")
def cache_under_a_file(m: pytest.MonkeyPatch, p: Path) -> None:
    (p / "file").write_text("")
    m.setenv("TILEWRIGHT_CACHE", str(p / "file" / "cache"))
    tw.spmm(eye(), torch.ones(3, 235))


@raises("no-triton")
def without_triton(m: pytest.MonkeyPatch, p: Path) -> None:
    m.setitem(sys.modules, "triton", None)
    with backend("triton"):
        tw.spmm(eye(), torch.ones(3, 237))


# --- the judges -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def tools() -> Iterator[None]:
    """What is remembered of compilers is forgotten before and after."""
    for remembered in (build_c.compiler, build_triton.triton):
        remembered.cache_clear()
    yield
    for remembered in (build_c.compiler, build_triton.triton):
        remembered.cache_clear()


# Entries that come out of compilation, and those raised by a part of the compiler called by hand.
COMPILED = {
    "unwritten",
    "axis-size",
    "unsupported",
    "unknown-axis",
    "rank",
    "two-forms",
    "no-gradient",
    "illegal",
    "no-compiler",
    "c-build",
    "cache-folder",
    "no-triton",
}
BARE = {"illegal"}


def parts_of(text: str) -> dict[str, str]:
    """The parts of a message by label, in order; what comes first is `what`."""
    what, *rest = text.splitlines()
    made, label = {"what": what}, "what"
    for line in rest:
        found = re.match(r"  (\w+): (.*)", line)
        if found:
            label = found[1]
            made[label] = found[2]
        else:
            made[label] += "\n" + line.removeprefix("      ")
    return made


def text_of(entry: str, m: pytest.MonkeyPatch, p: Path) -> str:
    with pytest.raises(Exception) as caught:
        ACTIONS[entry](m, p)
    why: BaseException | None = caught.value
    while why is not None and not isinstance(why, TilewrightError):
        why = why.__cause__ or why.__context__
    assert isinstance(why, TilewrightError), caught.value
    assert why.entry == entry
    assert isinstance(why, CATALOGUE[entry].kind)
    return str(why)


@pytest.mark.parametrize("entry", CATALOGUE)
def test_raised(entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each by a user's action; an entry without one is dead."""
    assert entry in ACTIONS, f"nothing here raises {entry}"
    text_of(entry, monkeypatch, tmp_path)


@pytest.mark.parametrize("entry", CATALOGUE)
def test_parts(
    entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What is wrong, in which call, at which line, what was expected, what came, what to do."""
    parts = parts_of(text_of(entry, monkeypatch, tmp_path))
    wanted = ["what", "in", "at", "expected", "got", "ir", "hint"]
    missing = {"at", "ir"} & {"ir" if entry not in COMPILED else "", "at" if entry in BARE else ""}
    assert list(parts) == [w for w in wanted if w not in missing]
    assert all(parts.values()), parts


@pytest.mark.parametrize("entry", [e for e in CATALOGUE if e not in BARE])
def test_place(entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line of this file, with its text."""
    place, *text = parts_of(text_of(entry, monkeypatch, tmp_path))["at"].splitlines()
    path, _, line = place.rpartition(":")
    assert path == __file__
    assert text[0].strip() == Path(__file__).read_text().splitlines()[int(line) - 1].strip()


@pytest.mark.parametrize("entry", CATALOGUE)
def test_no_gaps(entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name that the caller forgot shows as '?'."""
    lines = text_of(entry, monkeypatch, tmp_path).splitlines()
    assert not any(" ?" in line or "?." in line for line in lines), lines


@pytest.mark.parametrize("entry", sorted(ACTIONS))
def test_known(entry: str) -> None:
    assert entry in CATALOGUE
