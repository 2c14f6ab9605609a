"""The primitive `bits`: a question about values, asked of their bits.

In: a stage III program, the name of a loop that asks whether any of the values it reads is not 0. Out: a program that
joins their bits, which lie two or four in a register, and asks once at the end.

    bits(p, "i")    init s: any; i: fold s by x[i] != 0  ->  init t: union; i: fold t by bits(x[i]); s = t & 0x7FFF != 0
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.analysis.cost import BYTES
from tilewright.ir import flat, stmt
from tilewright.ir.expr import FLOATS, Bin, Cast, Const, Expr, Load, Un, Var, const, dtype_of, ne
from tilewright.ir.flat import Loop
from tilewright.ir.monoid import monoids
from tilewright.schedule.edit import every_block, find, illegal, splice
from tilewright.schedule.legal import folds, fresh, within

WIDEST = 4  # bytes of a value whose bits are joined
# All bits but that of the sign: -0.0 is 0.
UNSIGNED = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def bits(p: flat.Program, name: str) -> flat.Program:
    """init s: any; v: fold s by x != 0 -> init t: union; v: fold t by bits(x); let s = t & unsigned != 0"""
    what, loop = f"bits({name})", find(p, name)
    fold = asked(loop)
    if fold is None:
        raise illegal(what, "it does not ask whether something that it reads is not 0", ir=loop)
    begins = [b for b in every_block(p.body) if any(_begins(s, fold) for s in b)]
    if not any(s is loop for b in begins for s in b):
        raise illegal(what, f"{fold.state[0].name} begins elsewhere", "name the outermost", ir=loop)
    union = monoids("i32")["union"]
    value, joined = _value(fold.args[0]), (Var(fresh(p, f"{fold.state[0].name}_bits"), "i32"),)
    assert value is not None
    rest = UNSIGNED.get(value.buffer.dtype)
    found = joined[0] if rest is None else joined[0] & const(rest)
    folded = stmt.Fold(joined, union, (Un("bits", value),))

    def rule(s: stmt.Stmt) -> list[stmt.Stmt] | None:
        if _begins(s, fold):
            return [stmt.Init(joined, union)]
        if s is loop:
            made = splice((s,), lambda n: [folded] if n is fold else None)
            return [*made, stmt.Let(fold.state[0], ne(found, const(0)))]
        return None

    return replace(p, body=splice(p.body, rule))


def asked(loop: Loop) -> stmt.Fold | None:
    """The one fold of a loop, where it asks whether what is read is not 0."""
    found = [s for s in within(loop.body) if isinstance(s, stmt.Fold)]
    if len(found) != 1 or found != folds(loop.body) or found[0].monoid.name != "any":
        return None
    return found[0] if _value(found[0].args[0]) is not None else None


def _value(e: Expr) -> Load | None:
    """x of x != 0, where it is read from memory."""
    match e:
        case Bin("!=", a, Const(0)):
            read = a.a if isinstance(a, Cast) else a
            if isinstance(read, Load) and BYTES[read.buffer.dtype] <= WIDEST:
                return read if _same(read.buffer.dtype, dtype_of(a)) else None
    return None


def _same(stored: str, computed: str) -> bool:
    """Whether a value that is not 0 is none either in the dtype that it is compared in: nothing is cut off."""
    if stored == computed:
        return True
    return BYTES[computed] > BYTES[stored] and (computed in FLOATS or stored not in FLOATS)


def _begins(s: stmt.Stmt, fold: stmt.Fold) -> bool:
    return isinstance(s, stmt.Init) and s.state == fold.state
