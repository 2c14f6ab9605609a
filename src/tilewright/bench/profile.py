"""`tilewright profile`: the tile database of this machine, measured.

tilewright profile                                   # this machine's own file, in the cache folder
tilewright profile --device cuda --json tiles.json   # a file to ship
tilewright profile --results dynamic.json            # families scaled to what `bench dynamic` measured here
tilewright profile --results dynamic.json --tiles tiles.json --json tiles.json   # and nothing measured anew

A tile is timed at two depths; the difference is its steps, what is left is the start. Plain steps are those of a dense
product, gathered ones of a product over every second row, or over lists that name everything, by the same tiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from json import JSONDecodeError
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewright.bench import machine, timing
from tilewright.bench.ahead import compiled
from tilewright.bench.dynamic_regret import fit, regret, regret_table, short
from tilewright.bench.suite import Options, Run, count, seeded
from tilewright.bench.tables import Cell, table
from tilewright.language import functions as fn
from tilewright.language.trace import Param, axes, trace
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend_of
from tilewright.ops.bound import Launch
from tilewright.ops.dtypes import TORCH
from tilewright.ops.families import FAMILIES
from tilewright.ops.found import GROUP
from tilewright.ops.index import Index
from tilewright.ops.kept import multiplied
from tilewright.ops.linear import list_plan, rows_plan
from tilewright.ops.products import WIDE
from tilewright.ops.registry import register
from tilewright.ops.settings import pack
from tilewright.pit import tiles
from tilewright.pit.tiles import Costs, Tile, shapes
from tilewright.support.errors import error
from tilewright.tune.machine import device_name, machine_of
from tilewright.tune.store import versions

LEAST = 1e-3  # microseconds, where a difference is lost in noise
FEW_ROWS = 32  # of an index that costs its start alone
CPU_S = 0.2
RESULTS = "a file that `tilewright bench dynamic --json` wrote"


def tile_product(x: Param, w: Param, y: Param) -> None:
    i, n, k = axes("i n k")
    y[i, n] = fn.sum(k, x[i, k] * w[n, k])


register(trace(tile_product))


@dataclass(frozen=True)
class Sizes:
    """Rows and columns of the products that are timed, and their two depths."""

    side: int
    depths: tuple[int, int]


SIZES = {"cuda": Sizes(4096, (1024, 4096)), "cpu": Sizes(512, (256, 1024))}
LIKE = {"f16": "bf16", "bf16": "f16"}  # whose scales serve where none were measured
DTYPES = {"cuda": ("bf16", "f16", "f32"), "cpu": ("f32",)}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tilewright profile", description="Measure tiles.")
    made.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    made.add_argument(
        "--json", type=Path, help="file; default: this machine's, in the cache folder"
    )
    made.add_argument("--threads", type=count, help="CPU threads; default: torch's")
    made.add_argument("--results", type=Path, help="figures of `bench dynamic` on this machine")
    made.add_argument("--tiles", type=Path, help="a file of tiles that were measured before")
    return made


def main(argv: Sequence[str]) -> int:
    args, before = parser().parse_args(argv), torch.get_num_threads()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        return profile(args)
    finally:
        torch.set_num_threads(before)


def profile(args: argparse.Namespace) -> int:
    kind = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    run = Run("profile", Options(device=kind))
    path = None if args.json is None else machine.writable(args.json)
    rows = None if args.results is None else _results(args.results)
    made, by = _tiles(args.tiles) if args.tiles is not None else (_measured(run, kind), versions())
    said = []
    if rows is not None:
        known = {c.dtype: c for c in made}
        rows = [r for r in rows if short(r) in known]
        with _of(args.results, "--results", RESULTS):
            scales = fit(rows, known.__getitem__)
            said = [regret_table(regret(rows, known.__getitem__))]
        made = [replace(c, scale=_scale(c, scales)) for c in made]
    path = tiles.write(path or tiles.path_of(made[0].device), made, by)
    tiles.forget()
    print("\n\n".join([*map(told, made), *said, str(path)]))
    return 1 if run.failures else 0


@contextmanager
def _of(path: Path, name: str, expected: str) -> Iterator[None]:
    """Whatever a file of another kind leads to, it is the file that is wrong."""
    try:
        yield
    except JSONDecodeError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as why:
        got = f"{path}, which is of another kind ({type(why).__name__}: {why})"
        raise error("argument", where="profile", name=name, got=got, expected=expected) from why


def _tiles(path: Path) -> tuple[list[Costs], str]:
    """The tiles of a file, and the versions that measured them."""
    with _of(path, "--tiles", "a file that `tilewright profile` wrote"):
        made = tiles.read(path)
        return [made[0], *made[1:]], tiles.made_by(path)


def _results(path: Path) -> list[dict[str, Any]]:
    """The products of a file of results."""
    with _of(path, "--results", RESULTS):
        rows = [r for r in machine.read(path)["rows"] if r["kind"] == "product"]
        return [r for r in rows if short(r)]


def _scale(c: Costs, scales: dict[str, dict[str, float]]) -> Mapping[str, float]:
    """What was fitted for a dtype, or for one like it; else as before."""
    return scales.get(c.dtype) or scales.get(LIKE.get(c.dtype, "")) or c.scale


def _measured(run: Run, kind: str) -> list[Costs]:
    if kind == "cuda" and not torch.cuda.is_available():
        expected = "cpu: there is no GPU"
        raise error("argument", where="profile", name="--device", got=kind, expected=expected)
    device = torch.device(kind, 0) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        made = [{"dtype": d, "tile": n} for d in DTYPES[kind] for n in range(len(shapes(d, True)))]
        compiled({"profile": made}, run.options.workers, None, run.say)
    return [profiled(run, device, dtype) for dtype in DTYPES[kind]]


def told(c: Costs) -> str:
    lines: list[list[Cell]] = [
        [f"{t.bm}x{t.bn}x{t.bk}", t.warps, t.stages, t.step, t.gathered, t.alone, t.start]
        for t in (c.dense, *c.tiles)
    ]
    lines[0][0] = "dense (vendor)"
    head = ["tile", "warps", "stages", "step us", "gathered us", "alone us", "start us"]
    more = f"an index {c.detect:.1f} us and {c.look:.0f} bytes a us; zeros {c.write:.0f} bytes a us"
    scale = ", ".join(f"{f} {s:.2f}" for f, s in c.scale.items()) or "none"
    return f"{c.device}, {c.dtype}, {c.cores} cores\n{table(head, lines)}\n{more}; scales: {scale}"


# --- one dtype ------------------------------------------------------------------------------------


def profiled(run: Run, device: torch.device, dtype: str) -> Costs:
    """All costs of a device and dtype; a tile that does not compile is left out."""
    sizes, cores = SIZES[device.type], machine_of(device).cores
    timed = []
    for tile in shapes(dtype, device.type == "cuda"):
        with run.part(f"{dtype} {tile}"):
            timed.append(_tile(device, dtype, tile, sizes, cores))
    dense = timed[0].step, timed[0].start  # on the CPU, the same function
    if device.type == "cuda":
        dense = _steps(device, dtype, timed[0], sizes, cores, _vendor)
    x, _ = _operands(device, dtype, sizes, sizes.depths[1])
    small = x[:FEW_ROWS]
    looks = [_us(device, partial(FAMILIES["blocks"].detect, t)) for t in (small, x)]
    seen = (x.numel() - small.numel()) * x.element_size()
    return Costs(
        device_name(device, backend_of(device)),
        dtype,
        cores,
        replace(timed[0], step=dense[0], gathered=dense[0], start=dense[1]),
        tuple(timed),
        detect=looks[0],
        look=seen / max(looks[1] - looks[0], LEAST),
        write=x.numel() * x.element_size() / max(_us(device, lambda: torch.zeros_like(x)), LEAST),
        source="measured",
        cache=_cache(device),
    )


def _tile(device: torch.device, dtype: str, t: Tile, sizes: Sizes, cores: int) -> Tile:
    step, start = _steps(device, dtype, t, sizes, cores, lambda x, w: _plain(x, w, t))
    gathered, _ = _steps(device, dtype, t, sizes, cores, lambda x, w: _gathered(x, w, t))
    made = replace(t, step=step, gathered=max(gathered, step), start=start)
    if device.type != "cuda":
        return made
    few = max(cores // ceil(sizes.side / t.bn), 1) * t.bm
    make = lambda x, w: (_gathered if t.bm == GROUP else _plain)(x[:few], w, t)
    return replace(made, alone=_steps(device, dtype, t, sizes, cores, make, few)[0])


def _cache(device: torch.device) -> float:
    if device.type != "cuda":
        return Costs.cache
    return float(torch.cuda.get_device_properties(device).L2_cache_size)


Make = Callable[[Tensor, Tensor], timing.Fn]


def _steps(
    device: torch.device,
    dtype: str,
    t: Tile,
    sizes: Sizes,
    cores: int,
    make: Make,
    rows: int | None = None,
) -> tuple[float, float]:
    """Microseconds of a step on one multiprocessor, and of the start, from two depths."""
    a, b = (_us(device, make(*_operands(device, dtype, sizes, k))) for k in sizes.depths)
    waves = ceil(((rows or sizes.side) / t.bm) * (sizes.side / t.bn) / cores)
    steps = [waves * k / t.bk for k in sizes.depths]
    step = max((b - a) / (steps[1] - steps[0]), LEAST)
    return step, max(a - steps[0] * step, LEAST)


def _operands(device: torch.device, dtype: str, sizes: Sizes, k: int) -> tuple[Tensor, Tensor]:
    random = seeded(device.type)
    made = (torch.randn(sizes.side, k, generator=random, device=device) for _ in "xw")
    x, w = (t.to(TORCH[dtype]) for t in made)
    return x, w


def _vendor(x: Tensor, w: Tensor) -> timing.Fn:
    return lambda: functional.linear(x, w)


def _plain(x: Tensor, w: Tensor, t: Tile) -> timing.Fn:
    if x.is_cuda:
        w = multiplied(w, "i")
        text = program_text("tile_product", (dense_arg("x", x), dense_arg("w", w)))
        return Launch(text, [x, w], [pack(_setting(t))]).launch
    blocks = FAMILIES["blocks"]
    if t.bm != blocks.tile[0]:
        return _vendor(x, w)
    index = blocks.detect(x)
    return lambda: blocks.run(x, w, index)


def _gathered(x: Tensor, w: Tensor, t: Tile) -> timing.Fn:
    """Every second row of a tensor that is twice as long; for the rows that share lists, lists of everything."""
    if x.is_cuda and t.bm == GROUP:
        micro = FAMILIES["blocks"].tile if t.bk >= WIDE else FAMILIES["k"].tile
        index = Index.from_values(x, micro, grouped=True)
        return list_plan(x, w, index, _setting(t)).launch
    twice = torch.cat((x, x))
    rows = torch.arange(0, len(twice), 2, dtype=torch.int32, device=x.device)
    if x.is_cuda:
        return rows_plan(twice, w, rows, _setting(t)).launch
    twice[1::2] = 0
    index = FAMILIES["rows"].detect(twice)
    return lambda: FAMILIES["rows"].run(twice, w, index)


def _setting(t: Tile) -> dict[str, int]:
    return {"bm": t.bm, "bn": t.bn, "bk": t.bk, "group": 8, "warps": t.warps, "stages": t.stages}


def _us(device: torch.device, call: timing.Fn) -> float:
    """On the CPU, of the fastest call: others may use it too."""
    if device.type == "cuda":
        return 1e3 * timing.graph_ms(call)
    return 1e3 * timing.cpus_ms({"": call}, CPU_S, of=min)[""]


def warm(task: dict[str, Any], folder: Path | None) -> None:
    device = torch.device("cuda", 0)
    for k in SIZES["cuda"].depths:
        x, w = _operands(device, task["dtype"], SIZES["cuda"], k)
        for make in (_plain, _gathered):
            make(x, w, shapes(task["dtype"], True)[task["tile"]])()
    torch.cuda.synchronize()
