"""Tile settings: packed into one integer for the trip through torch, and chosen when nobody chose.

pack({"rows": 8, "unroll": 4, "width": 128, "warps": 1})  ->  an int;  unpack gives it back
"""

from __future__ import annotations

from tilewright.schedule.options import Setting

# name -> (bits, power of two)
FIELDS = {
    "rows": (4, True),
    "unroll": (4, True),
    "width": (4, True),
    "outer": (1, False),
    "warps": (3, True),
    "stages": (4, False),
    "bm": (4, True),
    "bn": (4, True),
    "bk": (4, True),
    "group": (4, True),
    "edges": (4, True),
    "inner": (4, True),
    "whole": (1, False),
    "listed": (1, False),
    "blocks": (4, True),
    "stream": (1, False),
    "prefetch": (6, False),
    "grain": (4, True),
}


def pack(setting: Setting) -> int:
    """One non-negative integer; keys that only a plan needs (long, chunk) are left out."""
    made, at = 0, 0
    for name, (bits, power) in FIELDS.items():
        value = setting.get(name, 0)
        code = (value.bit_length() if power else value) if value else 0
        made |= code << at
        at += bits
    return made


def unpack(packed: int) -> Setting:
    made: Setting = {}
    for name, (bits, power) in FIELDS.items():
        code = packed & ((1 << bits) - 1)
        packed >>= bits
        if code:
            made[name] = 1 << (code - 1) if power else code
    return made


def ceil_pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def feature_width(extent: int, half: bool) -> int:
    """The feature tile that suits a width: whole when small, else the largest that wastes little."""
    most = 256 if half else 128
    if extent <= most:
        return max(ceil_pow2(extent), 1)
    for width in (most, most // 2):
        if extent % width == 0:
            return width
    return most
