"""tw.attention against scaled_dot_product_attention with a dense mask."""

from __future__ import annotations

import pytest
import torch
from ops.matrices import TOLERANCE, close, randn
from ops.places import Place
from torch.nn.functional import scaled_dot_product_attention as sdpa

import tilewright as tw

BITS = [[1, 0, 1], [0, 0, 0], [1, 1, 1]]


def setup(
    place: Place,
    block=16,
    shape=(40, 45),
    bits=None,
    dtype=torch.float32,
    d=(24, 24),
    q=(4,),
    kv=(4,),
):  # type: ignore[no-untyped-def]
    bits = torch.tensor(bits or BITS, dtype=torch.bool)
    mask = tw.block_mask(bits.to(place.device), block, shape)
    dense = bits.repeat_interleave(block, 0).repeat_interleave(block, 1)[: shape[0], : shape[1]]
    made = [
        randn(*q, shape[0], d[0], dtype=dtype, device=place.device),
        randn(*kv, shape[1], d[0], seed=2, dtype=dtype, device=place.device),
        randn(*kv, shape[1], d[1], seed=3, dtype=dtype, device=place.device),
    ]
    return *made, mask, dense.to(place.device)


def wanted(q, k, v, dense, scale=None):  # type: ignore[no-untyped-def]
    """Rows without any block give 0."""
    many = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(many, -3), v.repeat_interleave(many, -3)
    made = sdpa(q.double(), k.double(), v.double(), attn_mask=dense, scale=scale)
    return torch.where(dense.any(1)[:, None], made, 0)


@pytest.mark.parametrize("batch", [(), (2,), (2, 1)], ids=["3-D", "4-D", "5-D"])
def test_rank(batch: tuple[int, ...], where: Place) -> None:
    q, k, v, mask, dense = setup(where, q=(*batch, 3), kv=(*batch, 3))
    got = tw.attention(q, k, v, mask=mask)
    assert got.shape == q.shape
    close(got, wanted(q, k, v, dense))


@pytest.mark.parametrize("kv", [1, 2])
def test_grouped_queries(kv: int, where: Place) -> None:
    q, k, v, mask, dense = setup(where, q=(2, 4), kv=(2, kv))
    close(tw.attention(q, k, v, mask=mask, enable_gqa=True), wanted(q, k, v, dense))


def test_rows_without_blocks_give_zero(where: Place) -> None:
    q, k, v, mask, _ = setup(where)
    assert torch.equal(
        tw.attention(q, k, v, mask=mask)[:, 16:32], torch.zeros(4, 16, 24, device=where.device)
    )


def test_an_empty_mask_gives_zero(where: Place) -> None:
    q, k, v, mask, _ = setup(where, bits=[[0] * 3] * 3)
    assert torch.equal(tw.attention(q, k, v, mask=mask), torch.zeros_like(q))


