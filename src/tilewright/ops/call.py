"""A registered program on what users pass: formats that fit, arguments of the operator, outputs on their structures.

In: a program's name and its inputs, dense or sparse. Out: dense tensors, or SparseTensors on an input's structure.

    call("relu_max_1a2b3c4d", {"a": A, "x": X}, [])
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilewright.formats.compiling import constant
from tilewright.formats.interop import is_scipy
from tilewright.formats.merge import merged, rows_of
from tilewright.formats.parts import Parts
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.transforms import outside
from tilewright.formats.tree import Tree
from tilewright.ir.coord import Assign, Index, Stmt, spatial
from tilewright.ir.expr import Load
from tilewright.ir.node import walk
from tilewright.language.trace import source_of
from tilewright.ops.args import Arg, dense_arg, in_rows, names_of, program_text
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.backward import later_steps
from tilewright.ops.choice import Case, Subject, program_key
from tilewright.ops.dtypes import name_of
from tilewright.ops.entry import entry, structure_of
from tilewright.ops.library import run
from tilewright.ops.meeting import Pair, with_positions
from tilewright.ops.plans import listed, may_list, visiting
from tilewright.ops.reach import check_reach
from tilewright.ops.registry import TEMPLATES
from tilewright.ops.settings import pack
from tilewright.ops.sparse import (
    as_rows,
    as_sparse,
    bundle,
    bundle_of,
    check_alone,
    disordered,
    in_order,
    orderly,
    prepare_at_second_use,
    repeated,
    rows_first,
    stored_rank,
    unordered,
)
from tilewright.ops.subject import DENSE, Call, chosen, subject_of
from tilewright.schedule.options import Setting
from tilewright.support.errors import TilewrightError, error
from tilewright.support.names import plain
from tilewright.support.places import located
from tilewright.tune import store


def call(name: str, inputs: dict[str, Any], floats: list[float]) -> Any:
    """Run a registered program on tensors, sparse or dense."""
    text, tensors, ints, held = prepared(name, inputs)
    leads = _leads(text, *_place(tensors))
    wrapped = [
        o if lead is None else SparseTensor(_home(inputs.get(lead), held[lead]), o)
        for o, lead in zip(run(text, tensors, ints, floats), leads, strict=True)
    ]
    return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)


def _home(given: Any, used: SparseTensor) -> Structure:
    """The structure of an output: that of the input as it is used, or the parts that were merged for it."""
    s = given.structure if isinstance(given, SparseTensor) else None
    return s if isinstance(s, Parts) and merged(s) is used.structure else used.structure


def prepared(
    name: str, inputs: dict[str, Any]
) -> tuple[str, list[Tensor], list[int], dict[str, Any]]:
    """What `run` takes, and the inputs as they are used: rows first, formats that fit, nothing doubled in a search."""
    where = title_of(name, tuple(inputs))
    held = {n: v if _dense(v) else _sparse(v, where, n) for n, v in inputs.items()}
    if any(isinstance(v, SparseTensor) and isinstance(v.structure, Tree) for v in held.values()):
        held = fitting(name, held)
    text, tensors, ints = arguments(name, held)
    _check(text, tensors, where)
    _check_sizes(name, held, where)
    if torch.compiler.is_compiling():
        found = _looked_up(text, *_place(tensors), _wanted(held))
        put = {n: as_rows(held[n]) for n in found if _any_order(held[n])}
        if put:
            held |= put
            text, tensors, ints = arguments(name, held)
    else:
        check_reach(name, held, where)
        wanted = _wanted(held)
        ordered: tuple[str, ...] = ()
        for _ in range(3):  # in order, other formats may be searched and a union be followed
            roles = _searched(text, *_place(tensors), wanted)
            alone, also, unions, pairs = roles.alone, roles.also, roles.unions, roles.pairs
            put = {n: in_order(held[n]) for n in roles.written if n in held and repeated(held[n])}
            put |= {n: in_order(held[n]) for n in alone if unordered(held[n])}
            put |= {n: in_order(held[n]) for n in unions if disordered(held[n])}
            put |= {n: orderly(held[n], where, n) for n in also if disordered(held[n])}
            if not put and ordered == unions:
                break
            held |= put
            ordered = unions
            text, tensors, ints = arguments(name, held)
            text = in_rows(text, ordered)
        for n in (n for n in roles.later if n in held):
            check_alone(held[n], where, n)
        if alone or also:
            text = in_rows(text, tuple(n for n in alone + also if held[n].format == "csr"))
            met = {n: v.structure for n, v in held.items() if isinstance(v, SparseTensor)}
            text, tensors = with_positions(text, tensors, met, pairs)
        ints = with_choice(text, tensors, ints, held)
    return text, tensors, ints, held


def _sparse(v: Any, where: str, name: str) -> SparseTensor:
    if not (isinstance(v, Tensor | SparseTensor) or is_scipy(v)):
        expected = "a tensor, dense or sparse, or a number"
        raise error("argument", where=where, name=name, got=type(v).__name__, expected=expected)
    return rows_first(as_sparse(v, where, name))


def _any_order(v: SparseTensor) -> bool:
    """A general matrix: torch.compile cannot ask whether its entries are in order, and may search csr by columns."""
    return isinstance(v.structure, Tree) and len(v.shape) == 2


def _wanted(held: dict[str, Any]) -> tuple[str, ...]:
    """The inputs that want a gradient."""
    if not torch.is_grad_enabled():
        return ()
    values = {n: v if _dense(v) else v.values for n, v in held.items()}
    return tuple(n for n, v in values.items() if v is not None and v.requires_grad)


def _place(tensors: list[Tensor]) -> tuple[str, int]:
    device = tensors[0].device
    return backend_of(device), -1 if device.index is None else device.index


def fitting(name: str, held: dict[str, Any]) -> dict[str, Any]:
    """General formats are walked as they are, where the program can; for gradients, and elsewhere, as csr."""
    if _wanted(held):
        held = {n: as_rows(v) if _walked(v) else v for n, v in held.items()}
        text, tensors, _ = arguments(name, held)
        if any(map(_deep, held.values())) and _fits(text) and any(_leads(text, *_place(tensors))):
            held = {n: as_rows(v) if _deep(v) else v for n, v in held.items()}
    elif not torch.compiler.is_compiling():
        held = {n: _grouped(v, _kept(name, n)) for n, v in held.items()}
    if _fits(arguments(name, held)[0]):
        return held
    return {n: v if _dense(v) else as_rows(v) for n, v in held.items()}


def _grouped(v: Any, dim: int | None) -> Any:
    """A tensor of three and more dimensions, of which all but one are summed over, grouped by that one.

    Its parts, if it is in parts, are one list then; csf has its outermost dimension grouped already.
    """
    if dim is None or _dense(v) or len(v.shape) < 3 or (not dim and v.format.startswith("csf")):
        return v
    s, key = v.structure, ("grouped", dim)
    if key not in s.plans:
        s.plans[key] = _grouped_by(s, dim)
    return SparseTensor(s.plans[key], v.values)


@outside
def _grouped_by(s: Any, dim: int) -> Any:
    return SparseTensor(s, None).to_format(f"grouped.{len(s.shape)}.{dim}").structure


@functools.cache
def _kept(program: str, name: str) -> int | None:
    """The only dimension of an argument that a program of one statement keeps; None where it is not so."""
    traced = TEMPLATES[program].traced
    if len(traced.body) != 1 or not isinstance(traced.body[0], Assign):
        return None
    held = spatial(traced.body[0])
    found = {n.indices for n in walk(traced.body) if isinstance(n, Load) and n.buffer.name == name}
    if len(found) != 1:
        return None
    kept = [d for d, ix in enumerate(found.pop()) if ix in held]
    return kept[0] if len(kept) == 1 else None


def _walked(v: Any) -> bool:
    """Whether gradients are taken on csr instead: general matrices, but not those in parts."""
    return not _dense(v) and len(v.shape) == 2 and not isinstance(v.structure, Parts)


def _deep(v: Any) -> bool:
    """Whether gradients of results on it are taken on csf instead: lists and groups have no way back to a dimension."""
    return not _dense(v) and len(v.shape) > 2 and not v.format.startswith("csf")


@functools.cache
def _lowered(text: str) -> bool:
    try:
        return bool(entry(text, "c").steps)
    except TilewrightError:
        return False


def _fits(text: str) -> bool:
    """Whether every statement can be lowered on these formats; a constant to torch.compile."""
    return _lowered(text)


_fits._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def arguments(
    name: str, held: dict[str, Any], setting: Setting | None = None
) -> tuple[str, list[Tensor], list[int]]:
    """The registered operator's arguments: the program's text, tensors and integers."""
    args: list[Arg] = []
    tensors: list[Tensor] = []
    ints: list[int] = []
    dense = {n: v for n, v in held.items() if _dense(v)}
    grad = torch.is_grad_enabled() and any(v.requires_grad for v in dense.values())
    listing = setting if setting is not None and "long" in setting else None
    homes: list[tuple[SparseTensor, Arg]] = []
    for label, value in held.items():
        if label in dense:
            args.append(dense_arg(label, value))
            tensors.append(value)
            continue
        home = next((arg for t, arg in homes if t.structure is value.structure), None)
        if home is not None and value.values is not None:
            args.append(_on(label, value, home))
            tensors.append(value.values.contiguous())
            continue
        prepare_at_second_use(value.structure, grad)
        arg, more, sizes = bundle(label, value)
        if not homes and (dense or len(held) == 1):
            arg, more, sizes = with_lists(arg, more, sizes, value, dense, name, listing)
        homes.append((value, arg))
        args.append(arg)
        tensors += more
        ints += sizes
    text = program_text(name, tuple(args))
    if setting and listing is None:
        ints = [*ints, pack(setting)]
    return text, tensors, ints


def with_choice(
    text: str, tensors: list[Tensor], ints: list[int], held: dict[str, Any]
) -> list[int]:
    """The integers, with the setting that was measured for such calls; the usual is left to the statement."""
    if store.empty():
        return ints
    s = lead_of(held)
    home = DENSE if s is None else bundle_of(s).choices
    sizes = tuple([v.shape for v in held.values() if _dense(v)])
    key = (text, sizes, tensors[0].get_device(), cpu_backend())
    choice = home.get(key)
    setting = (choice or chosen(home, key, text, tensors, s, {})).setting
    return [*ints, pack(setting)] if setting and "long" not in setting else ints


def lead_of(held: dict[str, Any]) -> Structure | None:
    """The structure of the first sparse argument."""
    return next((v.structure for v in held.values() if isinstance(v, SparseTensor)), None)


def subject(name: str, inputs: dict[str, Any], floats: list[float]) -> Subject:
    """A program's call as something to tune."""
    held = prepared(name, inputs)[3]
    s = lead_of(held)
    if s is not None and s.format == "csr" and backend_of(s.device) == "triton":
        s.prepare()

    def at(setting: Setting | None) -> Call:
        text, tensors, ints = arguments(name, held, setting)
        if setting is None:
            ints = with_choice(text, tensors, ints, held)
        return text, tensors, ints, floats

    homes = tuple(v.structure for v in inputs.values() if isinstance(v, SparseTensor))
    rows = None if s is None else rows_of(s)
    made = subject_of(title_of(name, tuple(inputs)), rows or s, at)
    return replace(made, homes=homes if s is None else (*homes, s))


