"""Products over zeros that are found in each call, y = x @ w.T, beside dense and beside torch's ways to skip.

A case is a shape, a dtype, a granularity and a sparsity. Ours are the families of `ops/families.py` and the choice
between them; each is timed with the index built inside and with the index given, over weights that lie as it reads
them. What asks the host for a number cannot be a graph: it is timed eagerly, gaps included. Detection alone is timed
apart, and so are layers that make the index while they compute (bench/dynamic_layers.py).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.bench import check, probes, timing
from tilewright.bench.dynamic_cases import SQUARE, Case, Tile, cases, kept, operands
from tilewright.bench.dynamic_layers import SETTLED, Layer, layers, measured
from tilewright.bench.dynamic_peers import Peer, peers
from tilewright.bench.dynamic_report import report
from tilewright.bench.suite import Measured, Options, Run, Task, dtype_name, dtype_of, seeded
from tilewright.bench.tables import cell, least, ratio
from tilewright.ops import dynamic, linear
from tilewright.ops.families import FAMILIES, Family
from tilewright.ops.index import Index
from tilewright.ops.kept import multiplied
from tilewright.pit.watch import seen_of
from tilewright.view.rates import rates_of

DETECTED: tuple[Tile, ...] = (
    *((n, 1) for n in (1, 8, 16, 32, 64)),
    *((16, 16), (32, 32), (32, 64)),
)
SLACK = 4.0  # peers may round partial sums
REPLAYS, BUDGET_S = 20, 0.05


def measure(run: Run) -> Measured:
    options = run.options
    chosen = [c for c in cases(options.device, options.quick) if _asked(run, c, "product")]
    made = [c for c in layers(options.device, options.quick) if _asked(run, c, "layer")]
    detected = DETECTED if "detection" in options.kinds else ()
    yield tasks(chosen, made, detected)
    probe = probes.load(options.probes, "gather_matmul") if options.device == "cuda" else None
    for tile in detected:
        with run.part(f"detection {tile}"):
            run.add(_detection(run, tile))
    for layer in made:
        with run.part(layer.name):
            run.add(measured(run, layer))
    for case in chosen:
        if run.late:
            break
        with run.part(case.name):
            run.add(_case(run, case, probe))
            row = run.rows[-1]
            run.say(f"{row['case']}: {cell(row['best_ms'])} ms, dense {cell(row['dense_ms'])} ms")
    costs = partial(dynamic.costs_on, torch.device(options.device))
    text, summary = report(run.rows, costs)
    cuda = options.device == "cuda"
    clock = "CUDA graphs where nothing waits for the host" if cuda else run.clock
    tiles = costs("bf16" if cuda else "f32").source
    return run.finish(text, {**summary, "clock": clock, "tiles": tiles})


def _asked(run: Run, case: Case | Layer, kind: str) -> bool:
    dtypes = run.options.dtypes
    return kind in run.options.kinds and (not dtypes or case.dtype in dtypes)


# --- one case -------------------------------------------------------------------------------------


def _case(run: Run, case: Case, probe: ModuleType | None) -> dict[str, Any]:
    x, w = operands(case, run.options.device)
    reference = x.double() @ w.double().t()
    row: dict[str, Any] = {"case": case.name, "kind": "product", "shape": case.shape}
    row |= {"m": case.m, "n": case.n, "k": case.k, "dtype": case.dtype}
    row |= {"granularity": case.granularity, "sparsity": case.sparsity}
    dense = lambda: functional.linear(x, w)
    calls = [Peer("dense", dense), *_ours(x, w, row), _auto(x, w, row)]
    others = _right(run, row, calls, peers(run, case, x, w, probe), reference)
    if case.granularity == "row":
        held = x[x.ne(0).any(1)]
        row["rows_kept"] = held.shape[0]
        calls += [Peer("kept", lambda: functional.linear(held, w), given=True)]
        calls += [_alone(x, w)] if x.is_cuda else []
    for call, ms in _times(run, calls, others):
        row[f"{call.name}_given_ms" if call.given else f"{call.name}_ms"] = ms
    return row | _derived(run, row, x.element_size())


def _ours(x: Tensor, w: Tensor, row: dict[str, Any]) -> list[Peer]:
    """Every family twice, and what its index holds."""
    made, row["found"] = [], {}
    for family in FAMILIES.values():
        index = family.detect(x)
        row["found"][family.name] = asdict(seen_of(index.counts, prod(index.grid), index.grid[0]))
        weight = _prepared(w, family.name)
        known = replace(index, expected=int(index.counts.sum()), packed=None)
        inside = lambda f=family, w=weight, n=known.expected: f.found(x, w, None, n)[0]
        given = lambda f=family, i=known, w=weight: f.run(x, w, i)
        made += [Peer(family.name, inside), Peer(family.name, given, given=True)]
        if family.name == "k" and x.is_cuda:
            made.append(_k_major(x, weight, known))
    return made


def _k_major(x: Tensor, w: Tensor, index: Index) -> Peer:
    """The product over k's of an x whose k's lie side by side already, as a producer may write it."""
    laid = x.t().contiguous().t()
    return Peer("k_major", lambda: FAMILIES["k"].run(laid, w, index), given=True)


def _alone(x: Tensor, w: Tensor) -> Peer:
    """The product of the rows that an index names, alone: what the vendor does for a matrix of these rows."""
    index = FAMILIES["rows"].detect(x)
    plan = linear.list_plan(x, w, replace(index, expected=int(index.counts)))  # type: ignore[attr-defined]
    rows = index.compact()
    assert isinstance(rows, Tensor)

    def call() -> Tensor:
        plan.launch()
        return plan.out

    return Peer("rows_alone", call, given=True, rows=rows.long())


def _auto(x: Tensor, w: Tensor, row: dict[str, Any]) -> Peer:
    """The choice, once it has seen numbers of this x."""
    dynamic.forget()
    for _ in range(SETTLED):
        dynamic.auto(x, w)
        if x.is_cuda:
            torch.cuda.synchronize()
    row["auto"] = next(made.family for made in dynamic.CHOOSER.made.values())
    weight = _prepared(w, row["auto"])
    return Peer("auto", lambda: dynamic.auto(x, weight))


def _prepared(w: Tensor, family: str) -> Tensor:
    """A weight as a family reads it: what is copied once for all calls is not a part of one."""
    return w if family == "dense" else multiplied(w, "k" if family == "k" else "i")


def _right(
    run: Run, row: dict[str, Any], ours: list[Peer], others: list[Peer], reference: Tensor
) -> list[Peer]:
    """Judge every output; the peers that are right."""
    wrong = [p.name for p in ours if not _agrees(p, reference, 1.0)]
    row |= {"ok": not wrong, "wrong": wrong}
    made = []
    for peer in others:
        with run.peer(f"{row['case']} {peer.name}"):
            if _agrees(peer, reference, SLACK):
                made.append(peer)
            else:
                run.say(f"peer left out: {row['case']} {peer.name}: another result")
    return made


def _agrees(peer: Peer, reference: Tensor, slack: float) -> bool:
    out = peer.call()
    assert isinstance(out, Tensor)
    if peer.rows is not None:
        out, reference = out[peer.rows], reference[peer.rows]
    return check.compare(out, reference, slack * check.TOLERANCE[out.dtype]).ok


def _times(run: Run, ours: list[Peer], others: list[Peer]) -> list[tuple[Peer, float]]:
    """Ours and dense in turns; peers one by one, so that one that breaks is left out."""
    if run.options.device != "cuda":
        calls = [*ours, *others]
        named = run.cpus_ms({f"{p.name} {p.given}": p.call for p in calls})
        return list(zip(calls, named.values(), strict=True))
    times = timing.graphs_ms([p.call for p in ours], REPLAYS, BUDGET_S)
    made = list(zip(ours, times, strict=True))
    for peer in others:
        with run.peer(peer.name):
            clock = timing.eager_cold_ms if peer.waits else timing.graph_ms
            made.append((peer, clock(peer.call, REPLAYS, BUDGET_S)))
    return made


def _derived(run: Run, row: dict[str, Any], itemsize: int) -> dict[str, Any]:
    """The best family, ratios, and the floor: operations that are left at dense's rate, bytes at a copy's.

    A copy's speed cannot be told on a busy CPU: there the operations count alone.
    """
    names = [n for n in FAMILIES if row.get(f"{n}_ms") is not None]
    best = min(names, key=lambda n: float(row[f"{n}_ms"]))
    others = [row.get(f"{n}_ms") for n in ("select", "grouped", "csr", "bsr")]
    floor = row["dense_ms"] * (1 - row["sparsity"])
    if not run.options.busy:
        moved = (row["m"] * row["k"] + row["n"] * row["k"] + row["m"] * row["n"]) * itemsize
        floor = max(floor, moved / rates_of(torch.device(run.options.device)).memory * 1e3)
    made: dict[str, Any] = {"best": best, "best_ms": row[f"{best}_ms"], "peer_ms": least(others)}
    made["best_given_ms"] = least(row.get(f"{n}_given_ms") for n in FAMILIES)
    made["floor_share"] = ratio(floor, made["best_ms"])
    made["over_dense"] = ratio(row["dense_ms"], made["best_ms"])
    made["over_peer"] = ratio(made["peer_ms"], made["best_ms"])
    # a CPU has no launch of its own
    alone = row.get("rows_alone_given_ms", row.get("rows_given_ms"))
    made["kept_share"] = ratio(row.get("kept_given_ms"), alone)
    alike = alone if row["granularity"] == "row" else row.get("k_major_given_ms")
    made["over_probe"] = ratio(row.get("probe_given_ms"), alike)
    return made


# --- detection alone ------------------------------------------------------------------------------


def _detection(run: Run, tile: Tile) -> dict[str, Any]:
    """One pass over x to a list, in order and not, beside torch's any and nonzero; 95 % of micro-tiles are 0."""
    cuda = run.options.device == "cuda"
    size = SQUARE[0] if cuda else SQUARE[0] // 4
    dtype = torch.bfloat16 if cuda else torch.float32
    random = seeded(run.options.device)
    x = torch.randn(size, size, generator=random, device=random.device)
    x = (x * kept((size, size), tile, 0.95, random)).to(dtype)
    calls = {
        "ordered": lambda: Index.from_values(x, tile).positions,
        "any_order": lambda: Index.from_values(x, tile, ordered=False).positions,
        "by_row": lambda: Index.from_values(x, tile, grouped=True).positions,
        "torch": lambda: _by_torch(x, tile),
    }
    found = _by_torch(x, tile)
    lists = [Index.from_values(x, tile, ordered=o).compact() for o in (True, False)]
    ok = all(isinstance(p, Tensor) and torch.equal(p.sort().values.long(), found) for p in lists)
    rows = Index.from_values(x, tile, grouped=True)
    by_row = [p + n * rows.grid[1] for n, p in enumerate(rows.compact())]
    ok = ok and torch.equal(torch.cat(by_row).long(), found)
    name = f"{tile[0]}x{tile[1]}"
    row: dict[str, Any] = {"case": f"detection {name}", "kind": "detection", "granularity": name}
    row |= {"size": size, "dtype": dtype_name(dtype), "ok": ok}
    if not cuda:
        return row | {f"{n}_ms": ms for n, ms in run.cpus_ms(calls).items()}
    ways = ("ordered", "any_order", "by_row")
    ours = timing.graphs_ms([calls[n] for n in ways], REPLAYS, BUDGET_S)
    row |= {f"{n}_ms": ms for n, ms in zip(ways, ours, strict=True)}
    return row | {"torch_ms": timing.eager_cold_ms(calls["torch"], REPLAYS, BUDGET_S)}


