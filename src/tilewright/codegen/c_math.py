"""Scalar functions of C, and 16-bit floats: branch-free, so that the compiler vectorises the loop around.

In: the text of a kernel. Out: the functions it calls, and those that they call, and nothing else.

    functions("y[f] = tw_tanh_f32(x[f]);")     # the text of tw_expm1_f32 and tw_tanh_f32

All are right for inf, NaN and denormals. Selections, never jumps; bits are read by copying them.
A number is 2^n * (1 + f): exponentials add n to the exponent in two halves, so that results may be
denormal or infinite; logarithms scale denormals first. Only erf, sin, cos and pow of doubles, and sin and
cos of floats, are the C library's.

Errors in units in the last place against exact results (float over four million numbers of the
whole range, double over a million):

|       | exp  | exp2 | expm1 | log  | log2 | log1p | tanh | sigmoid | softplus | erf  |
|-------|------|------|-------|------|------|-------|------|---------|----------|------|
| f32   | 1.0  | 0.8  | 1.4   | 0.8  | 1.6  | 0.8   | 2.3  | 2.4     | 1.6      | 1.1  |
| f64   | 1.0  | 0.9  | 1.8   | 0.8  | 1.5  | 0.8   | 2.6  | 2.2     | 1.6      | libm |

`pow` of floats is taken in double: at most 1 ulp. The maximum is one instruction that keeps a NaN on the
left; one on the right is put in by its bits, apart from the chain that a loop carries (about 5 % of a
maximum over the rows of a sparse matrix).
"""

from __future__ import annotations

import re

PARTS = 16  # what is folded across a lane is in so many parts
_CALL = re.compile(r"\btw_\w+")


def _horner(z: str, coefficients: tuple[float, ...], d: str) -> str:
    """c0 + z * (c1 + z * (...)), as fused products."""
    made = _literal(coefficients[-1], d)
    for c in reversed(coefficients[:-1]):
        made = f"TW_MAD({made}, {z}, {_literal(c, d)})"
    return made


def _literal(c: float, d: str) -> str:
    return repr(c) + ("f" if d == "f32" else "")


TYPES = {
    "f32": {
        "T": "float",
        "U": "uint32_t",
        "I": "int32_t",
        "D": "f32",
        "f": "f",
        "bias": 127,
        "mant": 23,
        "frac": "0x7fffff",
        "nan": "0x7fffffff",
        "root": "0x3f3504f3",
        "one": "0x3f800000",
        "real": "(float)(int32_t)u",
        "magic": "12582912.0f",
        "tiny": "1.17549435e-38f",
        "grow": "33554432.0f",
        "grown": 25,
        "ln2_hi": "0.693145751953125f",
        "ln2_lo": "1.42860677e-06f",
        "log2e": "1.44269504f",
        "exp_lo": "-104.0f",
        "exp_hi": "89.0f",
        "exp2_lo": "-151.0f",
        "exp2_hi": "129.0f",
        "expm1_lo": "-18.0f",
        "small": "1e-10f",
        "one_from": "20.0f",
    },
    "f64": {
        "T": "double",
        "U": "uint64_t",
        "I": "int64_t",
        "D": "f64",
        "f": "",
        "bias": 1023,
        "mant": 52,
        "frac": "0xfffffffffffff",
        "nan": "0x7fffffffffffffff",
        "root": "0x3fe6a09e667f3bcd",
        "one": "0x3ff0000000000000",
        "real": "tw_from_bits_f64(u | 0x4330000000000000) - 4503599627370496.0",
        "magic": "6755399441055744.0",
        "tiny": "2.2250738585072014e-308",
        "grow": "18014398509481984.0",
        "grown": 54,
        "ln2_hi": "0.693147180369123816490",
        "ln2_lo": "1.90821492927058770002e-10",
        "log2e": "1.4426950408889634",
        "exp_lo": "-746.0",
        "exp_hi": "710.0",
        "exp2_lo": "-1076.0",
        "exp2_hi": "1025.0",
        "expm1_lo": "-38.0",
        "small": "1e-20",
        "one_from": "44.0",
    },
}
# (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2;  (2^r - 1) / r for |r| <= 1/2;
# (log(1 + f) - 2 s) / s^3 in s^2, s = f / (2 + f), for 1 + f within a factor of sqrt 2 of 1
_EXP_TAIL = {
    "f32": (
        0.50000000142862234172,
        0.16666666682534356071,
        0.041666456809677876034,
        0.0083333100242252924299,
        0.0013934541928270264477,
        0.00019891981313977690212,
    ),
    "f64": (
        0.5,
        0.16666666666666671438,
        0.041666666666666670074,
        0.0083333333333255446996,
        0.0013888888888883326674,
        0.00019841269876864354929,
        0.000024801587327007186731,
        2.7557252833516909748e-6,
        2.7557271810219799569e-7,
        2.5106274733573294687e-8,
        2.0915442297780115216e-9,
    ),
}
_EXP2_TAIL = {
    "f32": (
        0.69314718055994530942,
        0.24022650936226889517,
        0.055504108849824689549,
        0.0096180537343269282079,
        0.0013333500120002693682,
        0.00015462610757797551509,
        0.000015298221267173667304,
    ),
    "f64": (
        0.69314718055994530923,
        0.24022650695910071232,
        0.055504108664821631968,
        0.0096181291076284797367,
        0.0013333558146404649312,
        0.00015403530393369831871,
        0.000015252733843864855094,
        1.3215486809848002063e-6,
        1.0178055912546168555e-7,
        7.0548967224703518333e-9,
        4.4560247551334641259e-10,
        2.5730348009234351641e-11,
    ),
}
_LOG_TAIL = {
    "f32": (
        0.66666666554353339705,
        0.40000121957356163622,
        0.28550807482041598026,
        0.23330829986117114614,
    ),
    "f64": (
        0.66666666666666666464,
        0.40000000000000878956,
        0.28571428570802403848,
        0.22222222391987728931,
        0.18181795610879043429,
        0.15386241293734355895,
        0.13268730539100896293,
        0.13087071580067381136,
    ),
}
_ERF_SMALL = (
    0.12837916662064427198,
    -0.37612633517140807926,
    0.112836915197330973,
    -0.026859151472438983858,
    0.0052003685868649604047,
    -0.00081347093321190565307,
    0.000083347186152099058325,
)
_ERF_LARGE = (
    1.1285549513470948644,
    0.63567231003795023806,
    0.10500737628429196518,
    -0.022155546271427292332,
    0.0023684161288133248141,
    0.00030898824406283527138,
    -0.00018314333921652169567,
    0.000035485609275360745692,
    -3.4798071101417985443e-6,
    1.4354848714993614502e-7,
)

