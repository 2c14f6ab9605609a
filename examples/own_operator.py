"""An operator of one's own: attention over neighbours, in one pass, with gradients.

python examples/own_operator.py
"""

from __future__ import annotations

import torch

import tilewright as tw


@tw.program
def attend(a, s, x, y):  # type: ignore[no-untyped-def]
    """y[i] = sum over neighbours j of softmax(a[i, j] * s[j]) * x[j]"""
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * s[j], x[j, f])


def reference(dense: torch.Tensor, s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    scores = (dense * s).masked_fill(dense == 0, -torch.inf)
    return scores.softmax(1).nan_to_num() @ x


def main(nodes: int = 2000, features: int = 32) -> float:
    """The largest difference from the dense computation, gradients included."""
    torch.manual_seed(0)
    dense = torch.randn(nodes, nodes).masked_fill(torch.rand(nodes, nodes) > 0.01, 0.0)
    dense[0] = 0.0  # a node without neighbours: its row of y is 0
    a = tw.SparseTensor.from_dense(dense)
    s = torch.randn(nodes, requires_grad=True)
    x = torch.randn(nodes, features, requires_grad=True)

    y = attend(a, s, x)
    want = reference(dense, s, x)
    got = torch.autograd.grad(y.square().sum(), (s, x))
    gradients = torch.autograd.grad(want.square().sum(), (s, x))
    pairs = [(y, want), *zip(got, gradients, strict=True)]
    return max(((g - w).abs().max() / w.abs().max()).item() for g, w in pairs)


if __name__ == "__main__":
    print(attend.__doc__)
    print(f"largest relative difference from the dense computation: {main():.1e}")
    print(attend)
