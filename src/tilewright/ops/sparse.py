"""From what users pass to what the operator takes: structures, views, plans, checks.

lead = as_sparse(A, "spmm(A, x)")      # SparseTensor of a torch, SciPy or tilewright matrix
arg, tensors, ints = bundle("a", lead)
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from tilewright.formats.cache import CACHE
from tilewright.formats.distinct import distinct, has_duplicates, is_sorted, sorted_rows
from tilewright.formats.interop import is_scipy, is_torch_sparse, values_from_torch
from tilewright.formats.merge import merged, rows_of
from tilewright.formats.parts import Parts
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.transforms import outside
from tilewright.formats.tree import Tree
from tilewright.ops.args import Arg, dense_arg, dense_key, program_text, sparse_arrays
from tilewright.ops.backend import backend_of
from tilewright.ops.choice import Choice
from tilewright.ops.dtypes import name_of
from tilewright.support import knobs
from tilewright.support.errors import error


def as_sparse(a: Any, where: str, name: str = "A") -> SparseTensor:
    """A SparseTensor, whatever came in; torch's own are remembered by their index storage."""
    if isinstance(a, SparseTensor):
        return a
    if isinstance(a, Tensor) and is_torch_sparse(a):
        if torch.compiler.is_compiling():
            raise error("sparse-in-compile", where=where, name=name)
        structure, _ = CACHE.lookup(a)
        return SparseTensor(structure, values_from_torch(a))
    if is_scipy(a):
        return SparseTensor.from_scipy(a)
    got = "a dense tensor" if isinstance(a, Tensor) else type(a).__name__
    raise error("not-sparse", where=where, name=name, got=got)


def rows_first(a: SparseTensor) -> SparseTensor:
    """The same matrix with rows first (csr, bsr, block mask or ragged); values keep their order.

    Of a matrix in parts, those that are lists of rows as one.
    """
    s = a.structure
    if s.format == "csr":
        return a
    if isinstance(s, Parts):
        made = merged(s)
        return a if made is s else SparseTensor(made, a.values)
    if s.format in ("coo", "csc"):
        return SparseTensor(s.as_csr(), a.values)
    return a


def as_rows(a: SparseTensor) -> SparseTensor:
    """csr of a matrix in a general format (csf of a larger tensor); its values, flat, in their own order."""
    s, v = a.structure, a.values
    if not isinstance(s, Tree):
        return a
    if len(s.shape) != 2:
        return a.to_format("csf")
    csr = s.as_csr()
    if v is not None and stored_rank(s) > 1:
        v = v.flatten(0, stored_rank(s) - 1)
    if csr.perm is None or s.listed:
        return SparseTensor(csr, v)
    entries = s.plans.get("entries")
    if entries is None or torch.compiler.is_compiling():
        entries = Structure("csr", csr.shape, csr.indptr, csr.indices, check=False)
        if not torch.compiler.is_compiling():
            s.plans["entries"] = entries
    return SparseTensor(entries, None if v is None else v.index_select(0, csr.perm))


def from_rows(s: Tree, values: Tensor) -> Tensor:
    """Values made on `as_rows` of a matrix, as its own format holds them: 0 where there is no entry."""
    csr, trailing = s.as_csr(), values.shape[1:]
    if csr.perm is not None and not s.listed:
        places = values.new_zeros((prod(s.values_shape), *trailing))
        values = places.index_copy(0, csr.perm.long(), values)
    return values.reshape(*s.values_shape, *trailing)


def as_blocks(a: SparseTensor) -> SparseTensor:
    """bsr of a dbsr matrix, over the same values: block rows that hold nothing are put back."""
    s = a.structure
    if not isinstance(s, Tree) or not s.format.startswith("dbsr."):
        return a
    if "blocks" not in s.plans:
        s.plans["blocks"] = _all_rows(s)
    return SparseTensor(s.plans["blocks"], a.values)


