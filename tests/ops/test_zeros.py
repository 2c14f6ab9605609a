"""Zeros that kernels leave as they found them: some for a stream, and for each call that a graph captured."""

from __future__ import annotations

import pytest
import torch
from ops.places import Place

from tilewright.ops import zeros
from tilewright.ops.index import Index


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    held = torch.zeros(64, dtype=torch.uint8)
    monkeypatch.setattr(zeros, "ROOM", 64)
    monkeypatch.setattr(zeros, "_GRAPHS", {None: zeros._Room(held)})
    return held


def test_captured_calls_share_nothing(room: torch.Tensor) -> None:
    cpu = torch.device("cpu")
    first, second = (zeros._captured(n, torch.int64, cpu) for n in (1, 3))
    first += 1
    assert second.tolist() == [0, 0, 0] and room[0] == 1
    assert [t.data_ptr() - room.data_ptr() for t in (first, second)] == [0, 16]
    left = zeros._captured(4, torch.int32, cpu)
    assert left.data_ptr() - room.data_ptr() == 48 == 64 - 16


def test_a_graph_sets_what_has_no_room(room: torch.Tensor) -> None:
    made = zeros._captured(65, torch.uint8, torch.device("cpu"))
    assert made.tolist() == [0] * 65 and made.data_ptr() != room.data_ptr()


def test_a_count_is_written_by_the_kernel(where: Place) -> None:
    """Lists in any order: their count was not set before, and no call leaves anything to the next."""
    for seed in range(3):
        x = (torch.rand(70, 33, generator=torch.Generator().manual_seed(seed)) < 0.1).float()
        found = Index.from_values(x.to(where.device), (4, 1), ordered=False)
        want = (
            torch.nn.functional.max_pool2d(x[None], (4, 1), ceil_mode=True)[0]
            .flatten()
            .nonzero()[:, 0]
        )
        assert torch.equal(found.compact().cpu().sort().values, want)
    assert not any(t.any() for t in zeros._STREAMS.values())


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)], ids=str)
def test_no_program_leaves_a_count(where: Place, shape: tuple[int, int]) -> None:
    for _ in range(3):
        torch.full((1,), 7, dtype=torch.int32, device=where.device)  # memory that is not zero
        assert Index.from_values(
            torch.ones(shape, device=where.device), ordered=False
        ).counts.tolist() == [0]


@pytest.mark.gpu
def test_graphs_beside_each_other_count_apart() -> None:
    """Two graphs replayed on two streams at once, with patterns that change."""
    xs = [torch.zeros(4096, 512, device="cuda") for _ in "ab"]
    Index.from_values(xs[0], (8, 1), ordered=False)
    graphs, made = [], []
    for x in xs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made.append([Index.from_values(x, (8, 1), ordered=False) for _ in range(3)])
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in xs]
    for seed in range(5):
        random = torch.Generator("cuda").manual_seed(seed)
        for x in xs:
            x.copy_(torch.rand(x.shape, generator=random, device="cuda") < 0.02 * seed)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for x, lists in zip(xs, made, strict=True):
            want = x.view(512, 8, 512).any(1).flatten().nonzero()[:, 0].int()
            for found in lists:
                got = found.positions.flatten()[: int(found.counts)]
                assert torch.equal(got.sort().values, want)


@pytest.mark.gpu
def test_nothing_stays_in_the_memory_of_a_compiled_graph() -> None:
    """torch.compile warms up in private memory, and looks whether anything was left there."""
    find = torch.compile(
        lambda x: Index.from_values(x, (8, 1), ordered=False).counts + 0, mode="reduce-overhead"
    )
    zeros._STREAMS.clear()
    for seed in range(4):
        x = (
            torch.rand(512, 64, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
            < 0.01
        ).float()
        assert int(find(x)) == int(x.view(64, 8, 64).any(1).sum())


def test_counters_of_one_kernel_are_apart() -> None:
    cpu = torch.device("cpu")
    first, again, other = (
        zeros.counted(n, torch.int64, cpu, nth) for n, nth in ((3, 0), (4, 0), (3, 1))
    )
    assert first is again and first.numel() == 4 and other is not first
