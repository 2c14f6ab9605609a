"""The error catalogue: every mistake a user can make, with what is wrong, what was expected and the cure.

In: an entry's name, the place, and the user's own names. Out: an exception whose text has these parts:

    x is indexed by 1 axes
      in: relu_max(a, x)                        the user's call
      at: model.py:31                           the statement of a program, or the call, with its text
          y[i] = tw.sum(j, a[i, j] * x[j])
                                     ^^^^
      expected: 2 axes for its shape
      got: 1
      ir: y[i] = sum(j: a[i, j] * x[j])         only of errors that come out of compilation
      hint: give one axis for each dimension

    raise error("shape", where="spmm(A, x)", name="x", got="(3, 4)", expected="5 rows, one for each column of A")

The catalogue is a table (`CATALOGUE`); a test raises every entry and checks the parts of its text. The text
is made when it is printed: places and IR may be added on the way out (`support.places`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.support.source import quote

CLIP = 8


class TilewrightError(Exception):
    """Base of all errors a user can cause. `entry` is the name in the catalogue.

    place: "file:line" of a statement, where names are those of the error (`marked`), or of a call.
    statement: that statement in stage I; ir: the smallest piece concerned, which may be less.
    """

    entry: str = ""
    names: dict[str, str] = {}
    where: str = ""
    place: str = ""
    marked: bool = False
    statement: str = ""
    ir: str = ""

    @property
    def vague(self) -> bool:
        """Whether the call is not named: nothing, or no more than a part of the compiler."""
        return not self.where or self.where in ("index notation", "lowering the program")

    def __str__(self) -> str:
        return told(self) if self.entry else super().__str__()


class LanguageError(TilewrightError, ValueError):
    """The index notation says something that has no meaning."""


class FormatError(TilewrightError, ValueError):
    """A tensor's structure, shape, dtype or device does not fit."""


class ScheduleError(TilewrightError, ValueError):
    """A transformation is not legal here; the text gives the reason."""


class BackendError(TilewrightError, RuntimeError):
    """A tool outside (C compiler, Triton, cache folder) is missing or refused."""


class NoGradient(TilewrightError, RuntimeError):
    """A program that has no reverse mode; the text names the statement."""


@dataclass(frozen=True)
class Entry:
    """One row: format strings over the caller's names; `where` when the caller has no better place."""

    kind: type[TilewrightError]
    what: str
    expected: str
    cure: str
    where: str = ""
    got: str = "{got}"


