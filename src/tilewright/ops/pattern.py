"""What a product skips: the axis that runs over lists, and the lists, from whatever a caller says about an operand.

In: an index. Out: `Pattern`, which multiplies. Nothing here waits for the device.

    Pattern.given(index, x, "linear(x, w)").times(x, w, b)        # y = x @ w.T + b, over what the index names of x
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tilewright.ops.index import Index, last_of
from tilewright.ops.kept import k_major, multiplied
from tilewright.ops.packing import apart, pack
from tilewright.ops.products import arguments, listed_product, times
from tilewright.schedule.options import Setting
from tilewright.support.errors import error, said

EXPECTED = "an index of rows, of columns, or of columns for each group of rows (grouped=True)"
SECTOR = 32  # bytes that a GPU's memory delivers at once: shorter parts are gathered from copies


@dataclass(frozen=True, eq=False)
class Pattern:
    """axis: i, n or k of y[i, n] = sum(k, x[i, k] * w[n, k]). size: of the groups of rows that have their own lists."""

    axis: str
    positions: Tensor
    counts: Tensor
    tile: int = 1
    size: int = 0
    expected: int = 0  # rows, if known
    packed: Tensor | None = None  # what lists of k's name of x, if somebody has it

    def times(self, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        """x @ w.T + b over the lists. x: [rows, k]; w: [n, k]; b: [n]"""
        if b is not None and not x.dtype == w.dtype == b.dtype:
            return times(*self.program(x, w), self.tile, self.expected) + b
        return times(*self.program(x, w, b), self.tile, self.expected)

    def call(
        self, x: Tensor, w: Tensor, setting: Setting | None = None
    ) -> tuple[str, list[Tensor], list[int]]:
        """What the registered operator gets."""
        return arguments(*self.program(x, w), setting, self.tile, self.expected)

    def program(
        self, x: Tensor, w: Tensor, b: Tensor | None = None
    ) -> tuple[str, dict[str, Tensor]]:
        """The product's name, and what it gets by name."""
        lists = {f"{self.axis}_list": self.positions, f"{self.axis}_count": self.counts}
        single = self.axis == "k" and self.tile * x.element_size() < SECTOR
        read = self.axis if single or self.axis == "n" else "i"
        given = {"x": x, "w": multiplied(w, read), **lists}
        packed = False
        if single:
            packed = self.tile == 1 and apart(x)
            if packed:
                made = self.packed
                made = pack(x, self.positions, self.counts, self.size) if made is None else made
                given["x_packed"] = made
            else:
                given["x"] = k_major(x)
        if b is not None:
            given["b"] = b
        how = {"packed": packed, "biased": b is not None}
        return listed_product(self.axis, self.tile, self.size, **how), given

    @staticmethod
    def given(index: Index, x: Tensor, where: str, name: str = "sparse") -> Pattern:
        """From an index of x; name: of the argument."""
        (rows, k), counts, shape = index.tile, index.counts, index.shape
        if index.ends is not None:
            made, ok = (
                Pattern("i", index.positions, last_of(index.ends)),
                shape[0] * shape[1] == x.shape[0],
            )
        elif index.positions.dim() == 2:
            assert rows is not None and k is not None
            made = Pattern("k", index.positions, counts, k, rows, packed=index.packed)
            ok = tuple(shape) == tuple(x.shape)
        elif k is None:
            assert rows is not None
            made = Pattern("i", index.positions, counts, rows, expected=index.expected * rows)
            ok = shape[0] == x.shape[0]
        elif rows is None:
            made, ok = Pattern("k", index.positions, counts, k), shape[1] == x.shape[1]
        else:
            raise error("argument", where=where, name=name, got=index, expected=EXPECTED)
        if not ok:
            expected = f"an index of {said(tuple(x.shape))}"
            raise error("shape", where=where, name=name, got=tuple(shape), expected=expected)
        check_device(index.positions, x, where)
        return made


def check_device(sparse: Tensor, x: Tensor, where: str) -> None:
    if sparse.device != x.device:
        raise error(
            "device", where=where, name="sparse", got=sparse.device, other="x", expected=x.device
        )