def _on(label: str, value: SparseTensor, home: Arg) -> Arg:
    """Other values on the structure of an argument before."""
    assert value.values is not None
    rank = len(value.shape) + value.values.dim() - stored_rank(value.structure)
    return Arg(
        label, f"like:{home.name}", name_of(value.values.dtype, label), rank, block=home.block
    )


def with_lists(
    arg: Arg,
    tensors: list[Tensor],
    ints: list[int],
    a: SparseTensor,
    inputs: dict[str, Any],
    program: str,
    setting: Setting | None,
) -> tuple[Arg, list[Tensor], list[int]]:
    """The same argument with the work lists of a prepared structure, for programs over its rows; or their order."""
    dense = [v for v in inputs.values() if isinstance(v, Tensor) and v.dim() > 1]
    s = a.structure
    x = dense[-1] if dense else a.values
    if x is None:
        return arg, tensors, ints
    span = x.shape[-1] if dense or x.dim() > stored_rank(s) else 1
    grad = torch.is_grad_enabled() and any(v.requires_grad for v in dense)
    at = len(arg.arrays)
    if not may_list(s, x, setting):
        names, more = visiting(s, span, x.itemsize, {}, grad)
        return (
            replace(arg, arrays=(*arg.arrays, *names)),
            [*tensors[:at], *more, *tensors[at:]],
            ints,
        )

    def case() -> Case:
        key = program_key(program, (arg, *(dense_arg(n, v) for n, v in inputs.items())))
        shapes = tuple(tuple(v.shape) for v in inputs.values())
        return Case(key, "lists", shapes, rows_of(s), x.device)

    name = f"{program} {arg.dtype}"
    names, more, numbers = listed(s, span, x.dtype, grad, setting, name, case)
    made = replace(arg, arrays=(*arg.arrays, *names))
    return made, [*tensors[:at], *more, *tensors[at:]], [*ints, *numbers]


