"""tw.ops.masked_linear: a product by a weight of which a mask, made at run time, keeps some; for sparse training.

y = masked_linear(x, w, mask, b)        # x @ (w * mask).T + b; forward and backward skip what is masked
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats.transforms import transformed
from tilewright.ops.index import Index
from tilewright.ops.kept import k_major, multiplied
from tilewright.ops.linear import check_operands
from tilewright.ops.products import masked_product, times
from tilewright.ops.settings import floor_pow2
from tilewright.ops.sparse import check_dense
from tilewright.support.errors import error, said
from tilewright.support.places import public

GROUP = 32  # rows, or columns, of w that share a list, where a mask is one of elements


@public
def masked_linear(
    x: Tensor,
    w: Tensor,
    mask: Tensor,
    b: Tensor | None = None,
    *,
    block: tuple[int, int] | None = None,
) -> Tensor:
    """x @ (w * mask).T + b. x: [..., k]; w: [n, k], dense; mask: booleans, [n, k] or one for each block of w

    A mask of blocks has ceil(n / rows) x ceil(k / columns) elements; block: rows and columns, which may be left out
    where the shapes leave no doubt. The gradient of w is 0 where it is masked, and is not computed there: blocks of 16,
    32, 64 or 128 as they are, otherwise the k's of 32 n's (and the n's of 32 k's) where one is not masked. What is
    masked may hold anything. Nothing waits for the device.

    >>> y = masked_linear(x, w, magnitude > t)
    """
    where = "masked_linear(x, w, mask, b)"
    check_operands(x, w, b, where)
    rows, columns = _block(w, mask, block, where)
    flat = x.flatten(0, -2)
    needs = torch.is_grad_enabled() and (x.requires_grad or transformed())
    if (height := _as_it_is(rows)) and (width := _as_it_is(columns)):
        blocks, lists = (height, width, width, height), _lists(mask, 1, needs)
        w = multiplied(w, "i")
    else:
        if rows * columns > 1:
            whole = mask.repeat_interleave(rows, 0)[: w.shape[0]].repeat_interleave(columns, 1)
            mask = whole[:, : w.shape[1]]
        w = torch.where(mask, w, 0.0)
        blocks, lists = (GROUP, 1, GROUP, 1), _lists(mask, GROUP, needs)
        flat, w = k_major(flat), k_major(w)
    given = {"x": flat, "w": w, **lists}
    inside = b is not None and flat.dtype == w.dtype == b.dtype
    if b is not None and inside:
        given["b"] = b
    y = times(masked_product(*blocks, biased=inside), given)
    y = y if b is None or inside else y + b
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], w.shape[0])


def _as_it_is(size: int) -> int:
    """A side of blocks that are multiplied as they are, else 0; torch.compile knows it then."""
    for known in (16, 32, 64, 128):
        if size == known:
            return known
    return 0


def _lists(mask: Tensor, size: int, needs: bool) -> dict[str, Tensor]:
    """The k's of each group of n's, and for a gradient of x the n's of each group of k's."""
    by_n = Index.from_values(mask, (size, 1), grouped=True)
    made = {"k_list": by_n.positions, "k_count": by_n.counts}
    if needs:
        by_k = Index.from_values(mask.t(), (size, 1), grouped=True)
        made |= {"n_list": by_k.positions, "n_count": by_k.counts}
    return made


def _block(w: Tensor, mask: Tensor, block: tuple[int, int] | None, where: str) -> tuple[int, int]:
    """The rows and columns of w for each element of the mask."""
    check_dense(where, "mask", mask, 2, w.device, "w", floating=False)
    if mask.dtype != torch.bool:
        raise error("dtype", where=where, name="mask", got=mask.dtype, expected="torch.bool")
    if block is None:
        sides = [_side(n, m) for n, m in zip(w.shape, mask.shape, strict=True)]
        doubtful = [f"{least} to {most}" for least, most in sides if least < most]
        if doubtful:
            got = f"none, where blocks may be {' and '.join(doubtful)} wide"
            expected = "(rows, columns) of a block"
            raise error("argument", where=where, name="block", got=got, expected=expected)
        block = sides[0][0], sides[1][0]
    if not (isinstance(block, tuple) and len(block) == 2 and all(_positive(b) for b in block)):
        expected = "(rows, columns), two numbers from 1 on"
        raise error("argument", where=where, name="block", got=repr(block), expected=expected)
    wanted = tuple(-(-n // b) for n, b in zip(w.shape, block, strict=True))
    if tuple(mask.shape) != wanted:
        expected = f"{said(tuple(w.shape))}, or one element for each block of it"
        raise error("shape", where=where, name="mask", got=tuple(mask.shape), expected=expected)
    return block


def _positive(n: object) -> bool:
    return isinstance(n, int | torch.SymInt) and n > 0


def _side(size: int, parts: int) -> tuple[int, int]:
    """The least and the largest part that cuts a size in so many: the same where one divides it and none of those above
    is a power of two, which blocks mostly are."""
    least = max(-(-size // max(parts, 1)), 1)
    most = (size - 1) // (parts - 1) if parts > 1 else least
    even = least * parts == size and floor_pow2(max(most, 1)) <= least
    return least, least if even else max(most, least)
