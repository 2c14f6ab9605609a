"""Training a graph layer: edge weights by sddmm, neighbours summed by spmm.

python examples/graph_layer.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tilewright as tw


class Layer(nn.Module):
    """h[i] = sum over edges j -> i of sigmoid(to(x)[i] . of(x)[j]) * value(x)[j]"""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.to_node, self.of_node = nn.Linear(wide, 16), nn.Linear(wide, 16)
        self.value = nn.Linear(wide, out)

    def forward(self, graph: tw.SparseTensor, x: Tensor) -> Tensor:
        weights = tw.sddmm(graph, self.to_node(x), self.of_node(x)).map(torch.sigmoid)
        return tw.spmm(weights, self.value(x))


def main(nodes: int = 2000, edges: int = 20_000, steps: int = 20) -> tuple[float, float]:
    """The loss before and after some steps."""
    torch.manual_seed(0)
    graph = tw.graph(torch.randint(nodes, (2, edges)), num_nodes=nodes).prepare()
    x, target = torch.randn(nodes, 32), torch.randn(nodes, 8)
    layer = Layer(32, 8)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (layer(graph, x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


if __name__ == "__main__":
    first, last = main()
    print(f"loss {first:.3f} -> {last:.3f}")