_TEXTS = {
    "tw_from_bits": """
static inline {T} tw_from_bits_{D}({U} u) {{ {T} f; memcpy(&f, &u, sizeof f); return f; }}""",
    "tw_bits": """
static inline {U} tw_bits_{D}({T} f) {{ {U} u; memcpy(&u, &f, sizeof u); return u; }}""",
    "tw_real": """
static inline {T} tw_real_{D}({U} u) {{ return {real}; }}""",
    "tw_scale": """
static inline {T} tw_scale_{D}({T} x, {I} n) {{
  const {I} half = n >> 1;
  return x * tw_from_bits_{D}(({U})(half + {bias}) << {mant})
           * tw_from_bits_{D}(({U})(n - half + {bias}) << {mant});
}}""",
    "tw_clamp": """
static inline {T} tw_clamp_{D}({T} x, {T} lo, {T} hi) {{
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}}""",
    "tw_exp": """
static inline {T} tw_exp_{D}({T} x) {{
  const {T} z = tw_clamp_{D}(x, {exp_lo}, {exp_hi});
  const {T} shifted = TW_MAD(z, {log2e}, {magic}), n = shifted - {magic};
  const {T} r = TW_MAD(n, -{ln2_lo}, TW_MAD(n, -{ln2_hi}, z));
  const {T} tail = {exp_tail};
  const {I} whole = ({I})(tw_bits_{D}(shifted) - tw_bits_{D}({magic}));
  return tw_scale_{D}(1 + TW_MAD(r * r, tail, r), whole);
}}""",
    "tw_exp2": """
static inline {T} tw_exp2_{D}({T} x) {{
  const {T} z = tw_clamp_{D}(x, {exp2_lo}, {exp2_hi});
  const {T} shifted = z + {magic}, r = z - (shifted - {magic});
  const {T} tail = {exp2_tail};
  const {I} whole = ({I})(tw_bits_{D}(shifted) - tw_bits_{D}({magic}));
  return tw_scale_{D}(TW_MAD(r, tail, 1), whole);
}}""",
    "tw_expm1": """
static inline {T} tw_expm1_{D}({T} x) {{
  const {T} z = tw_clamp_{D}(x, {expm1_lo}, {exp_hi});
  const {T} shifted = TW_MAD(z, {log2e}, {magic}), n = shifted - {magic};
  const {T} r = TW_MAD(n, -{ln2_lo}, TW_MAD(n, -{ln2_hi}, z));
  const {T} tail = {exp_tail};
  const {I} whole = ({I})(tw_bits_{D}(shifted) - tw_bits_{D}({magic}));
  const {T} half = tw_from_bits_{D}(({U})(whole - 1 + {bias}) << {mant});
  const {T} made = 2 * TW_MAD(half, TW_MAD(r * r, tail, r), half - ({T})0.5);
  return fabs{f}(x) < {small} ? x : made;
}}""",
    "tw_log_parts": """
/* log(2^e * m) + c with m within a factor of sqrt 2 of 1 */
static inline {T} tw_log_parts_{D}({T} e, {T} m, {T} c) {{
  const {T} f = m - 1, s = f / (2 + f), z = s * s, half = ({T})0.5 * f * f;
  const {T} tail = z * ({log_tail});
  return TW_MAD(e, {ln2_hi}, f - (half - TW_MAD(s, half + tail, TW_MAD(e, {ln2_lo}, c))));
}}""",
    "tw_log": """
static inline {T} tw_log_{D}({T} x) {{
  const int small = x < {tiny};
  const {U} at = tw_bits_{D}(small ? x * {grow} : x) + ({one} - {root});
  const {T} e = tw_real_{D}(at >> {mant}) - {bias} - (small ? {grown} : 0);
  const {T} m = tw_from_bits_{D}((at & {frac}) + {root});
  {T} made = tw_log_parts_{D}(e, m, 0);
  made = x < INFINITY ? made : x;
  made = x == 0 ? -INFINITY : made;
  return x < 0 ? NAN : made;
}}""",
    "tw_log2": """
static inline {T} tw_log2_{D}({T} x) {{
  const int small = x < {tiny};
  const {U} at = tw_bits_{D}(small ? x * {grow} : x) + ({one} - {root});
  const {T} e = tw_real_{D}(at >> {mant}) - {bias} - (small ? {grown} : 0);
  const {T} m = tw_from_bits_{D}((at & {frac}) + {root});
  {T} made = TW_MAD(tw_log_parts_{D}(0, m, 0), {log2e}, e);
  made = x < INFINITY ? made : x;
  made = x == 0 ? -INFINITY : made;
  return x < 0 ? NAN : made;
}}""",
    "tw_log1p": """
static inline {T} tw_log1p_{D}({T} x) {{
  const {T} u = 1 + x, lost = fabs{f}(x) < 1 ? x - (u - 1) : 1 - (u - x);
  const {U} at = tw_bits_{D}(u) + ({one} - {root});
  const {T} m = tw_from_bits_{D}((at & {frac}) + {root});
  {T} made = tw_log_parts_{D}(tw_real_{D}(at >> {mant}) - {bias}, m, lost / u);
  made = fabs{f}(x) < {small} ? x : made;
  made = x < INFINITY ? made : x;
  made = x == -1 ? -INFINITY : made;
  return x < -1 ? NAN : made;
}}""",
    "tw_tanh": """
static inline {T} tw_tanh_{D}({T} x) {{
  const {T} twice = 2 * fabs{f}(x), e = tw_expm1_{D}(twice > {one_from} ? {one_from} : twice);
  return copysign{f}(e / (e + 2), x);
}}""",
    "tw_sigmoid": """
static inline {T} tw_sigmoid_{D}({T} x) {{
  const {T} e = tw_exp_{D}(-fabs{f}(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}}""",
    "tw_softplus": """
static inline {T} tw_softplus_{D}({T} x) {{
  return (x < 0 ? 0 : x) + tw_log1p_{D}(tw_exp_{D}(-fabs{f}(x)));
}}""",
    "tw_relu": """
static inline {T} tw_relu_{D}({T} x) {{ return x < 0 ? 0 : x; }}""",
    "tw_sign": """
static inline {T} tw_sign_{D}({T} x) {{ return ({T})((x > 0) - (x < 0)); }}""",
    "tw_max": """
static inline {T} tw_max_{D}({T} a, {T} b) {{
  return tw_from_bits_{D}(tw_bits_{D}(b > a ? b : a) | (b != b ? {nan} : 0));
}}""",
    "tw_min": """
static inline {T} tw_min_{D}({T} a, {T} b) {{
  return tw_from_bits_{D}(tw_bits_{D}(b < a ? b : a) | (b != b ? {nan} : 0));
}}""",
}
_ACROSS = """
static inline {T} tw_across_{name}_{D}({T} *part) {{
{halves}  return {last};
}}"""
_HALF_OF = """  {{
    typedef {T} parts __attribute__((vector_size({n} * sizeof({T}))));
    typedef {I} bits __attribute__((vector_size({n} * sizeof({T}))));
    parts a, b;
    memcpy(&a, part, sizeof a);
    memcpy(&b, part + {n}, sizeof b);
    {take}
    memcpy(part, &a, sizeof a);
  }}
"""
_TAKE = """const bits better = (a {op} b) | (a != a);
    a = (parts)(((bits)a & better) | ((bits)b & ~better));"""
