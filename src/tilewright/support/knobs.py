"""Every environment flag, typed and documented. Read at the moment of use, so that tests may change them.

knobs.dump()      # folder of TILEWRIGHT_DUMP, or None
"""

from __future__ import annotations

import os
from pathlib import Path

KNOBS = {
    "TILEWRIGHT_CACHE": "folder of compiled kernels (default: ~/.cache/tilewright)",
    "TILEWRIGHT_DUMP": "folder that receives every stage of every compilation",
    "TILEWRIGHT_SHOW": "1: kernels as they are built; 2: their generated code too",
    "TILEWRIGHT_CHECK": "1: check every structure again before its first use, and given places (waits for the device)",
    "TILEWRIGHT_FALLBACK": "0: no C compiler is an error; 1 (default): a very slow interpreter, one warning",
    "TILEWRIGHT_KEEP": "megabytes of freed outputs that stay for the next ones on the CPU (default: 512); 0: none, and "
    "storages that can be resized",
    "TILEWRIGHT_DEBUG": "1: errors keep the frames of the compiler in their traceback",
    "CC": "the C compiler",
}


def cache() -> Path:
    given = os.environ.get("TILEWRIGHT_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tilewright"


def dump() -> Path | None:
    given = os.environ.get("TILEWRIGHT_DUMP")
    return Path(given).expanduser() if given else None


def show() -> int:
    given = os.environ.get("TILEWRIGHT_SHOW", "")
    return int(given) if given.isdecimal() else 0


def check() -> bool:
    return os.environ.get("TILEWRIGHT_CHECK", "0") not in ("", "0")


def fallback() -> bool:
    return os.environ.get("TILEWRIGHT_FALLBACK", "1") != "0"


def keep() -> int:
    given = os.environ.get("TILEWRIGHT_KEEP", "")
    return int(given) if given.isdecimal() else 512


def debug() -> bool:
    return os.environ.get("TILEWRIGHT_DEBUG", "0") not in ("", "0")


def compiler() -> str | None:
    return os.environ.get("CC") or None
