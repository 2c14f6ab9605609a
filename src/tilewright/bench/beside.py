"""A launch timed in turns with a peer's.

beside(run, "cora 32", plan.launch, make_probe, right)     # {"ms", "probe_ms", "probe_ok"}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tilewright.bench import check, timing
from tilewright.bench.suite import Run

CLOSE, AGAIN = (
    0.96,
    4,
)  # a peer that seems faster is timed again, for longer: one pair of hundreds always looks bad
Peer = Callable[[], tuple[Callable[[], object], Tensor]]


def beside(
    run: Run,
    where: str,
    launch: Callable[[], object],
    peer: Peer | None,
    right: Callable[[Tensor], bool],
) -> dict[str, Any]:
    """Times of the launch and of the peer; a peer that breaks or is wrong has none."""
    other, ok = None, False
    if peer is not None:
        with run.peer(f"{where} probe"):
            made, out = peer()
            check.poison(out)
            made()
            other, ok = made, right(out)
    if other is None or not ok:
        alone: dict[str, Any] = {"ms": timing.graph_ms(launch)}
        return alone if peer is None else alone | {"probe_ok": ok}
    ours, theirs = timing.graphs_ms([launch, other])
    told: dict[str, Any] = {"ms": ours, "probe_ms": theirs, "probe_ok": True}
    if theirs >= CLOSE * ours:
        return told
    first = theirs / ours
    ours, theirs = timing.graphs_ms(
        [launch, other], AGAIN * timing.REPLAYS, AGAIN * timing.BUDGET_S
    )
    return told | {"ms": ours, "probe_ms": theirs, "first_over_probe": first}
