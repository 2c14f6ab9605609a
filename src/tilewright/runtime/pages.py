"""Large pages for large outputs: fresh memory is faulted in by 2 MB instead of 4 kB.

On Linux, where the kernel leaves the choice to the program; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys

from torch import Tensor

LARGE = 8 << 20
PAGE = 4096
MADV_HUGEPAGE = 14

_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def advise(t: Tensor) -> None:
    """Ask for large pages under a tensor that is about to be written for the first time."""
    if _libc is None:
        return
    begin = -(-t.data_ptr() // PAGE) * PAGE
    end = (t.data_ptr() + t.nbytes) // PAGE * PAGE
    if end > begin:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_HUGEPAGE)
