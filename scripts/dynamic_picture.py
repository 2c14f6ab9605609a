"""The picture of where dense begins to win, from a file of `tilewright bench dynamic`. Needs matplotlib.

python scripts/dynamic_picture.py                  # docs/pictures/*_dynamic.png, of every such file
python scripts/dynamic_picture.py FILE OUT.png     # of one
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "pictures"


def panels(held: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Products by shape and dtype, those with the most granularities first; four at most."""
    found: dict[str, list[dict[str, Any]]] = {}
    for r in held["rows"]:
        if r["kind"] == "product":
            found.setdefault(f"{r['shape']} {r['dtype']}", []).append(r)
    many = lambda name: -len({r["granularity"] for r in found[name]})
    return {name: found[name] for name in sorted(found, key=many)[:4]}


def draw(held: dict[str, Any], out: Path) -> Path:
    found = panels(held)
    size = (4.6 * len(found), 3.8)
    figure, axes = pyplot.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
    for at, (name, rows) in zip(axes[0], found.items(), strict=True):
        for granularity in dict.fromkeys(r["granularity"] for r in rows):
            mine = sorted(
                (1 - r["sparsity"], r["over_dense"])
                for r in rows
                if r["granularity"] == granularity
            )
            at.plot(*zip(*mine, strict=True), marker="o", markersize=3, label=granularity)
        at.axhline(1, color="black", linewidth=0.8)
        at.set(title=name, xlabel="density", xscale="log", yscale="log")
        at.legend(fontsize=7)
    axes[0][0].set_ylabel("times faster than dense, detection inside")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return out


def main(argv: list[str]) -> int:
    pairs = [(Path(argv[0]), Path(argv[1]))] if argv else []
    pairs = pairs or [(p, PICTURES / f"{p.stem}.png") for p in RESULTS.glob("*_dynamic.json")]
    for source, out in pairs:
        print(draw(json.loads(source.read_text()), out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
