"""Block-sparse attention: a causal window and one block that all queries see.

python examples/block_attention.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import tilewright as tw


def window(blocks: int, width: int) -> torch.Tensor:
    """[blocks, blocks] bits: the last `width` blocks up to the own one, and the first."""
    row, col = torch.meshgrid(torch.arange(blocks), torch.arange(blocks), indexing="ij")
    return ((col <= row) & (row - col < width)) | (col == 0)


def main(length: int = 1024, block: int = 64, width: int = 3) -> tuple[float, float]:
    """(share of blocks that are kept, largest difference from dense attention)."""
    torch.manual_seed(0)
    bits = window(-(-length // block), width)
    mask = tw.block_mask(bits, block=block, shape=(length, length))
    q, k, v = (torch.randn(1, 4, length, 32) for _ in range(3))
    y = tw.attention(q, k, v, mask=mask)
    kept = bits.repeat_interleave(block, 0).repeat_interleave(block, 1)[:length, :length]
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=kept)
    return float(bits.float().mean()), float((y - want).abs().max())


if __name__ == "__main__":
    share, difference = main()
    print(
        f"{share:.0%} of the blocks computed; largest difference from dense attention {difference:.1e}"
    )
