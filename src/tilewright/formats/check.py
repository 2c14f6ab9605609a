"""Checking index arrays, once, at construction.

Owns: what a well-formed structure is. In: a `Structure` and the user's names of its arrays. Out:
nothing, or the first error; and whether coo rows are in order. What tensors' shapes and dtypes tell
is checked on the host; all that needs their contents goes into one small tensor, so that there is
one wait.

    check_structure(s, where="graph(edge_index)", names={"rows": "edge_index[1]"})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tilewright.formats.index import INDEX_DTYPES, ceil_div
from tilewright.formats.layout import BLOCKED, layout
from tilewright.support.errors import error, said

if TYPE_CHECKING:
    from tilewright.formats.structure import Structure


@dataclass
class Probe:
    """Numbers to fetch from the device, and what to say about them."""

    numbers: list[Tensor]
    judges: list[Callable[[int], None]]

    def ask(self, number: Tensor, judge: Callable[[int], None]) -> None:
        self.numbers.append(number.reshape(()).to(torch.int64))
        self.judges.append(judge)

    def pointer(
        self, indptr: Tensor, end: int | None, width: int | None, where: str, name: str
    ) -> None:
        """indptr starts at 0, never decreases, ends at `end`, and no row is longer than `width`."""

        def expect(good: Callable[[int], bool], got: str, expected: str) -> Callable[[int], None]:
            def judge(value: int) -> None:
                if not good(value):
                    said = got.format(value)
                    raise error(
                        "index-pointer", where=where, name=name, got=said, expected=expected
                    )

            return judge

        self.ask(indptr[0], expect(lambda v: v == 0, "it starts at {}", "0 at the start"))
        if indptr.shape[0] > 1:
            step = indptr.diff()
            self.ask(step.min(), expect(lambda v: v >= 0, "it steps by {}", "steps of 0 or more"))
            if width is not None:
                said = f"at most {width} in a row"
                fits = expect(lambda v: v <= width, "a row has {} entries", said)
                self.ask(step.max(), fits)
        if end is not None:
            said = f"{end}, the number of entries"
            self.ask(indptr[-1], expect(lambda v: v == end, "it ends at {}", said))

    def answer(self) -> None:
        if not self.numbers:
            return
        for number, judge in zip(torch.stack(self.numbers).tolist(), self.judges, strict=True):
            judge(number)


def check_structure(s: Structure, where: str, names: dict[str, str]) -> bool:
    """Raise the first error of a structure; True if it is a coo one whose rows do not decrease."""
    arrays = _arrays(s, where, names)
    check_kinds(arrays, where)
    sizes = _outer_sizes(s, where)
    _check_lengths(s, sizes, where, names)
    probe = Probe([], [])
    if s.indptr is not None:
        _ask_pointer(probe, s, where, names.get("indptr", "indptr"))
    for field, bound in _bounds(s, sizes):
        _ask_range(probe, getattr(s, field), bound, where, names.get(field, field))
    ordered: list[int] = []
    if s.rows is not None:
        probe.ask((s.rows[1:] >= s.rows[:-1]).all(), ordered.append)
    probe.answer()
    return bool(ordered and ordered[0])


def matrix_shape(shape: Any, where: str) -> tuple[int, int]:
    """(rows, columns), as a user gives them."""
    if not isinstance(shape, tuple | list) or len(shape) != 2 or _fractional(shape):
        raise error(
            "argument", where=where, name="shape", got=repr(shape), expected="two sizes >= 0"
        )
    return int(shape[0]), int(shape[1])


def block_sides(block: Any, where: str) -> tuple[int, int]:
    """(b0, b1): a user gives two sizes, or one for both."""
    sides = (block, block) if isinstance(block, int) else block
    if not isinstance(sides, tuple | list) or len(sides) != 2 or _fractional(sides):
        expected = "a size, or two: block=(16, 16)"
        raise error("block-size", where=where, got=repr(block), expected=expected)
    return int(sides[0]), int(sides[1])


def _fractional(sizes: Sequence[Any]) -> bool:
    """Whether a size is no whole number; a list, since torch.compile reads this."""
    return any([isinstance(n, float | str) or n is None for n in sizes])


def check_dense(dense: Any, where: str) -> None:
    """A strided torch tensor."""
    if not isinstance(dense, Tensor) or dense.layout != torch.strided:
        got = dense.layout if isinstance(dense, Tensor) else type(dense).__name__
        expected = "a dense (strided) torch.Tensor"
        raise error("argument", where=where, name="dense", got=got, expected=expected)


def check_values(values: Tensor, s: Structure, where: str, name: str = "values") -> None:
    """Values fit a structure: device and leading sizes. Looks at no contents."""
    if not isinstance(values, Tensor):
        got = type(values).__name__
        expected = "a torch tensor: torch.as_tensor makes one of arrays and lists"
        raise error("argument", where=where, name=name, got=got, expected=expected)
    if values.device != s.device:
        raise error(
            "device",
            where=where,
            name=name,
            got=values.device,
            other="the indices",
            expected=s.device,
        )
    wanted = s.values_shape
    if values.ndim == 0 or values.shape[0] != wanted[0]:
        got = values.shape[0] if values.ndim else "no"
        raise error("value-count", where=where, name=name, got=got, expected=wanted[0])
    if tuple(values.shape[1 : len(wanted)]) != wanted[1:]:
        expected = f"({', '.join(map(str, wanted))}, ...)"
        raise error("shape", where=where, name=name, got=tuple(values.shape), expected=expected)


def check_index_dtype(array: Tensor, where: str, name: str) -> None:
    if array.dtype not in INDEX_DTYPES:
        raise error("index-dtype", where=where, name=name, got=array.dtype)


def _arrays(s: Structure, where: str, names: dict[str, str]) -> list[tuple[str, Tensor]]:
    wanted = {
        name for i, level in enumerate(layout(s.format).levels) for name in level.arrays(i == 0)
    }
    wanted |= {"perm"} if s.perm is not None else set()
    found: list[tuple[str, Tensor]] = []
    for field in ("indptr", "rows", "indices", "perm"):
        held, name = getattr(s, field), names.get(field, field)
        if field not in wanted and held is None:
            continue
        if field not in wanted or not isinstance(held, Tensor):
            expected = "a 1-D integer tensor" if field in wanted else f"None for {s.format}"
            raise error(
                "argument", where=where, name=name, got=type(held).__name__, expected=expected
            )
        found.append((name, held))
    return found


def check_kinds(arrays: list[tuple[str, Tensor]], where: str) -> None:
    first_name, first = arrays[0]
    for name, array in arrays:
        check_index_dtype(array, where, name)
        if array.ndim != 1:
            raise error(
                "shape", where=where, name=name, got=tuple(array.shape), expected="1 dimension"
            )
        if array.device != first.device:
            raise error(
                "device",
                where=where,
                name=name,
                got=array.device,
                other=first_name,
                expected=first.device,
            )
        if array.dtype != first.dtype:
            expected = f"{first.dtype}, as {first_name}"
            raise error("dtype", where=where, name=name, got=array.dtype, expected=expected)


def _outer_sizes(s: Structure, where: str) -> tuple[int, int]:
    """Rows and columns, counted in blocks."""
    if len(s.shape) != 2 or min(s.shape) < 0:
        raise error("argument", where=where, name="shape", got=s.shape, expected="two sizes >= 0")
    if min(s.block) < 1 or (s.format not in BLOCKED and tuple(s.block) != (1, 1)):
        raise error("block-size", where=where, got=s.block, expected="two positive sizes")
    if s.format == "bsr" and (s.shape[0] % s.block[0] or s.shape[1] % s.block[1]):
        raise error("block-size", where=where, got=s.block, expected=f"divisors of {said(s.shape)}")
    return ceil_div(s.shape[0], s.block[0]), ceil_div(s.shape[1], s.block[1])


def _check_lengths(s: Structure, sizes: tuple[int, int], where: str, names: dict[str, str]) -> None:
    if s.indptr is not None and s.indptr.shape[0] != sizes[layout(s.format).major] + 1:
        expected = f"({sizes[layout(s.format).major] + 1},)"
        name = names.get("indptr", "indptr")
        raise error("shape", where=where, name=name, got=tuple(s.indptr.shape), expected=expected)
    for field in ("rows", "perm"):
        held = getattr(s, field)
        if held is not None and s.indices is not None and held.shape != s.indices.shape:
            name, expected = (
                names.get(field, field),
                f"{said(tuple(s.indices.shape))}, one for each entry",
            )
            raise error("shape", where=where, name=name, got=tuple(held.shape), expected=expected)


def _bounds(s: Structure, sizes: tuple[int, int]) -> list[tuple[str, int]]:
    """Each coordinate array and how far it may count."""
    found = [("indices", sizes[0] if s.format == "csc" else sizes[1])]
    found += [("rows", sizes[0]), ("perm", s.nnz if s.perm is not None else 0)]
    return [(field, bound) for field, bound in found if getattr(s, field) is not None]


def _ask_range(probe: Probe, array: Tensor, bound: int, where: str, name: str) -> None:
    def judge(value: int) -> None:
        if not 0 <= value < bound:
            raise error("index-range", where=where, name=name, got=value, expected=bound - 1)

    if array.shape[0]:
        low, high = torch.aminmax(array)
        probe.ask(low, judge)
        probe.ask(high, judge)


def _ask_pointer(probe: Probe, s: Structure, where: str, name: str) -> None:
    assert s.indptr is not None
    width = s.shape[1] if s.format == "ragged" else None
    end = None if s.indices is None else s.indices.shape[0]
    probe.pointer(s.indptr, end, width, where, name)
