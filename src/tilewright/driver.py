"""The pipeline on one page: a stage I program becomes a kernel.

    coord -> position -> flat -> schedule -> (tile -> Triton | C) -> build

Each step is named, timed and kept as text; TILEWRIGHT_DUMP=folder writes them all. A compilation may begin
at any stage: `resume` goes on from the text of one, as it was written or edited. The schedule is the target's
default, or one that is given.

    resume(Path("dump/001_spmm_sum/04_scheduled.py")).launch(...)
    resume(Path("dump/001_spmm_sum/03_flat.py"), schedule=parse_steps("kind(i, grid)"))
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tilewright.analysis.domain import compares
from tilewright.codegen import c, triton
from tilewright.ir import coord, flat, loops, stmt, tile
from tilewright.ir.expr import FLOATS, Const, Expr, Var
from tilewright.ir.monoid import Monoid, fold_constants
from tilewright.ir.node import substitute, walk
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.lowering.flatten import lower_to_flat, told_apart
from tilewright.lowering.position import lower_to_position
from tilewright.lowering.tiles import lower_to_tile
from tilewright.runtime import build_c, build_triton, kernel
from tilewright.runtime.kernel import Kernel
from tilewright.schedule.default_c import any_order, schedule_c
from tilewright.schedule.default_triton import schedule_triton
from tilewright.schedule.edit import illegal
from tilewright.schedule.options import COptions, Setting, TritonOptions
from tilewright.schedule.record import Schedule, Scheduled, apply, show_steps
from tilewright.support import knobs
from tilewright.support.places import public

Nest = coord.Program | loops.Program | flat.Program
Numbers = Mapping[str, int]
_NUMBER = itertools.count(1)


@dataclass
class _Log:
    """The texts of one compilation, in order, and the steps of its schedule."""

    name: str
    stages: dict[str, str] = field(default_factory=dict)
    steps: Schedule = ()
    began: float = field(default_factory=time.perf_counter)

    def keep(self, stage: str, thing: Any) -> Any:
        self.stages[stage] = thing if isinstance(thing, str) else text(thing)
        return thing

    def finish(self) -> float:
        seconds = time.perf_counter() - self.began
        where = knobs.dump()
        if where is not None:
            where = where / f"{next(_NUMBER):03d}_{self.name}"
            where.mkdir(parents=True, exist_ok=True)
            for n, (stage, made) in enumerate(self.stages.items(), 1):
                kind = "c" if stage == "c" else "py"
                (where / f"{n:02d}_{stage}.{kind}").write_text(made + "\n")
            if self.steps:
                (where / "schedule.py").write_text(show_steps(self.steps) + "\n")
        if knobs.show():
            print(f"tilewright: {self.name} in {seconds:.3f} s")
            if knobs.show() > 1:
                print(self.stages.get("triton") or self.stages.get("c"))
        return seconds


def lower(p: Nest, log: _Log, divisors: Numbers, known: Mapping[str, Expr]) -> flat.Program:
    """Stage I or II -> stage III; `known` sizes are replaced (by numbers, by narrower variables)."""
    done = _scheduled(p)
    if isinstance(p, coord.Program):
        p = lower_to_position(log.keep("coord", p), divisors)
    if isinstance(p, loops.Program):
        p = lower_to_flat(log.keep("loops", p), divisors)
    made = p
    table = {v: known[v.name] for v in made.sizes if v.name in known}
    sizes = tuple(n if isinstance(n := table.get(v, v), Var) else v for v in made.sizes)
    facts = tuple((n if isinstance(n := table.get(v, v), Var) else v, d) for v, d in made.divisors)
    made = replace(made, body=substitute(made.body, table), sizes=sizes, divisors=facts)
    return made if done else log.keep("flat", made)


def _scheduled(p: Nest) -> bool:
    """Whether a compilation begins after the schedule: lowering makes serial loops only."""
    kinds = {s.kind for s in walk(p.body) if isinstance(s, flat.Loop)}
    return isinstance(p, flat.Program) and bool(kinds - {"serial"})


def _schedule(
    p: flat.Program, log: _Log, given: Schedule | None, default: Callable[[], Scheduled]
) -> flat.Program:
    """The program after the steps that are given, or after those that the target's default finds."""
    made = default() if given is None else Scheduled(apply(p, given), given)
    log.steps = made.steps
    return made.program


