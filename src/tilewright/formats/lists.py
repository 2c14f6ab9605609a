"""From csr to the two-dimensional trees that keep a list of entries.

Owns: the writers of dcsr, csf.2, ell, padded, dell and dpadded. In: a csr structure whose `perm` leads to the
source's order, and parameters (None: chosen). Out: a `Tree` with `perm` into the same order.
Nothing is sorted: rows move as they are. Each waits for the device once, for a size.

    ell(csr)            # ell.w, w the longest row
    padded(csr, 32)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tilewright.formats import index
from tilewright.formats.entries import limit, misfit
from tilewright.formats.layout import name_of, parse
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree


def dcsr(csr: Structure, name: str) -> Tree:
    """Rows without entries are dropped; nothing else moves."""
    rows, found = without_empty(csr)
    starts, indices = _arrays(found)
    arrays = {"indices0": rows, "indptr1": starts, "indices1": indices}
    return _listed(csr, name, arrays, csr.perm)


def dell(csr: Structure, width: int | None = None) -> Tree:
    """ell of the rows that have entries."""
    return _of_rows(csr, "dell", lambda found: ell(found, width))


def dpadded(csr: Structure, t: int) -> Tree:
    """padded, of the rows that have entries."""
    return _of_rows(csr, "dpadded", lambda found: padded(found, t))


def _of_rows(csr: Structure, family: str, write: Callable[[Structure], Tree]) -> Tree:
    """A format of the rows that have entries, under a list of these rows."""
    rows, found = without_empty(csr)
    made = write(found)
    name = name_of(family, *parse(made.format)[1])
    return _listed(csr, name, {"indices0": rows, **made.arrays}, made.perm)


def without_empty(csr: Structure) -> tuple[Tensor, Structure]:
    """The rows that have entries, and csr of them alone: waits."""
    indptr, indices = _arrays(csr)
    rows = indptr.diff().nonzero().squeeze(1).to(indptr.dtype)
    starts = torch.cat((indptr.index_select(0, rows), indptr[-1:]))
    shape = (rows.shape[0], csr.shape[1])
    return rows, Structure("csr", shape, starts, indices, perm=csr.perm, check=False)


def ell(csr: Structure, width: int | None = None) -> Tree:
    """One place after the other in each row."""
    indptr, indices = _arrays(csr)
    longest = int(indptr.diff().max()) if csr.shape[0] else 0
    width = longest if width is None else width
    name = name_of("ell", width)
    if longest > width:
        raise misfit(name, f"a row of {longest} entries", f"ell.{longest} or wider")
    limit(name, csr.shape[0] * width, csr.nnz, "csr, or padded")
    inside = torch.arange(width, dtype=indptr.dtype, device=indptr.device)
    source = indptr[:-1, None] + inside
    alive = source < indptr[1:, None]
    source = source.clamp_(max=max(csr.nnz - 1, 0)).reshape(-1)
    found = indices.index_select(0, source) if csr.nnz else torch.zeros_like(source)
    made = found.masked_fill_(~alive.reshape(-1), -1)
    perm = index.compose(csr.perm, source) if csr.nnz else source
    return _listed(csr, name, {"indices1": made}, perm)


def padded(csr: Structure, t: int) -> Tree:
    """Rows move apart to lengths that t divides."""
    indptr, indices = _arrays(csr)
    name = name_of("padded", t)
    starts, total = rounded(indptr.diff(), t)
    limit(name, total, csr.nnz, "csr", indptr.dtype)
    place = moved(indptr, starts, csr.nnz)
    order = csr.perm
    if order is None:
        order = torch.arange(csr.nnz, dtype=indptr.dtype, device=indptr.device)
    made = indptr.new_full((total,), -1).scatter_(0, place, indices)
    perm = indptr.new_zeros(total).scatter_(0, place, order)
    return _listed(csr, name, {"indptr1": starts.to(indptr.dtype), "indices1": made}, perm)


def csf_rows(csr: Structure) -> Tree:
    """csf.2.dense: csr under another name."""
    indptr, indices = _arrays(csr)
    return _listed(csr, "csf.2.dense", {"indptr1": indptr, "indices1": indices}, csr.perm)


def rounded(lengths: Tensor, multiple: int) -> tuple[Tensor, int]:
    """Pointers (int64) of lengths rounded up, and their sum: waits."""
    up = torch.div(lengths + (multiple - 1), multiple, rounding_mode="floor") * multiple
    starts = index.sums(up)
    return starts, int(starts[-1])


def moved(indptr: Tensor, starts: Tensor, count: int) -> Tensor:
    """The new position of each entry when rows move from indptr to starts: int64."""
    shift = (starts - indptr)[:-1]
    by = torch.repeat_interleave(shift, indptr.diff(), output_size=count)
    return by.add_(torch.arange(count, device=by.device))


def _arrays(csr: Structure) -> tuple[Tensor, Tensor]:
    assert csr.indptr is not None and csr.indices is not None
    return csr.indptr, csr.indices


def _listed(csr: Structure, name: str, arrays: dict[str, Tensor], perm: Tensor | None) -> Tree:
    return Tree(name, csr.shape, arrays, perm=perm, count=csr.nnz, ordered=True, check=False)
