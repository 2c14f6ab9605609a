"""Adding up what belongs to one element: the gradient of what a program read through an index array.

In: values [places..., others...] and, for some dimensions of an operand, where each place leads to. Out: a tensor like
the operand. torch adds them up: in the same order every time if it is asked for deterministic algorithms, and always
without waiting for the device.

    added(x, more, [at], (0,))       # d_x[at[p], f] += more[p, f], for all p and f
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def added(like: Tensor, values: Tensor, at: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
    """What a program did not look at may lead anywhere: it adds 0 to an element that is there."""
    order = [*dims, *(d for d in range(like.dim()) if d not in dims)]
    zeros = values.new_zeros([like.shape[d] for d in order])
    inside: list[Tensor | None] = [
        p.long().clamp(0, max(like.shape[d] - 1, 0)) for p, d in zip(at, dims, strict=True)
    ]
    made = zeros.index_put(inside, values, accumulate=True)
    return made.permute([order.index(d) for d in range(like.dim())])
