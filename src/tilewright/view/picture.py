"""One picture: patterns above, bars of times below.

Owns: the file. In: grids of densities and groups of bars. Out: a PNG through matplotlib, or an SVG written
here when matplotlib is missing; `draw` says which.

    draw(folder / "demo", "spmm", {"banded": grid}, [Chart("spmm", "ms", ["banded"], {"ours": [0.6], "torch": [1.2]})])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.view import svg

Grid = list[list[float]]
COLOURS = ("#1f6f8b", "#e0a458", "#7a7a7a")


@dataclass(frozen=True)
class Chart:
    """Bars in groups: one group for each name in `groups`, one bar in it for each series."""

    title: str
    unit: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float]]

    def gains(self) -> list[float]:
        """How many times faster the first series is than the second."""
        first, second = list(self.series.values())[:2]
        return [b / a for a, b in zip(first, second, strict=True)]


def shade(density: float) -> float:
    """0 for nothing, then 0.25 to 1: a lone entry stays visible."""
    return 0.0 if density == 0 else min(1.0, 0.25 + 0.75 * density**0.5)


def draw(stem: Path, title: str, grids: Mapping[str, Grid], charts: Sequence[Chart]) -> Path:
    """Write stem.png, or stem.svg without matplotlib; the path that was written."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    plt = _matplotlib()
    if plt is None:
        path = stem.with_suffix(".svg")
        path.write_text(_svg(title, grids, charts))
        return path
    path = stem.with_suffix(".png")
    _png(plt, path, title, grids, charts)
    return path


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _png(
    plt: Any, path: Path, title: str, grids: Mapping[str, Grid], charts: Sequence[Chart]
) -> None:
    figure = plt.figure(figsize=(14, 3.2 + 2.9 * len(charts)), layout="constrained")
    figure.suptitle(title)
    upper, *lower = figure.subfigures(
        1 + len(charts), 1, height_ratios=[1.05, *([1] * len(charts))]
    )
    for axes, (name, grid) in zip(
        upper.subplots(1, len(grids), squeeze=False)[0], grids.items(), strict=True
    ):
        axes.imshow(
            [[shade(d) for d in row] for row in grid],
            cmap="Greys",
            vmin=0,
            vmax=1,
            interpolation="nearest",
        )
        axes.set(title=name, xticks=[], yticks=[])
    for part, chart in zip(lower, charts, strict=True):
        _bars(part.subplots(), chart)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _bars(axes: Any, chart: Chart) -> None:
    many = len(chart.series)
    width = 0.8 / many
    for n, (name, values) in enumerate(chart.series.items()):
        at = [k + (n - (many - 1) / 2) * width for k in range(len(chart.groups))]
        bars = axes.bar(at, values, width * 0.94, label=name, color=COLOURS[n % len(COLOURS)])
        axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=8)
    labels = [f"{g}\n{x:.1f}x" for g, x in zip(chart.groups, chart.gains(), strict=True)]
    axes.set_xticks(range(len(chart.groups)), labels)
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.set_ylabel(chart.unit)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _svg(title: str, grids: Mapping[str, Grid], charts: Sequence[Chart]) -> str:
    made = svg.Canvas(1100, 290 + 240 * len(charts))
    made.text(550, 24, title, size=16, anchor="middle")
    step = 1060 / max(len(grids), 1)
    side = min(step - 20, 190)
    for k, (name, grid) in enumerate(grids.items()):
        left = 20 + k * step + (step - side) / 2
        made.text(left + side / 2, 54, name, anchor="middle")
        made.grid(left, 62, side, [[shade(d) for d in row] for row in grid])
    for k, chart in enumerate(charts):
        _svg_bars(made, 290 + 240 * k, chart)
    return made.done()


def _svg_bars(made: svg.Canvas, top: float, chart: Chart) -> None:
    """Bars between top + 40 and top + 185; names and gains under them."""
    base, high = top + 185, 135.0
    most = max(v for values in chart.series.values() for v in values)
    made.text(60, top + 16, chart.title, size=13)
    step, many = 980 / len(chart.groups), len(chart.series)
    width = step * 0.7 / many
    for n, (name, values) in enumerate(chart.series.items()):
        colour = COLOURS[n % len(COLOURS)]
        made.box(760 + 160 * n, top + 6, 11, 11, colour)
        made.text(776 + 160 * n, top + 16, name)
        for k, v in enumerate(values):
            left = 60 + k * step + step * 0.15 + n * width
            made.box(left, base - high * v / most, width * 0.94, high * v / most, colour)
            made.text(
                left + width * 0.47,
                base - high * v / most - 4,
                f"{v:.3g}",
                size=10,
                anchor="middle",
            )
    made.box(60, base, 980, 1, "#333333")
    for k, (name, gain) in enumerate(zip(chart.groups, chart.gains(), strict=True)):
        made.text(60 + (k + 0.5) * step, base + 16, f"{name}, {gain:.1f}x", anchor="middle")
