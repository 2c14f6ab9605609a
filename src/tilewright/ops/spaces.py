"""The search spaces of operators: one for each shape of nest that the default schedules know.

An operator needs none of its own: a user's program over rows has the space that `spmm` has. Parameters and rules
are those of `Step.setting` and the two schedules; what depends on the call is the width and the dtype.

    print(lists(128, False))
    c(32).why_not({"width": 128, "prefetch": 8, "grain": 7})     # "grain=7: one of 64, 256, ..."
"""

from __future__ import annotations

from functools import cache

from tilewright.ops.settings import ceil_pow2
from tilewright.schedule.options import COptions, Setting
from tilewright.tune.space import Param, Rule, Space

SHARED = 227 << 10  # bytes of a multiprocessor's shared memory that a program may have
HELD = 32  # values that a thread holds at most
NARROWEST = 32
VECTOR, LOOSE = 4, 16
C_WIDTHS = (64, 128, 256, 512)

# rows, unroll, long, chunk, warps: settings of work lists that were measured on many graphs
SETTINGS: list[Setting] = [
    {"rows": r, "unroll": u, "long": ln, "chunk": c, "warps": w}
    for r, u, ln, c, w in (
        (8, 4, 32, 512, 1),
        (16, 4, 32, 512, 2),
        (4, 4, 16, 256, 1),
        (4, 4, 64, 512, 1),
        (8, 4, 128, 2048, 2),
        (2, 4, 16, 128, 1),
        (4, 8, 32, 256, 1),
        (4, 8, 16, 128, 1),
        (16, 8, 8, 256, 2),
        (8, 8, 16, 128, 1),
        (8, 8, 32, 256, 4),
        (8, 2, 64, 512, 2),
        (4, 4, 32, 256, 2),
        (8, 4, 16, 128, 1),
        (8, 8, 16, 256, 2),
        (4, 8, 8, 64, 1),
        (8, 8, 64, 512, 1),
        (16, 8, 2048, 4096, 4),
    )
]

# rows, unroll, long, chunk, warps, feature tile, for few rows of 16-bit numbers: wide tiles with many entries on their
# way, where narrow ones would be programs that wait (pruned weights). For a search alone: they compile for up to 3 s
FEW_ROWS = 4096
WIDE_SETTINGS: list[Setting] = [
    {"rows": r, "unroll": u, "long": ln, "chunk": 256, "warps": w, "width": f}
    for r, u, ln, w, f in (
        (2, 16, 16, 1, 128),
        (4, 16, 16, 2, 128),
        (4, 16, 32, 2, 128),
        (8, 8, 32, 4, 128),
        (8, 4, 32, 2, 128),
        (16, 8, 32, 4, 64),
        (8, 8, 16, 2, 64),
        (4, 8, 8, 2, 64),
    )
]

# rows, entries at once, longest part, feature tile, warps, rows that share columns side by side: settings of parts of
# rows, for sums at stored entries; what belongs to a row is read once for all of its part
PARTS: list[Setting] = [
    {"rows": r, "edges": e, "chunk": c, "width": f, "warps": w, **({"alike": 1} if a else {})}
    for r, e, c, f, w, a in (
        (4, 8, 32, 32, 1, 0),
        (4, 8, 128, 32, 1, 0),
        (4, 8, 32, 32, 2, 0),
        (4, 8, 128, 32, 2, 0),
        (4, 16, 128, 32, 2, 0),
        (4, 16, 32, 32, 4, 0),
        (1, 16, 128, 32, 1, 0),
        (1, 32, 128, 32, 1, 0),
        (2, 16, 64, 32, 1, 0),
        (4, 8, 32, 64, 2, 0),
        (1, 8, 128, 128, 1, 0),
        (2, 32, 256, 32, 2, 0),
        (1, 16, 128, 32, 1, 1),
        (2, 16, 64, 32, 2, 1),
        (4, 8, 64, 64, 2, 1),
    )
]


def widths(span: int, most: int) -> tuple[int, ...]:
    """Feature tiles that are not wider than the features need."""
    top = min(ceil_pow2(max(span, 1)), most)
    return tuple(w for w in (32, 64, 128, 256) if w <= max(top, NARROWEST))


