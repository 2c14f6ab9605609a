"""Vectors in C, as wide as the machine has them: types for what kernels hold in registers.

tw_f32s acc[128 / TW_F32S];   acc[f / TW_F32S] += 2.0f * TW_F32(x + f);   // x need not be aligned
"""

WIDE = """
#if defined(__AVX512F__)
enum { TW_WIDE = 64 };
#elif defined(__AVX__)
enum { TW_WIDE = 32 };
#else
enum { TW_WIDE = 16 };
#endif
"""

VECTOR = """
typedef {type} tw_{dtype}s __attribute__((vector_size(TW_WIDE)));
typedef {type} tw_{dtype}s_at __attribute__((vector_size(TW_WIDE), aligned({size}), may_alias));
#define TW_{name}S (int)(TW_WIDE / {size})
#define TW_{name}(at) (*(tw_{dtype}s_at *)(at))
"""

SIZES = {"f32": ("float", 4), "f64": ("double", 8)}


def wide(text: str) -> str:
    """What the text of a kernel, and what stands before it, needs of the above."""
    held = [d for d in SIZES if f"TW_{d.upper()}S" in text]
    made = WIDE if held or "TW_WIDE" in text else ""
    for d in held:
        kind, size = SIZES[d]
        made += VECTOR.format(type=kind, dtype=d, name=d.upper(), size=size)
    return made
