"""Settings, compiled facts and costs in words.

In: a kernel, or a cost and the rates of a machine. Out: lines of text.

    schedule_words(kernel)     ->  ["8 rows in a unit", "4 entries of each row at once", ...]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from tilewright.analysis.cost import Cost
from tilewright.runtime.kernel import Kernel
from tilewright.view.rates import Rates, seconds_of

WORDS = {
    "rows": "{} rows in a unit",
    "unroll": "{} entries unrolled",
    "long": "rows up to {} entries are whole, longer ones are cut",
    "chunk": "{} entries in a piece of a long row",
    "width": "tiles of {} features",
    "whole": "one tile holds all features",
    "outer": "feature tiles outermost",
    "listed": "units from a work list",
    "edges": "{} entries in a tile",
    "inner": "{} of the inner reduction at once",
    "bm": "tiles of {} rows",
    "bn": "tiles of {} columns",
    "bk": "{} of the reduction at once",
    "group": "{} row tiles share their column tiles",
    "pieces": "sums of the last wave in up to {} pieces",
    "tail": "a last tile of up to {} rows is no higher",
    "cores": "waves of {} programs",
    "warps": "{} warps in a program",
    "stages": "loads {} iterations ahead",
    "registers": "at most {} registers a thread",
    "blocks": "{} blocks of a row at once",
    "stream": "entries leave the caches early",
}
ONE = {"pieces": "programs take tile after tile"}
C_WORDS = {
    "width": "vector loops of up to {}",
    "prefetch": "gathers asked for {} KB ahead",
    "grain": "up to {} iterations a thread at once",
}
KINDS = {
    "grid": "in parallel",
    "lane": "all at once",
    "serial": "one after the other",
    "unroll": "unrolled",
}
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def schedule_words(kernel: Kernel) -> list[str]:
    """The setting, every loop of the schedule with its kind, then the steps that made them."""
    words = WORDS if kernel.backend == "triton" else {**WORDS, **C_WORDS}
    said = [
        ONE[k] if v == 1 and k in ONE else words.get(k, f"{k} {{}}").format(v)
        for k, v in sorted(kernel.setting.items(), key=lambda kv: _place(kv[0]))
        if v and (v > 1 or k in ONE or "{}" not in words.get(k, "{}"))
    ]
    loops = loop_words(kernel.stages.get("scheduled", ""))
    steps = ["steps:", *(f"    {s}" for s in kernel.schedule)] if kernel.schedule else []
    return [", ".join(said) or "nothing set", *loops, *steps]


def loop_words(scheduled: str) -> list[str]:
    """The loops of a scheduled text, with their depth: for i in grid(n): -> i in 0:n: in parallel"""
    made = []
    for line in scheduled.splitlines():
        found = re.match(r"( *)for (\w+) in (grid|lane|serial|unroll)\((.*)\):$", line)
        if found:
            ends = [e for e in split_arguments(found[4]) if e != "i32"]
            span = ":".join(ends if len(ends) == 2 else ["0", ends[0]])
            made.append(f"{found[1]}{found[2]} in {span}: {KINDS[found[3]]}")
    return made


def _place(name: str) -> int:
    known = [*WORDS, *C_WORDS]
    return known.index(name) if name in known else len(known)


def compiled_words(kernel: Kernel) -> list[str]:
    """Registers, spills and shared memory, as far as the compiler told them."""
    facts = compiled_facts(kernel.compiled)
    said = [f"{k} {v}" for k, v in facts.items()]
    took = f"made in {kernel.seconds:.2f} s"
    return [", ".join([*said, took])]


def compiled_facts(compiled: Any) -> Mapping[str, int]:
    if compiled is None:
        return {}
    meta = getattr(compiled, "metadata", None)
    found = {
        "registers": getattr(compiled, "n_regs", None),
        "spills": getattr(compiled, "n_spills", None),
        "shared memory bytes": getattr(meta, "shared", None),
        "warps": getattr(meta, "num_warps", None),
        "stages": getattr(meta, "num_stages", None),
    }
    return {k: int(v) for k, v in found.items() if v is not None}


def cost_words(cost: Cost, rates: Rates, matrix: bool) -> list[str]:
    """Bytes, operations and the time they take at the rates of a machine."""
    traffic = cost.traffic
    each = ", ".join(f"{n} {amount(t.bytes, 'B')}" for n, t in traffic.items())
    through = ", ".join(n for n, t in traffic.items() if t.gathered) or "nothing"
    seconds = seconds_of(cost, rates, matrix)
    at = f"{rates.memory / 1e9:.0f} GB/s memory, {rates.gather / 1e9:.0f} GB/s gathers"
    launch = "not counted" if rates.launch is None else f"{rates.launch * 1e6:.1f} us"
    return [
        f"compulsory  {amount(cost.compulsory, 'B'):>9}   {each}",
        f"gathered    {amount(cost.gathered, 'B'):>9}   {through} read through an index array",
        f"operations  {amount(cost.flops, ''):>9}   {intensity(cost)}",
        f"launch      {launch:>9}",
        f"expected    {seconds * 1e6:>6.1f} us   at {at} ({rates.name})",
    ]


def intensity(cost: Cost) -> str:
    return f"{cost.flops / cost.compulsory:.2f} for each byte" if cost.compulsory else "no bytes"


def amount(n: float, unit: str) -> str:
    """1234567 -> 1.23 MB"""
    for size, letter in UNITS:
        if n >= size:
            return f"{n / size:.3g} {letter}{unit}"
    return f"{n:.0f} {unit}".rstrip()


def split_arguments(text: str) -> list[str]:
    """a, f(b, c)  ->  ["a", "f(b, c)"]"""
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return [ast.unparse(a) for a in call.args]