CATALOGUE: dict[str, Entry] = {
    # texts of stages
    "parse": Entry(
        LanguageError,
        "the text of a stage cannot be read: {got}",
        "{expected}",
        "compare the line with a printed one: `tilewright code spmm`, or the folder of TILEWRIGHT_DUMP",
    ),
    # tensors and structures
    "shape": Entry(
        FormatError, "{name} has shape {got}", "{expected}", "pass a tensor of the expected shape"
    ),
    "dtype": Entry(
        FormatError,
        "{name} has dtype {got}",
        "{expected}",
        "convert it first, for instance {name}.to(...)",
    ),
    "device": Entry(
        FormatError,
        "{name} lives on {got}",
        "the device of {other}, {expected}",
        "move it first with .to(...)",
    ),
    "layout": Entry(
        FormatError,
        "{name} has layout {got}",
        "{expected}",
        "convert it with SparseTensor.from_torch, from_coo or from_dense",
    ),
    "index-range": Entry(
        FormatError,
        "{name} holds {got}",
        "indices from 0 to {expected}",
        "check the indices against the shape you passed",
    ),
    "index-pointer": Entry(
        FormatError,
        "{name} is not a row pointer",
        "{expected}",
        "row pointers start at 0, never decrease and end at the number of entries",
    ),
    "index-dtype": Entry(
        FormatError,
        "{name} has index dtype {got}",
        "torch.int32 or torch.int64",
        "convert the index array with .int() or .long()",
    ),
    "value-count": Entry(
        FormatError,
        "{name} has {got} leading entries",
        "{expected}, one for each stored entry",
        "values follow the order of the entries you gave",
    ),
    "block-size": Entry(
        FormatError,
        "block size {got} does not fit",
        "{expected}",
        "choose a block that divides the shape, or pad the matrix",
    ),
    "too-large": Entry(
        FormatError,
        "{name} would store {got} places for {nnz} entries",
        "at most 64 places for each entry, and a million beside them",
        "use {instead}",
    ),
    "not-dense": Entry(
        FormatError,
        "{name} is {got}",
        "a dense (strided) tensor",
        "torch.as_tensor makes one of arrays and lists, .to_dense() of sparse ones",
    ),
    "not-sparse": Entry(
        FormatError,
        "{name} is {got}",
        "a SparseTensor, a torch sparse tensor or a SciPy matrix",
        "wrap it with SparseTensor.from_dense, from_coo or from_torch",
    ),
    "sparse-in-compile": Entry(
        FormatError,
        "{name} is a torch sparse tensor inside torch.compile",
        "a tilewright SparseTensor",
        "build A = SparseTensor.from_torch({name}) outside the compiled function and pass A",
        got="a torch sparse tensor",
    ),
    "transform-in-compile": Entry(
        FormatError,
        "{name} is under a transform of torch.func inside torch.compile",
        "one of the two",
        "leave the transform outside, or write backward() or torch.autograd.grad instead of it",
        got="torch.func.grad, vjp, jacrev or vmap in a compiled function",
    ),
    "jit-trace": Entry(
        FormatError,
        "{name} cannot be recorded by torch.jit.trace",
        "eager code, torch.compile or torch.export",
        "export with torch.export.export, or compile with torch.compile",
        got="a call that is being traced, of which only the empty output would be recorded",
    ),
    "two-forms": Entry(
        LanguageError,
        "{name} is written in two forms",
        "one form for one output",
        "give what one of the statements writes a name of its own",
    ),
    "dense-by-sparse": Entry(
        FormatError,
        "a dense tensor times a SparseTensor is no operator",
        "the SparseTensor on the left",
        "write tw.spmm(A, x) for A @ x, and tw.spmm(A.T, x.T).T for x @ A",
        got="the dense one on the left",
    ),
    "leaf-gradient": Entry(
        FormatError,
        "{name} ({got}) requires grad, but this layout cannot hold a gradient",
        "a CSR leaf, or the values as a tensor of their own",
        "pass values= with requires_grad",
    ),
    "argument": Entry(
        FormatError, "{name} = {got}", "{expected}", "see the function's documentation"
    ),
    # language
    "unknown-axis": Entry(
        LanguageError,
        "axis {name} has no size",
        "an axis that indexes at least one tensor argument",
        "use {name} in an access such as x[{name}, ...]",
        where="index notation",
        got="{name} indexes outputs only",
    ),
    "axis-size": Entry(
        LanguageError,
        "axis {name} is {got}",
        "one size for one axis",
        "use two axes, or check the operands' shapes",
        where="index notation",
    ),
    "rank": Entry(
        LanguageError,
        "{name} is indexed by {got} axes",
        "{expected}",
        "give one axis for each dimension",
        where="index notation",
    ),
    "einsum": Entry(
        LanguageError,
        "the subscripts cannot be read",
        "{expected}",
        "write one group of letters for each operand, for instance 'ij,jf->if'",
        where="einsum",
    ),
    "unsupported": Entry(
        LanguageError,
        "{name} is not supported",
        "{expected}",
        "rewrite the statement, or convert the operand to a format that has this order",
        where="lowering the program",
    ),
    "unwritten": Entry(
        LanguageError,
        "{name} is read before it is written",
        "a statement before this one that assigns it",
        "assign it first, and all at once: a sum of several terms is one expression",
    ),
    "program-output": Entry(
        LanguageError,
        "program {name} does not end in its outputs",
        "the last parameters assigned to, all others only read",
        "assign every output once: y[i, f] = ...",
        where="@tw.program",
    ),
    "duplicates": Entry(
        FormatError,
        "{name} has duplicates where a place may have one entry",
        "{expected}",
        "add them up first, or use a matrix without duplicates",
    ),
    "monoid": Entry(
        LanguageError,
        "monoid {name}: {got}",
        "{expected}",
        "write the state so that two partial results can be merged; see tw.monoid's documentation",
        where="tw.monoid",
    ),
    # schedules
    "illegal": Entry(
        ScheduleError, "{name} is not legal here", "{expected}", "{cure}", where="the schedule"
    ),
    # machines
    "no-compiler": Entry(
        BackendError,
        "no working C compiler ({got})",
        "cc, gcc or clang on the PATH, or $CC",
        "install one (Debian/Ubuntu: apt install gcc), or allow the slow interpreter with "
        "TILEWRIGHT_FALLBACK=1",
        where="building a C kernel",
    ),
    "c-build": Entry(
        BackendError,
        "the C compiler failed on {name}",
        "a C11 compiler with OpenMP",
        "set CC to another compiler; the source is kept at {path}",
        where="building a C kernel",
    ),
    "no-triton": Entry(
        BackendError,
        "Triton cannot be used",
        "Triton 3.6 or newer beside torch",
        "pip install triton, or move the tensors to the CPU",
        where="building a Triton kernel",
    ),
    "cache-folder": Entry(
        BackendError,
        "the cache folder {name} cannot be used",
        "a folder that can be written and executed from",
        "point TILEWRIGHT_CACHE at another folder",
        where="the cache on disk",
    ),
    "no-tangent": Entry(
        NoGradient,
        "{name} has no derivative in forward mode",
        "reverse mode: backward(), torch.func.grad, vjp or jacrev",
        "use reverse mode, or detach its inputs",
        where="forward mode",
    ),
    "no-gradient": Entry(
        NoGradient,
        "{name} has no gradient",
        "sum, mean, prod, max, min, logsumexp, softmax-weighted sum, or a monoid with backward=",
        "rewrite the statement, or detach its inputs",
        where="reverse mode",
    ),
}


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


