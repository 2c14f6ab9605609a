"""Inputs of a drawn program: sizes, patterns, dtypes, index widths, strides; as tensors and as the judge reads them.

    made = draw_inputs(rng, program, small=False)
    made.tensors["a"], made.arrays["a"]       # SparseTensor, Entries

Numbers are multiples of 1/8 between -2 and 2: exact in every dtype, so that sums hardly round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fuzz.grammar import Operand, Program
from fuzz.judge import Entries
from torch import Tensor

import tilewright as tw

SIZES = (0, 1, 3, 16, 33, 48)
SMALL = (0, 1, 3, 5, 16)
PATTERNS = ("random", "random", "random", "empty", "full", "giant", "duplicates", "unsorted")
MERGED = ("bsr", "dbsr", "srbcrs", "dia", "bitmap", "block_mask", "two_four")
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
LIMIT = 300_000
FEW = 1_500  # Triton's interpreter takes up to 20 ms an element: 16 x 16 x 16 of them are a minute


@dataclass
class Inputs:
    tensors: dict[str, Any]
    arrays: dict[str, np.ndarray | Entries]
    sizes: dict[str, int]
    scalars: dict[str, float]
    dtype: torch.dtype
    words: str


@dataclass(frozen=True)
class Widths:
    """The sizes that kernels are compiled for are few in each program, so that builds are shared."""

    dtypes: tuple[torch.dtype, torch.dtype]
    index: torch.dtype
    size: dict[str, tuple[int, int]]
    layout: dict[str, str]
    params: dict[str, tuple[int, int]]


def draw_widths(rng: np.random.Generator, p: Program) -> Widths:
    dtypes = tuple(DTYPES[int(rng.integers(len(DTYPES)))] for _ in range(2))
    last = {o.at[-1] for o in p.operands.values() if not o.sparse}
    last |= {ix for o in p.operands.values() for ix in o.at[o.rank :]}
    size = {ix: tuple(int(n) for n in rng.choice(SIZES[1:], 2)) for ix in sorted(last)}
    kinds = ("plain", "plain", "turned", "stepped", "shifted", "spread")
    layout = {o.name: str(rng.choice(kinds)) for o in p.operands.values() if not o.sparse}
    sides = (1, 2, 3, 4, 16)
    params = {n: (int(rng.choice(sides)), int(rng.choice(sides))) for n in p.operands}
    index = torch.int32 if rng.random() < 0.5 else torch.int64
    return Widths(dtypes, index, size, layout, params)  # type: ignore[arg-type]


def draw_inputs(rng: np.random.Generator, p: Program, w: Widths, small: bool = False) -> Inputs:
    sizes = _sizes(rng, p, w, small)
    dtype = w.dtypes[int(rng.integers(2))]
    tensors: dict[str, Any] = {}
    arrays: dict[str, np.ndarray | Entries] = {}
    words = [f"sizes {sizes}", str(dtype)]
    for o in p.operands.values():
        shape = tuple(sizes[ix] for ix in o.at)
        if o.sparse:
            kind = str(rng.choice(PATTERNS))
            tensors[o.name], arrays[o.name] = _sparse(rng, o, shape, kind, dtype, w)
            words.append(f"{o.name}: {tensors[o.name]!r} {kind}")
        else:
            kind = w.layout[o.name]
            tensors[o.name], arrays[o.name] = _dense(rng, shape, dtype, kind)
            words.append(f"{o.name}: {shape} {kind}")
    scalars = {n: float(rng.choice([0.5, -1.0, 3.0])) for n in p.scalars}
    return Inputs(tensors, arrays, sizes, scalars, dtype, "; ".join(words))


def _sizes(rng: np.random.Generator, p: Program, w: Widths, small: bool) -> dict[str, int]:
    """Sizes of indices; blocks of bsr must divide theirs."""
    while True:
        made = {}
        for ix in p.indices:
            if small:
                made[ix] = int(rng.choice(SMALL))
            elif ix in w.size:
                made[ix] = int(rng.choice(w.size[ix])) if rng.random() < 0.95 else 0
            else:
                made[ix] = int(rng.choice(SIZES))
        for o in p.operands.values():
            if o.format == "bsr":
                for ix, side in zip(o.at, w.params[o.name], strict=False):
                    if made[ix] % side:
                        made[ix] = side * (1 + int(rng.integers(3)))
        whole = all(
            made[ix] % side == 0
            for o in p.operands.values()
            if o.format == "bsr"
            for ix, side in zip(o.at, w.params[o.name], strict=False)
        )
        if whole and np.prod([max(n, 1) for n in made.values()]) <= (FEW if small else LIMIT):
            return made


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-16, 17, shape) / 8.0


def _dense(rng: np.random.Generator, shape: Any, dtype: torch.dtype, kind: str) -> Any:
    """The same numbers, however they lie in memory."""
    made = numbers(rng, shape)
    if kind == "spread" and shape:
        made = np.broadcast_to(made[:1], shape).copy() if shape[0] else made
    t = torch.from_numpy(made).to(dtype)
    if kind == "turned":
        t = t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))
    elif kind == "stepped":
        wide = torch.full((*shape[:-1], shape[-1] * 2), 7.0, dtype=dtype)
        wide[..., ::2] = t
        t = wide[..., ::2]
    elif kind == "shifted":
        room = torch.full((t.numel() + 1,), 7.0, dtype=dtype)
        room[1:] = t.reshape(-1)
        t = room[1:].view(shape)
    elif kind == "spread" and shape[0]:
        t = t[:1].clone().expand(shape)
    return t, made


def spoiled(made: Inputs, seen: dict[str, np.ndarray]) -> None:
    """Elements of dense operands that do not count become NaN."""
    for name, used in seen.items():
        t = made.tensors[name]
        if not used.all() and 0 not in t.stride():
            t[torch.from_numpy(~used)] = float("nan")


# --- sparse operands --------------------------------------------------------------------------------


def _sparse(
    rng: np.random.Generator, o: Operand, shape: Any, kind: str, dtype: torch.dtype, w: Widths
) -> tuple[Any, Entries]:
    held, trail = shape[: o.rank], shape[o.rank :]
    sides = w.params[o.name]
    if o.format.startswith("ragged"):
        return _ragged(rng, o, held, trail, dtype, w.index)
    at = _pattern(rng, held, kind, o.format)
    values = numbers(rng, (len(at), *trail))
    if o.ones:
        values = np.ones((len(at), *trail))
    source = torch.from_numpy(at.T.copy()).to(w.index)
    given = None if o.ones else torch.from_numpy(values).to(dtype)
    if o.rank == 3:
        name = f"bucket.{sides[0]}" if o.format == "bucket" else o.format
        t = tw.SparseTensor.from_coords(source, given, held, format=name)
        return t, Entries(at, values, held)
    t = tw.SparseTensor.from_coo(source[0], source[1], given, held)
    t = _formatted(t, o.format, sides, at, held)
    if o.format in MERGED:
        at, values = _stored(at, values, held, o.format, sides)
    return t, Entries(at, values, held)


def _pattern(rng: np.random.Generator, shape: tuple[int, ...], kind: str, format: str) -> Any:
    """Coordinates [n, rank], in the order in which the user holds them."""
    if kind == "empty" or 0 in shape:
        return np.zeros((0, len(shape)), np.int64)
    keep = np.full(shape, kind == "full") | (rng.random(shape) < rng.choice([0.03, 0.15, 0.4]))
    if kind == "giant":
        keep &= rng.random(shape) < 0.1
        keep[int(rng.integers(shape[0]))] = True
    if format == "dia":
        rows, cols = np.indices(shape)
        keep &= np.isin(cols - rows, rng.integers(-shape[0] + 1, shape[1], 3))
    if format == "two_four":
        keep &= np.isin(np.arange(shape[1]) % 4, rng.permutation(4)[:2])
    at = np.argwhere(keep)
    if kind == "duplicates" and len(at) and format not in ("two_four", "block_mask"):
        at = np.concatenate([at, at[rng.integers(len(at), size=5)]])
        at = at[np.lexsort(at.T[::-1])]
    return at[rng.permutation(len(at))] if kind == "unsorted" else at


def _formatted(t: Any, format: str, sides: tuple[int, int], at: Any, shape: Any) -> Any:
    b0, b1 = sides
    if format in ("bsr", "block_mask"):
        if format == "block_mask":
            bits = np.zeros([-(-n // b) for n, b in zip(shape, sides, strict=True)], bool)
            bits[tuple((at // np.array(sides)).T)] = True
            return tw.block_mask(torch.from_numpy(bits), sides, tuple(shape))
        return t.to_format("bsr", sides)
    if format == "ell":
        longest = int(np.bincount(at[:, 0]).max()) if len(at) else 0
        return t.to_format(f"ell.{next(n for n in (1, 8, 64, 512) if n >= longest)}")
    full = {"dbsr": f"dbsr.{b0}.{b1}", "padded": f"padded.{b0}", "srbcrs": f"srbcrs.{b0}.{b1}"}
    return t if format == "coo" else t.to_format(full.get(format, format))


def _stored(at: Any, values: Any, shape: Any, format: str, sides: tuple[int, int]) -> Any:
    """What formats with places of their own count as entries: zeros inside blocks, strips and diagonals too."""
    dense = np.zeros((*shape, *values.shape[1:]))
    np.add.at(dense, tuple(at.T), values)
    keep = np.zeros(shape, bool)
    rows, cols = np.indices(shape)
    keep[tuple(at.T)] = True
    if len(at) and format in ("bsr", "dbsr", "block_mask"):
        blocks = {(int(a), int(b)) for a, b in at // np.array(sides)}
        mine = np.zeros([n // b + 1 for n, b in zip(shape, sides, strict=True)], bool)
        mine[tuple(np.array(sorted(blocks)).T)] = True
        keep = mine[rows // sides[0], cols // sides[1]]
    elif len(at) and format == "srbcrs":
        mine = np.zeros((shape[0] // sides[0] + 1, shape[1]), bool)
        mine[at[:, 0] // sides[0], at[:, 1]] = True
        keep = mine[rows // sides[0], cols]
    elif format == "dia":
        keep = np.isin(cols - rows, at[:, 1] - at[:, 0])
    found = np.argwhere(keep)
    if format == "block_mask":
        return found, np.ones(len(found))
    return found, dense[tuple(found.T)]


def _ragged(
    rng: np.random.Generator, o: Operand, held: Any, trail: Any, dtype: torch.dtype, index: Any
) -> tuple[Any, Entries]:
    """Rows (of rows) of their own lengths."""
    at: list[tuple[int, ...]] = [(i,) for i in range(held[0])]
    arrays: dict[str, Tensor] = {}
    for level, limit in enumerate(held[1:], 1):
        lengths = rng.integers(0, limit + 1, len(at))
        if rng.random() < 0.15:
            lengths[:] = 0
        ptr = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        arrays["indptr" if o.rank == 2 else f"indptr{level}"] = ptr.to(index)
        at = [(*c, k) for c, n in zip(at, lengths, strict=True) for k in range(int(n))]
    values = numbers(rng, (len(at), *trail))
    coords = np.array(at, np.int64).reshape(-1, o.rank)
    given = torch.from_numpy(values).to(dtype)
    t = tw.SparseTensor.from_arrays(o.format, tuple(held), given, **arrays)
    return t, Entries(coords, values, tuple(held))
