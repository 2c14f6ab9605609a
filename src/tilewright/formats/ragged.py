"""Ragged batches: rows of different lengths, padded or packed.

Owns: `ragged` and `Ragged`. In: lengths, or offsets (cu_seqlens). Out: pack and pad, both
differentiable, and a structure of format "ragged".

    r = ragged(lengths=[2, 0, 1])
    r.pack(x)        # [3, S, ...] -> [3, ...]: x[0, 0], x[0, 1], x[2, 0]
    r.pad(y)         # and back: [3, 2, ...], zeros where there was nothing
    r.nested(y)      # a torch nested tensor (jagged layout) over the same memory
    r, y = from_nested(nested)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.check import check_index_dtype
from tilewright.formats.index import expand
from tilewright.formats.structure import Structure
from tilewright.support.errors import error


class Ragged:
    """A batch of rows with their own lengths; `structure` holds offsets and each entry's row."""

    __slots__ = ("structure", "lengths", "__weakref__")

    def __init__(self, structure: Structure, lengths: Tensor) -> None:
        self.structure = structure
        self.lengths = lengths

    @property
    def offsets(self) -> Tensor:
        """[rows + 1], as cu_seqlens."""
        assert self.structure.indptr is not None
        return self.structure.indptr

    @property
    def max_len(self) -> int:
        return self.structure.shape[1]

    @property
    def total(self) -> int:
        return self.structure.nnz

    def pack(self, x: Tensor) -> Tensor:
        """[rows, S, ...] -> [total, ...]; S is at least max_len."""
        rows, width = self.structure.shape
        if x.ndim < 2 or x.shape[0] != rows or x.shape[1] < width:
            expected = f"({rows}, {width} or more, ...)"
            raise error("shape", where="pack(x)", name="x", got=tuple(x.shape), expected=expected)
        return x.flatten(0, 1).index_select(0, self._places(x.shape[1]))

    def pad(self, y: Tensor, length: int | None = None, fill: float = 0.0) -> Tensor:
        """[total, ...] -> [rows, length or max_len, ...], `fill` where a row has ended."""
        rows, width = self.structure.shape
        length = width if length is None else length
        if y.ndim < 1 or y.shape[0] != self.total:
            got, expected = tuple(y.shape), f"({self.total}, ...)"
            raise error("shape", where="pad(y)", name="y", got=got, expected=expected)
        if length < width:
            raise error(
                "argument", where="pad(y)", name="length", got=length, expected=f"{width} or more"
            )
        empty = y.new_full((rows * length, *y.shape[1:]), fill)
        padded = empty.index_copy(0, self._places(length), y)
        return padded.reshape(rows, length, *y.shape[1:])

    def nested(self, y: Tensor) -> Tensor:
        """[total, ...] as a torch nested tensor of the jagged layout, without copying."""
        if y.ndim < 1 or y.shape[0] != self.total:
            got, expected = tuple(y.shape), f"({self.total}, ...)"
            raise error("shape", where="nested(y)", name="y", got=got, expected=expected)
        return torch.nested.nested_tensor_from_jagged(y, self.offsets)

    def to(self, device: torch.device | str) -> Ragged:
        return Ragged(self.structure.to(device), self.lengths.to(device))

    def _places(self, width: int) -> Tensor:
        row = self.structure.rows_stored()
        inside = torch.arange(row.shape[0], device=row.device) - self.offsets.index_select(0, row)
        return row.long() * width + inside

    def __repr__(self) -> str:
        rows, width = self.structure.shape
        return (
            f"Ragged({rows} rows, {self.total} entries, at most {width}, {self.structure.device})"
        )


def ragged(
    lengths: Tensor | Sequence[int] | None = None,
    offsets: Tensor | Sequence[int] | None = None,
    max_len: int | None = None,
    total: int | None = None,
    check: bool = True,
) -> Ragged:
    """A ragged batch. With max_len, total and check=False nothing is waited for."""
    where = "ragged(lengths, offsets, max_len)"
    if (lengths is None) == (offsets is None):
        got = "both" if lengths is not None else "neither"
        raise error(
            "argument", where=where, name="lengths, offsets", got=got, expected="one of the two"
        )
    name = "lengths" if offsets is None else "offsets"
    given = _tensor(lengths if offsets is None else offsets, where, name)
    indptr = _sums(given) if offsets is None else given
    if check or max_len is None or total is None:
        max_len, total = _measure(indptr.cpu(), max_len, total, check, where, name)
    made = Structure("ragged", (indptr.shape[0] - 1, max_len), indptr, check=False)
    made.row_of = expand(indptr, total)
    return Ragged(made, indptr.diff())


def from_nested(nested: Tensor, max_len: int | None = None) -> tuple[Ragged, Tensor]:
    """The batch and the packed values of a torch nested tensor of the jagged layout, uncopied."""
    if not isinstance(nested, Tensor) or nested.layout != torch.jagged:
        got = nested.layout if isinstance(nested, Tensor) else type(nested).__name__
        expected = "torch.jagged, a nested tensor"
        raise error("layout", where="from_nested", name="nested", got=got, expected=expected)
    jagged: Any = nested
    packed: Tensor = jagged.values()
    made = ragged(offsets=jagged.offsets(), max_len=max_len)
    second = isinstance(jagged.shape[1], torch.SymInt)  # the ragged dimension has no one size
    if not second or jagged.lengths() is not None or made.total != packed.shape[0]:
        expected = "rows one after the other (nested.contiguous()), ragged in dimension 1"
        raise error("layout", where="from_nested", name="nested", got="jagged", expected=expected)
    return made, packed


def _tensor(given: Tensor | Sequence[int] | None, where: str, name: str) -> Tensor:
    made = given if isinstance(given, Tensor) else torch.tensor(given)
    if not isinstance(given, Tensor) and not (made.is_floating_point() and made.numel()):
        made = made.long()
    check_index_dtype(made, where, name)
    least = 1 if name == "offsets" else 0
    if made.ndim != 1 or made.shape[0] < least:
        expected = f"1 dimension of {least} or more"
        raise error("shape", where=where, name=name, got=tuple(made.shape), expected=expected)
    return made.contiguous()


def _sums(lengths: Tensor) -> Tensor:
    indptr = torch.zeros(lengths.shape[0] + 1, dtype=lengths.dtype, device=lengths.device)
    indptr[1:] = torch.cumsum(lengths, 0, dtype=lengths.dtype)
    return indptr


def _measure(
    host: Tensor, max_len: int | None, total: int | None, check: bool, where: str, name: str
) -> tuple[int, int]:
    """Longest row and total from a copy of the offsets on the host: the one wait."""
    last = int(host[-1])
    rows = host.shape[0] - 1
    longest = max(int(host.diff().max()), 0) if rows else 0
    width = longest if max_len is None else max_len
    if check:
        Structure("ragged", (rows, width), host, where=where, names={"indptr": name})
    if check and total not in (None, last):
        raise error("argument", where=where, name="total", got=total, expected=last)
    return width, last if total is None else total
