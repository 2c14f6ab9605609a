"""`tilewright demo`: one operator of a user's own, from index notation to code, checked and timed.

In: a folder. Out: text on the terminal, and in the folder one picture and the texts of all stages.

    main(Path("demo_out"))
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from tilewright.formats.tensor import SparseTensor
from tilewright.language import functions
from tilewright.language.trace import axes
from tilewright.ops import program, spmm
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.entry import entry
from tilewright.ops.sparse import bundle
from tilewright.view import stages
from tilewright.view.cases import cases, density
from tilewright.view.clock import Time, fastest, times
from tilewright.view.picture import Chart, draw
from tilewright.view.plain import Fn, relu_max_peers

# What `import tilewright as tw` gives; files inside the package may not import their own top.
tw = SimpleNamespace(program=program, axes=axes, max=functions.max, relu=functions.relu)


@tw.program
def relu_max(a, x, y):  # type: ignore[no-untyped-def]
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@dataclass(frozen=True)
class Size:
    """Rows, entries per row, features, seconds for each timing."""

    rows: int = 12_288
    mean: int = 16
    features: int = 64
    seconds: float = 0.4


UNTYPED = "  # type: ignore[no-untyped-def]"
CPU, GPU, TINY = Size(), Size(65_536, 16, 64), Size(256, 4, 8, 0.01)
DRAWN = Size(128, 8)  # patterns are drawn small, an entry a dot


@dataclass
class Row:
    """One structure: error of result and gradients, times of ours and of the best plain formulation."""

    name: str
    a: SparseTensor
    error: float = 0.0
    grad_error: float = 0.0
    ours: dict[str, Time] = field(default_factory=dict)
    plain: dict[str, Time] = field(default_factory=dict)
    peer: dict[str, str] = field(default_factory=dict)


WORK = ("spmm", "relu_max", "relu_max, with gradients")


def main(out: Path, size: Size | None = None) -> int:
    """The whole demo; 0 when every check passed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = size or (GPU if device == "cuda" else CPU)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    rows = [Row(name, a) for name, a in cases(size.rows, size.mean, device).items()]
    x = torch.randn(size.rows, size.features, generator=torch.Generator().manual_seed(1)).to(device)
    text = tell_stages(rows[0].a, x)
    print(text)
    good = [check(row, x) for row in rows]
    print(tell_checks(rows))
    for row in rows:
        measure(row, x, size.seconds)
    print(tell_times(rows, x, device))
    paths = keep(out, rows, text, device)
    print(f"\nin {time.perf_counter() - began:.0f} s; files:")
    print("\n".join(f"  {p}" for p in paths))
    return 0 if all(good) else 1


# --- the operator and its stages ------------------------------------------------------------------


def tell_stages(a: SparseTensor, x: Tensor) -> str:
    """The operator as written, and every stage on the way to code."""
    kernel = relu_max.kernels(a, x)[-1]
    built = f"built for {x.device.type} in {kernel.seconds:.2f} s"
    parts = [
        stages.heading("an operator, as its user writes it"),
        inspect.getsource(relu_max.fn).rstrip().replace(UNTYPED, ""),
        "",
        stages.heading("read once, as index notation"),
        str(relu_max),
        "",
        stages.show(kernel),
        f"\n{kernel.name}: {built}, {kernel.setting}",
    ]
    if kernel.backend == "c":
        parts += [
            "\nThe same program for a GPU (text only, nothing is built here):\n",
            gpu_text(a, x),
        ]
    return "\n".join(parts)


def gpu_text(a: SparseTensor, x: Tensor) -> str:
    arg, tensors, ints = bundle("a", a)
    written = program_text(relu_max.trace().name, (arg, dense_arg("x", x)))
    step = entry(written, "triton").steps[0]
    return stages.sections(stages.gpu_stages(step, [*tensors, x], ints))


# --- checks ---------------------------------------------------------------------------------------


def check(row: Row, x: Tensor) -> bool:
    """relu_max and its gradients against plain PyTorch in float64."""
    reference = relu_max_peers(row.a)["gather + scatter_reduce"]
    values = row.a.explicit_values()
    seed = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x.device)
    want = run_with_gradients(reference, values.double(), x.double(), seed.double())
    got = run_with_gradients(lambda v, z: relu_max(row.a.with_values(v), z), values, x, seed)
    row.error, *rest = [difference(g, w) for g, w in zip(got, want, strict=True)]
    row.grad_error = max(rest)
    return max(row.error, row.grad_error) < 1e-4


