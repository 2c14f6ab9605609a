"""Micro-tiles: the smallest part of an operand that can be picked out alone without wasting what memory delivers.

In: a dense tile, the axis that is compacted, dtype, layout, device. Out: the micro-tile's shape, whether it is legal
and why, and the layout in which the operand's producer should write it.

Memory is read in granules (32-byte sectors on a GPU, 64-byte lines on a CPU). Along the compacted axis a micro-tile is
one element thin, unless that axis is the contiguous one: then it is a granule thick. Along the other axis it is as long
as the dense tile, and must fill a granule if that axis is contiguous.

    micro_tile((64, 32), 1, "bf16", "column")    64 x 1: k-major, one k of 64 rows is 128 bytes in a row
    micro_tile((64, 32), 1, "bf16", "row")       64 x 16: 16 neighbours share each sector; write it k-major instead
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.analysis.cost import BYTES
from tilewright.support.errors import error

LAYOUTS = ("row", "column")
# The operands of a product by the axes that address them: rows first, as they are multiplied.
OPERANDS = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}
AXES = ("m", "n", "k", "batch")


@dataclass(frozen=True)
class Device:
    """What matters of a device here: bytes that memory delivers at once, smallest products (m, n, k) by dtype."""

    name: str
    granule: int
    products: tuple[tuple[str, tuple[int, int, int]], ...] = ()

    def product(self, dtype: str) -> tuple[int, int, int]:
        return dict(self.products).get(dtype, (1, 1, 1))


_HALF = (16, 16, 16)
GPU = Device("gpu", 32, (("f16", _HALF), ("bf16", _HALF), ("f32", _HALF), ("f64", _HALF)))
CPU = Device("cpu", 64)


@dataclass(frozen=True)
class MicroTile:
    """rows x columns of one operand. run: contiguous bytes. layout: as it is; better: as it should be written."""

    operand: str
    rows: int
    columns: int
    dtype: str
    layout: str
    run: int
    legal: bool
    why: str
    better: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def __str__(self) -> str:
        told = "" if self.better == self.layout else f"; write it {self.better} major"
        legal = "legal" if self.legal else "not legal"
        return f"{self.operand} {self.rows} x {self.columns} ({self.layout} major): {legal}, {self.why}{told}"


@dataclass(frozen=True)
class Derivation:
    """The micro-tiles of a product whose axes are compacted."""

    tile: tuple[int, int, int]
    axes: tuple[str, ...]
    dtype: str
    device: str
    operands: tuple[MicroTile, ...]
    legal: bool
    why: str

    def of(self, operand: str) -> MicroTile:
        return next(t for t in self.operands if t.operand == operand)

    def __str__(self) -> str:
        m, n, k = self.tile
        legal = "legal" if self.legal else f"not legal: {self.why}"
        head = f"{' and '.join(self.axes)} of a {m} x {n} x {k} product, {self.dtype} on {self.device}: {legal}"
        return "\n".join([head, *(f"  {t}" for t in self.operands)])


def micro_tile(
    tile: tuple[int, int],
    axis: int,
    dtype: str,
    layout: str = "row",
    device: Device = GPU,
    operand: str = "x",
) -> MicroTile:
    """The micro-tile of an operand's dense tile, thin along an axis (0: rows, 1: columns)."""
    _check(tile, layout, dtype)
    item = BYTES[dtype]
    contiguous = 1 if layout == "row" else 0
    better = "row" if axis == 0 else "column"
    thick = max(device.granule // item, 1)
    shape = list(tile)
    shape[axis] = min(thick, tile[axis]) if axis == contiguous else 1
    run = shape[contiguous] * item
    legal = run >= device.granule
    why = f"{run} bytes in a row"
    if not legal:
        why += f", and {device.name} memory delivers {device.granule}"
        what = "columns" if contiguous else "rows"
        why += f": the tile needs {device.granule // item} {what}"
    return MicroTile(operand, shape[0], shape[1], dtype, layout, run, legal, why, better)


def product_tiles(
    tile: tuple[int, int, int],
    axes: str | tuple[str, ...],
    dtype: str,
    layouts: dict[str, str] | None = None,
    device: Device = GPU,
) -> Derivation:
    """The micro-tiles of c[m, n] = sum(k, a[m, k] * b[k, n]) in tiles of m x n x k.

    One axis: m, n, k, or batch (whole products). Two: m and k (rows are grouped by the tile, each group has its own
    k's), n and k (the same for columns), m and n (rows and columns of the output).

    >>> print(product_tiles((64, 128, 32), ("m", "k"), "bf16", {"a": "column"}))
    """
    chosen = (axes,) if isinstance(axes, str) else axes
    _check_axes(chosen)
    held = {"a": "row", "b": "row", "c": "row", **(layouts or {})}
    sizes = dict(zip(("m", "n", "k"), tile, strict=True))
    made = [
        t
        for operand, dims in OPERANDS.items()
        if (t := _operand(operand, dims, sizes, chosen, dtype, held[operand], device)) is not None
    ]
    why = _product_fits(tile, dtype, device) or next(
        (f"{t.operand}: {t.why}" for t in made if not t.legal), ""
    )
    return Derivation(tile, chosen, dtype, device.name, tuple(made), not why, why)


def _operand(
    operand: str,
    dims: tuple[str, str],
    sizes: dict[str, int],
    axes: tuple[str, ...],
    dtype: str,
    layout: str,
    device: Device,
) -> MicroTile | None:
    """The micro-tile of one operand; None where no compacted axis addresses it.

    Of two axes on one operand the second is listed for each group of the first: the group stays whole.
    """
    mine = [d for d in dims if d in axes]
    rows, columns = (sizes[d] for d in dims)
    if "batch" in axes:
        run = rows * columns * BYTES[dtype]
        return MicroTile(operand, rows, columns, dtype, layout, run, True, "a whole matrix", layout)
    if not mine or (operand == "c" and "k" in axes):
        return None
    thin = "k" if "k" in mine else mine[-1]
    if len(mine) == 2 and "k" not in mine:  # rows and columns of the output: each is written alone
        both = [micro_tile((rows, columns), n, dtype, layout, device, operand) for n in (0, 1)]
        shape = both[0].rows, both[1].columns
        run = shape[1 if layout == "row" else 0] * BYTES[dtype]
        legal = run >= device.granule
        return MicroTile(
            operand, *shape, dtype, layout, run, legal, f"{run} bytes in a row", layout
        )
    return micro_tile((rows, columns), dims.index(thin), dtype, layout, device, operand)


def _product_fits(tile: tuple[int, int, int], dtype: str, device: Device) -> str:
    """Why the dense tile is no product of this device; nothing where it is one."""
    least = device.product(dtype)
    if all(n % s == 0 for n, s in zip(tile, least, strict=True)):
        return ""
    return f"{device.name} multiplies {dtype} in multiples of {' x '.join(map(str, least))}"


def _check(tile: tuple[int, int], layout: str, dtype: str) -> None:
    where = "micro_tile(tile, axis, dtype, layout)"
    if layout not in LAYOUTS:
        raise error("argument", where=where, name="layout", got=layout, expected="row or column")
    if dtype not in BYTES:
        raise error("argument", where=where, name="dtype", got=dtype, expected=", ".join(BYTES))
    if min(tile) < 1:
        raise error("argument", where=where, name="tile", got=tile, expected="positive sizes")


def _check_axes(axes: tuple[str, ...]) -> None:
    fits = {frozenset(p) for p in ("mk", "nk", "mn")}
    if len(axes) == 1 and axes[0] in AXES:
        return
    if len(axes) != 2 or frozenset(axes) not in fits:
        expected = "one of m, n, k, batch, or two of m, n, k"
        raise error(
            "argument",
            where="product_tiles(tile, axes, dtype)",
            name="axes",
            got=axes,
            expected=expected,
        )
