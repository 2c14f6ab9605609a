"""How threads share a grid in C: turns in even shares, or rows by their entries.

Rows by their entries come in pieces of about the same work, a queue of them for each thread. A thread takes its own
first, the same in every call: what it touched the last time is in its own cache. When they are gone it takes others'.

    for (int64_t piece; (piece = tw_take(queues, n_threads)) >= 0;)
      for (i = tw_cut_i32(a_indptr, n_i, piece, pieces); i < tw_cut_i32(a_indptr, n_i, piece + 1, pieces); ++i)
"""

SHARE = """
static inline int64_t tw_share(int64_t turns, int64_t most, int threads) {
  const int64_t share = turns / (8 * threads) + 1;
  return share < most ? share : most;
}
"""

QUEUES = """
int omp_get_thread_num(void);
typedef struct { int64_t next, end; char apart[48]; } tw_queue;

static inline int64_t tw_deal(tw_queue *queues, int64_t turns, int64_t most, int threads) {
  const int64_t each = turns / (most * threads) + 4;
  for (int t = 0; t < threads; ++t) queues[t].next = each * t, queues[t].end = each * (t + 1);
  return each * threads;
}

static inline int64_t tw_take(tw_queue *queues, int threads) {
  const int mine = omp_get_thread_num();
  for (int k = 0; k < threads; ++k) {
    tw_queue *const q = queues + (mine + k) % threads;
    if (__atomic_load_n(&q->next, __ATOMIC_RELAXED) >= q->end) continue;
    const int64_t piece = __atomic_fetch_add(&q->next, 1, __ATOMIC_RELAXED);
    if (piece < q->end) return piece;
  }
  return -1;
}
"""

# The row at which a piece begins: a row counts as ROW entries beside its own.
ROW = 2
CUT = """
static inline int64_t tw_cut_{dtype}(const {type} *begin, int64_t rows, int64_t piece, int64_t pieces) {{
  const int64_t first = begin[0], all = {row} * rows + begin[rows] - first;
  const int64_t want = all / pieces * piece + all % pieces * piece / pieces;
  int64_t lo = 0, hi = rows;
  if (piece == pieces) return rows;
  while (lo < hi) {{
    const int64_t mid = (lo + hi) / 2;
    if ({row} * mid + begin[mid] - first < want) lo = mid + 1;
    else hi = mid;
  }}
  return lo;
}}
"""


def team(text: str) -> str:
    """What the text of a kernel needs of the above."""
    queues = "tw_deal(" in text
    made = SHARE if "tw_share(" in text else ""
    made += QUEUES if queues else ""
    for dtype, kind in (("i32", "int32_t"), ("i64", "int64_t")):
        made += CUT.format(dtype=dtype, type=kind, row=ROW) if f"tw_cut_{dtype}(" in text else ""
    return made
