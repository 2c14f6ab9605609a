"""Tile settings: packed into one integer for the trip through torch, and chosen when nobody chose.

pack({"rows": 8, "unroll": 4, "width": 128, "warps": 1})  ->  an int;  unpack gives it back
"""

from __future__ import annotations

from tilewright.schedule.options import Setting
from tilewright.support.errors import error

# name -> (bits, unit): multiples of the unit, or powers of two where it is 0
FIELDS = {
    "rows": (3, 0),
    "unroll": (3, 0),
    "width": (4, 0),
    "outer": (1, 1),
    "warps": (3, 0),
    "stages": (3, 1),
    "registers": (4, 8),
    "bm": (4, 0),
    "bn": (4, 0),
    "bk": (4, 0),
    "group": (3, 0),
    "pieces": (3, 0),
    "edges": (4, 0),
    "inner": (4, 0),
    "whole": (1, 1),
    "listed": (1, 1),
    "blocks": (3, 0),
    "stream": (1, 1),
    "tail": (2, 32),
    "prefetch": (3, 4),
    "grain": (4, 0),
    "shared": (1, 1),
}


def pack(setting: Setting) -> int:
    """One non-negative integer; keys that only a plan needs (long, chunk, alike) are left out."""
    made, at = 0, 0
    for name, (bits, unit) in FIELDS.items():
        value = setting.get(name, 0)
        code = value // unit if unit else value.bit_length()
        if code >= 1 << bits or (unit and value % unit):
            most = ((1 << bits) - 1) * unit if unit else 1 << ((1 << bits) - 2)
            expected = f"at most {most}" + f", in steps of {unit}" * (unit > 1)
            raise error("argument", where="setting", name=name, got=value, expected=expected)
        made |= code << at
        at += bits
    return made


def unpack(packed: int) -> Setting:
    made: Setting = {}
    for name, (bits, unit) in FIELDS.items():
        code = packed & ((1 << bits) - 1)
        packed >>= bits
        if code:
            made[name] = code * unit if unit else 1 << (code - 1)
    return made


def ceil_pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def floor_pow2(n: int) -> int:
    return 1 << max(n.bit_length() - 1, 0)


def feature_width(extent: int, half: bool) -> int:
    """The feature tile that suits a width: whole when small, else the largest that wastes little."""
    most = 256 if half else 128
    if extent <= most:
        return max(ceil_pow2(extent), 1)
    for width in (most, most // 2):
        if extent % width == 0:
            return width
    return most
