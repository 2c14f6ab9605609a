"""The progress of a search: a bar where tqdm is installed, else a line now and then.

search(..., tell=teller("spmm", 10.0, show=True))
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tilewright.tune.search import Found

EVERY_S = 1.0


def teller(
    title: str, budget_s: float, show: bool | None = None
) -> Callable[[str, Found, float], None]:
    """A function that shows how a search goes, on standard error. show: None is on a terminal only."""
    if not (sys.stderr.isatty() if show is None else show):
        return lambda stage, found, spent: None
    try:
        from tqdm import tqdm
    except ImportError:
        return _lines(title, budget_s)
    return _bar(tqdm(total=round(budget_s, 1), desc=f"tune {title}", unit="s", leave=False))


def _bar(bar: Any) -> Callable[[str, Found, float], None]:
    def tell(stage: str, found: Found, spent: float) -> None:
        bar.set_postfix_str(said(stage, found))
        bar.update(max(min(spent, bar.total) - bar.n, 0.0))

    return tell


def _lines(title: str, budget_s: float) -> Callable[[str, Found, float], None]:
    last = -EVERY_S

    def tell(stage: str, found: Found, spent: float) -> None:
        nonlocal last
        if spent - last >= EVERY_S:
            last = spent
            words = f"tune {title}: {spent:4.1f} of {budget_s:.0f} s, {said(stage, found)}"
            print(words, file=sys.stderr)

    return tell


def said(stage: str, found: Found) -> str:
    best = found.best
    many = f"{stage}, {len(found.trials)} settings"
    return f"{many}, best {best.seconds * 1e3:.3f} ms ({found.gain:.2f}x)" if best.times else many
