"""A process that compiles ahead: python -m tilewright.bench.warm < order.json

In: {"probes", "tasks": [[suite, task], ...]}; each task goes to its suite's `warm(task, probes)`, which builds and
launches what the suite will time, on small data. Out: one line for each task that failed; the kernels stay in the
disk caches.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> int:
    order = json.load(sys.stdin)
    probes = Path(order["probes"]) if order["probes"] else None
    for suite, task in order["tasks"]:
        try:
            importlib.import_module(f"tilewright.bench.{suite}").warm(task, probes)
        except Exception as why:
            print(f"{suite} {task}: {type(why).__name__}: {str(why)[:200]}".replace("\n", " "))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
