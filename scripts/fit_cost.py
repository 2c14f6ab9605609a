"""Fit the cost model's constants to measured settings, and say how far its choices are from the best.

    python scripts/fit_cost.py --data GRAPHS [--results benchmarks/results/h200_spmm.json]

In: times of settings of spmm on graphs, as the benchmark saved them; the graphs (.npz), or generated ones.
Out: the fitted constants, and the distance of the model's choice from the best setting measured, each graph
judged by constants that were fitted without it. Needs SciPy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from tilewright.bench import graphs
from tilewright.formats.structure import Structure
from tilewright.tune.cost import lists
from tilewright.tune.machine import H200, Machine
from tilewright.tune.statistics import Statistics, statistics_of

FITTED = ("launch", "start", "step", "value", "join", "combine", "begin", "entry", "each")
FIRST = dict(zip(FITTED, (4e-6, 1e-6, 0.8e-6, 1e-8, 0.5e-6, 0.1e-6, 100.0, 20.0, 2.0), strict=True))
NEAR, WHOLE = 0.002, 0.2  # weight of staying near the first guess; of the level beside the order


@dataclass(frozen=True, eq=False)
class Case:
    """A graph, a width and a dtype: the settings and their seconds."""

    graph: str
    statistics: Statistics
    width: int
    itemsize: int
    settings: tuple[dict[str, int], ...]
    seconds: np.ndarray

    def modelled(self, machine: Machine) -> np.ndarray:
        model = lists(self.statistics, self.width, self.itemsize, machine)
        return np.array([model(s).total for s in self.settings])

    def distance(self, machine: Machine) -> float:
        """Of the model's choice from the best: 1 is the best itself."""
        return float(self.seconds[self.modelled(machine).argmin()] / self.seconds.min())


def main() -> None:
    args = parser().parse_args()
    cases = read(args.results, args.data)
    machine = fitted(cases)
    print("fitted to all:", ", ".join(f"{n}={getattr(machine, n):.3g}" for n in FITTED))
    report("the table's constants", {c: c.distance(H200) for c in cases})
    held: dict[Case, float] = {}
    for graph in dict.fromkeys(c.graph for c in cases):
        made = fitted([c for c in cases if c.graph != graph])
        held |= {c: c.distance(made) for c in cases if c.graph == graph}
    report("fitted without the graph", held)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--results", type=Path, default=Path("benchmarks/results/h200_spmm.json"))
    made.add_argument("--data", type=Path, help="folder of CSR graphs (.npz)")
    return made


def read(results: Path, data: Path | None) -> list[Case]:
    rows = json.loads(results.read_text())["rows"]
    known = {name: statistics(name, data) for name in dict.fromkeys(r["graph"] for r in rows)}
    return read_rows(rows, known)


def read_rows(rows: list[dict[str, Any]], known: dict[str, Statistics]) -> list[Case]:
    return [case(r, known[r["graph"]]) for r in rows]


def case(row: dict[str, Any], told: Statistics) -> Case:
    size = 4 if row["dtype"] == "fp32" else 2
    settings = tuple(s["setting"] for s in row["settings"])
    seconds = np.array([s["ms"] for s in row["settings"]]) * 1e-3
    return Case(row["graph"], told, row["width"], size, settings, seconds)


def statistics(name: str, data: Path | None) -> Statistics:
    """Of a graph; of a large generated one from its row lengths alone."""
    if name not in graphs.GENERATED:
        g = graphs.load(name, data, "cpu")
        return statistics_of(Structure("csr", (g.rows, g.cols), g.indptr, g.indices, check=False))
    spec = graphs.GENERATED[name]
    lengths = torch.from_numpy(graphs.row_lengths(spec))
    pointers = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    nothing = torch.zeros(0, dtype=torch.int64)
    made = Structure("csr", (spec.rows, spec.rows), pointers, nothing, check=False)
    return replace(statistics_of(made), nnz=spec.nnz)


def fitted(cases: Sequence[Case]) -> Machine:
    """The machine whose modelled times are nearest in order, and roughly in level, weighting good settings."""
    first = np.log(list(FIRST.values()))

    def loss(x: np.ndarray) -> float:
        made = machine_at(x)
        return sum(_error(c, made) for c in cases) / len(cases) + NEAR * ((x - first) ** 2).sum()

    return machine_at(minimize(loss, first, method="L-BFGS-B", options={"maxiter": 60}).x)


def machine_at(x: np.ndarray) -> Machine:
    return replace(H200, **{n: exp(v) for n, v in zip(FITTED, x, strict=True)})


def _error(c: Case, machine: Machine) -> float:
    off = np.log(c.modelled(machine) / c.seconds)
    weight = c.seconds.min() / c.seconds
    level = np.average(off, weights=weight)
    return float(WHOLE * (off**2).mean() + np.average((off - level) ** 2, weights=weight))


def report(title: str, found: dict[Case, float]) -> None:
    print(f"\n{title}: distance of the choice from the best of the settings measured")
    for graph in dict.fromkeys(c.graph for c in found):
        print(line(graph, [d for c, d in found.items() if c.graph == graph]))
    print(line("all", list(found.values())))


def line(name: str, distances: list[float]) -> str:
    mean = exp(sum(map(log, distances)) / len(distances))
    return f"  {name:<20} {mean:.3f} in geometric mean, {max(distances):.2f} at worst"


if __name__ == "__main__":
    main()