class Tracer:
    """What reads Python code instead of running it, if something does, and how it is told of an error.

    `formats.compiling` puts torch.compile here, which can neither make these exceptions nor show them.
    """

    reading: Callable[[], bool] = staticmethod(lambda: False)
    refuse: Callable[[str, str, str, tuple[tuple[str, str], ...]], None]


TRACER = Tracer()


def error(entry: str, *, where: str = "", ir: object = None, **names: object) -> TilewrightError:
    """The exception of a catalogue entry, ready to raise. ir: the statement or expression concerned."""
    if TRACER.reading():
        pairs = tuple([(k, said(v)) for k, v in names.items()])
        TRACER.refuse(entry, where, "" if ir is None else f"{ir}", pairs)
    return made(entry, where, "" if ir is None else str(ir), {k: str(v) for k, v in names.items()})


def made(entry: str, where: str, ir: str, names: dict[str, str]) -> TilewrightError:
    row = CATALOGUE[entry]
    why = row.kind(row.what.format_map(_Names(names)))
    why.entry, why.names, why.where, why.ir = entry, names, where or row.where, clip(ir)
    return why


def said(value: object) -> str:
    """str(value), in steps that a tracer can follow where value is a tuple of sizes."""
    if not isinstance(value, tuple):
        return f"{value}"
    return f"({', '.join([f'{n}' for n in value])}{',' if len(value) == 1 else ''})"


def told(why: TilewrightError) -> str:
    """The text of an exception: what, in, at, expected, got, ir, hint."""
    row, names = CATALOGUE[why.entry], _Names(why.names)
    parts = [row.what.format_map(names), _part("in", why.where)]
    if why.place:
        parts.append(_part("at", quote(why.place, hints(names) if why.marked else ())))
    parts.append(_part("expected", row.expected.format_map(names)))
    parts.append(_part("got", row.got.format_map(names)))
    if why.ir:
        parts.append(_part("ir", why.ir))
    parts.append(_part("hint", row.cure.format_map(names)))
    return "\n".join(parts)


def hints(names: dict[str, str]) -> tuple[str, ...]:
    """What to underline in the source: the thing named, or the first thing the reason speaks of."""
    return tuple(names[k] for k in ("name", "got") if k in names)


def _part(label: str, said: str) -> str:
    return f"  {label}: " + "\n      ".join(said.splitlines() or [""])


def clip(ir: str) -> str:
    """The first lines of a piece of IR."""
    lines = ir.splitlines()
    return "\n".join([*lines[:CLIP], "..."] if len(lines) > CLIP else lines)
