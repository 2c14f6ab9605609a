"""The benchmark driver: clocks, graphs, checks, tables, files, and the CPU suite on a small graph."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tilewright.bench import (
    bsr,
    check,
    graphs,
    machine,
    main,
    probes,
    roof,
    spmm,
    spmm_report,
    subject,
    tables,
    timing,
    vendor,
)
from tilewright.bench.suite import Options, Run
from tilewright.formats import SparseTensor
from tilewright.ops import spaces
from tilewright.support.errors import FormatError
from tilewright.tune.space import Param, Space
from tilewright.view.rates import Rates

TINY = graphs.GENERATED["tiny"]


def test_cpu_clock_reads_milliseconds() -> None:
    assert 2.0 <= timing.cpu_ms(lambda: time.sleep(0.002), seconds=0.03) < 20.0


def test_cpu_clock_calls_often_enough() -> None:
    calls: list[int] = []
    timing.cpu_ms(lambda: calls.append(1), seconds=0.0, least=5)
    assert len(calls) >= 5


def test_cpu_clock_names_each_function() -> None:
    slow_and_fast = {"slow": lambda: time.sleep(0.003), "fast": lambda: None}
    times = timing.cpus_ms(slow_and_fast, seconds=0.02)
    assert times["slow"] > times["fast"]


def test_wall_clock_is_a_time_of_one_call() -> None:
    assert 1.0 <= timing.eager_ms(lambda: time.sleep(0.001), n=10, budget_s=0.02) < 10.0


@pytest.mark.parametrize("name", ["tiny", "arxiv-sized"])
def test_generated_graph_has_the_size_asked(name: str) -> None:
    spec = graphs.GENERATED[name]
    g = graphs.load(name, None, "cpu")
    assert (g.rows, g.cols, g.nnz) == (spec.rows, spec.rows, spec.nnz)


def test_generated_rows_are_sorted_and_distinct() -> None:
    g = graphs.load("tiny", None, "cpu")
    steps = g.indices.diff()
    inside = torch.ones(g.nnz - 1, dtype=torch.bool)
    starts = g.indptr[1:-1].long()
    inside[starts[(starts > 0) & (starts < g.nnz)] - 1] = False
    assert bool((steps[inside] > 0).all())
    assert int(g.indices.min()) >= 0 and int(g.indices.max()) < g.cols


def test_generated_graph_has_a_long_row_and_short_ones() -> None:
    lengths = graphs.row_lengths(graphs.GENERATED["arxiv-sized"])
    assert lengths.max() == graphs.GENERATED["arxiv-sized"].longest
    assert np.median(lengths) <= 4


def test_reddit_sized_lengths_add_up() -> None:
    spec = graphs.GENERATED["reddit-sized"]
    lengths = graphs.row_lengths(spec)
    assert (int(lengths.sum()), int(lengths.max())) == (spec.nnz, spec.longest)


def test_generated_graph_is_the_same_each_time() -> None:
    a, b = (graphs.generate("g", TINY, "cpu") for _ in range(2))
    assert torch.equal(a.indices, b.indices) and torch.equal(a.indptr, b.indptr)


def test_generated_graph_makes_a_valid_csr_tensor() -> None:
    g = graphs.load("tiny", None, "cpu")
    values = torch.ones(g.nnz)
    shape = (g.rows, g.cols)
    torch.sparse_csr_tensor(g.indptr, g.indices, values, shape, check_invariants=True)


def test_graph_for_compiling_has_the_rows_asked() -> None:
    g = graphs.few_entries(5000, "cpu")
    assert (g.rows, g.longest) == (5000, 3000)


def test_graph_file_is_read(tmp_path: Path) -> None:
    indptr, indices = np.array([0, 2, 2, 3], np.int32), np.array([0, 2, 1], np.int32)
    np.savez(tmp_path / "g.npz", indptr=indptr, indices=indices, shape=np.array([3, 4]))
    g = graphs.load("g", tmp_path, "cpu")
    assert (g.rows, g.cols, g.nnz, g.longest) == (3, 4, 3, 2)


def test_unknown_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"graph = karate[\s\S]*--data"):
        graphs.load("karate", tmp_path, "cpu")


def test_usual_graphs_are_those_that_can_be_had(tmp_path: Path) -> None:
    usual = ["cora", "arxiv-sized"]
    assert graphs.chosen(tmp_path, (), usual) == ["arxiv-sized"]
    assert graphs.chosen(None, (), usual) == ["tiny", "arxiv-sized"]


@pytest.mark.parametrize("dtype", list(check.TOLERANCE))
def test_rounded_reference_passes(dtype: torch.dtype) -> None:
    reference = torch.randn(100, 16, dtype=torch.float64)
    assert check.compare(reference.to(dtype), reference).ok


@pytest.mark.parametrize("dtype", list(check.TOLERANCE))
def test_one_wrong_row_among_many_fails(dtype: torch.dtype) -> None:
    reference = torch.randn(100_000, 4, dtype=torch.float64)
    out = reference.to(dtype, copy=True)
    out[77] *= 1.5
    assert not check.compare(out, reference).ok


def test_one_unwritten_element_fails() -> None:
    reference = torch.randn(50, 8, dtype=torch.float64)
    out = check.poison(torch.empty(50, 8))
    out.view(-1)[1:] = reference.view(-1)[1:].float()
    assert not check.compare(out, reference).ok


def test_empty_rows_must_be_zero() -> None:
    reference = torch.randn(10, 8, dtype=torch.float64)
    reference[3] = 0
    out = reference.float()
    assert check.compare(out, reference).ok
    out[3, 0] = 1.0
    assert not check.compare(out, reference).ok


def test_another_shape_fails() -> None:
    assert not check.compare(torch.zeros(2, 3), torch.zeros(3, 2)).ok


def test_references_agree_with_dense() -> None:
    g = graphs.few_entries(40, "cpu")
    values, x, z = torch.randn(g.nnz), torch.randn(40, 200), torch.randn(40, 200)
    dense = g.torch_csr(values).to_dense().double()
    spmm = check.spmm_reference(g.indptr, g.indices, values, x)
    torch.testing.assert_close(spmm, dense @ x.double())
    full = x.double() @ z.double().t()
    pattern = g.torch_csr(torch.ones(g.nnz)).to_dense().bool()
    sddmm = check.sddmm_reference(g.indptr, g.indices, x, z)
    torch.testing.assert_close(sddmm, full[pattern])


def test_table_aligns_words_left_and_numbers_right() -> None:
    text = tables.table(["graph", "ms"], [["cora", 0.00931], ["amazon", None], ["b", 12]])
    assert text.splitlines() == [
        "graph        ms",
        "cora    0.00931",
        "amazon        -",
        "b            12",
    ]


@pytest.mark.parametrize(
    "value, text",
    [(None, "-"), (1234.5, "1234"), (1.234, "1.23"), (0.05678, "0.0568"), (0.0, "0"), (7, "7")],
)
def test_cells_have_three_figures(value: tables.Cell, text: str) -> None:
    assert tables.cell(value) == text


def test_geometric_mean_skips_what_is_missing() -> None:
    assert tables.geomean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert tables.geomean([]) is None


@pytest.mark.parametrize("value, mark", [(1.0, "PASS"), (0.94, "MISS"), (None, "----")])
def test_verdict_marks(value: float | None, mark: str) -> None:
    assert tables.verdict("x", value, 0.95).startswith(mark)


def test_result_file_is_whole_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    made = machine.result("spmm", "cpu", [{"graph": "g", "ms": 1.5}], {"mean": 2.0})
    machine.write(path, made)
    assert machine.read(path) == json.loads(json.dumps(made))
    assert set(made) == {"suite", "machine", "date", "rows", "summary"}
    assert made["machine"]["torch"] == torch.__version__
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_refused_content_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    machine.write(path, {"a": 1})
    with pytest.raises(TypeError):
        machine.write(path, {("a", "key"): 1})  # type: ignore[dict-item]
    assert machine.read(path) == {"a": 1}


def test_feature_tile_divides_the_width() -> None:
    assert [probes.feature_tile(96, w) for w in (16, 64, 256)] == [16, 32, 32]


def test_probes_are_optional(tmp_path: Path) -> None:
    assert probes.load(None, "spmm_units") is None
    assert probes.load(tmp_path, "spmm_units") is None
    assert probes.compile_spmm_c(tmp_path, 32) is None


def test_cuda_report_has_ratios_and_verdicts() -> None:
    setting = {"rows": 8, "unroll": 4, "long": 32, "chunk": 512, "warps": 1, "width": 32}
    row: dict[str, Any] = {"graph": "g", "width": 32, "dtype": "fp32", "nnz": 10**6}
    row |= {"rows": 1000, "cols": 1000, "device": "cpu"}
    row |= {"vendor_ms": 0.02, "best_ms": 0.01, "eager_ms": 0.02, "torch_eager_ms": 0.03}
    row |= {"chosen_ms": 0.0125, "best_setting": setting}
    row["settings"] = [{"setting": setting, "ms": 0.01, "probe_ms": 0.009, "ok": True}]
    text, summary = spmm_report.cuda([row | spmm_report.derived(row)], {"spmm": 9.0})
    assert summary["over_vendor_fp32"] == pytest.approx(2.0)
    assert summary["over_probe"] == pytest.approx(0.9)
    assert "MISS generated over probe, geometric mean of its settings  0.900" in text
    assert "PASS best setting over vendor, fp32  2.00" in text
    assert "---- best setting over vendor, bf16" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuSPARSE is there")
def test_vendor_library_may_be_missing() -> None:
    assert vendor.version() is None


def test_a_broken_part_does_not_end_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("spmm", Options())
    with run.part("cora 32"):
        raise ValueError("no such tile")
    assert run.finish("table", {}) == 1
    assert "FAIL cora 32: ValueError: no such tile" in capsys.readouterr().out


def test_a_broken_peer_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("spmm", Options())
    with run.peer("torch"):
        raise NotImplementedError("no bf16")
    assert run.finish("table", {}) == 0
    assert "peer left out: torch: NotImplementedError: no bf16" in capsys.readouterr().err


def test_wrong_output_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("spmm", Options())
    run.add({"case": "cora 32", "ok": False})
    assert run.finish("table", {}) == 1
    assert "MISS outputs right: 1 of 1 wrong" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_told() -> None:
    with pytest.raises(FormatError, match="there is no GPU"):
        main(["spmm", "--device", "cuda"])


def test_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a folder"):
        main(["spmm", "--device", "cpu", "--data", str(tmp_path / "none")])


class _Plan:
    """A launch made of torch's own product."""

    setting: dict[str, Any] = {}
    kernel = SimpleNamespace(seconds=0.0)

    def __init__(
        self, a: SparseTensor, x: torch.Tensor, setting: object = None, reduce: str = "sum"
    ) -> None:
        self.a, self.x = a.to_torch(), x
        self.out = torch.empty(a.shape[0], x.shape[1])

    def launch(self) -> None:
        self.out.copy_(self.a @ self.x)


