"""Memory in C: lines that are asked for early, and stores that pass the caches. Only kernels that have some include it.

`prefetch` asks for all lines of what will be read, up to `MOST`.

`stream`: a line of an output that nothing here reads again is otherwise fetched before it is written, and takes the
place of a line that is read again. Where all that a kernel touches stays in the last cache, its reader finds the output
there; so lines leave only if it would not (`TW_FAR` bytes, from the build), and only whole ones.
"""

LINE = 64
MOST = 16  # lines of a row (measured)

EARLY = """
static inline __attribute__((always_inline)) void tw_early(const void *at, int lines) {
#pragma GCC unroll 16
  for (int k = 0; k < lines; ++k) __builtin_prefetch((const char *)at + 64 * k);
}
"""

STREAM = """
#ifndef TW_FAR
#define TW_FAR (16 << 20)
#endif
#define TW_LINE(at) (((uintptr_t)(at) & 63) == 0)
typedef float tw_wide __attribute__((vector_size(TW_WIDE), aligned(1), may_alias));

#if defined(__clang__) || !defined(__SSE2__)
#define TW_PASS(to, vector) (*(tw_wide *)(to) = (tw_wide)(vector))
#define TW_FENCE
#else
#if defined(__AVX512F__)
#define TW_PASS(to, vector) __builtin_ia32_movntps512((float *)(to), (tw_wide)(vector))
#elif defined(__AVX__)
#define TW_PASS(to, vector) __builtin_ia32_movntps256((float *)(to), (tw_wide)(vector))
#else
#define TW_PASS(to, vector) __builtin_ia32_movntps((float *)(to), (tw_wide)(vector))
#endif
#define TW_FENCE __builtin_ia32_sfence()
#endif
static inline __attribute__((always_inline)) void tw_stream(void *to, const void *from, int bytes) {
  for (int k = 0; k < bytes; k += TW_WIDE)
    TW_PASS((char *)to + k, *(const tw_wide *)((const char *)from + k));
}
"""


def memory(text: str) -> str:
    """What the text of a kernel needs of the above."""
    made = EARLY if "tw_early(" in text else ""
    return made + (STREAM if "TW_FENCE" in text else "")
