"""The cache on disk: files named by the hash of what made them. Atomic, safe under several processes.

path = entry(key, "so")         # where it lies, whether or not it exists
store(path, write)              # write(temporary path), then one rename
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tilewright.support import knobs
from tilewright.support.errors import error


def key_of(*parts: object) -> str:
    """A content hash of everything that decides the result."""
    text = "\x1f".join(str(p) for p in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def folder() -> Path:
    """The cache folder, made if need be."""
    root = knobs.cache()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written")
    except OSError as why:
        raise error("cache-folder", name=str(root), got=str(why)) from why
    return root


def entry(key: str, extension: str) -> Path:
    return folder() / f"{key}.{extension}"


def store(path: Path, write: Callable[[Path], None]) -> Path:
    """Make a file under a temporary name, then move it into place in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".making-", suffix=path.suffix)
    os.close(handle)
    made = Path(name)
    try:
        write(made)
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)
    return path
