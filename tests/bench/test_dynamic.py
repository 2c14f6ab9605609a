"""The benchmark of dynamic sparsity: its cases, peers, tables, the regret of the choice, and profiles of tiles."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dynamic_tables
import pytest
import torch

from tilewright import cli
from tilewright.bench import check, dynamic, dynamic_report, machine, main, profile
from tilewright.bench.dynamic_cases import GRANULARITIES, SPARSITIES, Case, cases, kept, operands
from tilewright.bench.dynamic_layers import Layer, layers
from tilewright.bench.dynamic_peers import Peer, peers
from tilewright.bench.dynamic_regret import fit, regret, seen_of, site_of
from tilewright.bench.suite import Options, Run, seeded
from tilewright.pit import tiles
from tilewright.pit.choice import estimates
from tilewright.pit.tiles import Costs, estimated
from tilewright.tune.machine import H200

COSTS = estimated(H200, "bf16")


def costs_of(dtype: str) -> Costs:
    return replace(COSTS, dtype=dtype)


@pytest.mark.parametrize("name", GRANULARITIES)
def test_zeros_come_in_micro_tiles(name: str) -> None:
    tile = GRANULARITIES[name]
    mask = kept((96, 130), tile, 0.5, seeded("cpu")).expand(96, 130)
    rows, columns = (n if t is None else t for n, t in zip((96, 130), tile, strict=True))
    first = mask[::rows, ::columns].repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    assert torch.equal(mask, first[:96, :130])
    assert 0 < mask.float().mean() < 1


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_sparsity(sparsity: float) -> None:
    x, _ = operands(Case(512, 8, 512, "fp32", "8x1", sparsity), "cpu")
    assert float((x == 0).float().mean()) == pytest.approx(sparsity, abs=0.02)


def test_the_cases_cover_what_is_asked() -> None:
    found = cases("cuda", quick=False)
    square = [c for c in found if c.shape == "4096x4096x4096" and c.dtype == "bf16"]
    assert {(c.granularity, c.sparsity) for c in square} == {
        (g, s) for g in GRANULARITIES for s in SPARSITIES
    }
    assert any(c.k == 16384 for c in found) and any(c.dtype == "fp32" for c in found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("tile", [(32, 1), (32, 64)], ids=str)
def test_layers_leave_few_micro_tiles(tile: tuple[int, int]) -> None:
    x, w, b = Layer(256, 512, 128, "fp32", tile).operands("cpu")
    h = torch.nn.functional.linear(x, w, b).relu()
    there = h.ne(0).view(8, 32, -1, tile[1]).any(3).any(1)
    assert 0.02 < there.float().mean() < 0.15
    assert {c.tile for c in layers("cuda", False)} == {(32, 1), (32, 64)}
    assert any(c.n == 16384 for c in layers("cuda", False))


@pytest.mark.parametrize("granularity", ["row", "column", "32x64", "32x1", "1x1"])
def test_peers_are_right(granularity: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(64, 32, 128, "fp32", granularity, 0.9)
    x, w = operands(case, "cpu")
    made = peers(Run("dynamic", Options()), case, x, w, None)
    assert made and "left out" not in capsys.readouterr().err
    for peer in made:
        out = peer.call()
        assert isinstance(out, torch.Tensor)
        assert check.compare(out, x.double() @ w.double().t()).ok, peer.name


# --- tables ---------------------------------------------------------------------------------------


def row(granularity: str, sparsity: float, dense: float, **ms: float) -> dict[str, Any]:
    shape = "4096x4096x4096"
    made: dict[str, Any] = {"case": f"{granularity} {sparsity}", "kind": "product", "shape": shape}
    made |= {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "granularity": granularity}
    made |= {"sparsity": sparsity, "dense_ms": dense, "ok": True, "auto": "dense"}
    rows = round(4096 * (1 - sparsity))
    made["found"] = {"rows": {"kept": rows, "of": 4096, "longest": 1, "groups": 4096}}
    best = min(ms.values())
    made |= {"best_ms": best, "over_dense": dense / best, "best_given_ms": best, "best": "rows"}
    return made | {f"{name}_ms": t for name, t in ms.items()}


@pytest.mark.parametrize(
    "points, density",
    [
        ([(0.1, 1, 2), (0.5, 3, 2)], 0.3),
        ([(0.5, 3, 2), (0.1, 1, 2)], 0.3),
        ([(0.1, 3, 2), (0.5, 1, 2)], None),
        ([(0.1, 1, 2), (1.0, 2, 2)], 1.0),
        ([], None),
    ],
)
def test_crossing(points: list[tuple[float, float, float]], density: float | None) -> None:
    assert dynamic_report.crossing(points) == density


def test_report() -> None:
    rows = [
        row("32x1", s, 0.2, rows=t) for s, t in ((0.0, 0.4), (0.5, 0.3), (0.95, 0.05), (0.99, 0.04))
    ]
    found = {"kind": "detection", "granularity": "1x1", "dtype": "bf16", "torch_ms": 0.1}
    found |= {"ordered_ms": 0.05, "any_order_ms": 0.029}
    layer = {"kind": "layer", "case": "layer 8x8x8", "kept": 0.05, "share": 1.02, "over_apart": 1.2}
    text, summary = dynamic_report.report([found, layer, *rows], costs_of)
    assert summary["layer_over_apart"] == pytest.approx(1.2)
    assert (
        "PASS a layer with its list, % more than torch's alone, most  2.0 (goal at most 3)" in text
    )
    assert summary["k_over_dense_95%"] == pytest.approx(4.0)
    assert "PASS 32x1 at 95 %, 4096^3 bf16, over dense  4.00 (goal 3.5)" in text
    assert "MISS 32x1 at 99 %, 4096^3 bf16, over dense  5.00 (goal 5.5)" in text
    assert "PASS detection of 1x1, us  29.0 (goal at most 30)" in text
    assert "dense is beaten up to density 0.32: 32x1" in text
    assert "---- rows, index given" in text


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = importlib.import_module("dynamic_picture")
    held = {"rows": [row(g, s, 0.2, rows=0.1) for g in ("row", "1x1") for s in (0.5, 0.9)]}
    assert picture.draw(held, tmp_path / "p.png").stat().st_size > 1000
    assert list(picture.panels(held)) == ["4096x4096x4096 bf16"]


def test_clocks_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs in turns for ours, eager for peers that wait; a peer that breaks under its clock is left out."""
    used: list[str] = []

    def clock(name: str) -> Any:
        def take(call: Any, *_: Any) -> float:
            used.append(name)
            return float(call())

        return take

    monkeypatch.setattr(dynamic.timing, "graphs_ms", lambda calls, *_: [float(c()) for c in calls])
    monkeypatch.setattr(dynamic.timing, "graph_ms", clock("graph"))
    monkeypatch.setattr(dynamic.timing, "eager_cold_ms", clock("eager"))
    ours = [Peer("dense", lambda: 1.0), Peer("rows", lambda: 2.0)]
    broken = Peer("broken", lambda: torch.zeros(1).view(2))
    others = [broken, Peer("grouped", lambda: 3.0), Peer("csr", lambda: 4.0, waits=True)]
    got = dynamic._times(Run("dynamic", Options(device="cuda")), ours, others)
    assert [(p.name, ms) for p, ms in got] == [
        ("dense", 1.0),
        ("rows", 2.0),
        ("grouped", 3.0),
        ("csr", 4.0),
    ]
    assert used == ["graph", "graph", "eager"]


