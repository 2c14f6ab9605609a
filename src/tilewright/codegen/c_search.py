"""The search of a sorted range, in C: what `Lookup` becomes. Only kernels that look something up include it.

tw_find halves the whole range. tw_seek begins at a guess and doubles its steps forward until it has passed the key, so
that n keys in order cost about n steps over a short range and n * log(range / n) over a long one. The first four places
are asked at once: whether a key is next is what no processor foresees.
"""

SEARCH = """
#define TW_SEARCH(TYPE, SUFFIX) \\
  static inline int64_t tw_below_##SUFFIX(const TYPE *at, int64_t left, int64_t n, int64_t key) { \\
    while (n > 0) { \\
      const int64_t half = n >> 1; \\
      const int64_t right = left + half + 1; \\
      const int less = at[left + half] < key; \\
      left = less ? right : left; \\
      n = less ? n - half - 1 : half; \\
    } \\
    return left; \\
  } \\
  static inline int64_t tw_find_##SUFFIX(const TYPE *at, int64_t lo, int64_t hi, int64_t key) { \\
    const int64_t left = tw_below_##SUFFIX(at, lo, hi - lo, key); \\
    return left < hi && at[left] == key ? left : -1; \\
  } \\
  static inline int64_t tw_seek_##SUFFIX( \\
      const TYPE *at, int64_t lo, int64_t hi, int64_t key, int64_t start) { \\
    int64_t left = start < lo ? lo : start < hi ? start : hi, step = 1; \\
    if (left > lo && at[left - 1] >= key) { \\
      left = tw_below_##SUFFIX(at, lo, left - lo, key); \\
    } else { \\
      if (hi - left >= 4) \\
        left += (at[left] < key) + (at[left + 1] < key) + (at[left + 2] < key) + (at[left + 3] < key); \\
      if (left < hi && at[left] < key) { \\
        while (step < hi - left && at[left + step] < key) { \\
          left += step; \\
          step += step; \\
        } \\
        step = step < hi - left ? step : hi - left; \\
        left = tw_below_##SUFFIX(at, left + 1, step - 1, key); \\
      } \\
    } \\
    return left < hi && at[left] == key ? left : -1 - left; \\
  }
TW_SEARCH(int32_t, i32)
TW_SEARCH(int64_t, i64)
"""
