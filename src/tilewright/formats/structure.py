"""`Structure`: where the entries of a sparse matrix are, without their values.

Owns: the index arrays and what is derived from them. In: tensors, a format's name, a shape. Out:
csr, transposes and row lists, made on the device and kept. No method waits for the device; only the
check at construction does, once.

    s = Structure("csr", (2, 3), indptr=tensor([0, 2, 3]), indices=tensor([0, 2, 1]))
    s.nnz, s.T.format, s.as_csr() is s       # 3, "csc", True

Values are kept elsewhere, in the order of the source that the user gave. `perm[p]` is the place in
that order of the entry at storage position p (None: the same), so `values[perm]` is in storage
order.

Dynamo (torch 2.13, `torch.compile` with `dynamic=True` or the default): objects of this class are
inputs that it traces by attribute. Measured: a plain class and one with `__slots__` behave alike;
ints in a tuple attribute (`shape`) become symbols just as ints in attributes of their own do. So
nothing here is specialised on a size, and one graph serves all structures (two with the default
`dynamic=None`). One more is made when sizes that were equal by chance in the first call differ later
(torch gives equal sizes one symbol), for a size of 0 or 1, and when `format`, `block` (where code
reads it) or a None / not None attribute (`perm`, `transposed`) changes. Derived arrays are not kept
while tracing: that would be a side effect that fails the next call's guards. Immutability is a
promise, not a lock, so that Dynamo can rebuild objects which a compiled function returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.formats import index, walk
from tilewright.formats.check import check_structure
from tilewright.formats.layout import BLOCKED, Layout, layout
from tilewright.formats.transforms import outside
from tilewright.support.errors import error

ARRAYS = ("indptr", "indices", "rows", "perm", "slots", "row_of")
DERIVED = ("transposed", "csr")


class Structure:
    """An immutable sparsity pattern.

    format      "csr", "csc", "coo", "bsr", "ragged" or "block_mask"; `layout` gives its levels
    shape       (rows, columns) of the matrix
    indptr      [major + 1]; over columns for csc, over rows of blocks for bsr; None for coo
    indices     [nnz]; columns (rows for csc, block columns for bsr); None for ragged
    rows        [nnz], coo only
    block       (1, 1) when not blocked
    perm        [nnz] storage position -> position in the source order; None is the identity
    slots       [entries] source entry -> place in the flattened blocks; bsr made from entries only
    ordered     coo only: rows are known not to decrease, so csr needs no sorting
    transposed  csr (bsr, block_mask: the same format) of the transpose; None until `prepare`
    csr         csr of the same matrix; None until `as_csr`
    row_of      [nnz] row (of blocks) of each stored position; None until `prepare`
    plans       what later parts prepare for this structure, by their own keys
    """

    __slots__ = (
        *ARRAYS,
        *DERIVED,
        "format",
        "shape",
        "block",
        "block_name",
        "ordered",
        "plans",
        "__weakref__",
    )

    def __init__(
        self,
        format: str,
        shape: tuple[int, ...],
        indptr: Tensor | None = None,
        indices: Tensor | None = None,
        *,
        rows: Tensor | None = None,
        block: tuple[int, int] = (1, 1),
        perm: Tensor | None = None,
        slots: Tensor | None = None,
        ordered: bool = False,
        check: bool = True,
        where: str = "Structure",
        names: dict[str, str] | None = None,
    ) -> None:
        self.format = format
        self.shape = shape
        self.indptr = indptr
        self.indices = indices
        self.rows = rows
        self.block = block
        self.block_name = f"{block[0]}x{block[1]}"  # a string stays a constant under Dynamo
        self.perm = perm
        self.slots = slots
        self.ordered = ordered
        self.row_of: Tensor | None = None
        self.transposed: Structure | None = None
        self.csr: Structure | None = None
        self.plans: dict[Any, Any] = {}
        if check and not torch.compiler.is_compiling():
            self.ordered = self.check(where, names) or ordered

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Copies and pickles: plans belong to one object."""
        slots = [n for c in type(self).__mro__ for n in getattr(c, "__slots__", ())]
        held = [n for n in slots if not n.startswith("__")]
        return None, {**{n: getattr(self, n) for n in held}, "plans": {}}

    def check(self, where: str, names: dict[str, str] | None = None) -> bool:
        """Raise the first error of the index arrays; True if rows are found in order. Waits once."""
        return check_structure(self, where, names or {})

    @property
    def layout(self) -> Layout:
        return layout(self.format, self.block)

    @property
    def slotted(self) -> bool:
        """Whether values are kept in the stored shape, with zeros where there is no entry."""
        return self.blocked

    @property
    def values_shape(self) -> tuple[int, ...]:
        """The leading sizes of values: one for each entry, or the stored blocks."""
        return (self.nnz, *self.block) if self.blocked else (self.nnz,)

    @property
    def nnz(self) -> int:
        """Stored entries, or blocks. Waits for the device only on a ragged one without `row_of`."""
        counted = self.indices if self.indices is not None else self.row_of
        if counted is not None:
            return counted.shape[0]
        assert self.indptr is not None
        return int(self.indptr[-1])

    @property
    def device(self) -> torch.device:
        return self._some_array().device

    @property
    def index_dtype(self) -> torch.dtype:
        return self._some_array().dtype

    @property
    def blocked(self) -> bool:
        return self.format in BLOCKED

    def parents(self) -> Tensor:
        """The outer coordinate of each stored position (rows; columns for csc): [nnz]."""
        if self.rows is not None:
            return self.rows
        if self.row_of is not None and self.format != "csc":
            return self.row_of
        assert self.indptr is not None
        return index.expand(self.indptr, self.nnz)

    @outside
    def rows_stored(self) -> Tensor:
        """The row (of blocks) of each stored position, kept as `row_of`: [nnz]."""
        if self.row_of is not None:
            return self.row_of
        made = self.indices if self.format == "csc" else self.parents()
        assert made is not None
        if _may_keep():
            self.row_of = made
        return made

    @property
    def T(self) -> Structure:
        """The transpose: csr, csc and coo a view with the roles swapped, blocks by one grouping."""
        if self.format == "ragged":
            expected = "csr, csc, coo, bsr or block_mask"
            raise error("layout", where="T", name="the structure", got="ragged", expected=expected)
        if self.blocked:
            return self.transposed or _transpose_blocks(self)
        made = _swap(self)
        made.csr, made.transposed = self.transposed, self.csr
        if self.format == "csr":
            made.transposed = self
        return made

    @outside
    def as_csr(self) -> Structure:
        """The csr structure of the same matrix, with `perm` into the same source order."""
        if self.format == "csr":
            return self
        if self.csr is not None:
            return self.csr
        made = _compress_rows(self)
        if _may_keep():
            self.csr = made
        return made

    def as_coordinates(self) -> tuple[Tensor, Tensor | None]:
        """(coordinates [ndim, entries], perm): `perm` leads to the flattened values (None: same)."""
        s = self.as_csr() if self.format == "block_mask" else self
        return torch.stack(walk.coordinates(s)), walk.entry_perm(s)

    @outside
    def transpose(self) -> Structure:
        """The transpose as csr (blocks: the same format), kept as `transposed`."""
        if self.transposed is not None:
            return self.transposed
        made = self.T if self.blocked else self.T.as_csr()
        if _may_keep():
            self.transposed = made
        return made

    @outside
    def prepare(self, transpose: bool = True) -> Structure:
        """Make and keep `row_of`, csr (prepared too) and `transposed`; gives the same object back."""
        self.rows_stored()
        if self.format in ("coo", "csc"):
            self.as_csr().prepare(transpose)
        if transpose and self.format != "ragged":
            self.transpose()
        return self

    def to(self, device: torch.device | str) -> Structure:
        """The same structure on another device, derived arrays too; plans are left behind."""
        target = torch.device(device)
        here = self.device
        if target == here or (target.type == here.type and target.index is None):
            return self
        made = Structure(
            self.format, self.shape, block=self.block, ordered=self.ordered, check=False
        )
        for name in (*ARRAYS, *DERIVED):
            held = getattr(self, name)
            setattr(made, name, None if held is None else held.to(target))
        return made

    def __repr__(self) -> str:
        rows, cols = self.shape
        block = f" of {self.block[0]} x {self.block[1]} blocks" if self.blocked else ""
        dtype = str(self.index_dtype).removeprefix("torch.")
        return f"Structure({self.format}{block}, {rows} x {cols}, {dtype}, {self.device})"

    def _some_array(self) -> Tensor:
        found = self.indptr if self.indptr is not None else self.indices
        assert found is not None
        return found


