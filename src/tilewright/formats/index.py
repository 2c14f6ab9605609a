"""Index arrays: the few device operations that all conversions are made of.

Owns: pointers, expansion, stable grouping, distinct keys and permutations. In and out: 1-D integer
tensors on one device. Only `distinct` and `distinct_pairs` wait for the device. An order or permutation says, for each
new position, the old one.

    rows = [2, 0, 2]    grouped(rows) = [0, 2, 2], [1, 0, 2]    pointers(rows, 3) = [0, 1, 1, 3]
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from tilewright.formats.transforms import transformed

INDEX_DTYPES = (torch.int32, torch.int64)
INT32, INT64 = 2**31 - 1, 2**63 - 1
FEW = 1 << 12  # keys that torch sorts before NumPy is asked
PART = 1 << 17  # keys that are sorted at a time fit the caches
TABLE = 8  # a table of marks has at most this many places for each key


def pointers(major: Tensor, size: int) -> Tensor:
    """Counts of 0 .. size - 1, summed up: [size + 1]; `major` need not be sorted."""
    counts = torch.zeros(size + 1, dtype=major.dtype, device=major.device)
    counts[1:].index_add_(0, major, torch.ones_like(major))
    return torch.cumsum(counts, 0, dtype=major.dtype)


def ends(ordered: Tensor, size: int) -> Tensor:
    """`pointers` of keys in order: a search for each of 0 .. size, without counting."""
    wanted = torch.arange(size + 1, dtype=ordered.dtype, device=ordered.device)
    return torch.searchsorted(ordered, wanted, out_int32=ordered.dtype == torch.int32)


def sums(counts: Tensor) -> Tensor:
    """0, then the running sums, in int64: [n + 1]."""
    made = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, dtype=torch.int64, out=made[1:])
    return made


def expand(indptr: Tensor, nnz: int) -> Tensor:
    """The parent of each position, the inverse of `pointers`: [nnz]."""
    parents = torch.arange(indptr.shape[0] - 1, dtype=indptr.dtype, device=indptr.device)
    return torch.repeat_interleave(parents, indptr.diff(), output_size=nnz)


def sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of 0 and above in order, and the stable order, in int64.

    torch sorts 32 bits by radix. Of 64 bits, on a CPU, key and place share a number where both fit: NumPy sorts those
    in vectors, several times as fast as torch sorts pairs.
    """
    n, packs = keys.shape[0], keys.dtype == torch.int64 and keys.device.type == "cpu"
    plain = type(keys) is Tensor and not (torch.compiler.is_compiling() or transformed())
    if not plain or not packs or n < FEW:
        return torch.sort(keys, stable=True)
    bits = (n - 1).bit_length()
    if int(keys.max()).bit_length() + bits > 63:
        return torch.sort(keys, stable=True)
    packed = keys << bits
    packed |= torch.arange(n, device=keys.device)
    packed.numpy().sort()
    return packed >> bits, packed.bitwise_and_((1 << bits) - 1)


def grouped(major: Tensor) -> tuple[Tensor, Tensor]:
    """`major` sorted, and the stable order."""
    ordered, order = sort(major)
    return ordered, order.to(major.dtype)


def joined(high: Tensor, low: Tensor, width: int, bound: int) -> Tensor:
    """high * width + low as one key below `bound`: int32 where that is enough."""
    high = high.long() if bound > INT32 else high.int()
    return high * width + low.to(high.dtype)


