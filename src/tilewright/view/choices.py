"""A choice of setting in words: where it is from, what the cost model says of the best few, what was measured.

In: a `Choice`. Out: lines of text.

    chosen by the cost model: rows=8 unroll=2 long=16 chunk=256 warps=2 width=32
    us, modelled    total  launch  busy ...
"""

from __future__ import annotations

from tilewright.ops.choice import Choice
from tilewright.schedule.options import Setting
from tilewright.tune.cost import rank
from tilewright.tune.store import Record

BEST = 3
SOURCES = {
    "given": "given by the caller",
    "default": "the usual one; nothing was measured for such a call",
    "model": "chosen by the cost model; nothing was measured for such a call",
    "measured": "measured",
}


def choice_words(choice: Choice) -> list[str]:
    head = f"{spelled(choice.setting) or 'as the statement says'}: {SOURCES[choice.source]}"
    return [head, *modelled_lines(choice), *(record_lines(choice.record) if choice.record else [])]


def spelled(setting: Setting) -> str:
    """{"rows": 8, "width": 32} -> rows=8 width=32"""
    return " ".join(f"{k}={v}" for k, v in setting.items())


def modelled_lines(choice: Choice) -> list[str]:
    """The terms of the best few and of the worst, side by side, in microseconds."""
    if choice.model is None or not choice.candidates:
        return []
    ranked = rank(choice.model, choice.candidates)
    shown = [*ranked[:BEST], *(ranked[-1:] if len(ranked) > BEST else ())]
    names = [n for n, _ in shown[0][1].items()]
    made = [
        f"{'us, by the model':<17}{'total':>9}" + "".join(f"{n:>9}" for n in names) + "  setting"
    ]
    for n, (setting, terms) in enumerate(shown, 1):
        place = f"{n}" if n <= BEST else "last"
        cells = "".join(f"{s * 1e6:>9.1f}" for _, s in terms.items())
        line = f"{place + f' of {len(ranked)}':<17}{terms.total * 1e6:>9.1f}{cells}"
        made.append(f"{line}  {spelled(setting)}")
    return made


def record_lines(record: Record) -> list[str]:
    how = record.how
    made = [
        f"{record.ms:.4g} ms, {record.gain:.2f} times as fast as {spelled(how.get('first', {}))}"
        f" ({how.get('first_ms', record.ms):.4g} ms)",
        f"tried {how.get('tried', '-')} in {how.get('spent_s', 0)} s on {record.key.device}, {record.when}",
        f"for {record.key.program}, sizes {record.key.sizes}, structures like {record.key.structure or '-'}",
    ]
    for setting, ms in how.get("trials", [])[1:BEST]:
        made.append(f"next: {ms:.4g} ms with {spelled(setting)}")
    return made