def _may_keep() -> bool:
    return not torch.compiler.is_compiling()


def _swap(s: Structure) -> Structure:
    """A in csr -> A^T in csc over the same arrays, and back; coo swaps rows and columns."""
    shape = (s.shape[1], s.shape[0])
    if s.format == "coo":
        return Structure("coo", shape, None, s.rows, rows=s.indices, perm=s.perm, check=False)
    name = "csc" if s.format == "csr" else "csr"
    return Structure(name, shape, s.indptr, s.indices, perm=s.perm, check=False)


def _transpose_blocks(s: Structure) -> Structure:
    assert s.indices is not None
    columns, order = index.grouped(s.indices)
    across = index.ceil_div(s.shape[1], s.block[1])
    return Structure(
        s.format,
        (s.shape[1], s.shape[0]),
        index.ends(columns, across),
        s.parents().index_select(0, order),
        block=(s.block[1], s.block[0]),
        perm=index.compose(s.perm, order),
        check=False,
    )


def _compress_rows(s: Structure) -> Structure:
    rows, cols = walk.coordinates(s)
    perm = walk.entry_perm(s)
    at = walk.inside(s)
    if at is not None:
        rows, cols = rows.index_select(0, at), cols.index_select(0, at)
        perm = None if perm is None else index.ranks(perm.index_select(0, at))
    order = None
    if not s.ordered and s.format != "ragged":
        rows, order = index.grouped(rows)
    return Structure(
        "csr",
        s.shape,
        s.indptr if s.format == "ragged" else index.ends(rows, s.shape[0]),
        cols if order is None else cols.index_select(0, order),
        perm=index.compose(perm, order),
        check=False,
    )
