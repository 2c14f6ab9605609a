"""Planted bugs: each replaces one function of the compiler, and the fuzzer or a conformance case must see it.

    make mutants         # a table: mutant, what saw it first

A mutant runs in a process of its own with an empty cache of kernels: first the conformance cases that bear on
it, by interpreters, C and Triton's interpreter, then draws of the fuzzer. What fails without it does not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

PLANS, DRAWS, SHARE = 100, 5, 0.2
LIMIT = 120
KNOWN = ""


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


# --- the bugs ---------------------------------------------------------------------------------------


def dropped_mask() -> None:
    """Guards are left out: their bodies run everywhere."""
    from tilewright.lowering import flatten

    lower = flatten.lower_to_flat
    _everywhere("lower_to_flat", lambda *a: _unguarded(lower(*a)))


def swapped_index() -> None:
    """The two indices of a dense load change places."""
    from tilewright.ir.expr import Load
    from tilewright.lowering.position import _Lower

    def make(place: Any) -> Any:
        def swapped(self: Any, a: Any, env: Any, block: Any) -> Any:
            if not a.buffer.sparse and len(a.indices) == 2 and a.buffer.role == "in":
                a = Load(a.buffer, a.indices[::-1])
            return place(self, a, env, block)

        return swapped

    patch(_Lower, "place", make)


def missing_init() -> None:
    """An accumulator starts at what the first row left."""
    from tilewright.ir import stmt
    from tilewright.lowering import position

    def make(lower: Any) -> Any:
        def late(p: Any, *a: Any) -> Any:
            made = lower(p, *a)
            inits = [n for n in _walk(made.body) if isinstance(n, stmt.Init)]
            if not inits:
                return made
            first = inits[0]
            return replace(made, body=(first, *_without(made.body, first)))

        return late

    _everywhere("lower_to_position", make(position.lower_to_position))


def off_by_one() -> None:
    """A row of a variable axis ends one entry early."""
    from tilewright.lowering.position import _Lower

    def make(span: Any) -> Any:
        def short(self: Any, ax: Any, parent: Any) -> Any:
            lo, hi = span(self, ax, parent)
            return (lo, hi - 1) if ax.extent == "variable" else (lo, hi)

        return short

    patch(_Lower, "span", make)


def no_ragged_end() -> None:
    """The last block may stick out, and nobody asks."""
    from tilewright.lowering.position import _Lower

    patch(_Lower, "ragged_end", lambda _: lambda self, a, ix: False)
    patch(_Lower, "limits", lambda _: lambda self, turn, begun, at: None)


def neighbour() -> None:
    """A search that misses gives the entry beside."""
    from tilewright.lowering.position import _Lower

    def make(searched: Any) -> Any:
        def near(self: Any, a: Any, ax: Any, parent: Any, crd: Any, env: Any, block: Any) -> Any:
            from tilewright.ir import stmt
            from tilewright.ir.expr import Var, select

            there = searched(self, a, ax, parent, crd, env, block)
            at = env.pos[ax, _held(a)]
            if ax.indices is None or not isinstance(at, Var):
                return there
            lo, hi = self.span(ax, parent)
            v = Var(self.names.fresh("near"))
            block.append(stmt.Let(v, select(at < 0, lo, at)))
            env.pos[ax, _held(a)] = v
            return v < hi

        return near

    patch(_Lower, "searched", make)


def perm_ignored() -> None:
    """Values are read in storage order."""
    from tilewright.lowering.position import _Lower

    def make(position: Any) -> Any:
        def straight(self: Any, a: Any, env: Any) -> Any:
            made = position(self, a, env)
            return (made[0].indices[0], *made[1:]) if a.buffer.perm is not None else made

        return straight

    patch(_Lower, "position", make)


def padded_guard() -> None:
    """Places without an entry count as column 0."""
    from tilewright.ir import stmt
    from tilewright.ir.expr import select
    from tilewright.lowering.position import _Lower

    def make(coordinate: Any) -> Any:
        def whole(self: Any, ax: Any, mine: Any, nth: Any, env: Any, body: Any) -> Any:
            block = coordinate(self, ax, mine, nth, env, body)
            if not ax.padded:
                return block
            let, guard = block[0], block[-1]
            kept = stmt.Let(let.var, select(let.value < 0, 0, let.value))
            return [kept, *guard.body]

        return whole

    patch(_Lower, "coordinate", make)


def wrong_identity() -> None:
    """The maximum of nothing is 0."""
    from tilewright.ir import monoid
    from tilewright.ir.expr import Const

    def make(monoids: Any) -> Any:
        def zero(d: str) -> Any:
            made = dict(monoids(d))
            made["max"] = replace(made["max"], identity=(Const(0.0, made["max"].dtypes[0]),))
            return made

        return zero

    _everywhere("monoids", make(monoid.monoids))


def combined_twice() -> None:
    """Every piece of a row that several programs share is added twice."""
    from tilewright.codegen import triton

    line = re.compile(r"^( *\w+ = (\w+) \+ \2_piece)$", re.MULTILINE)

    def make(emit: Any) -> Any:
        return lambda t, *a: line.sub(r"\1\n\1", emit(t, *a))

    patch(triton, "emit_triton", make)


def first_arm() -> None:
    """A choice between two values gives the first."""
    from tilewright.codegen import triton

    def make(emit: Any) -> Any:
        def bare(t: Any, *a: Any) -> str:
            text: str = emit(t, *a)
            return text.replace("tl.where(", "_pick(").replace(
                "@triton.jit\n",
                "@triton.jit\ndef _pick(c, a, b):\n    return a\n\n\n@triton.jit\n",
                1,
            )

        return bare

    patch(triton, "emit_triton", make)


def undivided() -> None:
    """A mean is its total."""
    from tilewright.ir import monoid

    def make(monoids: Any) -> Any:
        def total(d: str) -> Any:
            made = dict(monoids(d))
            whole = monoid.func("a n", lambda a, n: a, d)
            made["mean"] = replace(made["mean"], finalise=whole)
            return made

        return total

    _everywhere("monoids", make(monoid.monoids))


MUTANTS: dict[str, tuple[Callable[[], None], str]] = {
    "dropped mask": (dropped_mask, "plus-csr-csr or row-sum-padded"),
    "swapped index": (swapped_index, "csrmm-csr- or strided"),
    "missing init": (missing_init, "csrmm-csr- or row-sum-csr"),
    "off-by-one bound": (off_by_one, "csrmm-csr-"),
    "no ragged end guard": (no_ragged_end, "block-mask or dbsr.3.5"),
    "lookup returns a neighbour": (neighbour, "spmspm-csr-csr or times-csr-csr"),
    "perm ignored": (perm_ignored, "csrmm-csc or csrmm-coo or sddmm-ell or by-columns"),
    "padded guard dropped": (padded_guard, "row-max-ell or csrmm-padded.4"),
    "wrong identity for max": (wrong_identity, "row-max-csr or segment-max"),
    "pieces combined twice": (combined_twice, "giant-row"),
    "where picks its first arm": (first_arm, "csrmm-csr-"),
    "mean is not divided": (undivided, "row-mean"),
}


# --- how they are written ---------------------------------------------------------------------------


def _everywhere(name: str, made: Any) -> None:
    """Replace a function in every module that has imported it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("tilewright") and name in vars(module):
            setattr(module, name, made)