def _cpu_suite(path: Path) -> dict[str, Any]:
    asked = ["--graphs", "tiny", "--widths", "32", "--quick", "--json", str(path)]
    assert main(["spmm", "--device", "cpu", *asked]) == 0
    return machine.read(path)


def test_cpu_suite_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over an operator that stands in for the package's own."""
    product = lambda a, x, reduce="sum": a.to_torch() @ x
    module = SimpleNamespace(spmm=product, plan=_Plan, SETTINGS=[])
    monkeypatch.setattr(subject, "op", lambda name: module)
    made = _cpu_suite(tmp_path / "r.json")
    (row,) = made["rows"]
    assert row["ok"] and {"torch_ms", "call_ms", "launch_ms"} <= set(row)
    assert made["summary"]["complete"] and made["summary"]["call_overhead_us"]["torch"] > 0
    assert "over torch CSR" in capsys.readouterr().out


def _has_operator() -> bool:
    try:
        return importlib.util.find_spec("tilewright.ops.spmm") is not None
    except ImportError:
        return False


FEW = Space(
    "c",
    tuple(
        Param(name, values)
        for name, values in (
            ("alike", (0,)),
            ("width", (128,)),
            ("prefetch", (0, 16)),
            ("grain", (1024,)),
        )
    ),
)


