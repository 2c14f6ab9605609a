"""Named formats as compositions of levels.

Owns: `Layout` and the named ones. In: a name; parameters are part of it. Out: a tuple of levels.

Each format is defined by the loop that rebuilds its dense tensor. `v` is the value of a stored
entry in *storage* order (`values[perm]`). `structure` keeps csr, csc, coo, bsr, ragged and
block_mask; `tree` keeps all others, whose arrays are numbered by level.

    layout("bsr", (4, 8)).levels   # dense rows of blocks, sparse block columns, dense 4, dense 8
    layout("ell.8").levels         # dense rows, 8 places in each
    name_of("srbcrs", 8, 4)        # "srbcrs.8.4"; parse("srbcrs.8.4") == ("srbcrs", (8, 4))
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.formats.level import Level
from tilewright.support.errors import error

FORMATS = ("csr", "csc", "coo", "bsr", "ragged", "block_mask")
BLOCKED = ("bsr", "block_mask")
FAMILIES = (
    *("dcsr", "dbsr", "ell", "dell", "padded", "dpadded", "srbcrs", "dia"),
    *("csf", "bucket", "grouped", "two_four", "bitmap", "ragged"),
)
SLOTTED = ("dbsr", "srbcrs", "dia", "two_four", "bitmap")  # their values hold zeros inside


@dataclass(frozen=True, slots=True)
class Layout:
    """A named list of levels, outermost first."""

    name: str
    levels: tuple[Level, ...]
    block: tuple[int, int] = (1, 1)

    @property
    def major(self) -> int:
        """The dimension that the outermost level runs over."""
        return self.levels[0].dim

    @property
    def blocked(self) -> bool:
        return self.name in BLOCKED

    @property
    def family(self) -> str:
        """The name without parameters."""
        return self.name.partition(".")[0]

    @property
    def slotted(self) -> bool:
        """Whether values are kept in the stored shape, with zeros where there is no entry."""
        return self.family in SLOTTED

    def __str__(self) -> str:
        return f"{self.name}: " + " > ".join(str(level) for level in self.levels)


def csr() -> Layout:
    """Compressed rows.

    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            dense[i, indices[p]] += v[p]
    """
    return Layout("csr", (Level("dense", "fixed", 0), Level("sparse", "variable", 1)))


def csc() -> Layout:
    """Compressed columns.

    for j in range(m):
        for p in range(indptr[j], indptr[j + 1]):
            dense[indices[p], j] += v[p]
    """
    return Layout("csc", (Level("dense", "fixed", 1), Level("sparse", "variable", 0)))


def coo() -> Layout:
    """A list of entries in any order; duplicates are separate entries.

    for p in range(nnz):
        dense[rows[p], indices[p]] += v[p]
    """
    return Layout("coo", (Level("sparse", "variable", 0), Level("sparse", "fixed", 1, 1)))


def bsr(b0: int, b1: int) -> Layout:
    """Compressed rows of dense blocks.

    for bi in range(n // b0):
        for p in range(indptr[bi], indptr[bi + 1]):
            for r in range(b0):
                for c in range(b1):
                    dense[bi * b0 + r, indices[p] * b1 + c] += v[p, r, c]
    """
    return Layout("bsr", _blocks(b0, b1), (b0, b1))


def ragged() -> Layout:
    """Rows of different lengths, packed; the coordinate is the position less the row's start.

    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            dense[i, p - indptr[i]] = v[p]
    """
    return Layout("ragged", (Level("dense", "fixed", 0), Level("dense", "variable", 1)))


def block_mask(b0: int, b1: int) -> Layout:
    """Blocks that are kept, without values; the last row and column of blocks may stick out.

    for bi in range(ceil(n / b0)):
        for p in range(indptr[bi], indptr[bi + 1]):
            dense[bi * b0 : (bi + 1) * b0, indices[p] * b1 : (indices[p] + 1) * b1] = True
    """
    return Layout("block_mask", _blocks(b0, b1), (b0, b1))


def dcsr() -> Layout:
    """Compressed rows of those rows alone that have entries.

    for p in range(len(indices0)):
        for q in range(indptr1[p], indptr1[p + 1]):
            dense[indices0[p], indices1[q]] += v[q]
    """
    return Layout("dcsr", (Level("sparse", "variable", 0), Level("sparse", "variable", 1)))


def dbsr(b0: int, b1: int) -> Layout:
    """Dense blocks in those rows of blocks alone that have any; the last blocks may stick out.

    for p in range(len(indices0)):
        for q in range(indptr1[p], indptr1[p + 1]):
            for r in range(b0):
                for c in range(b1):
                    dense[indices0[p] * b0 + r, indices1[q] * b1 + c] += v[q, r, c]
    """
    outer = (Level("sparse", "variable", 0), Level("sparse", "variable", 1))
    inner = (Level("dense", "fixed", 0, b0), Level("dense", "fixed", 1, b1))
    return Layout(name_of("dbsr", b0, b1), outer + inner)


def ell(width: int) -> Layout:
    """The same number of places in each row; -1 where there is no entry.

    for i in range(n):
        for q in range(i * width, (i + 1) * width):
            if indices1[q] >= 0:
                dense[i, indices1[q]] += v[q]
    """
    inner = Level("sparse", "fixed", 1, width, padded=True)
    return Layout(name_of("ell", width), (Level("dense", "fixed", 0), inner))


def padded(t: int) -> Layout:
    """Compressed rows whose lengths are multiples of t; -1 where there is no entry.

    for i in range(n):
        for q in range(indptr1[i], indptr1[i + 1]):
            if indices1[q] >= 0:
                dense[i, indices1[q]] += v[q]
    """
    inner = Level("sparse", "variable", 1, padded=True)
    return Layout(name_of("padded", t), (Level("dense", "fixed", 0), inner))


def dell(width: int) -> Layout:
    """The same number of places in each of those rows alone that have entries.

    for p in range(len(indices0)):
        for q in range(p * width, (p + 1) * width):
            if indices1[q] >= 0:
                dense[indices0[p], indices1[q]] += v[q]
    """
    inner = Level("sparse", "fixed", 1, width, padded=True)
    return Layout(name_of("dell", width), (Level("sparse", "variable", 0), inner))


def dpadded(t: int) -> Layout:
    """Those rows alone that have entries, in lengths that are multiples of t.

    for p in range(len(indices0)):
        for q in range(indptr1[p], indptr1[p + 1]):
            if indices1[q] >= 0:
                dense[indices0[p], indices1[q]] += v[q]
    """
    inner = Level("sparse", "variable", 1, padded=True)
    return Layout(name_of("dpadded", t), (Level("sparse", "variable", 0), inner))


def srbcrs(t: int, g: int) -> Layout:
    """Strips of t rows and one column, their number in t rows a multiple of g; -1 where none is.

    for s in range(ceil(n / t)):
        for q in range(indptr1[s], indptr1[s + 1]):
            if indices1[q] >= 0:
                for r in range(t):
                    dense[s * t + r, indices1[q]] += v[q, r]
    """
    strips = Level("sparse", "variable", 1, padded=True)
    levels = (Level("dense", "fixed", 0), strips, Level("dense", "fixed", 0, t))
    return Layout(name_of("srbcrs", t, g), levels)


def dia(count: int) -> Layout:
    """Diagonals; one that leaves the matrix has no entry there.

    for i in range(n):
        for t in range(count):
            if 0 <= i + indices1[t] < m:
                dense[i, i + indices1[t]] += v[i * count + t]
    """
    inner = Level("sparse", "fixed", 1, count, relative=0, shared=True)
    return Layout(name_of("dia", count), (Level("dense", "fixed", 0), inner))


def csf(depth: int, dense_root: bool = False) -> Layout:
    """A tree of coordinates, one level for each dimension; rows may be dense (csf.3.dense).

    for p in range(len(indices0)):
        for q in range(indptr1[p], indptr1[p + 1]):
            for r in range(indptr2[q], indptr2[q + 1]):
                dense[indices0[p], indices1[q], indices2[r]] += v[r]
    """
    root = Level("dense", "fixed", 0) if dense_root else Level("sparse", "variable", 0)
    below = tuple(Level("sparse", "variable", dim) for dim in range(1, depth))
    return Layout(name_of("csf", depth) + ".dense" * dense_root, (root, *below))


def bucket(width: int) -> Layout:
    """Relation, row, and the same number of places in each row; a row may occur more than once.

    for i in range(n):
        for q in range(indptr1[i], indptr1[i + 1]):
            for r in range(q * width, (q + 1) * width):
                if indices2[r] >= 0:
                    dense[i, indices1[q], indices2[r]] += v[r]
    """
    inner = Level("sparse", "fixed", 2, width, padded=True)
    levels = (Level("dense", "fixed", 0), Level("sparse", "variable", 1), inner)
    return Layout(name_of("bucket", width), levels)


def grouped(depth: int, dim: int) -> Layout:
    """The entries of each index of one dimension (grouped.3.1: the second of three), other coordinates in lists.

    for i in range(len(indptr1) - 1):
        for p in range(indptr1[i], indptr1[i + 1]):
            dense[indices1[p], i, indices2[p]] += v[p]
    """
    first, *rest = (d for d in range(depth) if d != dim)
    listed = (Level("sparse", "variable", first), *(Level("sparse", "fixed", d, 1) for d in rest))
    return Layout(name_of("grouped", depth, dim), (Level("dense", "fixed", dim), *listed))


def two_four() -> Layout:
    """Two places for every four columns; -1 where there is no entry.

    for i in range(n):
        for g in range(ceil(m / 4)):
            for q in range(2 * (i * ceil(m / 4) + g), 2 * (i * ceil(m / 4) + g) + 2):
                if indices2[q] >= 0:
                    dense[i, g * 4 + indices2[q]] += v[q]
    """
    inner = Level("sparse", "fixed", 1, 2, padded=True, radix=4)
    return Layout("two_four", (Level("dense", "fixed", 0), Level("dense", "fixed", 1), inner))


def bitmap() -> Layout:
    """Every place is stored; a mask says which are entries.

    for i in range(n):
        for q in range(i * m, (i + 1) * m):
            if mask1[q]:
                dense[i, q - i * m] += v[q]
    """
    return Layout("bitmap", (Level("dense", "fixed", 0), Level("bitmap", "fixed", 1)))


def ragged_tree(depth: int) -> Layout:
    """Rows of rows of their own lengths, packed, to any depth (ragged.3).

    for i in range(n):
        for q in range(indptr1[i], indptr1[i + 1]):
            for r in range(indptr2[q], indptr2[q + 1]):
                dense[i, q - indptr1[i], r - indptr2[q]] = v[r]
    """
    below = tuple(Level("dense", "variable", dim) for dim in range(1, depth))
    return Layout(name_of("ragged", depth), (Level("dense", "fixed", 0), *below))


def name_of(family: str, *parameters: int) -> str:
    """A format's name with its parameters: name_of("ell", 8) == "ell.8"."""
    return ".".join((family, *map(str, parameters)))


def parse(name: str) -> tuple[str, tuple[int, ...]]:
    """Family and parameters of a name; the `dense` of csf.3.dense is left out."""
    family, *rest = name.split(".")
    given = rest[:-1] if family == "csf" and rest[-1:] == ["dense"] else rest
    if not all(word.isdecimal() for word in given):
        raise _unknown(name)
    return family, tuple(int(word) for word in given)


def layout(name: str, block: tuple[int, int] = (1, 1)) -> Layout:
    """The layout of a format's name: layout("csr"), layout("ell.8")."""
    match name:
        case "csr":
            return csr()
        case "csc":
            return csc()
        case "coo":
            return coo()
        case "ragged":
            return ragged()
        case "bsr":
            return bsr(*block)
        case "block_mask":
            return block_mask(*block)
    return _parametric(name)


def _parametric(name: str) -> Layout:
    family, given = parse(name)
    none = family in ("ell", "dell", "dia", "grouped")
    least = 0 if none else 2 if family in ("csf", "ragged") else 1
    if any(number < least for number in given):
        raise _unknown(name)
    match family, given:
        case "dcsr", ():
            return dcsr()
        case "dbsr", (b0, b1):
            return dbsr(b0, b1)
        case "ell", (width,):
            return ell(width)
        case "padded", (t,):
            return padded(t)
        case "dell", (width,):
            return dell(width)
        case "dpadded", (t,):
            return dpadded(t)
        case "srbcrs", (t, g):
            return srbcrs(t, g)
        case "dia", (count,):
            return dia(count)
        case "csf", (depth,):
            return csf(depth, name.endswith(".dense"))
        case "bucket", (width,):
            return bucket(width)
        case "grouped", (depth, dim) if depth > 1 and dim < depth:
            return grouped(depth, dim)
        case "two_four", ():
            return two_four()
        case "bitmap", ():
            return bitmap()
        case "ragged", (depth,):
            return ragged_tree(depth)
    raise _unknown(name)


def _unknown(name: str) -> Exception:
    known = ", ".join((*FORMATS, *(f for f in FAMILIES if f not in FORMATS)))
    expected = f"one of {known}; with parameters such as ell.8, srbcrs.8.4, csf.3"
    return error(
        "argument", where="a format's name", name="format", got=repr(name), expected=expected
    )


def _blocks(b0: int, b1: int) -> tuple[Level, ...]:
    outer = (Level("dense", "fixed", 0), Level("sparse", "variable", 1))
    return (*outer, Level("dense", "fixed", 0, b0), Level("dense", "fixed", 1, b1))