def _allowed(p: flat.Program) -> flat.Program:
    """Sums of floats by atomics have another order in every run."""
    added = [s for s in walk(p.body) if isinstance(s, stmt.Atomic) and s.op == "sum"]
    floats = [s.buffer.name for s in added if s.buffer.dtype in FLOATS]
    if floats and torch.are_deterministic_algorithms_enabled():
        why = f"{floats[0]} is added up in any order, and torch asks for deterministic algorithms"
        raise illegal("split_reduction(atomic)", why, "split it `ordered`, or keep it `owned`")
    return p


def to_tile(
    p: Nest | tile.Program,
    setting: Setting,
    divisors: Numbers,
    known: Mapping[str, Expr],
    log: _Log | None = None,
    schedule: Schedule | None = None,
) -> tile.Program:
    """Any stage -> tile form, with a schedule, or the default one of a setting."""
    log = log or _Log(p.name)
    if isinstance(p, tile.Program):
        log.keep("tile", p)
        return p
    narrow = {n: v for n, v in known.items() if isinstance(v, Var)}
    lowered = lower(p, log, divisors, narrow)
    scheduled = lowered
    if schedule is not None or not _scheduled(p):
        scheduled = _schedule(lowered, log, schedule, lambda: schedule_triton(lowered, setting))
        scheduled = told_apart(scheduled)
    exact = {v: known[v.name] for v in scheduled.sizes if isinstance(known.get(v.name), Const)}
    scheduled = replace(scheduled, body=fold_constants(substitute(scheduled.body, exact)))
    log.keep("scheduled", _allowed(scheduled))
    made: tile.Program = log.keep("tile", lower_to_tile(scheduled))
    return made


def compile_triton(
    p: Nest | tile.Program,
    setting: Setting,
    divisors: Numbers,
    known: Mapping[str, Expr] | None = None,
    aligned: bool = True,
    target: Any = None,
    options: TritonOptions | None = None,
    schedule: Schedule | None = None,
) -> Kernel:
    """Any stage -> a Triton kernel: for the interpreter, for this GPU, or (target given) only built.

    divisors: facts about sizes; known: sizes that are constants of this kernel, or 32-bit variables.
    """
    log = _Log(p.name)
    t = to_tile(p, setting, divisors, known or {}, log, schedule)
    options = options or TritonOptions(setting.get("warps", 4), setting.get("stages", 3))
    options = replace(options, fuse=options.fuse and not compares(p))
    here = target is None and build_triton.interpreted()
    threads = 0 if here else 32 * options.warps
    stages = 0 if here else options.stages
    source = log.keep("triton", triton.emit_triton(t, options.precision, threads, stages))
    grid = kernel.python_of(t.grid, [v.name for v in t.sizes])
    params = triton.parameters(t)
    if here:
        call = kernel.interpreted_caller(build_triton.load(source, t.name), grid)
        return _kernel(t, "triton", log, call, setting)
    loose = {f"{name}_ptr" for name in tile.loose(t)}
    even = [
        n
        for n, (name, kind) in enumerate(params)
        if name not in loose and _is_even(name, kind, divisors, aligned)
    ]
    where = (
        target if target is not None else build_triton.device_target(torch.cuda.current_device())
    )
    built = build_triton.compile_for(where, source, t.name, params, even, options.as_dict())
    call = _not_here if target is not None else kernel.triton_caller(built, grid)
    made = _kernel(t, "triton", log, call, setting)
    made.compiled = built
    return made


def to_c(
    p: Nest, exact: Numbers, options: COptions, log: _Log, schedule: Schedule | None = None
) -> tuple[flat.Program, str]:
    """Stage I, II or III -> scheduled stage III and its C text, with some sizes known exactly."""
    f = lowered = lower(p, log, {}, {n: Const(v, "i64") for n, v in exact.items()})
    if schedule is not None or not _scheduled(p):
        f = told_apart(_schedule(lowered, log, schedule, lambda: schedule_c(lowered, options)))
    loose = options.fuse and not compares(p) and any_order(f)
    return log.keep("scheduled", _allowed(f)), log.keep("c", c.emit_c(f, options.grain, loose))


