"""Attention as one reduction over a structure: scores, softmax and weighted sum fused."""

from __future__ import annotations

from typing import Any

import torch
from conformance.cases import Case, conform, judge, matrix, numbers, sparse
from torch import Tensor

import tilewright as tw


@tw.program
def fused(m: Any, q: Any, k: Any, v: Any, o: Any) -> None:
    i, j, c, d = tw.axes("i j c d")
    o[i, d] = tw.softmax_sum(j, m[i, j] * tw.sum(c, q[i, c] * k[j, c]), v[j, d])


@tw.program
def graph(m: Any, s: Any, t: Any, v: Any, o: Any) -> None:
    i, j, d = tw.axes("i j d")
    o[i, d] = tw.softmax_sum(j, m[i, j] * tw.leaky_relu(s[i] + t[j], 0.2), v[j, d])


@tw.program
def in_three(m: Any, q: Any, k: Any, v: Any, e: Any, lse: Any, p: Any, o: Any) -> None:
    """The same, one statement for each step."""
    i, j, c, d = tw.axes("i j c d")
    e[i, j] = m[i, j] * tw.sum(c, q[i, c] * k[j, c])
    lse[i] = tw.logsumexp(j, e[i, j])
    p[i, j] = tw.exp(e[i, j] - lse[i])
    o[i, d] = tw.sum(j, p[i, j] * v[j, d])


def weights(scores: Tensor, held: Tensor) -> Tensor:
    made = scores.masked_fill(~held, -torch.inf).softmax(1)
    return made.nan_to_num(0.0)


def scored(format: str, block: tuple[int, int] | None = None) -> Any:
    def make() -> Any:
        M = matrix(8, 12)
        q, k, v = numbers(8, 4), numbers(12, 4, seed=2), numbers(12, 5, seed=3)
        m = sparse(M, format, block)
        held = (m.map(torch.ones_like).to_dense() != 0) if block else M != 0
        return [m, q, k, v], weights(M * (q @ k.T), held) @ v

    return make


def additive() -> Any:
    M, s, t, v = matrix(8, 12), numbers(8), numbers(12, seed=2), numbers(12, 5, seed=3)
    scores = torch.nn.functional.leaky_relu(s[:, None] + t, 0.2)
    return [sparse(M), s, t, v], weights(M * scores, M != 0) @ v


def steps() -> Any:
    (m, q, k, v), o = scored("csr")()
    M = m.to_dense()
    e = M * (q @ k.T)
    lse = e.masked_fill(M == 0, -torch.inf).logsumexp(1)
    p = torch.where(M != 0, torch.exp(e - lse[:, None]), 0.0)
    return [m, q, k, v], (e, lse, p, o)


def by_operator(q: Tensor, k: Tensor, v: Tensor, bits: Tensor) -> Tensor:
    mask = tw.block_mask(bits, 4, (q.shape[0], k.shape[0]))
    return tw.attention(q[None, None], k[None, None], v[None, None], mask=mask)[0, 0]


def blocks() -> Any:
    bits = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1]], dtype=torch.bool)
    q, k, v = numbers(11, 4), numbers(10, 4, seed=2), numbers(10, 4, seed=3)
    held = bits.repeat_interleave(4, 0).repeat_interleave(4, 1)[:11, :10]
    return [q, k, v, bits], weights(q @ k.T / 2, held) @ v


CASES = [
    *(Case(f"fused-{f}", fused, scored(f)) for f in ("csr", "coo", "dcsr", "ell", "padded.4")),
    Case("fused-bsr", fused, scored("bsr", (4, 4))),
    Case("graph", graph, additive),
    Case("in-three-steps", in_three, steps),
    Case("block-mask", by_operator, blocks),
]


@conform(CASES)
def test_attention(case: Case, executor: str) -> None:
    judge(case, executor)