def distinct(keys: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Distinct keys in order, and the place of each key among them; linear, unlike torch.unique.

    Keys in a range not much larger than their number are marked in a table, others are sorted.
    """
    if bound <= TABLE * keys.shape[0]:
        seen = torch.zeros(bound, dtype=torch.bool, device=keys.device)
        seen.scatter_(0, keys.long(), True)
        place = torch.cumsum(seen, 0).sub_(1)
        return seen.nonzero().squeeze(1).to(keys.dtype), place.index_select(0, keys)
    ordered, order = sort(keys)
    first = starts(ordered)
    return ordered[first], places_of(order, first)


def distinct_pairs(high: Tensor, low: Tensor, size: tuple[int, int]) -> tuple[Tensor, ...]:
    """Distinct pairs in order, high and low apart, and the place of each pair among them."""
    if runs_apart(high, size):
        high, low, order = sort_runs(high, low, size[1])
        first = starts(high) | starts(low)
        return high[first], low[first], places_of(order, first)
    if size[0] * size[1] <= INT64:
        bound = size[0] * size[1]
        keys, place = distinct(joined(high, low, size[1], bound), bound)
        return *split(keys, max(size[1], 1)), place
    order = sort(low)[1]
    order = order.index_select(0, sort(high.index_select(0, order))[1])
    high, low = high.index_select(0, order), low.index_select(0, order)
    first = starts(high) | starts(low)
    return high[first], low[first], places_of(order, first)


def places_of(order: Tensor, first: Tensor) -> Tensor:
    """The run that each key belongs to, from the order that sorts them and the first of each run."""
    return torch.empty_like(order).scatter_(0, order, torch.cumsum(first, 0).sub_(1))


def runs_apart(high: Tensor, size: tuple[int, int]) -> bool:
    """Whether pairs are better sorted a part at a time: many, on a CPU, the first of each in order already."""
    n, bound = high.shape[0], size[0] * size[1]
    if high.device.type != "cpu" or n <= PART or not TABLE * n < bound <= INT64:
        return False
    return bool((high[1:] >= high[:-1]).all())


def sort_runs(high: Tensor, low: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs sorted, high and low apart, and the stable order; whole runs of high, which is in order, at a time."""
    n = high.shape[0]
    ordered, order = torch.empty_like(low), torch.empty_like(high, dtype=torch.int64)
    wanted = high[PART::PART].unique()
    cuts = sorted({0, n, *torch.searchsorted(high, wanted).tolist()})
    for a, b in itertools.pairwise(cuts):
        base = int(high[a])
        part = joined(high[a:b] - base, low[a:b], width, (int(high[b - 1]) - base + 1) * width)
        made, inside = sort(part)
        ordered[a:b] = made - (high[a:b] - base).to(made.dtype) * width
        torch.add(inside, a, out=order[a:b])
    return high, ordered, order


def starts(ordered: Tensor) -> Tensor:
    """Where sorted keys change: True at the first of each run."""
    if torch.compiler.is_compiling():
        # torch 2.11 compares no views whose sizes only the device knows
        at = torch.arange(ordered.shape[0], device=ordered.device)
        return (ordered != ordered.index_select(0, (at - 1).clamp(min=0))) | (at == 0)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    return first


def closed(starts: Tensor, end: int, dtype: torch.dtype) -> Tensor:
    """Starts of runs with the end behind them: an indptr."""
    made = torch.empty(starts.shape[0] + 1, dtype=dtype, device=starts.device)
    made[:-1] = starts
    made[-1] = end
    return made


def compose(perm: Tensor | None, order: Tensor | None) -> Tensor | None:
    """perm[order], where None is the identity."""
    if order is None:
        return perm
    return order if perm is None else perm.index_select(0, order)


def inverse(perm: Tensor) -> Tensor:
    """inverse(perm)[perm[p]] == p."""
    places = torch.arange(perm.shape[0], dtype=perm.dtype, device=perm.device)
    return torch.empty_like(perm).scatter_(0, perm.long(), places)


def ranks(keys: Tensor) -> Tensor:
    """How many keys are smaller than each; keys differ."""
    return inverse(sort(keys)[1]).to(keys.dtype)


def same_dtype(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Contiguous arrays of one index dtype, the wider one if they differ; copies only if needed."""
    wide = any(a.dtype == torch.int64 for a in arrays)
    narrow = any(a.dtype == torch.int32 for a in arrays)
    if wide and narrow:
        arrays = tuple(a.long() if a.dtype == torch.int32 else a for a in arrays)
    return tuple(a.contiguous() for a in arrays)


def split(a: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(a // size, a % size)."""
    if size == 1:
        return a, torch.zeros_like(a)
    whole = torch.div(a, size, rounding_mode="floor")
    return whole, a - whole * size


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b
