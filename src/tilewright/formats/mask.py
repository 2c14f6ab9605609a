"""Block masks: which blocks of a matrix are kept, without values.

Owns: `block_mask`. In: one bit per block. Out: a `SparseTensor` of format "block_mask" with no
values; what is made of one (`2 * m`, scores on it) has a block of them for each block.

    m = block_mask(bits, block=128)               # bits: bool [q_blocks, k_blocks]
    m = block_mask(bits, block=128, shape=(1000, 1000))   # the last blocks stick out
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats.check import block_sides
from tilewright.formats.index import ceil_div
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.support.errors import error, said


def block_mask(
    bits: Tensor, block: int | tuple[int, int] = 128, shape: tuple[int, int] | None = None
) -> SparseTensor:
    """The blocks whose bit is set; made on the bits' device, which is waited for once."""
    where = "block_mask(bits, block, shape)"
    if not isinstance(bits, Tensor) or bits.ndim != 2:
        got = tuple(bits.shape) if isinstance(bits, Tensor) else type(bits).__name__
        raise error("shape", where=where, name="bits", got=got, expected="(q_blocks, k_blocks)")
    b0, b1 = block_sides(block, where)
    if b0 < 1 or b1 < 1:
        raise error("block-size", where=where, got=(b0, b1), expected="two positive sizes")
    shape = shape or (bits.shape[0] * b0, bits.shape[1] * b1)
    needed = (ceil_div(shape[0], b0), ceil_div(shape[1], b1))
    if needed != tuple(bits.shape):
        expected = f"{said(needed)}, the blocks of {said(shape)}"
        raise error("shape", where=where, name="bits", got=tuple(bits.shape), expected=expected)
    return SparseTensor(_from_bits(bits.to(torch.bool), (b0, b1), shape))


def _from_bits(bits: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Structure:
    at_row, at_col = bits.nonzero(as_tuple=True)
    indptr = torch.zeros(bits.shape[0] + 1, dtype=torch.int32, device=bits.device)
    torch.cumsum(bits.sum(1), 0, dtype=torch.int32, out=indptr[1:])
    made = Structure("block_mask", shape, indptr, at_col.int(), block=block, check=False)
    made.row_of = at_row.int()
    return made
