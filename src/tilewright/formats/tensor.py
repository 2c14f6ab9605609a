"""`SparseTensor`: a structure and its values.

Owns: the object that users hold. In: torch sparse tensors, SciPy matrices, dense tensors,
coordinates. Out: other formats, values, pictures. Not a torch.Tensor: a registered pytree of plain
tensors, so autograd lives in `values`, and torch.compile and torch.export see ordinary inputs (see
`structure` on Dynamo).

    A = SparseTensor.from_coo(rows, cols, values, (n, m))
    A.to_format("csr").values is values       # True: values stay in the order you gave
    A.with_values(torch.relu(values)).to_dense()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright.formats import convert, draw, fibers, index, interop
from tilewright.formats import dense as dense_form
from tilewright.formats.check import (
    block_sides,
    check_dense,
    check_index_dtype,
    check_values,
    matrix_shape,
)
from tilewright.formats.decompose import decompose
from tilewright.formats.distinct import as_torch_asks
from tilewright.formats.entries import entries_from, structure_from_arrays
from tilewright.formats.rules import Rule
from tilewright.formats.same import same
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.support.errors import error


class SparseTensor:
    """A sparse tensor: `structure`, and `values` in the source's order (None: all ones).

    values: [nnz, *trailing]; the stored shape (`structure.values_shape`) for bsr, [nnz, b0, b1,
    *trailing], and for dbsr, srbcrs, dia, two_four and bitmap. Immutable: methods give new objects.
    """

    __slots__ = ("structure", "values", "__weakref__")

    def __init__(self, structure: Structure, values: Tensor | None = None) -> None:
        self.structure = structure
        self.values = values

    @staticmethod
    def from_torch(a: Tensor, check: bool = True) -> SparseTensor:
        """From torch CSR, CSC, COO, BSR or BSC, without copying; a CSR leaf gets its gradient as CSR."""
        if not isinstance(a, Tensor):
            raise error("not-sparse", where="from_torch(A)", name="A", got=type(a).__name__)
        structure = interop.structure_from_torch(a, check)
        return SparseTensor(structure, interop.values_from_torch(a))

    @staticmethod
    def from_scipy(a: Any, check: bool = True, dia: bool = False) -> SparseTensor:
        """From a SciPy sparse matrix or array, without copying; dia: diagonals stay diagonals."""
        return SparseTensor(*interop.from_scipy(a, check, dia))

    @staticmethod
    def from_dense(
        dense: Tensor,
        mask: Tensor | None = None,
        format: str = "csr",
        block: int | tuple[int, int] | None = None,
        dims: int = 2,
    ) -> SparseTensor:
        """From the entries that `mask` keeps (default: those not zero) in the first dimensions."""
        check_dense(dense, "from_dense")
        block = None if block is None else block_sides(block, "from_dense")
        if dims != 2:
            entries, values = dense_form.dense_to_entries(dense, mask, dims)
            return SparseTensor(fibers.build(entries, format), values)
        if format == "bsr" and block is not None:
            return SparseTensor(*dense_form.dense_to_blocks(dense, mask, block))
        return SparseTensor(*dense_form.dense_to_csr(dense, mask)).to_format(format, block)

    @staticmethod
    def from_coo(
        rows: Tensor,
        cols: Tensor,
        values: Tensor | None,
        shape: tuple[int, int],
        check: bool = True,
    ) -> SparseTensor:
        """From one row and one column per entry, in any order; duplicates stay separate entries."""
        where = "from_coo(rows, cols, values, shape)"
        return coordinate_tensor(rows, cols, values, shape, check, where, ("rows", "cols"))

    @staticmethod
    def from_coords(
        coords: Tensor,
        values: Tensor | None,
        shape: tuple[int, ...],
        format: str = "csf",
        check: bool = True,
    ) -> SparseTensor:
        """From coords [ndim, nnz] in any order; duplicates stay separate entries."""
        where = "from_coords(coords, values, shape)"
        entries = entries_from(coords, shape, check, where)
        if len(shape) == 2:
            (rows, cols), called = entries.coords, ("coords[0]", "coords[1]")
            made = coordinate_tensor(rows, cols, values, entries.shape, False, where, called)
            return made.to_format(format)
        tree = fibers.build(entries, format)
        if values is not None:
            check_values(values, tree, where)
        return SparseTensor(tree, values)

    @staticmethod
    def from_arrays(
        format: str,
        shape: tuple[int, ...],
        values: Tensor | None = None,
        *,
        block: int | tuple[int, int] = (1, 1),
        check: bool = True,
        **arrays: Tensor,
    ) -> SparseTensor:
        """Over index arrays that exist already, values in storage order; nothing is copied.

        Names: indptr, indices, rows for csr, csc, coo, bsr, ragged; indptr1, indices1, mask1, ... by
        level for all others. With DLPack: from_arrays(..., indices=torch.from_dlpack(x)).
        """
        where = f"from_arrays({format})"
        block = block_sides(block, where)
        made = structure_from_arrays(format, shape, arrays, block, check, where)
        if values is not None and check:
            check_values(values, made, where)
        return SparseTensor(made, values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.structure.shape

    @property
    def nnz(self) -> int:
        return self.structure.nnz

    @property
    def format(self) -> str:
        return self.structure.format

    @property
    def dtype(self) -> torch.dtype:
        """That of the values; for ones the default dtype, for a block mask torch.bool."""
        if self.values is not None:
            return self.values.dtype
        return torch.bool if self.format == "block_mask" else torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        return self.structure.device

    @property
    def requires_grad(self) -> bool:
        return self.values is not None and self.values.requires_grad

    @property
    def T(self) -> SparseTensor:
        """The transpose over the same values; a view but for blocks. Trees become csc."""
        values = self.values
        if isinstance(self.structure, Tree) and len(self.shape) == 2:
            return self.to_format("csr").T
        if values is not None and not isinstance(self.structure, Tree) and self.structure.blocked:
            values = values.transpose(1, 2)
        return SparseTensor(self.structure.T, values)

    def with_values(self, values: Tensor | None) -> SparseTensor:
        """The same structure with other values, in the source's order."""
        if values is not None:
            check_values(values, self.structure, "with_values")
        return SparseTensor(self.structure, values)

    def with_entries(self, values: Tensor) -> SparseTensor:
        """For bsr and slotted formats made by `to_format`: new values of what it was made from."""
        return SparseTensor(self.structure, convert.fill(self.structure, values))

    def explicit_values(self) -> Tensor:
        """The values; ones where they are None."""
        return convert.ones(self.structure, self.dtype) if self.values is None else self.values

    def stored_values(self) -> Tensor:
        """The values in storage order, as kernels read them."""
        return convert.stored(self.structure, self.explicit_values())

    def map(self, fn: Callable[[Tensor], Tensor]) -> SparseTensor:
        """The same structure with fn applied to the values: A.map(torch.relu)."""
        return self.with_values(fn(self.explicit_values()))

    def detach(self) -> SparseTensor:
        return SparseTensor(self.structure, None if self.values is None else self.values.detach())

    def prepare(self, transpose: bool = True) -> SparseTensor:
        """Make what operators and gradients need of the structure now, not on the second use."""
        self.structure.prepare(transpose)
        return self

    def to(
        self,
        target: torch.device | torch.dtype | str | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
        *,
        device: torch.device | str | None = None,
    ) -> SparseTensor:
        """On another device, or with values of another dtype: A.to("cuda"), A.to(torch.float16).

        Modules move their buffers so, and a SparseTensor may be one: register_buffer("A", A). torch.compile of a module
        with fullgraph=True, and torch.export, take no buffers but tensors: there it is an attribute, self.A = A.
        """
        if isinstance(target, torch.dtype):
            dtype = target
        elif target is not None:
            device = target
        structure = self.structure if device is None else self.structure.to(device)
        values = self.values
        if values is None and dtype not in (None, self.dtype):
            values = self.explicit_values()
        if values is not None:
            values = values.to(structure.device, dtype or values.dtype, non_blocking)
        return SparseTensor(structure, values)

    def cpu(self) -> SparseTensor:
        return self.to("cpu")

    def cuda(self, device: torch.device | int | str = "cuda") -> SparseTensor:
        return self.to(torch.device(device))

    def half(self) -> SparseTensor:
        return self.to(torch.float16)

    def bfloat16(self) -> SparseTensor:
        return self.to(torch.bfloat16)

    def float(self) -> SparseTensor:
        return self.to(torch.float32)

    def double(self) -> SparseTensor:
        return self.to(torch.float64)

    def is_floating_point(self) -> bool:
        """Of its values; ones that are not stored have no dtype to change."""
        return self.values is not None and self.values.is_floating_point()

    def is_complex(self) -> bool:
        return self.values is not None and self.values.is_complex()

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @property
    def is_meta(self) -> bool:
        return self.device.type == "meta"

    def copy_(self, other: SparseTensor, non_blocking: bool = False) -> SparseTensor:
        """The values of another with the same pattern, taken in place: load_state_dict does so with buffers."""
        if not isinstance(other, SparseTensor) or not same(self.structure, other.structure):
            expected = "the pattern of A; load_state_dict(..., assign=True) takes any"
            got = "another pattern"
            raise error(
                "argument", where="A.copy_(other)", name="other", got=got, expected=expected
            )
        if self.values is not None:
            self.values.copy_(other.explicit_values(), non_blocking)
        elif other.values is not None:
            self.values = other.values.to(self.device, copy=True)
        return self

    def __getattr__(self, name: str) -> Any:
        """What tensors have, and this has not, is told with what to write instead."""
        instead = ""
        if not name.startswith("_") and hasattr(Tensor, name):
            instead = f": A.values.{name} is that of the entries, A.to_dense().{name} of the matrix"
        raise AttributeError(f"a SparseTensor has no {name}{instead}", name=name, obj=self)

    def to_format(self, name: str, block: int | tuple[int, int] | None = None) -> SparseTensor:
        """The same matrix in another format; values keep their order (or fill blocks)."""
        block = None if block is None else block_sides(block, "to_format")
        return SparseTensor(*convert.convert(self.structure, self.values, name, block))

    def decompose(self, *rules: Rule | tuple[Rule, ...], rest: str = "csr") -> SparseTensor:
        """The same tensor in parts: each rule takes of what is left, and the rest is a part of its own.

        A.decompose(tw.rules.blocks(16), tw.rules.hyb(1, 4)); values keep their order.
        """
        flat = [r for given in rules for r in (given if isinstance(given, tuple) else (given,))]
        return SparseTensor(*decompose(self.structure, self.values, flat, rest))

    def to_torch(self, layout: torch.layout | None = None) -> Tensor:
        """A torch sparse tensor: of this format if torch has it, or of the layout given.

        Compressed ones have each place once, in order, as torch's operators take for granted: entries of one place are
        added up.
        """
        if layout is None:
            name = interop.TORCH_NAMES.get(self.format, "csr")
        elif layout in interop.LAYOUTS:
            name = interop.LAYOUTS[layout]
        else:
            expected = interop.KNOWN
            raise error(
                "layout", where="to_torch(layout)", name="layout", got=layout, expected=expected
            )
        made = self.to_format("bsr" if name == "bsc" else name)
        s, values = as_torch_asks(made.structure, made.explicit_values())
        return interop.to_torch_bsc(s, values) if name == "bsc" else interop.to_torch(s, values)

    def to_scipy(self) -> Any:
        """A SciPy sparse array on the host, of this format if SciPy has it, else csr."""
        dia = self.structure.layout.name.startswith("dia.")
        name = self.format if dia else interop.TORCH_NAMES.get(self.format, "csr")
        made = self.to_format(name)
        return interop.to_scipy(made.structure, made.explicit_values())

    def to_dense(self) -> Tensor:
        """The dense matrix [rows, cols, *trailing]; duplicates add up; differentiable."""
        return dense_form.to_dense(self.structure, self.explicit_values())

    def print(self) -> None:
        """Draw the pattern; the same as print(A)."""
        print(self)

    def __str__(self) -> str:
        return draw.describe(self.structure, self.values, repr(self))

    def __repr__(self) -> str:
        s = self.structure
        block = f" of {s.block[0]} x {s.block[1]}" if s.blocked else ""
        held = "ones" if self.values is None else str(self.dtype).removeprefix("torch.")
        extra = () if self.values is None else tuple(self.values.shape[len(s.values_shape) :])
        trailing = f", trailing {extra}" if extra else ""
        size = " x ".join(map(str, self.shape))
        what = f"{s.format}{block}, {size}, nnz {s.nnz}, {held}{trailing}"
        return f"SparseTensor({what}, {s.device})"


def coordinate_tensor(
    rows: Tensor,
    cols: Tensor,
    values: Tensor | None,
    shape: tuple[int, ...],
    check: bool,
    where: str,
    called: tuple[str, str],
) -> SparseTensor:
    """A coo tensor; `called` are the user's names of rows and columns."""
    for name, array in zip(called, (rows, cols), strict=True):
        if not isinstance(array, Tensor):
            got = type(array).__name__
            expected = "a torch tensor: torch.as_tensor makes one of arrays and lists"
            raise error("argument", where=where, name=name, got=got, expected=expected)
        check_index_dtype(array, where, name)
    rows, cols = index.same_dtype(rows, cols)
    names = {"rows": called[0], "indices": called[1]}
    shape = matrix_shape(shape, where)
    structure = Structure(
        "coo", shape, None, cols, rows=rows, check=check, where=where, names=names
    )
    if values is not None:
        check_values(values, structure, where)
    return SparseTensor(structure, values)