def _check(text: str, tensors: list[Tensor], where: str) -> None:
    first = tensors[0].device
    names = names_of(text)
    for name, t in zip(names, tensors, strict=True):
        if t.device != first:
            raise error(
                "device", where=where, name=name, got=t.device, other=names[0], expected=first
            )


def _check_sizes(program: str, inputs: dict[str, Any], where: str) -> None:
    """One size for one axis, over all arguments that it addresses."""
    for axis, places in places_of(program):
        first, rest = places[0], places[1:]
        for other in rest:
            a, b = (_extent(inputs[name], dim) for name, dim in (first, other))
            if a != b:
                got = f"{a} in {first[0]} (dimension {first[1]}) and {b} in {other[0]} (dimension {other[1]})"
                why = error("axis-size", where=where, name=axis, got=got)
                s = statement_with(program, axis, other[0])
                raise located(why, source_of(s), s)


def statement_with(program: str, axis: str, tensor: str) -> Stmt:
    """The first statement in which an axis addresses a tensor."""
    for s in TEMPLATES[program].traced.body:
        for n in walk(s):
            if isinstance(n, Load) and n.buffer.name == tensor:
                if any(isinstance(ix, Index) and ix.name == axis for ix in n.indices):
                    return s
    return TEMPLATES[program].traced.body[0]