@pytest.mark.parametrize("shape", [(33, 48), (48, 33), (1, 1), (16, 17)], ids=str)
def test_lengths(shape: tuple[int, int], where: Place) -> None:
    blocks = [[1] * -(-shape[1] // 16)] * -(-shape[0] // 16)
    q, k, v, mask, dense = setup(where, shape=shape, bits=blocks, q=(2,), kv=(2,))
    close(tw.attention(q, k, v, mask=mask), wanted(q, k, v, dense))


@pytest.mark.parametrize("d", [(16, 16), (80, 80), (20, 33), (1, 1)], ids=str)
def test_head_widths(d: tuple[int, int], where: Place) -> None:
    q, k, v, mask, dense = setup(where, d=d, q=(2,), kv=(2,))
    close(tw.attention(q, k, v, mask=mask), wanted(q, k, v, dense))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtype(dtype: torch.dtype, where: Place) -> None:
    if where.slow and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bf16 in tl.dot")
    q, k, v, mask, dense = setup(where, dtype=dtype, q=(2,), kv=(2,))
    got = tw.attention(q, k, v, mask=mask)
    torch.testing.assert_close(got.double(), wanted(q, k, v, dense), **TOLERANCE[dtype])


@pytest.mark.parametrize("scale", [0.0, 0.25, 3.0])
def test_scale(scale: float, where: Place) -> None:
    q, k, v, mask, dense = setup(where, q=(2,), kv=(2,))
    close(tw.attention(q, k, v, mask=mask, scale=scale), wanted(q, k, v, dense, scale))


def test_a_scale_that_is_learned(where: Place) -> None:
    q, k, v, mask, dense = setup(where, q=(2,), kv=(2,))
    scale = torch.tensor(0.25, device=where.device, requires_grad=True)
    got, want = (
        f(scale)
        for f in (
            lambda c: tw.attention(q, k, v, mask=mask, scale=c),
            lambda c: wanted(q * c, k, v, dense, 1.0),
        )
    )
    close(got, want)
    close(*(torch.autograd.grad(y.sum(), scale)[0] for y in (got, want)))


@pytest.mark.parametrize(
    "scale", ["0.5", torch.ones(2), torch.ones((), device="meta")], ids=["text", "two", "meta"]
)
def test_scales_that_are_no_number(scale: str | torch.Tensor) -> None:
    q = torch.ones(2, 16, 16)
    mask = tw.block_mask(torch.ones(2, 2, dtype=torch.bool), block=8)
    with pytest.raises(tw.TilewrightError, match="scale"):
        tw.attention(q, q, q, mask=mask, scale=scale)  # type: ignore[arg-type]


def test_large_scores_do_not_overflow(where: Place) -> None:
    q, k, v, mask, dense = setup(where, q=(2,), kv=(2,))
    close(tw.attention(q * 100, k, v, mask=mask), wanted(q * 100, k, v, dense), torch.float16)


def test_keys_outside_the_mask_may_hold_anything(where: Place) -> None:
    q, k, v, mask, dense = setup(where, bits=[[1, 0, 0], [1, 0, 0], [1, 0, 0]], q=(2,), kv=(2,))
    want = wanted(q, k, v, dense)
    k[:, 16:], v[:, 16:] = float("nan"), float("inf")
    close(tw.attention(q, k, v, mask=mask), want)


def test_blocks_of_two_sizes(where: Place) -> None:
    bits = torch.tensor([[1, 0], [1, 1], [0, 1]], device=where.device)
    mask = tw.block_mask(bits, (8, 16), (20, 30))
    dense = bits.bool().repeat_interleave(8, 0).repeat_interleave(16, 1)[:20, :30]
    q, k, v = (randn(2, n, 12, seed=n, device=where.device) for n in (20, 30, 30))
    close(tw.attention(q, k, v, mask=mask), wanted(q, k, v, dense))


def test_views(where: Place) -> None:
    """Heads inside, as projections give them: [batch, S, heads, d]."""
    q, k, v, mask, dense = setup(where, q=(1, 2), kv=(1, 2))
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    close(tw.attention(q, k, v, mask=mask), wanted(q, k, v, dense))


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0)], ids=str)
def test_no_heads_or_no_features(shape: tuple[int, int, int], where: Place) -> None:
    q, v = (torch.rand(*shape[:2], d, device=where.device) for d in (shape[2], 3))
    mask = tw.block_mask(torch.eye(2, dtype=torch.bool, device=where.device), 2)
    mean = v.unflatten(1, (2, 2)).mean(2).repeat_interleave(2, 1)
    close(tw.attention(q, q, v, mask=mask), mean)


def test_grouped_heads_are_asked_for() -> None:
    q, mask = torch.rand(2, 4, 3), tw.block_mask(torch.ones(2, 2, dtype=torch.bool), 2)
    with pytest.raises(tw.TilewrightError, match="enable_gqa=True"):
        tw.attention(q, q[:1], q[:1], mask=mask)