def list_settings(rows: int, span: int, itemsize: int) -> list[Setting]:
    """Settings of work lists that have served such structures, for a search to begin with."""
    wide = [p for p in WIDE_SETTINGS if p["width"] in widths(span, 256)]
    return [*SETTINGS, *(wide if rows <= FEW_ROWS and itemsize == 2 else ())]


def held(p: Setting) -> int:
    return p["rows"] * p["width"] // (32 * p["warps"])


def fits_registers(p: Setting, span: int) -> bool:
    """Where vectors do not divide the features each value has an address of its own: few may be in flight."""
    return span % VECTOR == 0 or held(p) * p["unroll"] <= LOOSE


IN_REACH = Rule(f"a thread holds 1 to {HELD} values", lambda p: 1 <= held(p) <= HELD)

ALIKE = Rule("rows are alike in all their columns", lambda p: not p["alike"] or p["columns"] == 1)


@cache
def lists(span: int, half: bool, columns: tuple[int, ...] = (1,)) -> Space:
    """Rows in a work list; columns: numbers of ranges that they may be cut in."""
    tiles = widths(span, 256 if half else 128)
    return Space(
        "lists",
        (
            Param("rows", (2, 4, 8, 16), format=True),
            Param("long", (16, 32, 128), format=True),
            Param("chunk", (128, 512, 2048), format=True),
            Param("alike", (0, 1), format=True),
            *([Param("columns", columns, format=True)] if len(columns) > 1 else ()),
            Param("unroll", (2, 4, 8)),
            Param("warps", (1, 2, 4)),
            Param("width", tiles),
            Param("outer", (0, 1) if span > tiles[0] else (0,)),
        ),
        (
            IN_REACH,
            Rule(
                f"at most {LOOSE} values in flight where {VECTOR} do not divide the features",
                lambda p: fits_registers(p, span),
            ),
            Rule("rows that are cut have two pieces or more", lambda p: p["long"] < p["chunk"]),
            *([ALIKE] if len(columns) > 1 else ()),
            Rule(
                "tiles are outermost only if there are several",
                lambda p: not p["outer"] or p["width"] < span,
            ),
        ),
    )