# --- the regret of the choice ---------------------------------------------------------------------


def measured(scale: dict[str, float], shapes: int = 3) -> list[dict[str, Any]]:
    """Rows whose times are the estimates, each family off by a factor."""
    made = []
    for n in range(shapes):
        for sparsity in (0.0, 0.3, 0.5, 0.9):
            r = row("row", sparsity, 1.0, rows=1.0)
            r |= {"m": 4096 << n, "shape": f"{4096 << n}"}
            r["found"]["rows"] |= {"kept": round((4096 << n) * (1 - sparsity)), "of": 4096 << n}
            for e in estimates(site_of(r), seen_of(r), COSTS):
                r[f"{e.family}_ms"] = e.total * scale.get(e.family, 1.0) / 1e3
            made.append(r)
    return made


def test_an_exact_model_has_no_regret() -> None:
    told = regret(measured({}), costs_of)
    assert told["all"]["cases"] == 12 and told["all"]["right"] == 1.0
    assert told["all"]["worst"] == pytest.approx(1.0)
    assert told["dense"]["cases"] and told["skipping"]["cases"]


def test_constants_are_fitted_by_other_shapes() -> None:
    rows = measured({"rows": 4.0})
    assert fit(rows, costs_of)["bf16"]["rows"] == pytest.approx(4.0)
    assert regret(rows, costs_of)["all"]["worst"] == pytest.approx(1.0)
    alone = regret(rows[:4], costs_of)["all"]  # nothing to fit by
    assert alone["worst"] is not None and alone["worst"] > 1.5


def test_a_wrong_choice_is_counted() -> None:
    rows = measured({}, shapes=1)
    rows[3]["dense_ms"] = rows[3]["rows_ms"] / 3
    told = regret(rows, costs_of)
    assert told["all"]["worst"] == pytest.approx(3.0)
    assert told["all"]["right"] == pytest.approx(3 / 4)


def test_a_probe_is_held_against_the_product_that_gets_the_same() -> None:
    """Over k's, x is given with its k's side by side to both."""
    row = {"m": 64, "n": 64, "k": 64, "sparsity": 0.5, "dense_ms": 1.0, "probe_given_ms": 0.6}
    row |= {"rows_ms": 1.0, "k_given_ms": 0.9, "k_major_given_ms": 0.5, "rows_alone_given_ms": 0.4}
    run = Run("dynamic", Options(busy=True))
    for granularity, over in (("32x1", 1.2), ("row", 1.5)):
        made = dynamic._derived(run, row | {"granularity": granularity}, 2)
        assert made["over_probe"] == pytest.approx(over)
    assert (
        dynamic._derived(run, {**row, "granularity": "1x1", "probe_given_ms": None}, 2)[
            "over_probe"
        ]
        is None
    )