def suite(path: Path, *asked: str) -> dict[str, Any]:
    assert main([*asked, "--device", "cpu", "--quick", "--busy", "--json", str(path)]) == 0
    return machine.read(path)


def test_reductions_and_peers_of_the_cpu_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "c", lambda *_: FEW)
    asked = ("spmm", "--graphs", "tiny", "--widths", "32", "--reduces", "sum,max", "--tune")
    made = suite(tmp_path / "r.json", *asked)
    assert [row["reduce"] for row in made["rows"]] == ["sum", "max"]
    assert made["summary"]["max_over_sum"] > 0
    for row in made["rows"]:
        assert row["points"] == 2 and row["cold"] >= 1 and row["tuned"] >= 1
    assert made["summary"]["tuned_over_best"] >= 1 and made["rows"][0]["tuned_setting"]
    assert all(
        row["plain_ms"] > 0 and row["over_best"] > 0 and row["gather_gb_s"] > 0
        for row in made["rows"]
    )
    assert "one thread" in made["summary"]["clock"]


def test_distance_of_plans_from_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "c", lambda *_: FEW)
    made = suite(tmp_path / "r.json", "regret", "--graphs", "tiny", "--widths", "32")
    (row,) = made["rows"]
    assert row["ok"] and row["points"] == 2 and min(row["cold"], row["tuned"]) >= 1
    assert made["summary"]["cold_mean"] == pytest.approx(row["cold"])


def test_sddmm_on_the_cpu(tmp_path: Path) -> None:
    (row,) = suite(tmp_path / "r.json", "sddmm", "--graphs", "tiny", "--widths", "32")["rows"]
    assert row["ok"] and row["plain_ms"] > 0 and row["over_best"] > 0


