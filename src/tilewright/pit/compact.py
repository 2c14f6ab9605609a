"""A program over a compacted axis: it runs over what a list names, and skips the rest.

In: a traced program, an axis, the operand whose zeros are skipped. Out: the same statement with two inputs more, the
list and the count that a detector made. Loads along the axis gather, stores scatter; the count is read on the device.

    y[i, n] = sum(k, x[i, k] * w[n, k])      compact(linear, "i", zeros="x")
 -> i = listed(i_list[p_i], place=p_i, below=i_count[0]); y[i, n] = sum(k, x[i, k] * w[n, k])

Legal where the axis rules say so: in any order the same, and nothing is missed by what is skipped.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.analysis.invariance import AxisRule, rules_of
from tilewright.formats.bind import bind
from tilewright.formats.storage import Spec
from tilewright.ir.coord import Assign, Index, Listed
from tilewright.ir.expr import Load, const
from tilewright.ir.node import walk
from tilewright.language.trace import Ref, Traced
from tilewright.support.errors import error


def compact(t: Traced, axis: str, zeros: str, tile: int = 1) -> Traced:
    """The program over a list of an axis: inputs `{axis}_list` [room] and `{axis}_count` [1] come last.

    zeros: the operand that has the value which is skipped wherever the list names nothing. tile: values of the axis
    for each entry of the list.
    """
    rule = rule_of(t, axis)
    _check(t, rule, zeros, tile)
    (s,) = t.body
    assert isinstance(s, Assign)
    ix = next(n for n in walk(s) if isinstance(n, Index) and n.name == axis)
    place = Index(f"p_{axis}")
    held, count = Ref(f"{axis}_list", "i32"), Ref(f"{axis}_count", "i32")
    listed = Listed(ix, Load(held, (place,)), place, Load(count, (const(0),)), tile)
    more = (held.name, count.name)
    return replace(
        t,
        name=f"{t.name}_over_{axis}" + (f"_by_{tile}" if tile > 1 else ""),
        params=(*t.inputs, *more, *(v.name for v in t.scalars), *t.outputs),
        inputs=(*t.inputs, *more),
        refs=(*t.refs, held, count),
        body=(replace(s, listed=(*s.listed, listed)),),
    )


def rule_of(t: Traced, axis: str) -> AxisRule:
    """The rule of an axis of a program of one statement over dense operands."""
    ranks = {n.buffer.name: len(n.indices) for n in walk(t.body) if isinstance(n, Load)}
    specs = {n: Spec("dense", "f32", ranks[n]) for n in t.inputs}
    found = {a.axis: a for a in rules_of(bind(t, specs).program).axes}
    if len(t.body) != 1 or axis not in found:
        got = "several statements" if len(t.body) != 1 else f"axes {', '.join(found)}"
        raise refuse(t, axis, got, "an axis of a program of one statement")
    return found[axis]


def _check(t: Traced, rule: AxisRule, zeros: str, tile: int) -> None:
    if not rule.invariant:
        raise refuse(t, rule.axis, rule.why, "an axis that may come in any order")
    skip = next((s for s in rule.skips if s.operand == zeros), None)
    if skip is None:
        told = f"{zeros} is not skipped along it"
        raise refuse(t, rule.axis, told, "an operand that adds nothing where it is skipped")
    if skip.leaves is None:
        raise refuse(t, rule.axis, f"where {zeros} is {skip.value:g}, {skip.why}", "a known output")
    if skip.leaves != 0.0:
        raise refuse(t, rule.axis, f"outputs would be {skip.leaves:g}", "outputs that are 0")
    if tile < 1:
        raise refuse(t, rule.axis, f"tile={tile}", "a positive number")


def refuse(t: Traced, axis: str, got: str, expected: str) -> Exception:
    return error(
        "illegal",
        name=f"compact({t.name}, {axis})",
        got=got,
        expected=expected,
        cure="compact another axis, or compute all of it",
    )
