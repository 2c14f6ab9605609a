"""Torch sparse tensors and SciPy matrices, in and out.

Owns: the mapping of layouts and of leaves that require grad. In: a torch sparse tensor or a SciPy
matrix. Out: a `Structure` over the same index memory and the values, without copying; and back.

    s = structure_from_torch(A)      # A: torch CSR, CSC, COO, BSR or BSC
    v = values_from_torch(A)         # a CSR leaf gets a CSR gradient of the same structure

torch's own `values()` of a CSR leaf (and of a coalesced COO one) has that gradient. The gradient of
a CSC, BSR or BSC leaf cannot be accumulated by torch ("do not have is_contiguous"), and `_values()`
of an uncoalesced COO tensor is not differentiable; those raise. Blocks by columns are the transpose
of blocks by rows: a BSC matrix is read as the bsr structure of its transpose, turned once.
SciPy's dia keeps a diagonal by columns, ours by rows, so that its values are copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.convert import stored
from tilewright.formats.layout import name_of
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.support.errors import error

LAYOUTS = {
    torch.sparse_csr: "csr",
    torch.sparse_csc: "csc",
    torch.sparse_coo: "coo",
    torch.sparse_bsr: "bsr",
    torch.sparse_bsc: "bsc",
}
KNOWN = "torch.sparse_csr, sparse_csc, sparse_coo, sparse_bsr or sparse_bsc"
TORCH_NAMES = {"csc": "csc", "coo": "coo", "bsr": "bsr", "block_mask": "bsr"}  # others: csr
SCIPY = ("csr", "csc", "coo", "bsr")


def is_torch_sparse(a: object) -> bool:
    return isinstance(a, Tensor) and a.layout in LAYOUTS


def is_scipy(a: object) -> bool:
    return type(a).__module__.partition(".")[0] == "scipy" and hasattr(a, "tocsr")


def structure_from_torch(a: Tensor, check: bool = True, name: str = "A") -> Structure:
    """The structure of a torch sparse tensor, over the same memory."""
    where = f"from_torch({name})"
    format = LAYOUTS.get(a.layout)
    if format is None:
        raise error("layout", where=where, name=name, got=a.layout, expected=KNOWN)
    if a.ndim - a.dense_dim() != 2:
        expected = "two sparse dimensions and no batch"
        raise error("shape", where=where, name=name, got=tuple(a.shape), expected=expected)
    shape = (a.shape[0], a.shape[1])
    if format == "coo":
        return _from_coo(a, shape, check, where, name)
    ptr, idx = ("ccol", "row") if format in ("csc", "bsc") else ("crow", "col")
    names = {"indptr": f"{name}.{ptr}_indices()", "indices": f"{name}.{idx}_indices()"}
    indptr, indices = getattr(a, f"{ptr}_indices")(), getattr(a, f"{idx}_indices")()
    indptr, indices = index.same_dtype(indptr, indices)
    block = _block_of(a) if format in ("bsr", "bsc") else (1, 1)
    if format == "bsc":
        turned, flipped = (shape[1], shape[0]), (block[1], block[0])
        across = Structure(
            "bsr", turned, indptr, indices, block=flipped, check=check, where=where, names=names
        )
        made = across.T
        made.transposed = across
        return made
    return Structure(
        format, shape, indptr, indices, block=block, check=check, where=where, names=names
    )


def values_from_torch(a: Tensor, name: str = "A") -> Tensor:
    """The values of a torch sparse tensor; gradients flow back to a leaf that can hold one."""
    if not a.requires_grad:
        made = a._values() if a.layout == torch.sparse_coo else a.values()
        return made.data  # not a view: Dynamo cannot take views of sparse tensors
    uncoalesced = a.layout == torch.sparse_coo and not a.is_coalesced()
    cannot_hold = a.is_leaf and a.layout in (torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    if torch.is_grad_enabled() and (uncoalesced or cannot_hold):
        got = "uncoalesced COO" if uncoalesced else LAYOUTS[a.layout].upper()
        raise error("leaf-gradient", where=f"from_torch({name})", name=name, got=got)
    return a._values() if uncoalesced else a.values()


def to_torch(s: Structure, values: Tensor) -> Tensor:
    """A torch tensor of the structure's own layout; values are gathered to storage order."""
    values = stored(s, values)
    shape = (*s.shape, *values.shape[len(s.values_shape) :])
    if s.format == "coo":
        assert s.rows is not None and s.indices is not None
        at = torch.stack((s.rows, s.indices))
        return torch.sparse_coo_tensor(at, values, shape, check_invariants=False)
    assert s.indptr is not None and s.indices is not None
    made = next(key for key, format in LAYOUTS.items() if format == s.format)
    return torch.sparse_compressed_tensor(
        s.indptr, s.indices, values, shape, layout=made, check_invariants=False
    )


def to_torch_bsc(s: Structure, values: Tensor) -> Tensor:
    """A torch BSC tensor of a bsr structure: the blocks of its transpose."""
    across = s.transpose()
    assert across.indptr is not None and across.indices is not None
    held = stored(across, values)
    return torch.sparse_compressed_tensor(
        across.indptr,
        across.indices,
        held,
        (*s.shape, *held.shape[3:]),
        layout=torch.sparse_bsc,
        check_invariants=False,
    )


