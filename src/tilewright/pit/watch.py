"""What indices held, on the way from the device to the host, without anybody waiting.

In: the counts of an index, as a tensor. Out: `Seen` for each family, of the latest counts that have arrived. On a GPU
counts are copied to pinned memory behind the work that made them, with an event that is asked, never waited for; while
a copy is under way newer counts of the same family are let go. On the CPU they are there at once.

    watch.send("rows", index.counts, of=4096)      # enqueues a copy
    watch.seen()                                    # {"rows": Seen(...)}, some call later
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.pit.choice import Seen, Statistics

EVERY = 32  # calls from one look at all families to the next
OFTEN = 8  # calls from one telling of the family in use to the next


@dataclass
class _Flight:
    """A copy under way: where it lands, what tells that it has, and what the counts are of."""

    host: Tensor
    done: torch.cuda.Event
    of: int
    groups: int


class Watch:
    """The statistics of one call site."""

    def __init__(self) -> None:
        self.calls = 0
        self._known: dict[str, Seen] = {}
        self._new = False
        self._flights: dict[str, _Flight] = {}

    def due(self) -> bool:
        """Whether this call should look for all families; counts calls."""
        self.calls += 1
        return self.calls % EVERY == 1

    def telling(self) -> bool:
        """Whether the family in use should tell in this call what it found."""
        return self.calls % OFTEN == 1

    def send(self, family: str, counts: Tensor, of: int, groups: int = 1) -> None:
        """Note what an index held; of, groups: micro-tiles and rows of micro-tiles that were looked at."""
        if not counts.is_cuda:
            self._note(family, seen_of(counts, of, groups))
            return
        if family in self._flights:
            return
        host = torch.empty(counts.shape, dtype=counts.dtype, pin_memory=True)
        host.copy_(counts, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(counts.device))
        self._flights[family] = _Flight(host, done, of, groups)

    def news(self) -> bool:
        """Whether something has arrived that `seen` did not tell yet."""
        for family, flight in list(self._flights.items()) if self._flights else ():
            if flight.done.query():
                self._note(family, seen_of(flight.host, flight.of, flight.groups))
                del self._flights[family]
        return self._new

    def seen(self) -> Statistics:
        """The latest that has arrived."""
        self.news()
        self._new = False
        return dict(self._known)

    def _note(self, family: str, seen: Seen) -> None:
        self._new = self._new or self._known.get(family) != seen
        self._known[family] = seen


def seen_of(counts: Tensor, of: int, groups: int) -> Seen:
    """What a list held, or lists of groups; of one list, groups are taken to be alike."""
    kept = int(counts.sum())
    longest = int(counts.max()) if len(counts) == groups and groups else -(-kept // max(groups, 1))
    return Seen(kept, of, longest, groups)
