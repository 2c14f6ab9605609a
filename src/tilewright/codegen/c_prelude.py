"""What a generated C file begins with: types, headers and the functions it calls.

In: the text of a kernel. Out: what must stand in front of it.

    prelude("y[f] = tw_exp_f32(x[f]);")
"""

from __future__ import annotations

from tilewright.codegen.c_math import functions
from tilewright.codegen.c_memory import memory
from tilewright.codegen.c_team import team
from tilewright.codegen.c_wide import wide

TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "i64": "int64_t",
    "i32": "int32_t",
    "u8": "uint8_t",
    "b1": "_Bool",
}

# {0}: the argument, {1}: its dtype, {2}: the suffix of the C library's functions
_REAL = {
    "abs": "fabs{2}({0})",
    "sqrt": "sqrt{2}({0})",
    "rsqrt": "(1 / sqrt{2}({0}))",
    "sin": "sin{2}({0})",
    "cos": "cos{2}({0})",
    "floor": "floor{2}({0})",
    "ceil": "ceil{2}({0})",
    "erf": "erf{2}({0})",
}
_WHOLE = {"floor": "{0}", "ceil": "{0}"}

HEADERS = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
"""
MAD = """
#if defined(__FMA__) || defined(__aarch64__)
#define TW_MAD(a, b, c) _Generic((a), float: __builtin_fmaf, default: __builtin_fma)(a, b, c)
#else
#define TW_MAD(a, b, c) ((a) * (b) + (c))
#endif
"""
ATOMIC = """
#define TW_ATOMIC(fn, type, at, value) do { \\
  type *tw_at = (at), tw_old, tw_new; \\
  __atomic_load(tw_at, &tw_old, __ATOMIC_RELAXED); \\
  do { tw_new = fn(tw_old, (value)); } while (!__atomic_compare_exchange( \\
    tw_at, &tw_old, &tw_new, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \\
} while (0)
"""

# Both sides are read first: gcc 12 masks all vectors of a conditional load by the condition of the first.
WHERE = """
#define TW_WHERE(type, c, a, b) ({ const type tw_a = (a), tw_b = (b); (c) ? tw_a : tw_b; })
"""


def unary(op: str, a: str, dtype: str) -> str:
    """The text of a scalar function."""
    if op == "neg":
        return f"(-{a})"
    if op == "not":
        return f"(!{a})"
    real = dtype in ("f32", "f64")
    known = _REAL if real else _WHOLE
    if op in known and (op, dtype) != ("erf", "f32"):
        return known[op].format(a, dtype, "f" if dtype == "f32" else "")
    return f"tw_{op}_{dtype}({a})"


def power(a: str, b: str, dtype: str) -> str:
    return f"pow({a}, {b})" if dtype == "f64" else f"tw_pow_f32({a}, {b})"


def prelude(text: str) -> str:
    """Headers, and the functions that a text calls."""
    called = functions(text)
    macros = (MAD if "TW_MAD" in called else "") + (ATOMIC if "TW_ATOMIC" in text else "")
    macros += WHERE if "TW_WHERE" in text else ""
    lines = memory(text)
    return HEADERS + macros + called + team(text) + wide(lines + text) + lines
