"""Work lists: every entry in one lane of one unit, and as many turns as the longest lane has."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime.ranges import make_range_list, range_of
from tilewright.runtime.worklist import WorkList, make_segments, make_work_list

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def pointers(lengths: list[int]) -> torch.Tensor:
    """Of 32 bits, which no step of making a list keeps by itself."""
    return torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)


def judge(work: WorkList, entries: int, across: int = 1) -> None:
    """The entries that lanes have, `across` in a turn; those of a piece lie as many apart as there are lanes."""
    assert {work.units.dtype, work.segs.dtype} == {torch.int32}  # as the kernel reads them
    lanes, seen = work.segs.shape[2], []
    for (trip, _, pieces, _), (row, start, stop) in zip(
        work.units.tolist(), work.segs.tolist(), strict=True
    ):
        step = lanes if pieces > 0 else 1
        held = [list(range(a, b, step)) for a, b in zip(start, stop, strict=True)]
        assert trip == -(-max(map(len, held)) // across)
        assert all(not h for h, r in zip(held, row, strict=True) if r < 0)
        seen += [e for h in held for e in h]
    assert sorted(seen) == list(range(entries))


@given(LENGTHS, st.sampled_from([1, 2, 4, 8]), st.integers(0, 12), st.integers(1, 16))
def test_rows_and_pieces(lengths: list[int], rows: int, long: int, more: int) -> None:
    indptr = pointers(lengths)
    setting = {"rows": rows, "long": long, "chunk": long + more}
    judge(make_work_list(indptr, setting), sum(lengths))


@given(LENGTHS, st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(0, 99))
def test_ranges_of_columns(lengths: list[int], rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    held = [np.sort(random.choice(50, n, replace=False)) for n in lengths]
    indptr, indices = pointers(lengths), torch.tensor(np.concatenate(held))
    setting = {"rows": rows, "long": 8, "chunk": 12, "columns": columns}
    judge(make_range_list(indptr, indices, 50, setting), sum(lengths))


@given(LENGTHS, st.sampled_from([1, 2, 4]), st.integers(1, 16), st.integers(1, 4))
def test_segments(lengths: list[int], rows: int, chunk: int, edges: int) -> None:
    indptr = pointers(lengths)
    made = make_segments(indptr, {"rows": rows, "chunk": chunk, "edges": edges})
    judge(made, sum(lengths), edges)


@given(
    LENGTHS, st.sampled_from([1, 2, 4]), st.integers(1, 16), st.integers(1, 3), st.integers(0, 99)
)
def test_segments_of_ranges(
    lengths: list[int], rows: int, chunk: int, columns: int, seed: int
) -> None:
    """A lane has entries of one row and one range, and ranges follow each other."""
    random = np.random.default_rng(seed)
    sorted_columns = [np.sort(random.choice(50, n, replace=False)) for n in lengths]
    indptr = pointers(lengths)
    indices = torch.tensor(np.concatenate(sorted_columns))
    of = range_of(indices, 50, columns)
    setting = {"rows": rows, "chunk": chunk, "edges": 2, "columns": columns}
    made = make_segments(indptr, setting, of=of)
    judge(made, sum(lengths), 2)
    lanes = [lane for seg in made.segs.tolist() for lane in zip(*seg, strict=True)]
    held = [(row, start, stop) for row, start, stop in lanes if stop > start]
    ranges = [of[start:stop].tolist() for _, start, stop in held]
    assert all(len(set(r)) == 1 for r in ranges)
    assert [r[0] for r in ranges] == sorted(r[0] for r in ranges)
    rows_of = np.repeat(np.arange(len(lengths)), lengths)
    assert all((rows_of[start:stop] == row).all() for row, start, stop in held)
