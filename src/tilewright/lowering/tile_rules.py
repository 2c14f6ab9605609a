"""What tile form asks of a scheduled program: what it may read, how loops count, and how it says no.

In: stage III. Out: reasons as errors, loops in the form that Triton takes.

    refuse("prefetch", "Triton pipelines its loads itself", "leave it out")     # the error
"""

from __future__ import annotations

from tilewright.ir import flat, stmt
from tilewright.ir.expr import Bin, Const, Expr, LaneSplit, Load
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.node import transform, walk
from tilewright.lowering.lanes import lane_extents
from tilewright.lowering.own import own
from tilewright.support.errors import error


def reads(e: Expr) -> bool:
    return any(isinstance(n, Load | Lookup) for n in walk(e))


def check_reads(p: flat.Program) -> None:
    """Of what a launch writes, it may read the element that it is about to write, or what its own program wrote."""
    written = [s for s in walk(p.body) if isinstance(s, stmt.Store | stmt.Atomic)]
    grids = [s for s in walk(p.body) if isinstance(s, Loop) and s.kind == "grid"]
    lists = {b for s in walk(p.body) if isinstance(s, stmt.Append) for b in (s.list, s.count)}
    for n in walk(p.body):
        if isinstance(n, Load):
            if n.buffer in lists:
                why, cure = (
                    f"{n.buffer.name} is a list of this launch",
                    "compile each nest on its own",
                )
                raise refuse(p.name, why, cure, n)
            mine = [s for s in written if s.buffer is n.buffer]
            at = {s.indices for s in mine}
            if at and at != {n.indices} and not _in_one_program(mine, n, grids):
                why = f"{n.buffer.name} is written and read in one launch"
                cure = "compute_at or inline, or compile each nest on its own"
                raise refuse(p.name, why, cure, n)


def _in_one_program(written: list[stmt.Store | stmt.Atomic], n: Load, grids: list[Loop]) -> bool:
    """Whether what is read was written by the same program."""
    touched = [n, *written]
    plain = len(grids) == 1 and not any(isinstance(s, stmt.Atomic) for s in written)
    return plain and own([(s.indices[0], grids[0]) for s in touched])


def check_splits(p: flat.Program) -> None:
    """Lanes that are seen as two have no padding, which would stand between the parts."""
    extents = lane_extents(p)
    for n in walk(p.body):
        if isinstance(n, LaneSplit):
            for v in (n.lane, n.outer, n.inner):
                if pow2(extents[v]) != extents[v]:
                    why = f"{v.name} has {extents[v]} lanes, which is no power of two"
                    raise refuse(
                        f"lane {n.lane.name}, seen as two,", why, "take tiles of 2, 4, 8 ..."
                    )


def pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def strided(s: Loop) -> tuple[Loop, int]:
    """for v in 0:(n + k - 1) // k, with v only in v * k, around unrolled copies   ->   for v in 0:n:k

    Loops without copies may be products, which Triton pipelines better when they count by one.
    """
    if not any(isinstance(c, Loop) and c.kind == "unroll" for c in s.body):
        return s, 1
    match s:
        case Loop(v, Const(0), Bin("//", Bin("+", n, Const(less)), Const(k)), "serial", body) if (
            less == k - 1
        ):
            times = [e for e in walk(body) if isinstance(e, Bin) and e.op == "*" and e.a is v]
            steps = [e for e in times if isinstance(e.b, Const) and e.b.value == k]
            if len(steps) == sum(e is v for e in walk(body)):
                moved = transform(body, dict.fromkeys(steps, v).get)
                return Loop(v, s.lo, n, "serial", moved), int(k)
    return s, 1


def refuse(what: str, reason: str, cure: str, ir: object = None) -> Exception:
    expected = "a schedule with a tile form"
    return error("illegal", ir=ir, name=what, got=reason, expected=expected, cure=cure)
