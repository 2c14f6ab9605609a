"""A program over a compacted axis: it runs over what a list names, and skips the rest.

In: a traced program, an axis, the operand whose zeros are skipped. Out: the same statement with two inputs more, the
list and the count that a detector made. Loads along the axis gather, stores scatter; the count is read on the device.

    y[i, n] = sum(k, x[i, k] * w[n, k])      compact(linear, "i", zeros="x")
 -> i = listed(i_list[p_i], place=p_i, below=i_count[0]); y[i, n] = sum(k, x[i, k] * w[n, k])

                                             compact(linear, "k", zeros="x", group=("i", 32))
 -> i within 32 of i_group
    k = listed(k_list[i_group, p_k], place=p_k, below=k_count[i_group]); y[i, n] = sum(k, x[i, k] * w[n, k])

Legal where the axis rules say so: in any order the same, and nothing is missed by what is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tilewright.analysis.invariance import AxisRule, Rules, rules_of
from tilewright.formats.bind import bind
from tilewright.formats.storage import Spec
from tilewright.ir.coord import Assign, Index, Listed
from tilewright.ir.expr import Expr, Load, const
from tilewright.ir.node import substitute, walk
from tilewright.language.trace import Ref, Traced
from tilewright.support.errors import error

Group = tuple[str, int]


def compact(
    t: Traced, axis: str, zeros: str | None, tile: int = 1, group: Group | None = None
) -> Traced:
    """The program over a list of an axis: inputs `{axis}_list` [room] and `{axis}_count` [1] come last.

    zeros: the operand that has the value which is skipped wherever the list names nothing; None: outputs that are not
    named are not asked for, and stay 0. tile: values of the axis for each entry of the list.
    group ("i", 32): a list for each 32 values of another axis: `{axis}_list` [groups, room], `{axis}_count` [groups].
    """
    rules = _rules(t, axis)
    rule = rules.axis(axis)
    _check(t, rule, zeros, tile)
    (s,) = t.body
    assert isinstance(s, Assign)
    which: tuple[Expr, ...] = ()
    if group is not None:
        _check_group(t, rules, rule, zeros, group)
        outer = Index(f"{group[0]}_group")
        inner = Index(group[0], within=(outer, group[1]))
        s, which = substitute(s, {_index(s, group[0]): inner}), (outer,)
    place = Index(f"p_{axis}")
    held, count = Ref(f"{axis}_list", "i32"), Ref(f"{axis}_count", "i32")
    below = Load(count, which or (const(0),))
    listed = Listed(_index(s, axis), Load(held, (*which, place)), place, below, tile)
    more = (held.name, count.name)
    return replace(
        t,
        name=_name(t, axis, tile, group),
        params=(*t.inputs, *more, *(v.name for v in t.scalars), *t.outputs),
        inputs=(*t.inputs, *more),
        refs=(*t.refs, held, count),
        body=(replace(s, listed=(*s.listed, listed)),),
    )


def _name(t: Traced, axis: str, tile: int, group: Group | None) -> str:
    by = f"_by_{tile}" if tile > 1 else ""
    return f"{t.name}_over_{axis}{by}" + (f"_for_{group[1]}_{group[0]}" if group else "")


def _index(s: Any, name: str) -> Index:
    return next(n for n in walk(s) if isinstance(n, Index) and n.name == name)


def _rules(t: Traced, axis: str) -> Rules:
    """The rules of a program of one statement over dense operands."""
    ranks = {n.buffer.name: len(n.indices) for n in walk(t.body) if isinstance(n, Load)}
    numbers = {a.buffer.name for a in _inside(t)}
    specs = {n: Spec("dense", "i32" if n in numbers else "f32", ranks[n]) for n in t.inputs}
    found = rules_of(bind(t, specs).program)
    names = [a.axis for a in found.axes]
    if len(t.body) != 1 or axis not in names:
        got = "several statements" if len(t.body) != 1 else f"axes {', '.join(names)}"
        raise refuse(t, axis, got, "an axis of a program of one statement")
    return found


def _inside(t: Traced) -> Iterator[Load]:
    """What is read to find a place: inside of an index, or to list an axis."""
    for n in walk(t.body):
        if isinstance(n, Load | Listed):
            held = n.indices if isinstance(n, Load) else (n.at, n.below)
            yield from (m for m in walk(held) if isinstance(m, Load))


def _check(t: Traced, rule: AxisRule, zeros: str | None, tile: int) -> None:
    if not rule.invariant:
        raise refuse(t, rule.axis, rule.why, "an axis that may come in any order")
    if tile < 1:
        raise refuse(t, rule.axis, f"tile={tile}", "a positive number")
    if zeros is None:
        if rule.kind != "spatial":
            told = f"{rule.axis} is summed up: what is left out would be missing"
            raise refuse(t, rule.axis, told, "an axis of the output, or an operand that has zeros")
        return
    skip = next((s for s in rule.skips if s.operand == zeros), None)
    if skip is None:
        told = f"{zeros} is not skipped along it"
        raise refuse(t, rule.axis, told, "an operand that adds nothing where it is skipped")
    if skip.leaves is None:
        raise refuse(t, rule.axis, f"where {zeros} is {skip.value:g}, {skip.why}", "a known output")
    if skip.leaves != 0.0:
        raise refuse(t, rule.axis, f"outputs would be {skip.leaves:g}", "outputs that are 0")


def _check_group(t: Traced, rules: Rules, rule: AxisRule, zeros: str | None, group: Group) -> None:
    """Lists may differ from group to group where outputs do, and where what is skipped lies along both axes."""
    name, count = group
    outer = next((a for a in rules.axes if a.axis == name), None)
    if outer is None or outer.kind != "spatial" or name == rule.axis or count < 1:
        raise refuse(t, rule.axis, f"group={group}", "another axis of the output and a number")
    (s,) = t.body
    if isinstance(s, Assign) and name in [n.index.name for n in s.listed]:
        raise refuse(t, rule.axis, f"group={group}: {outer.why}", "groups before lists of them")
    if zeros is not None and zeros not in [v.tensor for v in outer.travels]:
        told = f"{zeros} is the same for all {name}"
        raise refuse(t, rule.axis, told, f"an operand along {name}, or one list for all")


def refuse(t: Traced, axis: str, got: str, expected: str) -> Exception:
    return error(
        "illegal",
        name=f"compact({t.name}, {axis})",
        got=got,
        expected=expected,
        cure="compact another axis, or compute all of it",
    )