def title_of(name: str, inputs: tuple[str, ...]) -> str:
    """A call as users write it, without the program's mark; a constant to torch.compile."""
    called = dict(TEMPLATES[name].traced.called)
    return f"{plain(name)}({', '.join(called.get(n, n) for n in inputs)})"


title_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _extent(value: Any, dim: int) -> int:
    if isinstance(value, SparseTensor) and dim >= len(value.shape) and value.values is not None:
        return value.values.shape[dim - len(value.shape) + stored_rank(value.structure)]
    return value.shape[dim] if dim < len(value.shape) else -1


@functools.cache
def _places(name: str) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    traced = TEMPLATES[name].traced
    found: dict[Index, dict[tuple[str, int], None]] = {}
    for n in walk(traced.body):
        if isinstance(n, Load) and n.buffer.name in traced.inputs:
            for dim, ix in enumerate(n.indices):
                if isinstance(ix, Index):
                    found.setdefault(ix, {}).setdefault((n.buffer.name, dim))
    return tuple((ix.name, tuple(places)) for ix, places in found.items())


def places_of(name: str) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """Where each axis of a program addresses an argument directly; a constant to torch.compile."""
    return _places(name)


places_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


@constant
def _leads(text: str, backend: str, index: int) -> tuple[str | None, ...]:
    """The argument whose structure each output has; None for dense ones. A constant to torch.compile."""
    made = entry(text, backend, index)
    outs: dict[str, str | None] = {}
    for s in made.steps:
        for t in s.bound.program.outputs:
            lead = structure_of(t, s.bound.program, made.args)
            outs[t.name] = None if lead is None else lead.name
    return tuple(outs[n] for n in TEMPLATES[text.split("|")[0]].traced.outputs)


class Roles(NamedTuple):
    """Sparse arguments by what is done with them, and the pairs that meet.

    alone: only looked up. also: followed by loops and searched as well, be it for a gradient. unions: a sum follows
    their union. written: a dense output is written at their entries. later: a dense gradient is.
    """

    alone: tuple[str, ...]
    also: tuple[str, ...]
    unions: tuple[str, ...]
    written: tuple[str, ...]
    later: tuple[str, ...]
    pairs: tuple[Pair, ...]


@functools.cache
def _searched(text: str, backend: str, index: int, wanted: tuple[str, ...]) -> Roles:
    """What the statements of a program do with their arguments."""
    steps = entry(text, backend, index).steps
    unions = {n for s in steps for n in s.unions}
    alone = {n for s in steps for n in s.searched} - unions
    written = {n for s in steps for n in s.overwritten}
    more = later_steps(text, backend, index, wanted)
    later = {n for s in more for n in s.overwritten} - written
    every = [*steps, *more]
    also = {n for s in every for n in s.found} - alone - unions
    pairs = tuple({p: None for s in every for p in s.pairs})
    told = [tuple(sorted(names)) for names in (alone, also, unions, written, later)]
    return Roles(told[0], told[1], told[2], told[3], told[4], pairs)


@constant
def _looked_up(text: str, backend: str, index: int, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The sparse arguments that are searched; a constant to torch.compile."""
    roles = _searched(text, backend, index, wanted)
    return roles.alone + roles.also + roles.unions
