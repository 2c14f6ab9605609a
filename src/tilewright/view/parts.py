"""One statement on real tensors, taken apart for `tw.explain`: its arguments, kernel and cost.

In: a launch, or a program's name and inputs. Out: a `Part` for each statement, and lines about it.

    for part in of_call(name, {"a": A, "x": x}, {}): print(cost_lines(part))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tilewright.analysis.cost import Cost, cost_of
from tilewright.formats import draw
from tilewright.formats.storage import stored_dims
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.ops.backend import backend_of
from tilewright.ops.bound import Launch
from tilewright.ops.call import prepared
from tilewright.ops.einsum import traced_for as einsum_traced
from tilewright.ops.entry import entry
from tilewright.ops.step import Step
from tilewright.ops.views import structure_of
from tilewright.runtime.kernel import Kernel
from tilewright.view.rates import rates_of
from tilewright.view.words import cost_words


@dataclass(frozen=True)
class Part:
    """A statement, its tensors by name, its sizes, and the kernel that serves it."""

    step: Step
    tensors: Mapping[str, Tensor]
    ints: Mapping[str, int]
    sizes: Mapping[str, int]
    kernel: Kernel


def part_of(
    step: Step, tensors: Sequence[Tensor], ints: Sequence[int], sizes: Sequence[int], kernel: Kernel
) -> Part:
    named = dict(zip([*step.names, *step.missing], tensors, strict=True))
    numbers = dict(zip(step.int_names, ints, strict=False))
    return Part(step, named, numbers, dict(zip(step.size_names, sizes, strict=True)), kernel)


def of_launch(launch: Launch) -> list[Part]:
    return [
        part_of(ready.step, launch.tensors, launch.ints, sizes, ready.kernel)
        for ready, sizes in launch.pieces
    ]


def of_call(name: str, inputs: dict[str, Any], floats: Mapping[str, float]) -> list[Part]:
    """Every kernel of a program; earlier statements run, since later ones read what they wrote."""
    text, pool, ints, _ = prepared(name, inputs)
    device = pool[0].device
    made = entry(text, backend_of(device), pool[0].get_device())
    found = []
    for step in made.steps:
        every = [*pool, *(step.derive(pool, ints) if step.missing else ())]
        given = made.floats_of(step, list(floats.values()))
        outs: list[Tensor] | None = None
        for piece in step.pieces:
            sizes = piece.sizes(every, ints)
            ready = piece.ready(ints, sizes)
            found.append(part_of(piece, every, ints, sizes, ready.kernel))
            if step is not made.steps[-1]:
                outs = ready.run(every, sizes, ints, given, outs)
        pool = [*pool, *(outs or [])]
    return found


def of_einsum(subscripts: str, *operands: Any) -> list[Part]:
    name, inputs = einsum_traced(subscripts, len(operands))
    return of_call(name, dict(zip(inputs, operands, strict=True)), {})


def argument_lines(part: Part) -> list[str]:
    """Dense arguments by shape, sparse ones drawn, then the outputs."""
    made = []
    for name in part.step.traced.inputs:
        arg = part.step.args[name]
        if name in part.step.views:
            made += _drawing(part, name)
        elif name in part.tensors:
            t = part.tensors[name]
            where = arg.kind.replace("like:", "values on the structure of ")
            made.append(f"{name}: {where} {arg.dtype} {list(t.shape)}")
    for out in part.step.bound.program.outputs:
        shape = ", ".join(_extent(part, str(e)) for e in out.shape)
        kind = "sparse" if out.sparse else "dense"
        made.append(f"{out.name}: {kind} {out.dtype} [{shape}], written")
    return made


def _extent(part: Part, size: str) -> str:
    return str(part.sizes.get(size, size))


def _drawing(part: Part, name: str) -> list[str]:
    arg = part.step.args[name]
    shape = tuple(part.ints[f"{name}.n{d}"] for d in range(stored_dims(arg.kind)))
    view = part.step.views[name]
    walked = "" if view == arg.kind else f", walked as {view}"
    ones = "" if arg.values else ", no values: ones"
    title = f"{name}: {arg.kind} {arg.dtype} {list(shape)}, {arg.index} indices{walked}{ones}"
    structure = structure_of(name, arg, dict(part.tensors), shape)
    return draw.describe(structure, part.tensors.get(name), title).splitlines()


def cost(part: Part) -> Cost:
    """The cost of a statement's stage III at its actual sizes, mean row lengths included."""
    p = lower_to_flat(lower_to_position(part.step.bound.program))
    held = {b: part.tensors.get(part.step.source(b)) for b in part.step.bound.arrays}
    steps = {b: _step_of(t) for b, t in held.items() if t is not None and b.endswith("_indptr")}
    lengths = {b: float(t.numel()) for b, t in held.items() if t is not None}
    return cost_of(p, part.sizes, steps, lengths)


def _step_of(pointers: Tensor) -> float:
    """The mean difference of neighbours in a pointer array."""
    rows = pointers.numel() - 1
    return float(pointers[-1] - pointers[0]) / rows if rows > 0 else 0.0


def cost_lines(part: Part) -> list[str]:
    device = next(iter(part.tensors.values())).device
    return cost_words(cost(part), rates_of(device), "dot(" in part.kernel.stages.get("tile", ""))
