"""Counters that tests and users may read: how often something was compiled.

counters.reset(); ...; assert counters.c_builds == 0
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """c_builds, triton_builds: compilations in this process; disk_hits: kernels found in the cache."""

    c_builds: int = 0
    triton_builds: int = 0
    disk_hits: int = 0

    def reset(self) -> None:
        self.c_builds = self.triton_builds = self.disk_hits = 0


counters = Counters()
