"""Graphs as sparse matrices.

Owns: `edge_index`, in and out. In: [2, E], row 0 = source, row 1 = target, as in PyG. Out: a coo
`SparseTensor` whose row is the target and whose column is the source, in the order of the edges.

    G = graph(tensor([[0, 1], [2, 2]]), num_nodes=3)   # edges 0 -> 2, 1 -> 2: at (2, 0), (2, 1)
    edge_index(G.to_format("csr"))                     # [[0, 1], [2, 2]], in the order of values
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.formats.check import check_index_dtype
from tilewright.formats.convert import source_coordinates
from tilewright.formats.tensor import SparseTensor, coordinate_tensor
from tilewright.support.errors import error


def graph(
    edge_index: Tensor,
    num_nodes: int | tuple[int, int] | None = None,
    values: Tensor | None = None,
    check: bool = True,
) -> SparseTensor:
    """The adjacency matrix; num_nodes: n, (n_target, n_source) or None (the largest + 1)."""
    where = "graph(edge_index)"
    if not isinstance(edge_index, Tensor) or edge_index.ndim != 2 or edge_index.shape[0] != 2:
        got = (
            tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        )
        raise error("shape", where=where, name="edge_index", got=got, expected="(2, edges)")
    check_index_dtype(edge_index, where, "edge_index")
    called = ("edge_index[1]", "edge_index[0]")
    shape = _sizes(edge_index, num_nodes)
    return coordinate_tensor(edge_index[1], edge_index[0], values, shape, check, where, called)


def edge_index(a: SparseTensor) -> Tensor:
    """[2, E] of a matrix of any format: source (column) and target (row) of each value."""
    if len(a.shape) != 2:
        raise error("shape", where="edge_index", name="A", got=a.shape, expected="two dimensions")
    a = a.to_format("coo")
    rows, cols = source_coordinates(a.structure)
    return torch.stack((cols, rows))


def _sizes(edge_index: Tensor, num_nodes: int | tuple[int, int] | None) -> tuple[int, int]:
    if isinstance(num_nodes, tuple):
        return num_nodes
    if num_nodes is None:
        num_nodes = int(edge_index.max()) + 1 if edge_index.shape[1] else 0
    return num_nodes, num_nodes
