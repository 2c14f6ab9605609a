"""Running totals in tile form: along a lane, or first of what each thread holds and then of all threads before it.

In: a value with lanes. Out: its running totals, in the same lanes or in those of the threads.

    cumsum(kept)  ->  parts = reshape(kept, [128, 8]); each = sum(parts, 1)
                      reshape(cumsum(parts, 1) + (cumsum(each) - each)[:, None], [1024])
"""

from __future__ import annotations

from tilewright.ir import tile
from tilewright.ir.expr import Expr, Var, dtype_of
from tilewright.lowering.tiled import Lanes, Tiled, names


class Scanner:
    """Lanes of a tile and how threads share them. apiece: numbers that a thread adds up by itself, 0: none."""

    dims: dict[Var, int]
    rank: dict[Var, int]
    apiece: int

    def emit(self, stem: str, dtype: str, e: Expr, lanes: Lanes) -> Tiled:
        raise NotImplementedError

    def broadcast(self, t: Tiled, want: Lanes) -> Expr:
        raise NotImplementedError

    def scan(self, op: str, t: Tiled, lane: Var) -> Expr:
        """Running totals along a lane."""
        if op != "sum" or not self.by_threads(t):
            return tile.Scan(op, t.e, t.lanes.index(lane))
        return tile.Reshape(self.threads(t)[1], names(t.lanes))

    def by_threads(self, t: Tiled) -> bool:
        """Whether a value has one lane, of more numbers than a thread adds up."""
        return 0 < self.apiece < (self.dims[t.lanes[0]] if len(t.lanes) == 1 else 0)

    def threads(self, t: Tiled) -> tuple[Tiled, Expr]:
        """A value in the shape [threads, numbers of each], and its running totals."""
        (lane,) = t.lanes
        lanes = (
            self.lane(f"{lane.name}_thread", self.dims[lane] // self.apiece),
            self.lane(f"{lane.name}_own", self.apiece),
        )
        parts = self.emit("parts", dtype_of(t.e), tile.Reshape(t.e, names(lanes)), lanes)
        each = self.emit("each", dtype_of(t.e), tile.Reduce("sum", parts.e, 1), lanes[:1])
        before = Tiled(tile.Scan("sum", each.e, 0) - each.e, lanes[:1])
        return parts, tile.Scan("sum", parts.e, 1) + self.broadcast(before, lanes)

    def lane(self, name: str, size: int) -> Var:
        """A lane of that name and size, which no loop has."""
        while any(v.name == name and n != size for v, n in self.dims.items()):
            name += "_"
        known = next((v for v in self.dims if v.name == name), None)
        if known is None:
            known = Var(name, "i32")
            self.rank[known] = len(self.dims)
            self.dims[known] = size
        return known
