"""Scalar functions and lane reductions that Triton lacks, as text in Triton's own language.

In: the text of a kernel. Out: the functions it calls, and those that they call, line by line.

    functions("y = tw_tanh(x)")    # the lines of tw_expm1 and tw_tanh

Each is right for inf and NaN. tanh and expm1 lose nothing near 0; log1p and expm1 follow Kahan: the error
of 1 + x (of exp(x)) is divided out again. pow of 32-bit floats is taken in 64 bits.
"""

from __future__ import annotations

import re

_CALL = re.compile(r"\btw_\w+")

_TEXTS = (
    '''
def tw_widen(x):
    """bf16 -> f32, two at once: the lower half of a word moved up, and the upper half alone"""
    asm: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return tl.inline_asm_elementwise(asm, "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2)
''',
    """
def tw_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    """
def tw_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    """
def tw_prod(a, b):
    return a * b
""",
    """
def tw_union(a, b):
    return a | b
""",
    """
def tw_log1p(x):
    u = 1.0 + x
    made = tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(x == float("inf"), x, made)
""",
    """
def tw_expm1(x):
    u = tl.exp(x)
    near = tl.where(u == 1.0, x, (u - 1.0) * (x / tl.log(tl.where(u == 1.0, 2.0, u))))
    return tl.where(tl.abs(x) < 1.0, near, u - 1.0)
""",
    """
def tw_tanh(x):
    twice = 2.0 * tl.abs(x)
    e = tw_expm1(tl.where(twice > 44.0, 44.0, twice))
    made = e / (e + 2.0)
    return tl.where(x < 0, -made, made)
""",
    """
def tw_softplus(x):
    return tl.where(x < 0, 0.0, x) + tw_log1p(tl.exp(-tl.abs(x)))
""",
    """
def tw_pow(a, b):
    x, y = a.to(tl.float64), b.to(tl.float64)
    size, half = tl.abs(x), 0.5 * y
    whole = tl.where(tl.floor(half) == half, 1.0, -1.0)
    turned = tl.where(tl.floor(y) == y, whole, tl.where(size < float("inf"), float("nan"), 1.0))
    made = tl.where(size == 1.0, 1.0, tl.exp2(y * tl.log2(size)))
    made = tl.where(y == 0.0, 1.0, made)
    return tl.where(x < 0, made * turned, made).to(a.dtype)
""",
)
_FUNCTIONS = {_CALL.findall(t)[0]: t for t in _TEXTS}


def functions(text: str) -> list[str]:
    """The functions that a text calls, each after those it calls itself."""
    found: dict[str, None] = {}

    def visit(part: str) -> None:
        for name in dict.fromkeys(_CALL.findall(part)):
            if name in _FUNCTIONS and name not in found:
                visit(_FUNCTIONS[name].partition(":")[2])
                found.setdefault(name)

    visit(text)
    lines: list[str] = []
    for name in found:
        lines += ["", "", "@triton.jit", *_FUNCTIONS[name].strip().splitlines()]
    return lines
