"""What every generated C file begins with: types, 16-bit floats, comparisons."""

from __future__ import annotations

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

# {0}: the argument, {1}: the suffix of the C function ("f" for float)
UNARY = {
    "neg": "(-{0})",
    "not": "(!{0})",
    "abs": "fabs{1}({0})",
    "exp": "exp{1}({0})",
    "exp2": "exp2{1}({0})",
    "log": "log{1}({0})",
    "log2": "log2{1}({0})",
    "sqrt": "sqrt{1}({0})",
    "tanh": "tanh{1}({0})",
    "erf": "erf{1}({0})",
    "floor": "floor{1}({0})",
    "relu": "({0} < 0 ? 0 : {0})",
    "sigmoid": "(1 / (1 + exp{1}(-{0})))",
    "sign": "(({0} > 0) - ({0} < 0))",
}

PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>

#define TW_PICK(a, op, b) ((a) op (b) ? (a) : (b))

static inline float tw_bits_to_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t tw_f32_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

static inline float tw_bf16_to_f32(uint16_t h) { return tw_bits_to_f32((uint32_t)h << 16); }
static inline uint16_t tw_f32_to_bf16(float f) {
  uint32_t u = tw_f32_to_bits(f);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 64u : rounded);
}

static inline float tw_f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7fffu;
  const float normal = tw_bits_to_f32((body << 13) + 0x38000000u);
  const float small = (float)body * 5.9604644775390625e-8f;
  const float huge_ = tw_bits_to_f32((body << 13) | 0x7f800000u);
  const float made = body >= 0x7c00u ? huge_ : body < 0x400u ? small : normal;
  return tw_bits_to_f32(tw_f32_to_bits(made) | sign);
}
static inline uint16_t tw_f32_to_f16(float f) {
  const uint32_t u = tw_f32_to_bits(f), sign = (u >> 16) & 0x8000u, body = u & 0x7fffffffu;
  const uint32_t normal = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
  const uint32_t small = tw_f32_to_bits(tw_bits_to_f32(body) + 0.5f) - 0x3f000000u;
  uint32_t made = body < 0x38800000u ? small : normal;
  made = body >= 0x477ff000u ? 0x7c00u : made;
  made = body > 0x7f800000u ? 0x7e00u : made;
  return (uint16_t)(made | sign);
}
"""
