"""A small SVG writer: boxes, text and shaded grids, no dependencies.

c = Canvas(200, 100); c.box(0, 0, 50, 20, "#1f6f8b"); c.text(5, 15, "hello"); c.done()
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Canvas:
    """A page of the given size, in pixels, white."""

    def __init__(self, width: int, height: int) -> None:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        self.lines = [f'{head} viewBox="0 0 {width} {height}" font-family="sans-serif">']
        self.box(0, 0, width, height, "#ffffff")

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        size = f'width="{width:.2f}" height="{height:.2f}"'
        self.lines.append(f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}"/>')

    def text(self, x: float, y: float, said: str, size: int = 12, anchor: str = "start") -> None:
        place = f'x="{x:.2f}" y="{y:.2f}" font-size="{size}" text-anchor="{anchor}"'
        self.lines.append(f"<text {place}>{escape(said)}</text>")

    def grid(self, x: float, y: float, side: float, shades: Sequence[Sequence[float]]) -> None:
        """Cells from white (0) to black (1); neighbours of one shade in a row become one box."""
        self.box(x - 1, y - 1, side + 2, side + 2, "#cccccc")
        self.box(x, y, side, side, "#ffffff")
        for r, row in enumerate(shades):
            begin = 0
            high, wide = side / len(shades), side / len(row)
            for c in range(1, len(row) + 1):
                if c < len(row) and _grey(row[c]) == _grey(row[begin]):
                    continue
                if row[begin] > 0:
                    place = (x + begin * wide, y + r * high, (c - begin) * wide, high)
                    self.box(*place, _grey(row[begin]))
                begin = c

    def done(self) -> str:
        return "\n".join([*self.lines, "</svg>", ""])


def _grey(shade: float) -> str:
    level = 255 - round(shade * 15) * 17
    return f"#{level:02x}{level:02x}{level:02x}"
