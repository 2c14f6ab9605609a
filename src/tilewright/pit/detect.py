"""Detectors: programs that list, on the device, what is worth computing.

In: which micro-tile, how lists are grouped and ordered. Out: a traced program for `ops/index.py` to run.

    values    x[i, k]                  micro-tiles of x that hold something above a threshold
    lengths   [batch]                  the tokens of a padded batch that exist
    choices   ids[token * slots + slot]  for each expert, the (token, slot) pairs that chose it

A detector is one `append`. Ordered lists need to know where each part begins: parts of a list are made first, each by a
program of its own, then put one behind the other (`start`). No launch waits for the host.

`flags` says of each micro-tile whether it holds something, all of them side by side; a list is then made of the flags.
Whole rows are found so, and on GPUs micro-tiles of several elements where lists are few: their programs alone would not
keep memory busy (`one_pass`).

    tiles(8, 32)     append(found, count, nth(I, K), over=(I, K), where=any((i, k), x[i, k] != 0)), i within 8 of I ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from tilewright.ir.coord import Index
from tilewright.ir.expr import Expr
from tilewright.language import functions as fn
from tilewright.language.trace import Param, Traced, append, axes, nth, part, trace

CHUNKS = 2048  # parts of an ordered list, at most; each looks at the counts of all before it
LARGEST = 4**10
SPLIT = 64  # rows that are looked at together where a micro-tile has all of them
ALONE = 1 << 13  # flags that one program lists
MANY = 64  # lists from which on a program for each keeps memory busy,
HIGH = 8  # and the rows of their micro-tiles
LEAST = 1 << 10  # and where many do, each of them
ABOVE = {"": "", "number": "_above", "tensor": "_above_held"}  # thresholds, in names of detectors


def chunk_of(candidates: int) -> int:
    """How many of the outermost candidates make a part of an ordered list: a power of 4."""
    made = 1  # torch.compile knows it: candidates are asked, not used
    while -(-candidates // made) > CHUNKS and made < LARGEST:
        made *= 4
    return made


@cache
def tiles(
    rows: int,
    columns: int,
    grouped: bool = False,
    ordered: bool = True,
    chunk: int = 1,
    threshold: str = "",
) -> Traced:
    """Micro-tiles of x with a value that is not 0 (or whose size passes t); 0 rows or columns: all of them.

    threshold: what t is, a "number" or a "tensor" without dimensions; nothing where there is none.

    grouped: for each row of micro-tiles, the columns of its own. NaN is a value.
    """
    name = f"tiles_{rows}x{columns}{'_by_row' if grouped else ''}{ABOVE[threshold]}"

    def whole(x: Param, found: Param, count: Param, t: Any = None) -> None:
        over, seen = _seen(x, t, rows, columns, *_outer(rows, columns, None))
        how: Any = {"where": seen, "ordered": ordered}
        if grouped:
            append(found, count, over[1], over=over[1], group=over[0], **how)
        else:
            append(found, count, nth(*over), over=over, **how)

    def parts(
        x: Param, held: Param, number: Param, found: Param, ends: Param, t: Any = None
    ) -> None:
        (b,) = axes("b")
        over, seen = _seen(x, t, rows, columns, *_outer(rows, columns, (b, chunk)))
        append(held, number, nth(*over), where=seen, over=over, group=b)
        _joined(held, number, found, ends)

    if ordered and not grouped:
        return _trace(parts, f"{name}_parts_{chunk}", threshold)
    return _trace(whole, name if ordered else f"{name}_any_order", threshold)


@cache
def flags(rows: int, columns: int, threshold: str = "", grouped: bool = False) -> Traced:
    """seen[I, K], 1 where a micro-tile holds something; 0 rows or columns: all of them, and no such dimension.

    grouped: and for each I the list of its K's.
    """

    def flagged(x: Param, seen: Param, t: Any = None) -> None:
        over, here = _seen(x, t, rows, columns, *_outer(rows, columns, None))
        seen.typed("u8")
        seen[over] = fn.where(here, 1, 0)

    def listed(x: Param, found: Param, count: Param, seen: Param, t: Any = None) -> None:
        flagged(x, seen, t)
        I, K = axes("I K")
        append(found, count, K, where=fn.not_equal(seen[I, K], 0), over=K, group=I)

    name = f"flags_{rows}x{columns}{ABOVE[threshold]}"
    if grouped:
        return _trace(listed, f"{name}_by_row", threshold)
    return _trace(flagged, name, threshold)


def one_pass(lists: int, rows: int, columns: int = 1) -> bool:
    """Whether a GPU makes lists in one pass over rows that lie side by side: a program for each list, in order."""
    return lists >= MANY and rows >= HIGH and columns == 1


def raised_by(flags: int) -> int:
    """How many flags a program lists where `raised` has so many; 0: all of them."""
    return 0 if flags <= ALONE else max(chunk_of(flags), LEAST)


@cache
def raised(chunk: int = 0) -> Traced:
    """The places p with seen[p] != 0, in order; by programs that look at `chunk` of them, or by one."""

    def whole(seen: Param, found: Param, count: Param) -> None:
        (p,) = axes("p")
        append(found, count, p, where=fn.not_equal(seen[p], 0), over=p)

    def parts(seen: Param, found: Param, ends: Param, number: Param) -> None:
        b, c = axes("b c")
        p = part(b, chunk, "p")
        number.typed("i32")
        number[b] = fn.sum(p, fn.where(fn.not_equal(seen[p], 0), 1, 0))
        before = fn.sum(c, fn.where(c < b, number[c], 0))
        append(found, ends, p, where=fn.not_equal(seen[p], 0), over=p, group=b, start=before)

    return _trace(parts, f"raised_{chunk}") if chunk else _trace(whole, "raised")


def _trace(program: Callable[..., None], name: str, threshold: str = "") -> Traced:
    """The program under a name, with t if there is a threshold; outputs come last."""
    first, *outs = (n for n in inspect.signature(program).parameters if n != "t")
    kind = inspect.Parameter.KEYWORD_ONLY
    held = ("t",) if threshold else ()
    params = [inspect.Parameter(n, kind) for n in (first, *held, *outs)]
    program.__name__ = name
    program.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    return trace(program, held if threshold == "number" else ())


def _outer(
    rows: int, columns: int, chunk: tuple[Index, int] | None
) -> tuple[Index | None, Index | None]:
    """The axes over micro-tiles; the outermost one in chunks."""
    first, second = (None if n == 0 else n for n in (rows, columns))
    names = [n for n, size in (("I", first), ("K", second)) if size is not None]
    made = [part(*chunk, names[0]) if chunk else axes(names[0])[0], *axes(" ".join(names[1:]))]
    at = iter(made)
    return next(at) if first else None, next(at) if second else None


def _seen(
    x: Param, t: Any, rows: int, columns: int, outer: Index | None, inner: Index | None
) -> tuple[tuple[Index, ...], Expr]:
    """The axes over micro-tiles, and whether one of them holds something."""
    i = axes("i")[0] if outer is None else part(outer, rows, "i")
    k = axes("k")[0] if inner is None else part(inner, columns, "k")
    here = x[i, k]
    seen = fn.not_equal(here, 0) if t is None else ~(fn.abs(here) <= t)
    over = tuple(ix for ix in (outer, inner) if ix is not None)
    return over, fn.any((i, k), seen)


def _joined(held: Param, number: Param, found: Param, ends: Param) -> None:
    """Parts of a list, one behind the other; `ends` says where each ends."""
    b, c, r = axes("b c r")
    before = fn.sum(c, fn.where(c < b, number[c], 0))
    append(found, ends, held[b, r], where=r < number[b], over=r, group=b, start=before)


def lengths(size: Param, at: Param, number: Param, found: Param, ends: Param) -> None:
    """Places b * n_s + s of a padded batch with s < size[b], in order; at[s] = s."""
    b, c, s = axes("b c s")
    number.typed("i32")
    number[b] = fn.sum(s, fn.where(at[s] < size[b], 1, 0))
    before = fn.sum(c, fn.where(c < b, number[c], 0))
    append(found, ends, nth(b, s), where=at[s] < size[b], over=s, group=b, start=before)


def choices(ids: Param, names: Param, number: Param, found: Param, ends: Param) -> None:
    """For each name e, the places p with ids[p] == names[e], in order; other ids are in no list."""
    e, c, p = axes("e c p")
    number.typed("i32")
    found.sized(ids.dim(0))  # names differ, so that a place is in one list at most
    number[e] = fn.sum(p, fn.where(fn.equal(ids[p], names[e]), 1, 0))
    before = fn.sum(c, fn.where(c < e, number[c], 0))
    append(found, ends, p, where=fn.equal(ids[p], names[e]), over=p, group=e, start=before)