def compile_c(
    p: Nest, exact: Numbers, options: COptions | None = None, schedule: Schedule | None = None
) -> Kernel:
    """Stage I, II or III -> a C kernel."""
    log = _Log(p.name)
    options = options or COptions()
    f, source = to_c(p, exact, options, log, schedule)
    fn = build_c.build(source, f.name, options.fuse and not compares(p), any_order(f))
    call = kernel.CFunction(fn, len(f.buffers), len(f.sizes), [v.dtype for v in f.scalars])
    return _kernel(f, "c", log, call, options.setting)


def compile_slow(p: coord.Program) -> Kernel:
    """Stage I -> stage II, run by the interpreter: for machines without a C compiler."""
    log = _Log(p.name)
    positions = log.keep("loops", lower_to_position(p))
    flat_ = log.keep("flat", lower_to_flat(positions))
    log.keep("c", "// no C compiler: stage II is interpreted")
    return _kernel(flat_, "c", log, kernel.slow_caller(positions), {})


@public
def resume(
    source: str | Path,
    backend: str = "c",
    exact: Numbers | None = None,
    setting: Setting | None = None,
    divisors: Numbers | None = None,
    options: COptions | None = None,
    monoids: Mapping[str, Monoid] | None = None,
    schedule: Schedule | None = None,
) -> Kernel:
    """The text of any stage (or its file) -> a kernel.

    What the stage has not fixed yet is given here: exact sizes, the setting and divisors of a Triton kernel or
    the options of a C one, the schedule (none: the default), monoids that are not built in. Tile form always
    goes on to Triton.
    """
    p = read(source, monoids)
    if isinstance(p, tile.Program) or backend == "triton":
        known: dict[str, Expr] = {n: Const(v, "i64") for n, v in (exact or {}).items()}
        return compile_triton(p, setting or {}, divisors or {}, known, schedule=schedule)
    return compile_c(p, exact or {}, options, schedule)


def read(source: str | Path, monoids: Mapping[str, Monoid] | None = None) -> Nest | tile.Program:
    """A stage from its text or its file."""
    if isinstance(source, Path):
        return parse(source.read_text(), monoids, str(source))
    return parse(source, monoids)


def texts(
    source: str | Path,
    backend: str = "c",
    setting: Setting | None = None,
    schedule: Schedule | None = None,
) -> dict[str, str]:
    """The text of any stage -> those of the stages from there on, by name; nothing is built."""
    p = read(source)
    log = _Log(p.name)
    if isinstance(p, tile.Program) or backend == "triton":
        log.keep("triton", triton.emit_triton(to_tile(p, setting or {}, {}, {}, log, schedule)))
    else:
        to_c(p, {}, COptions(), log, schedule)
    return log.stages


def _kernel(
    p: flat.Program | tile.Program,
    backend: str,
    log: _Log,
    call: Callable[..., None],
    setting: Setting,
) -> Kernel:
    names = tuple(v.name for v in p.sizes)
    scalars = tuple(v.name for v in p.scalars)
    kept = dict(setting)
    return Kernel(
        *(p.name, backend, p.buffers, names, scalars, log.stages, call, kept, log.finish()),
        schedule=log.steps,
        starts={b.name: v for b, v in tile.starts(p.body).items()},
        loose=tile.loose(p) if isinstance(p, tile.Program) else (),
        claimed={b.name: p.grid for b in tile.claimed(p.body)}
        if isinstance(p, tile.Program)
        else {},
    )


def _is_even(name: str, kind: str, divisors: Numbers, aligned: bool) -> bool:
    """Whether a parameter may be promised to Triton as a multiple of 16."""
    return aligned if kind.startswith("*") else divisors.get(name, 1) % 16 == 0


def _not_here(*_: Any) -> None:
    raise RuntimeError("this kernel was built for another machine and cannot be launched here")
