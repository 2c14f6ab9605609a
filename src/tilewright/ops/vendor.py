"""A product by the machine's own library: what a list names is gathered, multiplied by torch, and scattered.

In: the stage I program of a product that asks for it (`Traced.vendor`). Out: a function of tensors by name. On a CPU it
serves products over lists too; on a GPU only those of whole operands, since counts are known there to the device alone.

    y[i, n] = sum(k, x[i, k] * w[n, k]), i = listed(i_list[p], place=p, below=i_count[0])
 -> rows = i_list[:i_count]; y = zeros; y[rows] = x[rows] @ w.T
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tilewright.ir.coord import Assign, Index, Listed, Program, Reduce
from tilewright.ir.expr import Bin, Expr, Load
from tilewright.language.trace import Traced
from tilewright.ops.backend import as_written
from tilewright.ops.dtypes import TORCH
from tilewright.runtime import pages

Axes = tuple[Index, Index]
Served = Callable[..., Tensor]
WHOLE = slice(None)
# Programs on a CPU that are written as calls of torch, by name.
SERVED: dict[str, Served] = {}


def served(t: Traced, p: Program, backend: str) -> Served | None:
    """What the library does of a program, if it may: all that it can on a CPU, else products of whole operands."""
    if not t.vendor:
        return None
    product = vendor_product(p)
    if backend != "c" and product is not None and product.listed:
        product = None
    made = product or vendor_sum(p) or (SERVED.get(t.name) if backend == "c" else None)
    return None if made is None else partial(_as_written, made)


def _as_written(fn: Served, tensors: Mapping[str, Tensor], *into: Tensor) -> Tensor:
    with as_written(next(iter(tensors.values())).device):
        return fn(tensors, *into)


def vendor_sum(p: Program) -> Served | None:
    """out[n] = sum(i, a[i, n]) or sum(i, a[n, i]), if that is what a program does."""
    s = p.body[0]
    if len(p.body) != 1 or not isinstance(s, Assign) or s.listed:
        return None
    match s.values[0]:
        case Reduce(sum_, (i,), (Load() as a,)) if sum_.name == "sum":
            left = s.targets[0].indices
            if a.indices in ((i, *left), (*left, i)):
                dim, dtype = a.indices.index(i), TORCH[s.targets[0].buffer.dtype]
                return lambda tensors: tensors[a.buffer.name].detach().sum(dim, dtype=dtype)
    return None


def vendor_product(p: Program) -> Product | None:
    """The product that a program is, if it is one; a bias along the second axis of the output may be added."""
    s = p.body[0]
    if len(p.body) != 1 or not isinstance(s, Assign) or len(s.listed) > 1:
        return None
    value, bias = s.values[0], None
    match value:
        case Bin("+", Reduce() as inner, Load() as b) if b.indices == s.targets[0].indices[1:]:
            value, bias = inner, b
    match value:
        case Reduce(sum_, (k,), (Bin("*", Load() as a, Load() as b),)) if sum_.name == "sum":
            m, n = (
                tuple(ix for ix in t.indices if isinstance(ix, Index) and ix is not k)
                for t in (a, b)
            )
            plain = all(len(t.indices) == 2 and k in t.indices for t in (a, b))
            if plain and len(m) == len(n) == 1 and {*s.targets[0].indices} == {*m, *n}:
                axes = m[0], n[0]
                if bias is None or s.targets[0].indices == axes:
                    return Product(s.targets[0], a, b, axes, k, s.listed, bias)
    return None


@dataclass(frozen=True)
class Product:
    """out = sum(k, a * b) + bias: axes m, of a, and n, of b, are left; at most one axis runs over lists."""

    out: Load
    a: Load
    b: Load
    axes: Axes
    k: Index
    listed: tuple[Listed, ...]
    bias: Load | None = None

    def __call__(self, tensors: Mapping[str, Tensor], into: Tensor | None = None) -> Tensor:
        """The output, from the operands and the lists by name; into: what it is where nothing is listed."""
        m, n = self.axes
        a = self.operand(tensors, self.a, (m, self.k))
        b = self.operand(tensors, self.b, (self.k, n))
        plus = None if self.bias is None else self.operand(tensors, self.bias, self.bias.indices)
        if self.listed:
            y = pages.zeros((a.shape[0], b.shape[1]), a.dtype) if into is None else into
            self.over(y, a, b, plus, self.listed[0], tensors)
        else:
            y = _product(a, b, plus)
        return y if self.out.indices == self.axes else y.t().contiguous()

    def operand(self, tensors: Mapping[str, Tensor], of: Load, axes: tuple[Expr, ...]) -> Tensor:
        t = tensors[of.buffer.name].detach().to(TORCH[self.out.buffer.dtype])
        return t if of.indices == axes else t.t()

    def over(
        self,
        y: Tensor,
        a: Tensor,
        b: Tensor,
        plus: Tensor | None,
        of: Listed,
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Group by group, each with its list."""
        assert of.below is not None
        lists, counts = tensors[of.at.buffer.name], tensors[of.below.buffer.name].tolist()
        lists = lists if lists.dim() == 2 else lists[None]
        size = dict(zip((*self.axes, self.k), (a.shape[0], b.shape[1], b.shape[0]), strict=True))
        if of.index is self.k and sum(counts) * of.tile > b.shape[0]:
            # each k of the side that has no groups is picked more than once: where memory is contiguous
            a = a if self.axes[1].within is None else a.t().contiguous().t()
            b = b if self.axes[0].within is None else b.contiguous()
        for g, count in enumerate(counts):
            at = _spread(lists[g, :count], of.tile, size[of.index])
            rows, columns = (_part(ix, g) for ix in self.axes)
            more = None if plus is None else plus[columns]
            self.part(y[rows, columns], a[rows], b[:, columns], more, of.index, at)

    def part(
        self, y: Tensor, a: Tensor, b: Tensor, plus: Tensor | None, listed: Index, at: Tensor
    ) -> None:
        """One part of the output, over what one list names."""
        if listed is self.k:
            y.copy_(_product(_pick(a, 1, at), _pick(b, 0, at), plus))
        elif listed is self.axes[0]:
            y.index_copy_(0, at, _product(_pick(a, 0, at), b, plus))
        else:
            y.index_copy_(1, at, torch.mm(a, _pick(b, 1, at)))


def _product(a: Tensor, b: Tensor, plus: Tensor | None) -> Tensor:
    return torch.mm(a, b) if plus is None else torch.addmm(plus, a, b)


def _part(ix: Index, g: int) -> slice:
    """The values of an axis that belong to a group."""
    return WHOLE if ix.within is None else slice(g * ix.within[1], (g + 1) * ix.within[1])


def _spread(places: Tensor, tile: int, size: int) -> Tensor:
    """All values of an axis that the entries of a list stand for."""
    places = places.long()
    if tile == 1:
        return places
    made = (places[:, None] * tile + torch.arange(tile, device=places.device)).reshape(-1)
    return made[made < size]


def _pick(t: Tensor, dim: int, at: Tensor) -> Tensor:
    """Some rows or columns, picked where memory is contiguous."""
    if t.t().is_contiguous():
        return t.t().index_select(1 - dim, at).t()
    return t.index_select(dim, at)