_TAKEN = {"max": _TAKE.format(op=">"), "min": _TAKE.format(op="<"), "sum": "a += b;"}
_WHOLE = {
    "tw_abs": "static inline {T} tw_abs_{D}({T} x) {{ return x < 0 ? -x : x; }}",
    "tw_relu": "static inline {T} tw_relu_{D}({T} x) {{ return x < 0 ? 0 : x; }}",
    "tw_sign": "static inline {T} tw_sign_{D}({T} x) {{ return (x > 0) - (x < 0); }}",
    "tw_max": "static inline {T} tw_max_{D}({T} a, {T} b) {{ return a > b ? a : b; }}",
    "tw_min": "static inline {T} tw_min_{D}({T} a, {T} b) {{ return a < b ? a : b; }}",
}
_ERF = """
static inline float tw_erf_f32(float x) {{
  const float t = fabsf(x) > 4 ? 4 : fabsf(x), s = x * x;
  const float near = TW_MAD({small}, x, x);
  const float far = 1 - tw_exp_f32(-t * ({large}));
  return t < 0.921875f ? near : copysignf(far, x);
}}"""
_POW = """
static inline float tw_pow_f32(float a, float b) {
  const float half = 0.5f * b, size = fabsf(a);
  const int whole = rintf(b) == b, odd = whole & (rintf(half) != half);
  double made = tw_exp2_f64((double)b * tw_log2_f64((double)size));
  made = (size == 1) | (b == 0) ? 1 : made;
  made = (a < 0) & (size < INFINITY) & !whole ? NAN : made;
  made = (a == 1) | (b == 0) ? 1 : made;
  return (float)(odd & (copysignf(1, a) < 0) ? -made : made);
}"""
_HALF = {
    "tw_bf16_to_f32": """
static inline float tw_bf16_to_f32(uint16_t h) { return tw_from_bits_f32((uint32_t)h << 16); }""",
    "tw_f32_to_bf16": """
static inline uint16_t tw_f32_to_bf16(float f) {
  uint32_t u = tw_bits_f32(f);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 64u : rounded);
}""",
    "tw_f16_to_f32": """
static inline float tw_f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7fffu;
  const float normal = tw_from_bits_f32((body << 13) + 0x38000000u);
  const float small = (float)body * 5.9604644775390625e-8f;
  const float huge_ = tw_from_bits_f32((body << 13) | 0x7f800000u);
  const float made = body >= 0x7c00u ? huge_ : body < 0x400u ? small : normal;
  return tw_from_bits_f32(tw_bits_f32(made) | sign);
}""",
    "tw_f32_to_f16": """
static inline uint16_t tw_f32_to_f16(float f) {
  const uint32_t u = tw_bits_f32(f), sign = (u >> 16) & 0x8000u, body = u & 0x7fffffffu;
  const uint32_t normal = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
  const uint32_t small = tw_bits_f32(tw_from_bits_f32(body) + 0.5f) - 0x3f000000u;
  uint32_t made = body < 0x38800000u ? small : normal;
  made = body >= 0x477ff000u ? 0x7c00u : made;
  made = body > 0x7f800000u ? 0x7e00u : made;
  return (uint16_t)(made | sign);
}""",
}