@outside
def _all_rows(s: Tree) -> Structure:
    block = s.values_shape[1], s.values_shape[2]
    rows, indptr = s.arrays["indices0"], s.arrays["indptr1"]
    counts = indptr.new_zeros(-(-s.shape[0] // block[0]) + 1)
    counts = counts.index_copy(0, rows.long() + 1, indptr.diff())
    starts = counts.cumsum(0).to(indptr.dtype)
    return Structure("bsr", s.shape, starts, s.arrays["indices1"], block=block, check=False)


def unordered(a: SparseTensor) -> bool:
    """Whether a search might miss entries: general formats keep any order, and a place may have several entries."""
    s = a.structure
    return isinstance(s, Tree) or (s.format == "csr" and not is_sorted(s))


def disordered(a: SparseTensor) -> bool:
    """Whether a search in a structure that loops follow as well might miss entries."""
    s = a.structure
    return (isinstance(s, Tree) and "ordered" not in s.plans) or (
        s.format == "csr" and not is_sorted(s)
    )


def repeated(a: SparseTensor) -> bool:
    """Whether a matrix has several entries for one place; blocks have one."""
    s = a.structure
    if len(s.shape) != 2 or s.slotted or (s.format == "csr" and is_sorted(s)):
        return False
    return has_duplicates(s.as_csr())


def check_alone(a: SparseTensor, where: str, name: str) -> None:
    """Refuse a matrix with several entries for one place, where each would replace what another one wrote."""
    if repeated(a):
        raise _several(where, name)


def _several(where: str, name: str) -> Exception:
    expected = "one entry for each place (duplicates added up)"
    return error("duplicates", where=where, name=name, got="several entries", expected=expected)


def orderly(a: SparseTensor, where: str, name: str) -> SparseTensor:
    """Entries in order, each place once: loops follow them, and they are searched."""
    s = a.structure
    if isinstance(s, Tree) and len(a.shape) == 2:
        return as_rows(a)
    made = in_order(a)
    if made.nnz != a.nnz:
        raise _several(where, name)
    if not isinstance(s, Tree):
        return SparseTensor(sorted_rows(s), a.values)
    made.structure.plans["ordered"] = True
    return made


def in_order(a: SparseTensor) -> SparseTensor:
    """The same tensor as a search needs it: one entry for one place, in order."""
    a = as_rows(a)
    if not isinstance(a.structure, Tree):
        return without_duplicates(a)
    s, v = a.structure, a.explicit_values()
    if "in order" not in s.plans:
        s.plans["in order"] = _keys(s)
    kept, place, perm = s.plans["in order"]
    v = v if perm is None else v.index_select(0, perm)
    at = kept
    coords: list[Tensor] = []
    for size in reversed(s.shape):
        coords.insert(0, at % size)
        at = torch.div(at, size, rounding_mode="floor")
    summed = v.new_zeros((kept.shape[0], *v.shape[1:])).index_add(0, place, v)
    return SparseTensor.from_coords(torch.stack(coords), summed, s.shape, format="csf")


@outside
def _keys(s: Tree) -> tuple[Tensor, Tensor, Tensor | None]:
    """Distinct places in order, as numbers; the place of each entry; the order of entries."""
    places, perm = s.as_coordinates()
    keys = torch.zeros_like(places[0], dtype=torch.int64)
    for c, size in zip(places, s.shape, strict=True):
        keys = keys * size + c
    kept, place = torch.unique(keys, return_inverse=True)
    return kept, place, perm


def without_duplicates(a: SparseTensor) -> SparseTensor:
    """The same matrix with one entry for one place, in order: what a search needs.

    torch.compile cannot ask whether it is so already.
    """
    if a.structure.format != "csr":
        return a
    if not torch.compiler.is_compiling():
        if is_sorted(a.structure):
            return a
        if not has_duplicates(a.structure):
            return SparseTensor(sorted_rows(a.structure), a.values)
    s, place = distinct(a.structure)
    v = a.explicit_values()
    return SparseTensor(s, v.new_zeros((s.nnz, *v.shape[1:])).index_add(0, place, v))


def prepare_at_second_use(s: Structure, grad: bool) -> None:
    """Make transpose and row lists when a structure comes again and they are wanted: on a GPU, or for gradients."""
    if s.transposed is not None or s.format == "ragged":
        return
    if torch.compiler.is_compiling() or (
        isinstance(s, Tree) and not isinstance(s, Parts) and rows_of(s) is None
    ):
        return
    if grad or backend_of(s.device) == "triton":
        uses = s.plans["uses"] = s.plans.get("uses", 0) + 1
        if uses == 2:
            s.prepare()


R = TypeVar("R")
KINDS = 1024  # of calls over a structure, of which there is a recipe


def recipe_of(known: dict[object, R], key: object, make: Callable[[], R]) -> R:
    """The recipe of a kind of call, kept."""
    made = known.get(key)
    if made is None:
        if len(known) >= KINDS:
            known.clear()
        made = known[key] = make()
    return made


class Bundle:
    """The arrays of a structure as an operator takes them, and what calls over them have in common."""

    def __init__(self, s: Structure) -> None:
        self.arrays, self.tensors = sparse_arrays(s)
        self.ints = [*s.shape, s.nnz] if isinstance(s, Parts) else list(s.shape)
        self.made_with = (s.row_of, s.transposed)
        self.recipes: dict[object, Any] = {}
        self.texts: dict[object, str] = {}
        self.choices: dict[object, Choice] = {}

    def current(self, s: Structure) -> bool:
        """Whether nothing was prepared since."""
        return self.made_with[0] is s.row_of and self.made_with[1] is s.transposed


def bundle_of(s: Structure) -> Bundle:
    """The bundle of a structure, kept on it (not while compiling: that would break guards)."""
    if torch.compiler.is_compiling():
        return Bundle(s)
    made: Bundle | None = s.plans.get("bundle")
    return made if made is not None and made.current(s) else _new_bundle(s)


@outside
def _new_bundle(s: Structure) -> Bundle:
    if knobs.check():
        s.check("an operator's structure (TILEWRIGHT_CHECK=1)")
    made = s.plans["bundle"] = Bundle(s)
    return made


def sparse_arg(name: str, a: SparseTensor, arrays: tuple[str, ...]) -> Arg:
    """The argument that describes a sparse tensor with these arrays."""
    s, values = a.structure, a.values
    dtype = name_of(values.dtype, "A" if name == "a" else name) if values is not None else "f32"
    rank = len(s.shape) + (0 if values is None else values.dim() - stored_rank(s))
    index = name_of(s.index_dtype)
    return Arg(name, s.format, dtype, rank, index, s.block_name, values is not None, None, arrays)


def stored_rank(s: Structure) -> int:
    """How many dimensions of the values belong to the structure: entries, and the sides of a block."""
    if isinstance(s, Tree):
        return len(s.values_shape)
    return (
        3 if s.blocked else 1
    )  # not by their sizes: a GPU may have to be waited for, to count entries


def text_of(template: str, name: str, a: SparseTensor, made: Bundle, **dense: Tensor) -> str:
    """The program's text over a sparse argument and dense ones, kept with the structure."""
    v = a.values
    key = (template, None if v is None else (v.dtype, v.dim()), *map(dense_key, dense.values()))
    text = made.texts.get(key)
    if text is None:
        args = (sparse_arg(name, a, made.arrays), *(dense_arg(n, t) for n, t in dense.items()))
        text = made.texts[key] = program_text(template, args)
    return text


def bundle(name: str, a: SparseTensor) -> tuple[Arg, list[Tensor], list[int]]:
    """The argument of a sparse tensor with its arrays, values and integers."""
    made = bundle_of(a.structure)
    tensors = list(made.tensors)
    if a.values is not None:
        tensors.append(a.values.contiguous())
    return sparse_arg(name, a, made.arrays), tensors, list(made.ints)


def device_of(t: Any) -> torch.device:
    """The device of a tensor; of what is none, one to go on with until that is said."""
    made: torch.device = getattr(t, "device", torch.device("cpu"))
    return made


def check_dense(
    where: str, name: str, t: Any, rank: int, device: torch.device, lead: str, floating: bool = True
) -> None:
    """A strided tensor of a rank, on a device, of a dtype that kernels know."""
    if not isinstance(t, Tensor) or t.layout != torch.strided:
        got = t.layout if isinstance(t, Tensor) else type(t).__name__
        raise error("not-dense", where=where, name=name, got=got)
    if t.dim() != rank:
        raise error(
            "shape", where=where, name=name, got=tuple(t.shape), expected=f"{rank} dimensions"
        )
    if floating and not t.dtype.is_floating_point:
        raise error("dtype", where=where, name=name, got=t.dtype, expected="a floating point dtype")
    if t.device != device:
        raise error("device", where=where, name=name, got=t.device, other=lead, expected=device)
