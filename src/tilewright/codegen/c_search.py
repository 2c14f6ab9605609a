"""The search of a sorted range, in C: what `Lookup` becomes. Only kernels that look something up include it."""

SEARCH = """
#define TW_FIND(NAME, TYPE) \\
  static inline int64_t NAME(const TYPE *at, int64_t lo, int64_t hi, int64_t key) { \\
    int64_t left = lo, n = hi - lo; \\
    while (n > 0) { \\
      const int64_t half = n >> 1; \\
      const int64_t right = left + half + 1; \\
      const int less = at[left + half] < key; \\
      left = less ? right : left; \\
      n = less ? n - half - 1 : half; \\
    } \\
    return left < hi && at[left] == key ? left : -1; \\
  }
TW_FIND(tw_find_i32, int32_t)
TW_FIND(tw_find_i64, int64_t)
"""