def from_scipy(a: Any, check: bool = True, dia: bool = False) -> tuple[Structure, Tensor]:
    """Structure and values of a SciPy matrix over the same memory; other formats go through csr.

    dia: a SciPy dia matrix becomes one of format dia, with values copied, and not csr.
    """
    where = "from_scipy(A)"
    if not is_scipy(a):
        raise error("not-sparse", where=where, name="A", got=type(a).__name__)
    if len(a.shape) != 2:
        raise error("shape", where=where, name="A", got=tuple(a.shape), expected="two dimensions")
    if dia and a.format == "dia":
        return _from_dia(a, check, where)
    a = a if a.format in SCIPY else a.tocsr()
    shape = (int(a.shape[0]), int(a.shape[1]))
    values = torch.from_numpy(a.data)
    if a.format == "coo":
        rows, cols = index.same_dtype(torch.from_numpy(a.row), torch.from_numpy(a.col))
        names = {"rows": "A.row", "indices": "A.col"}
        made = Structure("coo", shape, None, cols, rows=rows, check=check, where=where, names=names)
        return made, values
    indptr, indices = index.same_dtype(torch.from_numpy(a.indptr), torch.from_numpy(a.indices))
    block = (int(a.blocksize[0]), int(a.blocksize[1])) if a.format == "bsr" else (1, 1)
    names = {"indptr": "A.indptr", "indices": "A.indices"}
    made = Structure(
        a.format, shape, indptr, indices, block=block, check=check, where=where, names=names
    )
    return made, values


def to_scipy(s: Structure, values: Tensor) -> Any:
    """A SciPy sparse array of the structure's format, on the host and without gradient."""
    import scipy.sparse as sp

    if values.ndim > len(s.values_shape):
        expected = "one number for each entry: SciPy has no trailing dimensions"
        raise error(
            "shape", where="to_scipy", name="values", got=tuple(values.shape), expected=expected
        )
    if isinstance(s, Tree):
        return _to_dia(s, values)
    if values.dtype == torch.bfloat16:
        expected = "a dtype that NumPy has: A.float().to_scipy()"
        raise error("dtype", where="to_scipy", name="values", got=values.dtype, expected=expected)
    data = stored(s, values).detach().cpu().numpy()
    indices = _numpy(s.indices)
    if s.format == "coo":
        return sp.coo_array((data, (_numpy(s.rows), indices)), shape=s.shape)
    made = {"csr": sp.csr_array, "csc": sp.csc_array, "bsr": sp.bsr_array}[s.format]
    return made((data, indices, _numpy(s.indptr)), shape=s.shape)


def _from_coo(a: Tensor, shape: tuple[int, int], check: bool, where: str, name: str) -> Structure:
    at = a._indices()  # detach: a view would keep the whole index tensor as its base
    rows, cols = index.same_dtype(at[0].detach(), at[1].detach())
    names = {"rows": f"{name}.indices()[0]", "indices": f"{name}.indices()[1]"}
    ordered = a.is_coalesced()
    return Structure(
        "coo", shape, None, cols, rows=rows, ordered=ordered, check=check, where=where, names=names
    )


def _from_dia(a: Any, check: bool, where: str) -> tuple[Structure, Tensor]:
    """SciPy's data[k, j] is the entry (j - offsets[k], j); ours v[i, k] is (i, i + offsets[k])."""
    (n, m), count = a.shape, int(a.offsets.shape[0])
    offsets, data = torch.from_numpy(a.offsets), torch.from_numpy(a.data)
    made = Tree(name_of("dia", count), (int(n), int(m)), {"indices1": offsets}, check=check)
    cols = torch.arange(n)[:, None] + offsets
    inside = (cols >= 0) & (cols < min(m, data.shape[1]))
    at = cols.clamp(0, max(data.shape[1] - 1, 0))
    if not data.numel():
        return made, data.new_zeros(made.positions)
    found = data[torch.arange(count).expand_as(at), at]
    return made, torch.where(inside, found, 0).reshape(-1)


def _to_dia(s: Tree, values: Tensor) -> Any:
    import scipy.sparse as sp

    offsets = s.arrays["indices1"].cpu().long()
    (n, m), count = s.shape, offsets.shape[0]
    rows = torch.arange(m)[None, :] - offsets[:, None]
    inside = (rows >= 0) & (rows < n)
    held = values.detach().cpu().reshape(n, count)
    if not held.numel():
        return sp.dia_array((n, m), dtype=held.numpy().dtype)
    found = held[rows.clamp(0, max(n - 1, 0)), torch.arange(count)[:, None].expand_as(rows)]
    data = torch.where(inside, found, 0).numpy()
    return sp.dia_array((data, offsets.numpy()), shape=s.shape)


def _block_of(a: Tensor) -> tuple[int, int]:
    _, b0, b1 = a.values().shape[:3]
    return int(b0), int(b1)


def _numpy(array: Tensor | None) -> Any:
    assert array is not None
    return array.cpu().numpy()