def run_with_gradients(fn: Fn, values: Tensor, x: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
    """(y, dL/dvalues, dL/dx) for L = sum(y * seed) over rows that are not empty."""
    v, z = values.detach().requires_grad_(), x.detach().requires_grad_()
    y = fn(v, z)
    y.backward(seed)
    assert v.grad is not None and z.grad is not None
    return y.detach(), v.grad, z.grad


def difference(got: Tensor, want: Tensor) -> float:
    """Largest difference relative to the largest value; infinities must stand at the same places."""
    finite = want.isfinite()
    if not torch.equal(got[~finite].double(), want[~finite]):
        return math.inf
    scale = want[finite].abs().max().clamp(min=1e-30)
    return float((got[finite].double() - want[finite]).abs().max() / scale)


# --- times ----------------------------------------------------------------------------------------


def measure(row: Row, x: Tensor, seconds: float) -> None:
    """Ours beside the fastest plain formulation, on the same tensors."""
    a, values = row.a, row.a.explicit_values()
    seed = torch.ones_like(x)
    matrix = a.to_torch()
    ours: list[Callable[[], object]] = [
        lambda: spmm(a, x),
        lambda: relu_max(a, x),
        lambda: run_with_gradients(lambda v, z: relu_max(a.with_values(v), z), values, x, seed),
    ]
    peers = relu_max_peers(a)
    plain: list[dict[str, Callable[[], object]]] = [
        {"torch CSR @ x": lambda: matrix @ x},
        {name: _bind(fn, values, x) for name, fn in peers.items()},
        {name: _with_gradients(fn, values, x, seed) for name, fn in peers.items()},
    ]
    for work, mine, theirs in zip(WORK, ours, plain, strict=True):
        name = fastest(theirs)
        taken = times({"ours": mine, "plain": theirs[name]}, seconds)
        row.ours[work], row.plain[work], row.peer[work] = taken["ours"], taken["plain"], name


def _bind(fn: Fn, values: Tensor, x: Tensor) -> Callable[[], object]:
    return lambda: fn(values, x)


def _with_gradients(fn: Fn, values: Tensor, x: Tensor, seed: Tensor) -> Callable[[], object]:
    return lambda: run_with_gradients(fn, values, x, seed)


# --- what is told ---------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Words to the left, figures to the right."""
    widths = [max(len(r[k]) for r in (header, *rows)) for k in range(len(header))]
    left = [not rows[0][k][:1].isdigit() for k in range(len(header))]
    lines = []
    for r in (header, *rows):
        cells = [
            c.ljust(w) if to_left else c.rjust(w)
            for c, w, to_left in zip(r, widths, left, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def tell_checks(rows: Sequence[Row]) -> str:
    made = []
    for r in rows:
        empty = (
            int((r.a.structure.indptr.diff() == 0).sum()) if r.a.structure.indptr is not None else 0
        )
        good = "agree" if max(r.error, r.grad_error) < 1e-4 else "WRONG"
        made.append(
            [
                r.name,
                f"{r.a.shape[0]}",
                f"{r.a.nnz}",
                f"{empty}",
                f"{r.error:.1e}",
                f"{r.grad_error:.1e}",
                good,
            ]
        )
    head = ("structure", "rows", "entries", "empty rows", "error of y", "of gradients", "")
    title = "\n" + stages.heading(
        "relu_max against plain PyTorch in float64, gradients of values and x too"
    )
    return f"{title}\n{table(head, made)}"


def tell_times(rows: Sequence[Row], x: Tensor, device: str) -> str:
    """One table for all; rows whose rounds did not agree are marked."""
    title = stages.heading(
        f"times in ms, {x.shape[1]} features, {place(device)}; median of the calmest round"
    )
    made = []
    for work in WORK:
        for r in rows:
            ours, plain = r.ours[work], r.plain[work]
            gain = f"{plain.ms / ours.ms:.1f}x{'' if ours.calm and plain.calm else ' ~'}"
            made.append([work, r.name, f"{ours.ms:.3f}", f"{plain.ms:.3f}", gain, r.peer[work]])
    head = ("operator", "structure", "tilewright", "PyTorch", "faster", "best plain formulation")
    marked = any(row[4].endswith("~") for row in made)
    notes = ["Index arrays and transposes were made beforehand, for both sides."]
    notes += ["~ no two rounds agreed: run again on a quiet machine."] * marked
    return "\n".join(["", title, table(head, made), *notes, *busy()])


def busy() -> list[str]:
    """A line of warning when more work is running than there are cores."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 1.5 * cores:
        return []
    return [
        f"Load average {load:.1f} on {cores} cores: other work was running, and these times suffer from it."
    ]


def place(device: str) -> str:
    return (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )


def keep(out: Path, rows: Sequence[Row], text: str, device: str) -> list[Path]:
    """The picture and the stages as files."""
    told = out / "relu_max_stages.txt"
    told.write_text(text + "\n")
    names = [r.name for r in rows]
    charts = [
        Chart(
            f"{work}: median ms, lower is better; under the bars: PyTorch / tilewright",
            "ms",
            names,
            {
                "tilewright": [r.ours[work].ms for r in rows],
                "plain PyTorch": [r.plain[work].ms for r in rows],
            },
        )
        for work in WORK
    ]
    first = rows[0].a
    size = f"{first.shape[0]} x {first.shape[1]}, about {round(first.nnz / first.shape[0])} entries a row"
    title = f"patterns (drawn at {DRAWN.rows} rows); times at {size}, {place(device)}"
    small = cases(DRAWN.rows, DRAWN.mean)
    grids = {name: density(a, DRAWN.rows) for name, a in small.items()}
    return [draw(out / "tilewright_demo", title, grids, charts), told]
