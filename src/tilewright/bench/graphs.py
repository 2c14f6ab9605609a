"""Graphs to measure on.

Owns: reading CSR graphs from .npz (`indptr`, `indices`, `num_nodes` or `shape`), and power-law
graphs of given sizes. A graph has int32 indices and no values; the same seed gives the same graph.

    g = load("cora", folder, "cuda")
    g = load("arxiv-sized", None, "cuda")        # 169k rows, 1.17M entries, made here
    g.torch_csr(torch.randn(g.nnz))
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilewright.support.errors import error


@dataclass(frozen=True)
class PowerLaw:
    """Row lengths fall as rank ** -slope, at most `longest`, `nnz` in all."""

    rows: int
    nnz: int
    slope: float
    longest: int


GENERATED = {
    "tiny": PowerLaw(2_000, 16_000, 0.9, 500),
    "arxiv-sized": PowerLaw(169_343, 1_166_243, 0.9, 20_000),
    "proteins-sized": PowerLaw(132_534, 39_561_252, 0.6, 7_750),
    "reddit-sized": PowerLaw(232_965, 114_615_892, 0.8, 25_000),
}
REAL = (
    *("cora", "citeseer", "pubmed", "amazon_photo", "amazon_computers", "coauthor_cs"),
    *("coauthor_physics", "musae_github", "flickr_attr", "ppi_homo_sapiens", "snap_email_enron"),
    *("snap_cit_hepph", "snap_soc_epinions1", "snap_ego_twitter"),
)
ON_HOST = 5_000_000  # up to here generated on the host: the same graph on every device


@dataclass(frozen=True)
class Graph:
    """A pattern in CSR: indptr [rows + 1] and indices [nnz], int32, columns sorted within a row."""

    name: str
    indptr: Tensor
    indices: Tensor
    cols: int

    @property
    def rows(self) -> int:
        return self.indptr.numel() - 1

    @property
    def nnz(self) -> int:
        return self.indices.numel()

    @property
    def longest(self) -> int:
        return int(self.indptr.diff().max()) if self.rows else 0

    def torch_csr(self, values: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "CSR support is in beta"
            shape = (self.rows, self.cols)
            return torch.sparse_csr_tensor(
                self.indptr, self.indices, values, shape, check_invariants=False
            )


def chosen(data: Path | None, asked: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Those asked for; else the usual ones that can be had, and a small one where there are no files."""
    if asked:
        return list(asked)
    had = [n for n in usual if n in GENERATED or (data is not None and _file(data, n).is_file())]
    return had if data else list(dict.fromkeys(["tiny", *had]))


def load(name: str, data: Path | None, device: str) -> Graph:
    if name in GENERATED:
        return generate(name, GENERATED[name], device)
    if data is None or not _file(data, name).is_file():
        where, known = "bench --data", ", ".join(GENERATED)
        expected = f"a .npz file in the folder of --data, or one of {known}"
        raise error("argument", where=where, name="graph", got=name, expected=expected)
    with np.load(_file(data, name)) as stored:
        rows = len(stored["indptr"]) - 1
        cols = int(stored["shape"][1]) if "shape" in stored else rows
        arrays = [torch.from_numpy(stored[k].astype(np.int32)) for k in ("indptr", "indices")]
    return Graph(name, arrays[0].to(device), arrays[1].to(device), cols)


def _file(data: Path, name: str) -> Path:
    return data / f"{name}.npz"


def generate(name: str, spec: PowerLaw, device: str, seed: int = 0) -> Graph:
    """A square graph of exactly spec.nnz entries."""
    place = "cpu" if spec.nnz <= ON_HOST else device
    lengths = torch.from_numpy(row_lengths(spec, seed)).to(place)
    indptr = torch.zeros(spec.rows + 1, dtype=torch.int64, device=place)
    torch.cumsum(lengths, 0, out=indptr[1:])
    indices = _columns(lengths, indptr, spec.rows, seed)
    return Graph(name, indptr.int().to(device), indices.to(device), spec.rows)


def row_lengths(spec: PowerLaw, seed: int = 0) -> np.ndarray:
    """The lengths in random order. The scale that gives spec.nnz entries is found by bisection."""
    weights = np.arange(1, spec.rows + 1, dtype=np.float64) ** -spec.slope
    low, high = 0.0, float(spec.longest) / weights[-1]
    for _ in range(80):
        middle = (low + high) / 2
        if np.minimum(weights * middle, spec.longest).sum() < spec.nnz:
            low = middle
        else:
            high = middle
    exact = np.minimum(weights * low, spec.longest)
    lengths = np.floor(exact).astype(np.int64)
    missing = spec.nnz - int(lengths.sum())
    open_rows = np.flatnonzero(lengths < spec.longest)
    largest_rest = open_rows[np.argsort((lengths - exact)[open_rows], kind="stable")]
    lengths[largest_rest[:missing]] += 1
    return np.random.default_rng(seed).permutation(lengths)


def _columns(lengths: Tensor, indptr: Tensor, cols: int, seed: int) -> Tensor:
    """One random column out of each of `length` equal strata: sorted and distinct without a sort."""
    place = lengths.device
    random = torch.Generator(place).manual_seed(seed)
    ids = torch.arange(len(lengths), device=place)
    row = torch.repeat_interleave(ids, lengths, output_size=int(indptr[-1]))
    nth = torch.arange(len(row), device=place) - indptr[row]
    length = lengths[row]
    del row
    begin = nth * cols // length
    width = (nth + 1) * cols // length - begin
    del nth, length
    step = (torch.rand(len(width), generator=random, device=place) * width).long()
    return (begin + torch.minimum(step, width - 1)).int()


def few_entries(rows: int, device: str) -> Graph:
    """A graph of many rows and few entries, one of them long: for compiling, not for timing."""
    lengths = torch.zeros(rows, dtype=torch.int64)
    lengths[: min(rows, 1000)] = 1
    lengths[0] = min(rows, 3000)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = _columns(lengths, indptr, rows, 0)
    return Graph("few", indptr.int().to(device), indices.to(device), rows)
