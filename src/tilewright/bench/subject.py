"""The package as a benchmark sees it: operators and their plans, found when a suite runs.

A plan is a bound launch: `plan.out`, `plan.launch()`, `plan.setting`, `plan.kernel`.

    op("spmm").plan(A, x, setting=None).launch()
    function("spmm")(A, x)
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def op(name: str) -> ModuleType:
    """The operator's module."""
    return importlib.import_module(f"tilewright.ops.{name}")


def function(name: str) -> Any:
    """The public operator."""
    return getattr(op(name), name)


def settings(name: str, table: str = "SETTINGS") -> list[dict[str, Any]]:
    """The tile settings the operator declares."""
    return [dict(s) for s in getattr(op(name), table, [])]


def tune(name: str, *args: Any, **options: Any) -> Any:
    """Measured choice among the settings that the operator declares, remembered."""
    return op("tuning").tune(function(name), *args, settings=settings(name), **options)
