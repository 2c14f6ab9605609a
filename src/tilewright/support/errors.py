"""The error catalogue: every mistake a user can make, with what is wrong, what was expected and the cure.

In: an entry's name, the place, and the user's own names. Out: an exception whose text has four parts.

    raise error("shape", where="spmm(A, x)", name="x", got="(3, 4)", expected="5 rows, one for each column of A")

The catalogue is a table (`CATALOGUE`); a test raises every entry and checks the four parts of its text.
"""

from __future__ import annotations

from dataclasses import dataclass


class TilewrightError(Exception):
    """Base of all errors a user can cause. `entry` is the name in the catalogue."""

    entry: str = ""


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


CATALOGUE: dict[str, Entry] = {
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
        "{name} is not a row pointer: {got}",
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
        "the subscripts {got} cannot be read",
        "{expected}",
        "write one group of letters for each operand, for instance 'ij,jf->if'",
        where="einsum",
    ),
    "unsupported": Entry(
        LanguageError,
        "{name}: {got}",
        "{expected}",
        "rewrite the statement, or convert the operand to a format that has this order",
        where="lowering the program",
    ),
    "program-output": Entry(
        LanguageError,
        "program {name} {got}",
        "the last parameters assigned to, all others only read",
        "assign every output once: y[i, f] = ...",
        where="@tw.program",
    ),
    "monoid": Entry(
        LanguageError,
        "monoid {name}: {got}",
        "{expected}",
        "write the state so that two partial results can be merged; see tw.monoid's documentation",
        where="tw.monoid",
    ),
    # schedules
    "illegal": Entry(ScheduleError, "{name}: {got}", "{expected}", "{cure}", where="the schedule"),
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
        "the C compiler failed on {name}: {got}",
        "a C11 compiler with OpenMP",
        "set CC to another compiler; the source is kept at {path}",
        where="building a C kernel",
    ),
    "no-triton": Entry(
        BackendError,
        "Triton cannot be used: {got}",
        "Triton 3.6 or newer beside torch",
        "pip install triton, or move the tensors to the CPU",
        where="building a Triton kernel",
    ),
    "cache-folder": Entry(
        BackendError,
        "the cache folder {name} cannot be used: {got}",
        "a folder that can be written and executed from",
        "point TILEWRIGHT_CACHE at another folder",
        where="the cache on disk",
    ),
    "no-gradient": Entry(
        NoGradient,
        "{name} has no gradient: {got}",
        "sum, mean, prod, max, min, logsumexp, softmax-weighted sum, or a monoid with backward=",
        "rewrite the statement, or detach its inputs",
        where="reverse mode",
    ),
}


class _Names(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def error(entry: str, *, where: str = "", **names: object) -> TilewrightError:
    """The exception of a catalogue entry, ready to raise."""
    row = CATALOGUE[entry]
    told = _Names(names)
    text = [row.what.format_map(told)]
    text.append(f"  in: {where or row.where}")
    text.append(f"  expected: {row.expected.format_map(told)}")
    text.append(f"  hint: {row.cure.format_map(told)}")
    made = row.kind("\n".join(text))
    made.entry = entry
    return made
