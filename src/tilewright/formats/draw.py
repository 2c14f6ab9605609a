"""Pictures of a pattern.

Owns: the text that `print(A)` gives. In: a structure and its values. Out: at most 16 x 40
characters whose shade is the density, then fill, empty rows, the longest row, padding, and the
bytes of each level. Of more than two dimensions the first and the last are drawn. Waits for the
device; takes time and memory for the entries, however large the shape is.

    |█     ░|      fill 12.5 %, 3 of 8 rows empty, longest row 4
                   64 places for 16 entries: 75 % padding
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from tilewright.formats.index import ceil_div, distinct
from tilewright.formats.parts import Parts
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.formats.walk import coordinates

SHADES = " ·░▒▓█"
HEIGHT, WIDTH = 16, 40


def describe(s: Structure, values: Tensor | None, title: str) -> str:
    """Title, picture and numbers."""
    if s.device.type == "meta":
        return f"{title}\n(without memory: nothing to draw)"
    told = _parts(s) if isinstance(s, Parts) else _padding(s) + _bytes(s, values)
    return "\n".join([title, *picture(s), _numbers(s), *told])


def picture(s: Structure, height: int = HEIGHT, width: int = WIDTH) -> list[str]:
    """The pattern as lines of text, one character for a cell of the matrix."""
    rows, cols = _outer(s)
    size = _outer_shape(s)
    height, width = min(height, size[0]), min(width, size[1])
    if not height or not width:
        return ["(no rows or no columns)"]
    at = _cell(rows, size[0], height) * width + _cell(cols, size[1], width)
    counts = torch.zeros(height * width, dtype=torch.float32, device=s.device).index_add(
        0, at, torch.ones_like(at, dtype=torch.float32)
    )
    area = size[0] * size[1] * max(prod(s.shape[1:-1]), 1) / (height * width)
    density = (counts / area).clamp(max=1).reshape(height, width).tolist()
    return ["|" + "".join(_shade(d) for d in line) + "|" for line in density]


def _cell(at: Tensor, size: int, cells: int) -> Tensor:
    """at * cells // size, of large sizes by their leading bits."""
    spare = max(size.bit_length() + cells.bit_length() - 63, 0)
    return ((at.long() >> spare) * cells // (size >> spare)).clamp_(max=cells - 1)


def _shade(density: float) -> str:
    return SHADES[0] if density == 0 else SHADES[1 + min(int(density * 5), 4)]


def _numbers(s: Structure) -> str:
    rows, _ = _outer(s)
    size = _outer_shape(s)
    cells = size[0] * size[1] * prod(s.shape[1:-1])
    held, place = distinct(rows.long(), size[0])
    empty, longest = size[0] - held.shape[0], int(place.bincount(minlength=1).max())
    unit = "rows of blocks" if s.blocked else "rows"
    fill = 100 * rows.shape[0] / cells if cells else 0.0
    return f"fill {fill:.3g} %, {empty} of {size[0]} {unit} empty, longest row {longest}"


def _padding(s: Structure) -> list[str]:
    """How much of what is stored is no entry, for formats that store more than entries."""
    if not isinstance(s, Tree) or s.positions <= s.nnz:
        return []
    share = 100 * (s.positions - s.nnz) / s.positions
    return [f"{s.positions} places for {s.nnz} entries: {share:.3g} % padding"]


def _parts(s: Parts) -> list[str]:
    """A line for each part: entries, their share, padding, bytes of index arrays and of the order."""
    lines = []
    for part in s.parts:
        places = part.order.shape[0]
        share = 100 * part.count / max(s.nnz, 1)
        pads = 100 * (places - part.count) / max(places, 1)
        held = sum(_size(array) for name, array in part.arrays.items())
        told = f"{part.count} entries ({share:.3g} %), {pads:.3g} % padding, {held} B"
        lines.append(f"  {part.structure.format}: {told}")
    return [*lines, "  values: shared, in the order given"]


def _bytes(s: Structure, values: Tensor | None) -> list[str]:
    lines = []
    for depth, level in enumerate(s.layout.levels):
        if isinstance(s, Tree):
            held = [(name, _size(s.arrays[name])) for name in level.stored(depth)]
        else:
            held = [(name, _size(getattr(s, name))) for name in level.arrays(depth == 0)]
        told = ", ".join(f"{name} {size} B" for name, size in held) or "0 B"
        lines.append(f"  {level}: {told}")
    kept = s.slots if isinstance(s, Tree) and s.slotted else s.perm
    order = f", order {_size(kept)} B" if kept is not None else ""
    return [*lines, f"  values: {_size(values)} B{order}"]


def _outer(s: Structure) -> tuple[Tensor, Tensor]:
    """Coordinates of entries, or of blocks: of the first and the last dimension."""
    if isinstance(s, Tree):
        coords, _ = s.entries()
        return coords[0], coords[-1]
    if not s.blocked:
        return coordinates(s)
    assert s.indices is not None
    return s.parents(), s.indices


def _outer_shape(s: Structure) -> tuple[int, int]:
    if isinstance(s, Tree):
        return s.shape[0], s.shape[-1]
    return ceil_div(s.shape[0], s.block[0]), ceil_div(s.shape[1], s.block[1])


def _size(array: Tensor | None) -> int:
    return 0 if array is None else array.numel() * array.element_size()