def _held(a: Any) -> Any:
    from tilewright.ir.drive import held

    return held(a)


def _walk(body: Any) -> Any:
    from tilewright.ir.node import walk

    return walk(body)


def _unguarded(p: Any) -> Any:
    from tilewright.ir import stmt

    def strip(block: Any) -> Any:
        made = []
        for s in block:
            inside = getattr(s, "body", None)
            if isinstance(s, stmt.Guard):
                made += strip(s.body)
            elif isinstance(inside, tuple) and inside:
                made.append(replace(s, body=tuple(strip(inside))))
            else:
                made.append(s)
        return made

    return replace(p, body=tuple(strip(p.body)))


def _without(block: Any, gone: Any) -> Any:
    made = []
    for s in block:
        if s is gone:
            continue
        inside = getattr(s, "body", None)
        made.append(replace(s, body=_without(inside, gone)) if isinstance(inside, tuple) else s)
    return tuple(made)


# --- running them -----------------------------------------------------------------------------------


def main(seed: int) -> int:
    global KNOWN
    KNOWN = " ".join(drawn(seed, every=True))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda name: caught(name, seed), MUTANTS))
    width = max(map(len, MUTANTS))
    for name, first in zip(MUTANTS, found, strict=True):
        print(f"{name:{width}}  {first or 'NOT CAUGHT'}")
    return int(not all(found))


def caught(name: str, seed: int) -> str:
    """What saw a mutant first."""
    with tempfile.TemporaryDirectory(prefix="tilewright-mutant-") as folder:
        space = {**os.environ, "TILEWRIGHT_CACHE": folder}
        command = [sys.executable, "-m", "fuzz.mutants", name, str(seed), KNOWN]
        try:
            ran = subprocess.run(command, env=space, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"the process did not end in {LIMIT} s"
    said = [line for line in ran.stdout.splitlines() if line.startswith("seen: ")]
    if said:
        return said[0][6:]
    at = [line for line in ran.stdout.splitlines() if line.startswith("at: ")]
    if ran.returncode and not at:
        raise RuntimeError(f"{name}: nothing was looked at\n{ran.stderr[-2000:]}")
    if not ran.returncode:
        return ""
    return f"{at[-1][4:]} (the process ended with {ran.returncode})"


def look(name: str, seed: int) -> str:
    """Conformance cases first, then draws."""
    import conformance.cases as cases
    from conformance import test_attention, test_entries, test_pairs, test_products, test_rows

    plant, words = MUTANTS[name]
    picks = words.split(" or ")
    pool = [
        (c, e)
        for e in ("loops", "for-c", "tile", "c", "triton")  # interpreters do not crash
        for module in (test_products, test_rows, test_pairs, test_entries, test_attention)
        for c in module.CASES
        if any(w in f"{c.name}-{e}" for w in picks)
    ]
    plant()
    for c, executor in pool:
        print(f"at: conformance {c.name} on {executor}", flush=True)
        try:
            cases.judge(c, executor)
        except Exception as why:
            return f"conformance {c.name} on {executor} ({type(why).__name__})"
    return next(iter(drawn(seed)), "")


def drawn(seed: int, every: bool = False) -> list[str]:
    """Draws that fail and are not known to; the first one, or every one."""
    from fuzz.work import FAILED, plan

    made = []
    for number in range(PLANS):
        for told in plan(seed, number, DRAWS, SHARE):
            at = f"{number}.{told.draw}"
            if told.kind in FAILED and at not in KNOWN.split():
                said = (
                    f"fuzz --seed {seed} --draws {DRAWS} --triton {SHARE} --only {at} ({told.kind})"
                )
                made.append(at if every else said)
                if not every:
                    return made
    return made


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    KNOWN = sys.argv[3]
    seen = look(sys.argv[1], int(sys.argv[2]))
    if seen:
        print(f"seen: {seen}")
