"""tw.tune: time settings on the user's own tensors, within a budget, and remember the fastest.

tune(spmm, A, x)                  # -> {"rows": 8, ...}; later calls like it use the setting, later processes too
tune(relu_max, A, x, budget_s=2)  # a program of the user's own
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tilewright.ops.call import subject as call_subject
from tilewright.ops.changing import NUMBERS
from tilewright.ops.choice import Subject
from tilewright.ops.einsum import einsum
from tilewright.ops.einsum import traced_for as einsum_traced
from tilewright.ops.program import Program
from tilewright.ops.subject import forget
from tilewright.schedule.options import Setting
from tilewright.support.errors import error
from tilewright.support.places import public
from tilewright.tune import store
from tilewright.tune.cost import rank
from tilewright.tune.progress import teller
from tilewright.tune.search import Found, search
from tilewright.tune.store import Record

LISTED = 8  # trials that a record names


@public
def tune(
    op: Any,
    *args: Any,
    budget_s: float = 10.0,
    settings: Sequence[Setting] | None = None,
    cold: bool | None = None,
    save: bool = True,
    show: bool | None = None,
    **options: Any,
) -> Setting:
    """The fastest setting found for a call op(*args, **options), remembered for calls like it.

    op: an operator, a program or einsum. budget_s: seconds for building and timing; settings: try these alone;
    cold: time with a cold second-level cache (default: on GPUs); save: keep it for later processes; show: progress
    (default: on a terminal). Interrupting it keeps what was found.

    >>> tune(spmm, A, x, budget_s=5)
    """
    if not isinstance(budget_s, NUMBERS) or not budget_s >= 0:
        expected = "seconds, 0 or more"
        raise error(
            "argument", where="tune", name="budget_s", got=repr(budget_s), expected=expected
        )
    with torch.no_grad():
        subject = subject_of_op(op, args, options)
        found = find(subject, budget_s, settings, cold, show)
    record = record_of(subject, found, budget_s, cold)
    store.put(record, save)
    forget(subject)
    return dict(record.setting)


def subject_of_op(op: Any, args: Sequence[Any], options: dict[str, Any]) -> Subject:
    """What is to be tuned, with the mistakes of its call told."""
    if isinstance(op, Program) and not options:
        name, inputs, floats = op.inputs(*args)
        return call_subject(name, inputs, list(floats.values()))
    if op is einsum and args and not options:
        name, names = einsum_traced(args[0], len(args) - 1)
        return call_subject(name, dict(zip(names, args[1:], strict=True)), [])
    made = getattr(op, "subject", None)
    if made is None:
        got = getattr(op, "__name__", str(op))
        expected = "tw.spmm, sddmm, bsr_matmul, linear, attention, einsum or a program"
        raise error("argument", where="tune(op, ...)", name="op", got=got, expected=expected)
    try:
        inspect.signature(made).bind(*args, **options)
    except TypeError as why:
        name, got = getattr(op, "__name__", str(op)), str(why)
        expected = f"the arguments of {name}"
        raise error(
            "argument", where=f"tune({name}, ...)", name="args", got=got, expected=expected
        ) from None
    subject: Subject = made(*args, **options)
    return subject


def find(
    subject: Subject,
    budget_s: float,
    settings: Sequence[Setting] | None = None,
    cold: bool | None = None,
    show: bool | None = None,
) -> Found:
    """Search the settings given, or the whole space in the order of the cost model."""
    device = subject.case.device
    tell = teller(subject.title, budget_s, show)
    cool = is_cold(subject, cold)
    if settings is not None:
        order = unique(map(subject.complete, checked(subject, settings)))
        return search(order, subject.make, device, budget_s, cool, tell)
    known = unique(map(subject.complete, (subject.first, *subject.shown)))
    order = unique([known[0], *candidates(subject)])
    near = lambda setting: [subject.complete(s) for s in subject.near(setting)]
    return search(order, subject.make, device, budget_s, cool, tell, near, len(known))


def unique(settings: Iterable[Setting]) -> list[Setting]:
    """Each once, in the same order."""
    made: dict[object, Setting] = {}
    for s in settings:
        made.setdefault(tuple(sorted(s.items())), s)
    return list(made.values())


def checked(subject: Subject, settings: Sequence[Setting]) -> list[Setting]:
    """Settings that the caller gave: whole numbers by the names of the space, 0 where one of its values is."""
    known = {p.name: p.values for p in subject.space.params}
    if not settings or not all(isinstance(s, Mapping) for s in settings):
        expected = "one dict of whole numbers, or more"
        raise error(
            "argument", where="tune", name="settings", got=repr(settings), expected=expected
        )
    for name, value in (item for s in settings for item in s.items()):
        if name not in known:
            expected = f"names of {subject.space.name}: {', '.join(known)}"
            raise error("argument", where="tune", name="settings", got=name, expected=expected)
        least = 0 if 0 in known[name] else 1
        if type(value) is not int or value < least:
            got, expected = f"{name} = {value!r}", f"a whole number from {least}, as {known[name]}"
            raise error("argument", where="tune", name="settings", got=got, expected=expected)
    return list(settings)


def candidates(subject: Subject) -> list[Setting]:
    """The points of the space, the cheapest by the model first; those that have served elsewhere before all."""
    made: list[Setting] = []
    for points in (subject.shown, subject.space.points()):
        full = [subject.complete(p) for p in points]
        made += full if subject.model is None else [s for s, _ in rank(subject.model, full)]
    return made


def is_cold(subject: Subject, cold: bool | None) -> bool:
    return subject.case.device.type == "cuda" if cold is None else cold


def record_of(subject: Subject, found: Found, budget_s: float, cold: bool | None) -> Record:
    best = found.best
    how = {
        "budget_s": budget_s,
        "spent_s": round(found.spent_s, 3),
        "tried": found.ended,
        "repeats": len(best.times),
        "cold": is_cold(subject, cold),
        "first": found.first.setting,
        "first_ms": found.first.seconds * 1e3,
        "trials": [[t.setting, t.seconds * 1e3] for t in found.right[:LISTED]],
        "failed": [[t.setting, t.why] for t in found.trials if t.why][:LISTED],
    }
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    return Record(subject.case.whole_key(), best.setting, best.seconds * 1e3, when, how)
