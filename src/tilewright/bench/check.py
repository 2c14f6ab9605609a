"""Whether an output is right.

Owns: references in float64, tolerances, poison. An output passes when the error of the whole and
the error of its worst row are within the dtype's tolerance; NaN never passes.

    poison(out); launch(); verdict = compare(out, reference)     # verdict.ok, verdict.error
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Of the whole, |out - ref| / |ref|: one rounding of the result, and sums in float32 or better.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 5e-3,
}
WORST_ROW = 4.0  # a row's tolerance over the whole's


@dataclass(frozen=True)
class Verdict:
    error: float
    worst_row: float
    ok: bool

    def within(self, tolerance: float) -> bool:
        """Whether both errors are within a tolerance; written so that NaN fails."""
        return self.error <= tolerance and self.worst_row <= tolerance * WORST_ROW


def poison(out: Tensor) -> Tensor:
    """NaN everywhere, so that an element nobody writes is seen."""
    return out.fill_(float("nan"))


def compare(out: Tensor, reference: Tensor, tolerance: float | None = None) -> Verdict:
    """Error of the whole and of the worst row (of the worst element in one dimension).

    Where the reference is infinite (the maximum of nothing), the output has to be the same.
    """
    allowed = TOLERANCE[out.dtype] if tolerance is None else tolerance
    if out.shape != reference.shape:
        return Verdict(float("inf"), float("inf"), False)
    if out.numel() == 0:
        return Verdict(0.0, 0.0, True)
    wide, mine = _rows(reference), _rows(out).to(reference.dtype)
    endless = wide.isinf()
    if bool((endless & (mine != wide)).any()):
        return Verdict(float("inf"), float("inf"), False)
    wide, mine = wide.masked_fill(endless, 0), mine.masked_fill(endless, 0)
    off = _norms(mine - wide)
    norms = _norms(wide)
    whole = float(off.norm() / norms.norm().clamp(min=1e-30))
    some = norms[norms > 0]
    floor = some.median() if len(some) else norms.new_tensor(1.0)
    worst = float((off / (norms + floor)).max())
    made = Verdict(whole, worst, False)
    return replace(made, ok=made.within(allowed))


def _rows(t: Tensor) -> Tensor:
    return t.reshape(-1, t.shape[-1]) if t.ndim > 1 else t.reshape(-1, 1)


def _norms(t: Tensor) -> Tensor:
    return t.norm(dim=1).double()


def spmm_reference(indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """A x in float64 from the very inputs, rounded as they are; by columns, to bound memory."""
    shape = (indptr.numel() - 1, x.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "CSR support is in beta"
        a = torch.sparse_csr_tensor(indptr, indices, values.double(), shape, check_invariants=False)
    parts = [a @ part.double() for part in x.split(128, dim=1)]
    return torch.cat(parts, 1)


def reduce_reference(
    indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor, reduce: str
) -> Tensor:
    """mean, max or min of values * x over each row's entries, in float64; by columns, to bound memory."""
    if reduce == "sum":
        return spmm_reference(indptr, indices, values, x)
    empty = {"mean": 0.0, "max": float("-inf"), "min": float("inf")}[reduce]
    offsets, at = indptr.long(), indices.long()
    parts = [
        torch.segment_reduce(
            part.double()[at] * values.double()[:, None], reduce, offsets=offsets, initial=None
        )
        for part in x.split(8, dim=1)
    ]
    made = torch.cat(parts, 1)
    return torch.where((offsets.diff() > 0)[:, None], made, empty)


def sddmm_reference(indptr: Tensor, indices: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """sum_f x[i, f] z[j, f] for every entry (i, j), in float64; by entries, to bound memory."""
    rows = torch.arange(indptr.numel() - 1, device=indptr.device)
    row_of = torch.repeat_interleave(rows, indptr.diff().long())
    parts = [
        (x[i].double() * z[j.long()].double()).sum(1)
        for i, j in zip(row_of.split(1 << 20), indices.split(1 << 20), strict=True)
    ]
    return torch.cat(parts) if parts else x.new_zeros(0, dtype=torch.float64)
