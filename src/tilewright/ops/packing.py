"""What lists name of an operand, side by side: x_packed[p, i] = x[i, k], where k stands at place p of the list of i.

In: x [rows, k] in any layout, lists of k's for groups of rows or one for all. Out: [room, rows], of which only what is
listed is written. A product reads it in the order of the list, so that x itself need not have its k's side by side.

    x_packed = pack(x, positions, counts, 32)      # for from_packed(a product over lists of k for each 32 rows)
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from tilewright.ir.coord import Assign
from tilewright.ir.expr import Load
from tilewright.ir.node import transform
from tilewright.language.trace import Param, Ref, Traced, axes, listed, part, trace
from tilewright.ops.again import again
from tilewright.ops.backend import backend_of
from tilewright.ops.registry import register
from tilewright.ops.settings import ceil_pow2
from tilewright.ops.settings import pack as packed_setting

TILE = 4096  # elements that a program packs: lists are short, and programs beyond their end are not free


def pack(x: Tensor, positions: Tensor, counts: Tensor, size: int) -> Tensor:
    """[room, rows], in one launch. size: rows that share a list, 0 for all of them"""
    given = {"x": x.detach(), "k_list": positions, "k_count": counts}
    return again(_name(size), given, lambda *_: [places(x, size)])[0]


def places(x: Tensor, size: int) -> int:
    """The setting: how many places of a list a program takes on a GPU."""
    if backend_of(x.device) != "triton" or not 16 <= size <= TILE // 16:
        return 0
    return packed_setting({"width": TILE // ceil_pow2(size)})


def apart(x: Tensor) -> bool:
    """Whether what lists of k's name of x is to be packed: on GPUs, unless all rows of one k lie side by side."""
    spread = backend_of(x.device) == "triton" and x.stride(0) != 1
    return True if spread else False  # noqa: SIM210 - a branch to torch.compile


def _name(size: int) -> str:
    """A constant to torch.compile."""
    return packing(size).name


_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def packing(size: int) -> Traced:
    """The program."""

    def packed(x: Param, k_list: Param, k_count: Param, x_packed: Param) -> None:
        group, p = axes("i_group p")
        i = part(group, size, "i") if size else axes("i")[0]
        at, count = (k_list[group, p], k_count[group]) if size else (k_list[p], k_count[0])
        k = listed("k", at, p, below=count)
        x_packed.sized(k_list.dim(1 if size else 0), x.dim(0))
        x_packed[p, i] = x[i, k]

    packed.__name__ = f"packed_for_{size}"
    return register(trace(packed)).traced


def from_packed(t: Traced) -> Traced:
    """y[i, n] = sum(k, x[i, k] * w[n, k])  ->  y[i, n] = sum(k, x_packed[p, i] * w[n, k]), k at place p of its list"""
    (s,) = t.body
    assert isinstance(s, Assign)
    packed, named, place = Ref("x_packed"), {"x": "x_packed"}, s.listed[0].place

    def read(n: Any) -> Load | None:
        mine = isinstance(n, Load) and n.buffer.name == "x"
        return Load(packed, (place, n.indices[0])) if mine else None

    return replace(
        t,
        name=f"{t.name}_packed",
        params=tuple(named.get(n, n) for n in t.params),
        inputs=tuple(named.get(n, n) for n in t.inputs),
        refs=(*(r for r in t.refs if r.name != "x"), packed),
        body=(transform(s, read),),
    )