def test_x_with_its_ks_side_by_side_gives_the_same() -> None:
    x, w = operands(Case(64, 16, 128, "fp32", "32x1", 0.9), "cpu")
    index = dynamic.FAMILIES["k"].detect(x)
    torch.testing.assert_close(dynamic._k_major(x, w, index).call(), x @ w.t())


# --- whole suites ---------------------------------------------------------------------------------


def test_the_suite_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [Case(64, 16, 128, "fp32", g, 0.9) for g in ("row", "32x64")]
    monkeypatch.setattr(dynamic, "cases", lambda device, quick: some)
    monkeypatch.setattr(dynamic, "DETECTED", ((8, 1), (16, 16)))
    monkeypatch.setattr(dynamic, "layers", lambda device, quick: layers(device, quick)[:1])
    path = tmp_path / "cpu_dynamic.json"
    assert main(["dynamic", "--device", "cpu", "--quick", "--busy", "--json", str(path)]) == 0
    held = machine.read(path)
    kinds = ["detection"] * 2 + ["layer"] + ["product"] * 2
    assert [r["kind"] for r in held["rows"]] == kinds
    layer, products = held["rows"][2], held["rows"][3:]
    assert layer["ok"] and 0.0 < layer["kept"] < 0.5
    assert all(
        layer[f"{n}_ms"] > 0 for n in ("torch", "apart", "fused", "network", "network_dense")
    )
    assert all(r["ok"] and r["auto_ms"] > 0 and r["rows_given_ms"] > 0 for r in products)
    assert products[0]["select_ms"] > 0 and products[1]["bsr_ms"] > 0
    assert held["summary"]["regret"]["all"]["cases"] == 2
    assert "32x64 at 90 %, over dense" in capsys.readouterr().out
    text = "\n".join(dynamic_tables.page("cpu_dynamic", held, "a machine"))
    assert "| 64x16x128 fp32, dense" in text and "90% zeros" in text


def test_a_profile_is_written_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(profile.SIZES, "cpu", profile.Sizes(64, (64, 128)))
    monkeypatch.setattr(profile, "CPU_S", 0.01)
    rows = [r | {"dtype": "fp32", "rows_ms": r["rows_ms"] * 1e3} for r in measured({})]
    results = tmp_path / "dynamic.json"
    results.write_text(json.dumps({"rows": rows}))
    tiles.forget()
    try:
        assert profile.main(["--device", "cpu", "--results", str(results)]) == 0
        said = capsys.readouterr().out
        assert "dense (vendor)" in said and "scales: dense" in said
        (found,) = tiles.read(Path(said.split()[-1]))
        assert found.source == "measured" and found.scale["rows"] > 0
        used = tiles.costs_of(found.device, "f32", lambda: COSTS)
        assert used == found
    finally:
        tiles.forget()


def test_scales_are_fitted_to_tiles_measured_before(tmp_path: Path) -> None:
    """Nothing is measured, and the file still says who did."""
    before, after, results = (tmp_path / f"{n}.json" for n in ("before", "after", "results"))
    tiles.write(before, [COSTS], "measured elsewhere")
    results.write_text(json.dumps({"rows": measured({})}))
    given = ["--device", "cpu", "--results", str(results), "--tiles", str(before)]
    assert profile.main([*given, "--json", str(after)]) == 0
    (made,) = tiles.read(after)
    assert made.scale["rows"] > 0 and replace(made, scale={}) == COSTS
    assert tiles.made_by(after) == "measured elsewhere"


def test_scales_without_results_stay(tmp_path: Path) -> None:
    """Tiles of a dtype that no result has keep theirs; results of a dtype without tiles are no use."""
    before, after, results = (tmp_path / f"{n}.json" for n in ("before", "after", "results"))
    tiles.write(before, [replace(COSTS, dtype="f32", scale={"rows": 2.5})], "elsewhere")
    results.write_text(json.dumps({"rows": measured({})}))
    given = ["--device", "cpu", "--results", str(results), "--tiles", str(before)]
    assert profile.main([*given, "--json", str(after)]) == 0
    assert tiles.read(after)[0].scale == {"rows": 2.5}


KINDS = ["3", "[]", '{"format": 2}', '{"format": 2, "costs": [1], "by": ""}', '{"rows": [{}]}']


@pytest.mark.parametrize("option", ["--tiles", "--results"])
@pytest.mark.parametrize("text", [*KINDS, '{"format": 2, "costs": [], "by": ""}', '{"rows": 1}'])
def test_files_of_another_kind_are_told(
    text: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert cli.main(["profile", option, str(path), "--json", str(tmp_path / "made.json")]) == 2
    assert f"tilewright: {option} = {path}, which is of another kind" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_profile_needs_its_device() -> None:
    with pytest.raises(Exception, match="there is no GPU"):
        profile.main(["--device", "cuda"])
