"""What an operator passes through torch: tensors in a fixed order, integers, and one string that names them.

A sparse argument is a bundle: the arrays of its structure, whatever views were prepared (entries, transpose,
work lists), then its values. The string says which are there, so that an implementation needs nothing else.

    Arg("a", "csr", "f32", 2, arrays=("indptr", "indices")).text()   ->   "a=csr:f32:2:i32:1x1:v:-:indptr,indices"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tilewright.formats.compiling import constant
from tilewright.formats.parts import Parts
from tilewright.formats.storage import Spec, parts_of, stored_dims
from tilewright.formats.structure import Structure
from tilewright.formats.tree import Tree
from tilewright.ops.backend import cpu_backend, place_of
from tilewright.ops.dtypes import name_of
from tilewright.schedule.visit import ARRAYS

LIST = ("units", "segs", "done", "work")
T_LIST = ("t_units", "t_segs", "t_done", "t_work")
E_LIST = ("e_units", "e_segs")  # parts of rows, for what is done entry by entry
VISITS = ARRAYS  # rows in another order
T_VISITS = tuple(f"t_{n}" for n in ARRAYS)
REMEMBERED = 4096
_TEXTS: dict[object, str] = {}


@dataclass(frozen=True)
class Arg:
    """One argument. kind: a format, `dense`, or `like:NAME` (values on another argument's structure).

    ordered: csr whose columns are known to increase in each row.
    The arrays of a tensor in parts (kind parts+csr+dbsr.4.4) begin with the number of the part: 1_indices0.
    """

    name: str
    kind: str
    dtype: str
    rank: int
    index: str = "i32"
    block: str = "1x1"
    values: bool = True
    strided: int | None = None
    arrays: tuple[str, ...] = ()
    ordered: bool = False

    def text(self) -> str:
        held = "v" * self.values + "o" * self.ordered
        flags = (held or "-", "-" if self.strided is None else str(self.strided))
        kind = self.kind.replace(":", "~")
        parts = (kind, self.dtype, str(self.rank), self.index, self.block, *flags)
        return f"{self.name}={':'.join(parts)}:{','.join(self.arrays)}"

    @property
    def blocks(self) -> tuple[int, int]:
        b0, b1 = self.block.split("x")
        return int(b0), int(b1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tensors, in order."""
        return (*(f"{self.name}.{a}" for a in self.arrays), *((self.name,) if self.values else ()))

    @property
    def ints(self) -> tuple[str, ...]:
        """The names of its integers, in order."""
        if self.kind == "dense" or self.kind.startswith("like:"):
            return ()
        made = [f"{self.name}.n{d}" for d in range(stored_dims(self.kind))]
        if self.kind.startswith("parts+"):
            made.append(f"{self.name}.entries")
        for lists, prefix in ((LIST, ""), (T_LIST, "t_"), (E_LIST, "e_")):
            if lists[0] in self.arrays:
                made += [f"{self.name}.{prefix}slots", f"{self.name}.{prefix}setting"]
        return tuple(made)

    @property
    def parts(self) -> tuple[Spec, ...]:
        """What must be known of each part."""
        made = []
        for nth, format in enumerate(parts_of(self.kind)):
            holes = f"{nth}_holes" in self.arrays
            perm = holes or f"{nth}_perm" in self.arrays
            made.append(Spec(format, self.dtype, self.rank, self.index, perm=perm, holes=holes))
        return tuple(made)


def parse(text: str) -> Arg:
    name, rest = text.split("=", 1)
    kind, dtype, rank, index, block, values, strided, arrays = rest.split(":")
    return Arg(
        name,
        kind.replace("~", ":"),
        dtype,
        int(rank),
        index,
        block,
        "v" in values,
        None if strided == "-" else int(strided),
        tuple(arrays.split(",")) if arrays else (),
        "o" in values,
    )


def program_text(template: str, args: tuple[Arg, ...]) -> str:
    return "|".join([template, *(a.text() for a in args)])


@cache
@constant
def in_rows(text: str, names: tuple[str, ...]) -> str:
    """The same program with some of its arguments known to be in order; a constant to torch.compile."""
    template, args = read_program(text)
    made = (replace(a, ordered=True) if a.name in names else a for a in args)
    return program_text(template, tuple(made))


@cache
def read_program(text: str) -> tuple[str, tuple[Arg, ...]]:
    template, *args = text.split("|")
    return template, tuple(parse(a) for a in args)


def names_of(text: str) -> tuple[str, ...]:
    """The names of the tensors of a program's text; a constant to torch.compile."""
    return tuple(n for a in read_program(text)[1] for n in a.names)


names_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def dense_arg(name: str, t: Tensor) -> Arg:
    """A strided tensor, read through its strides when it is not contiguous."""
    strided = None if t.is_contiguous() else _unit_dim(t)
    return Arg(name, "dense", name_of(t.dtype, name), t.dim(), strided=strided)


def dense_key(t: Tensor) -> tuple[object, ...]:
    """What `dense_arg` depends on: cheap to compare."""
    return (t.dtype, t.dim(), None if t.is_contiguous() else t.stride())


def dense_text(template: str, given: Mapping[str, Tensor]) -> str:
    """The program's text over dense arguments by name."""
    return program_text(template, tuple(dense_arg(n, t) for n, t in given.items()))


def known_text(template: str, given: Mapping[str, Tensor]) -> str:
    """The same, made once for a kind of them."""
    if torch.compiler.is_compiling():  # a guard on what is kept would fail later
        return dense_text(template, given)
    key = (template, *given, *map(dense_key, given.values()))
    text = _TEXTS.get(key)
    if text is None:
        if len(_TEXTS) >= REMEMBERED:
            _TEXTS.clear()
        text = _TEXTS[key] = dense_text(template, given)
    return text


def told(t: Any) -> tuple[object, ...]:
    """All that a call's validity, program and kernel depend on in a dense argument, and where it is."""
    if not isinstance(t, Tensor) or t.layout is not torch.strided:
        return (None,)
    if t.is_cpu:
        return (t.dtype, t.shape, t.stride(), cpu_backend())
    return (t.dtype, t.shape, t.stride(), t.device, place_of(t.device))


def _unit_dim(t: Tensor) -> int:
    units = [d for d in range(t.dim()) if t.stride(d) == 1]
    return units[-1] if units else -1


def sparse_arrays(s: Structure) -> tuple[tuple[str, ...], list[Tensor]]:
    """The arrays of a structure and of whatever was prepared for it."""
    names: list[str] = []
    tensors: list[Tensor] = []

    def add(label: str, t: Tensor | None) -> None:
        if t is not None:
            names.append(label)
            tensors.append(t)

    if isinstance(s, Parts):
        for label, array in s.arrays.items():
            add(label, array)
        if s.csr is not None:
            add("indptr", s.csr.indptr)
            add("indices", s.csr.indices)
            add("perm", s.csr.perm)
    elif isinstance(s, Tree):
        for label, array in s.arrays.items():
            add(label, array.reshape(-1))
        add("perm", s.perm)
        return tuple(names), tensors
    else:
        add("indptr", s.indptr)
        add("indices", s.indices)
        add("perm", s.perm)
        add("rows", s.row_of)
    if s.transposed is not None:
        add("t_indptr", s.transposed.indptr)
        add("t_indices", s.transposed.indices)
        add("t_perm", s.transposed.perm)
    return tuple(names), tensors
