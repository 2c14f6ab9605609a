"""The cost model: statistics, signs of its terms, and its distance from measured settings."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest
import torch

import tilewright as tw
from tilewright.formats.structure import Structure
from tilewright.tune import cost
from tilewright.tune.machine import CAREFUL, H200, machine_of
from tilewright.tune.statistics import Statistics, statistics_of

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "h200_spmm.json"
SETTING = {"rows": 8, "unroll": 4, "long": 32, "chunk": 512, "warps": 1, "width": 32, "outer": 0}


def structure(lengths: list[int], cols: int = 4000) -> Structure:
    pointers = torch.tensor([0, *lengths]).cumsum(0)
    places = torch.cat([torch.arange(n) for n in lengths] or [torch.zeros(0)]).long()
    return Structure("csr", (len(lengths), cols), pointers, places)


def test_classes_of_row_lengths() -> None:
    """0 | 1 | 2 | 3, 4 | 5 ... 8 | ... : a class ends at a power of two, which belongs to it."""
    s = statistics_of(structure([0, 1, 2, 3, 4, 5, 8, 9, 1024, 1025, 0]))
    assert (s.rows, s.cols, s.nnz, s.longest) == (11, 4000, 2081, 1025)
    assert s.counts[:6] == (2, 1, 1, 2, 2, 1) and s.counts[11:13] == (1, 1)
    assert s.entries[:6] == (0, 1, 2, 7, 13, 9) and s.entries[11:13] == (1024, 1025)
    assert sum(s.counts) == 11 and sum(s.entries) == 2081


def test_statistics_are_made_once() -> None:
    s = structure([3, 4])
    assert statistics_of(s) is statistics_of(s)


@pytest.mark.parametrize("lengths", [[], [0, 0, 0]])
def test_nothing_stored(lengths: list[int]) -> None:
    s = statistics_of(structure(lengths))
    assert (s.nnz, s.longest, sum(s.counts)) == (0, 0, len(lengths))
    assert cost.lists(s, 8, 4, H200)(SETTING).total >= H200.launch
    assert s.label


def test_formats_without_pointers_have_sizes() -> None:
    A = tw.SparseTensor.from_dense(torch.rand(6, 9).round()).to_format("ell.9")
    s = statistics_of(A.structure)
    assert (s.rows, s.cols, s.counts) == (6, 9, ())


def test_labels_tell_kinds_apart_and_not_contents() -> None:
    a, b = structure([7] * 100), structure([8, 6] * 50)
    skewed, larger = structure([1] * 99 + [601]), structure([7] * 1000)
    labels = [statistics_of(s).label for s in (a, b, skewed, larger)]
    assert labels[0] == labels[1]
    assert len(set(labels)) == 3


def at(**classes: int) -> tuple[int, ...]:
    """Numbers by class: at(c5=3) has a 3 in class 5."""
    return tuple(classes.get(f"c{c}", 0) for c in range(33))


N = 1 << 17
EVEN = Statistics(N, N, 16 * N, 16, at(c5=N), at(c5=16 * N))
GIANT = {"longest": 4096, "counts": at(c5=N, c13=1), "entries": at(c5=16 * N, c13=4096)}


@pytest.mark.parametrize(
    "term, setting, changed",
    [
        ("tail", {}, GIANT),
        ("gather", {}, {"cols": 1 << 22}),
        ("memory", {}, {"cols": 1 << 22}),
        ("busy", {"unroll": 2}, {}),
        ("issue", {"warps": 4}, {}),
    ],
)
def test_what_makes_a_term_grow(term: str, setting: dict[str, int], changed: dict) -> None:
    before = cost.lists(EVEN, 32, 4, H200)(SETTING)
    after = cost.lists(replace(EVEN, **changed), 32, 4, H200)({**SETTING, **setting})
    assert getattr(after, term) > getattr(before, term)
    assert before.total > H200.launch


def test_feature_tiles_outermost_help_where_x_does_not_stay_in_cache() -> None:
    model = cost.lists(EVEN, 512, 4, H200)
    assert model({**SETTING, "outer": 1}).gather < model(SETTING).gather


def test_ranges_of_columns_trade_gathers_for_partial_sums() -> None:
    """They pay where x is far larger than the cache and rows are long, not where rows are short."""
    wide = replace(EVEN, cols=1 << 21)
    long = Statistics(N, 1 << 20, 512 * N, 512, at(c10=N), at(c10=512 * N))
    for told, pays in ((wide, False), (long, True)):
        whole, cut = (
            cost.lists(told, 32, 4, H200)({**SETTING, "columns": c, "outer": 1}) for c in (1, 4)
        )
        assert cut.gather < whole.gather and cut.memory > whole.memory
        assert (cut.total < whole.total) == pays


def test_blocks_read_a_row_of_x_once_for_all_their_rows() -> None:
    told = Statistics(N, N, 512 * N, 512, at(c10=N), at(c10=512 * N))
    rows = cost.lists(told, 128, 4, H200)({**SETTING, "outer": 1})
    blocks = [cost.blocks(N, told.nnz, b, 128, 4, H200) for b in (16, 32)]
    assert blocks[1].gather < blocks[0].gather < rows.gather
    half = rows.scaled(0.5) + blocks[0]
    assert half.launch == 2 * H200.launch and half.gather == rows.gather / 2 + blocks[0].gather


def test_padding_costs_as_much_as_the_longest_row_of_a_group() -> None:
    skewed = statistics_of(structure(([1] * 63 + [1000]) * 50))
    assert (
        cost.padded(skewed, 32, 4, H200)(SETTING).busy
        > 2 * cost.lists(skewed, 32, 4, H200)(SETTING).busy
    )


def test_products_count_waves() -> None:
    tile = {"bm": 128, "bn": 128, "bk": 64, "group": 8, "warps": 8, "stages": 3}
    few, more = (cost.product(n, 128, 4096, 2, H200)(tile).busy for n in (128 * 132, 128 * 133))
    assert more == pytest.approx(2 * few)


def test_entries_gather_two_rows_each() -> None:
    tile = {"edges": 32, "width": 32, "warps": 4}
    one, two = (cost.entries(replace(EVEN, nnz=n), 32, 4, H200)(tile).gather for n in (1000, 2000))
    assert two == pytest.approx(2 * one)


def test_c_dispatches_and_waits() -> None:
    """Small shares are many to hand out; large ones leave threads without work at the end."""
    model = cost.native(EVEN, 32, 4, replace(machine_of(torch.device("cpu")), cores=2))
    tails = [model({"width": 128, "prefetch": 8, "grain": g}).tail for g in (1, 64, 1 << 16)]
    assert tails[1] < tails[0] and tails[1] < tails[2]


def test_unknown_machines_are_careful() -> None:
    here = machine_of(torch.device("cpu"))
    assert here.cores == torch.get_num_threads() and here.name
    assert CAREFUL.memory < H200.memory and CAREFUL.cache < H200.cache


def test_distance_from_the_best_on_a_generated_graph() -> None:
    """Of the measured settings of the saved H200 results; the graphs that need files: scripts/fit_cost.py."""
    fit = pytest.importorskip("fit_cost")  # needs SciPy
    known = {"arxiv-sized": fit.statistics("arxiv-sized", None)}
    rows = [r for r in json.loads(RESULTS.read_text())["rows"] if r["graph"] in known]
    distances = [c.distance(H200) for c in fit.read_rows(rows, known)]
    assert len(distances) == 10  # five widths in two dtypes
    assert exp(sum(map(log, distances)) / 10) < 1.06 and max(distances) < 1.25