def _by_torch(x: Tensor, tile: Tile) -> Tensor:
    (rows, columns), (m, k) = tile, x.shape
    assert rows and columns
    there = x.ne(0).view(m // rows, rows, k // columns, columns).any(3).any(1)
    return there.flatten().nonzero()[:, 0]


# --- compiling ahead ------------------------------------------------------------------------------


def tasks(chosen: list[Case], made: list[Layer], detected: tuple[Tile, ...]) -> list[Task]:
    """A task for each kernel that the cases need."""
    sizes = sorted({(c.m, c.n, c.k, c.dtype) for c in chosen})
    found: list[Task] = [{"size": s, "family": f} for s in sizes for f in FAMILIES]
    found += [{"layer": (c.m, c.n, c.k, c.dtype, c.tile)} for c in made]
    return found + [{"detect": t, "ordered": o} for t in detected for o in (True, False)]


def warm(task: dict[str, Any], folder: Path | None) -> None:
    """Real sizes: the compiler looks at what divides them."""
    if "detect" in task:
        x = torch.ones(SQUARE[0], SQUARE[0], dtype=torch.bfloat16, device="cuda")
        Index.from_values(x, tuple(task["detect"]), ordered=task["ordered"])
    elif "layer" in task:
        m, n, k, dtype, tile = task["layer"]
        measured(Run("dynamic", Options(device="cuda")), Layer(m, n, k, dtype, tuple(tile)))
    else:
        m, n, k, dtype = task["size"]
        w = torch.ones(n, k, dtype=dtype_of(dtype), device="cuda")
        for sparsity in (0.0, 0.99):  # tiles follow the number of rows
            x = operands(Case(m, n, k, dtype, "row", sparsity), "cuda")[0]
            family: Family = FAMILIES[task["family"]]
            index = family.detect(x)
            if family.name == "k":
                _k_major(x, w, index).call()
            for expected in (0, m // 32, m // 8, m // 2, m):
                family.run(x, w, replace(index, expected=expected))
                family.found(x, w, None, expected)
    torch.cuda.synchronize()