def _table() -> dict[str, str]:
    made: dict[str, str] = {}
    for d, words in TYPES.items():
        tails = {
            "exp_tail": _horner("r", _EXP_TAIL[d], d),
            "exp2_tail": _horner("r", _EXP2_TAIL[d], d),
            "log_tail": _horner("z", _LOG_TAIL[d], d),
        }
        for name, text in _TEXTS.items():
            made[f"{name}_{d}"] = text.format(**words, **tails)
        for name, take in _TAKEN.items():
            last = "part[0] + part[1]" if name == "sum" else f"tw_{name}_{d}(part[0], part[1])"
            halves = "".join(_HALF_OF.format(**words, n=n, take=take) for n in (8, 4, 2))
            whole = _ACROSS.format(**words, name=name, halves=halves, last=last)
            made[f"tw_across_{name}_{d}"] = whole
    made["tw_erf_f32"] = _ERF.format(
        small=_horner("s", _ERF_SMALL, "f32"), large=_horner("t", _ERF_LARGE, "f32")
    )
    made["tw_pow_f32"] = _POW
    made |= _HALF
    for d, c_type in {"i64": "int64_t", "i32": "int32_t", "u8": "uint8_t", "b1": "_Bool"}.items():
        for name, text in _WHOLE.items():
            made[f"{name}_{d}"] = "\n" + text.format(T=c_type, D=d)
    return made


_FUNCTIONS = _table()


def functions(text: str) -> str:
    """The functions that a text calls, each after those it calls itself."""
    found: dict[str, None] = {}

    def visit(part: str) -> None:
        for name in dict.fromkeys(_CALL.findall(part)):
            if name in _FUNCTIONS and name not in found:
                visit(_FUNCTIONS[name].partition("{")[2])
                found.setdefault(name)

    visit(text)
    return "".join(_FUNCTIONS[n] + "\n" for n in found)
