"""tw.einsum: a product of operands summed over the letters that the output lacks.

y = einsum("ij,jf->if", A, x)
"""

from __future__ import annotations

import functools
from typing import Any

from tilewright.formats.compiling import constant
from tilewright.formats.tensor import SparseTensor
from tilewright.ir.coord import Assign, Index
from tilewright.ir.expr import Const, Expr, Load
from tilewright.language.trace import Ref, Traced, sum_leftover
from tilewright.ops.arithmetic import matmul
from tilewright.ops.call import call
from tilewright.ops.registry import register
from tilewright.support.errors import TilewrightError, error
from tilewright.support.places import public


@public
def einsum(subscripts: str, *operands: Any, out_format: str | None = None) -> Any:
    """The product of operands (sparse or dense, any number), summed over letters missing in the output.

    The result is dense, unless its letters are those of a sparse operand: then it takes that structure.
    out_format: "dense", or a format's name. The product of two sparse matrices, "ij,jk->ik", is then made sparse
    from the start.

    >>> y = einsum("ij,jf->if", A, x)
    >>> C = einsum("ij,jk->ik", A, B, out_format="csr")
    """
    if not isinstance(subscripts, str):
        expected = "letters of the operands and of the result, for instance 'ij,jf->if'"
        raise error("einsum", where="einsum", got=repr(subscripts), expected=expected)
    name, inputs = traced_for(subscripts, len(operands))
    sparse = [isinstance(t, SparseTensor) for t in operands]
    if out_format not in (None, "dense") and sparse == [True, True] and _is_product(subscripts):
        return matmul(*operands).to_format(str(out_format))
    try:
        made = call(name, dict(zip(inputs, operands, strict=True)), [])
    except TilewrightError as why:
        why.where = f"einsum({subscripts!r}, {', '.join(inputs)})"
        raise
    if out_format is None or (out_format == "dense" and not isinstance(made, SparseTensor)):
        return made
    if out_format == "dense":
        return made.to_dense()
    if not isinstance(made, SparseTensor):
        expected = (
            "a sparse operand with the output's letters, or the product of two sparse matrices"
        )
        raise error(
            "einsum", where="einsum", got=f"a dense result of {subscripts!r}", expected=expected
        )
    return made.to_format(out_format)


def _is_product(subscripts: str) -> bool:
    """ij,jk->ik"""
    left, _, right = subscripts.replace(" ", "").partition("->")
    a, _, b = left.partition(",")
    return len(a) == len(b) == 2 and a[1] == b[0] and right == a[0] + b[1] and a[0] != b[1]


@constant
def traced_for(subscripts: str, count: int) -> tuple[str, tuple[str, ...]]:
    """(template, inputs) of the program of a string; constants to torch.compile."""
    made = _traced(subscripts, count)
    return made.name, made.inputs


@functools.cache
def _traced(subscripts: str, count: int) -> Traced:
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    groups = left.split(",")
    _check(subscripts, groups, arrow, right, count)
    letters = {c: Index(c) for c in sorted(set(text) - set(",->"))}
    refs = [Ref(f"operand{n}") for n in range(len(groups))]
    out = Ref("out")
    value: Expr = Const(1.0, "f32")
    for r, g in zip(refs, groups, strict=True):
        value = value * Load(r, tuple(letters[c] for c in g))
    target = Load(out, tuple(letters[c] for c in right))
    body = sum_leftover(Assign((target,), (value,)))
    names = tuple(r.name for r in refs)
    name = f"einsum_{'_'.join(groups)}_to_{right}"
    made = Traced(name, (*names, "out"), names, ("out",), (), (*refs, out), (body,))
    register(made)
    return made


def _check(subscripts: str, groups: list[str], arrow: str, right: str, count: int) -> None:
    def refuse(expected: str) -> Exception:
        return error("einsum", where="einsum", got=repr(subscripts), expected=expected)

    if "." in subscripts:
        raise refuse("plain letters; write every dimension out instead of an ellipsis")
    if not arrow:
        raise refuse("an arrow with the output's letters")
    if len(groups) != count:
        raise refuse(f"one group of letters for each of the {count} operands")
    if not all(g.isalpha() for g in groups) or not (right.isalpha() or right == ""):
        raise refuse("letters only")
    if len(set(right)) != len(right) or any(len(set(g)) != len(g) for g in groups):
        raise refuse("each letter once in a group (no diagonals)")
    missing = set(right) - set("".join(groups))
    if missing:
        raise refuse(
            f"output letters that stand in an operand; {', '.join(sorted(missing))} does not"
        )