def test_blocks_on_the_cpu(tmp_path: Path) -> None:
    made = suite(tmp_path / "r.json", "bsr", "--widths", "16")
    assert len(made["rows"]) == 12 and all(row["ok"] for row in made["rows"])
    half = [row for row in made["rows"] if row["format"] == "dbsr"]
    assert len(half) == 4 and all(row["torch_ms"] > 0 and row["dense_ms"] > 0 for row in half)
    assert set(made["summary"]["break_even"]) == {"16 x 16", "32 x 16", "64 x 16", "128 x 16"}


def test_every_other_row_of_blocks_is_empty() -> None:
    a = bsr.matrix(64, 8, 0.3, torch.float32, "cpu", "dbsr")
    filled = a.to_dense().view(8, 8, 64).ne(0).any(2).any(1)
    assert a.format == "dbsr.8.8" and 0 < int(filled.sum()) <= 4 and a.nnz == 19 * 64


def test_break_even_ends_at_the_first_loss() -> None:
    ratios = {0.1: 2.0, 0.25: 1.1, 0.35: 0.9, 0.5: 1.2}
    rows = [{"block": 16, "columns": 8, "density": d, "over_dense": r} for d, r in ratios.items()]
    assert bsr.break_even(rows) == {"16 x 8": 0.25}


def test_pruned_masks_on_the_cpu(tmp_path: Path) -> None:
    held = {"names": np.array(["a", "b"])}
    for name in held["names"]:
        g = graphs.few_entries(40, "cpu")
        held |= {f"{name}.indptr": g.indptr.numpy(), f"{name}.indices": g.indices.numpy()}
        held[f"{name}.shape"] = np.array([40, 40])
    np.savez(tmp_path / "dlmc_small.npz", **held)
    asked = ("pruned", "--data", str(tmp_path), "--widths", "8")
    made = suite(tmp_path / "r.json", *asked)
    assert [row["mask"] for row in made["rows"]] == ["dlmc_small/a", "dlmc_small/b"]
    assert sum(made["summary"]["chosen"].values()) == 2 and made["summary"]["points"]


def test_infinite_places_have_to_agree() -> None:
    wanted = torch.tensor([[1.0, float("-inf")]], dtype=torch.float64)
    assert check.compare(wanted.float(), wanted).ok
    assert not check.compare(torch.tensor([[1.0, 0.0]]), wanted).ok
    assert not check.compare(torch.tensor([[float("inf"), float("-inf")]]), wanted).ok


@pytest.mark.skipif(not _has_operator(), reason="no operator yet")
def test_cpu_suite_over_the_operator(tmp_path: Path) -> None:
    (row,) = _cpu_suite(tmp_path / "r.json")["rows"]
    assert row["ok"] and row["call_ms"] > 0


def test_floors_are_a_launch_and_bytes() -> None:
    """By hand: 1000 rows of 32 numbers, once and for each of n entries; the first case is all overhead."""
    rates = Rates("a machine", memory=1e9, gather=1e9)
    rows = [
        {"rows": 1000, "cols": 1000, "nnz": n, "width": 32, "dtype": "fp32", "over_peer": 2.0}
        for n in (1, 100_000)
    ]
    once_ms = [(2000 * 32 * 4 + n * 8 + 4000) / 1e6 for n in (1, 100_000)]
    gathered_ms = [n * 32 * 4 / 1e6 for n in (1, 100_000)]
    assert once_ms[0] > gathered_ms[0] and once_ms[1] < gathered_ms[1]
    rows[0]["best_ms"], rows[1]["best_ms"] = once_ms[0] + 1.0, 2 * (gathered_ms[1] + 1.0)
    made = roof.floors(rows, rates)
    assert made.overhead_ms == pytest.approx(1.0)
    assert made.share == pytest.approx(0.5**0.5) and made.over_peer == pytest.approx(2.0 * 2**0.5)


def test_a_kernel_is_compiled_once() -> None:
    """For graphs of any size, as their settings are completed; what only a plan needs makes no kernel."""
    found = [graphs.generate(str(n), graphs.PowerLaw(n, 8 * n, 0.9, 100), "cpu") for n in (50, 60)]
    lists = {"rows": 8, "unroll": 4, "long": 32, "chunk": 512, "warps": 1}
    made = spmm.tasks(found, (32,), (torch.float32,), [lists, {**lists, "long": 16, "chunk": 128}])
    assert [t["setting"]["width"] for t in made] == [32]
    large = graphs.generate("large", graphs.PowerLaw(90_000, 200_000, 0.9, 100), "cpu")
    made = spmm.tasks([*found, large], (256,), (torch.float32,), [lists])
    assert len(made) == 2 and made[0]["setting"]["outer"] != made[1]["setting"]["outer"]