def near_lists(p: Setting) -> list[Setting]:
    """Work lists like one, which the same kernel serves: rows that share columns side by side or not; rows that are cut
    earlier or later, in larger or smaller pieces."""
    made = [{**p, "long": p["long"] * 2}, {**p, "long": p["long"] // 2}]
    made += [{**p, "chunk": p["chunk"] * 2}, {**p, "chunk": p["chunk"] // 2}]
    if p.get("columns", 1) == 1:
        made.append({**p, "alike": 1 - p.get("alike", 0)})
    return [s for s in made if 0 < s["long"] < s["chunk"]]


def near_parts(p: Setting, columns: tuple[int, ...] = ()) -> list[Setting]:
    """Parts of rows like some, which the same kernel serves: larger or smaller ones, rows that share columns side by
    side or not, each of these ranges of columns. Tiles of entries are like none."""
    if "chunk" not in p:
        return []
    made = [{**p, "chunk": p["chunk"] * 2}, {**p, "chunk": p["chunk"] // 2}]
    made.append({**p, "alike": 1 - p.get("alike", 0)})
    made += [{**p, "columns": c} for c in columns if c != p.get("columns", 1)]
    return [s for s in made if s["chunk"] >= p["edges"]]


@cache
def padded(span: int, half: bool) -> Space:
    """Neighbouring rows side by side: structures that are not prepared, or that have no work list."""
    return Space(
        "padded",
        (
            Param("rows", (1, 2, 4, 8, 16)),
            Param("unroll", (1, 2, 4)),
            Param("warps", (1, 2, 4)),
            Param("width", widths(span, 256 if half else 128)),
        ),
        (IN_REACH,),
    )


@cache
def entries(span: int) -> Space:
    """Single stored entries, a sum over features for each."""
    return Space(
        "entries",
        (
            Param("edges", (8, 16, 32, 64, 128)),
            Param("width", tuple(w for w in (16, 32, 64, 128) if w <= max(16, ceil_pow2(span)))),
            Param("warps", (1, 2, 4, 8)),
        ),
        (
            Rule(
                "a thread holds 1 to 64 values",
                lambda p: 1 <= p["edges"] * p["width"] // (32 * p["warps"]) <= 64,
            ),
        ),
    )


@cache
def product(itemsize: int) -> Space:
    """Tiles of a dense product."""
    return Space(
        "product",
        (
            Param("bm", (32, 64, 128)),
            Param("bn", (32, 64, 128, 256)),
            Param("bk", (32, 64, 128)),
            Param("group", (8,)),
            Param("warps", (4, 8)),
            Param("stages", (2, 3, 4)),
        ),
        (
            Rule(
                "tiles of all stages fit in shared memory",
                lambda p: (p["bm"] + p["bn"]) * p["bk"] * itemsize * p["stages"] <= SHARED,
            ),
            Rule(
                "a thread holds 8 to 128 sums",
                lambda p: 8 <= p["bm"] * p["bn"] // (32 * p["warps"]) <= 128,
            ),
        ),
    )


@cache
def blocks(rows: int, cols: int) -> Space:
    """The inside of stored blocks of rows x cols, cut to tiles."""
    return Space(
        "blocks",
        (
            Param("bm", tuple(b for b in (16, 32, 64, 128) if b <= max(16, rows))),
            Param("bn", tuple(b for b in (16, 32, 64, 128) if b <= max(16, cols))),
            Param("warps", (2, 4, 8)),
            Param("stages", (2, 3, 4)),
        ),
        (
            Rule("a row of the tile for a warp", lambda p: p["bm"] >= 8 * p["warps"]),
            Rule("a tile is a product of its own", lambda p: p["bm"] * p["bn"] >= 512 * p["warps"]),
        ),
    )


@cache
def strips(span: int) -> Space:
    """Strips of one column times dense columns, several at once."""
    return Space(
        "strips",
        (
            Param("bk", (32, 64)),
            Param("width", tuple(w for w in (64, 128, 256) if w <= max(64, ceil_pow2(span)))),
            Param("warps", (4, 8)),
            Param("stages", (3, 4)),
        ),
    )


@cache
def block_products(rows: int, cols: int, span: int, itemsize: int) -> Space:
    """Blocks of rows x cols times dense columns: a step is a part of a block, a block, or several."""
    step = lambda p: min(cols * p["blocks"], p["bn"] if p["blocks"] == 1 else cols * p["blocks"])
    high = lambda p: rows * p.get("tall", 1)
    return Space(
        "block_products",
        (
            Param(
                "width", tuple(w for w in (16, 32, 64, 128, 256) if w <= max(16, ceil_pow2(span)))
            ),
            Param("warps", (4, 8)),
            Param("stages", (2, 3, 4, 5, 6, 7)),
            Param("blocks", tuple(b for b in (1, 2, 4) if b * cols <= max(cols, 128))),
            Param("bn", (64, 128) if cols > 64 else (64,)),
            Param("outer", (1,)),
        ),
        (
            Rule(
                "operands of all stages fit in shared memory",
                lambda p: (
                    (high(p) + p["width"]) * step(p) * itemsize * max(p["stages"] - 2, 1) <= SHARED
                ),
            ),
            Rule(
                "a thread holds 1 to 128 sums",
                lambda p: 1 <= high(p) * p["width"] // (32 * p["warps"]) <= 128,
            ),
        ),
    )


@cache
def c(span: int, alike: bool = False) -> Space:
    """Loops in C. Lanes wider than the features are the same code as one that just holds them. alike: rows may come in
    another order."""
    usual = COptions().width
    enough = min((w for w in C_WIDTHS if w >= max(span, usual)), default=C_WIDTHS[-1])
    return Space(
        "c",
        (
            *([Param("alike", (0, 1), format=True)] if alike else ()),
            Param("width", tuple(w for w in C_WIDTHS if w < span or w == enough)),
            Param("prefetch", (0, 4, 8, 16)),
            Param("grain", (64, 256, 1024, 4096)),
        ),
    )
