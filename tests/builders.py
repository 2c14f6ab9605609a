"""Small stage I programs and their data, for tests of any part.

Trees are named after their indices: `csr("a", "ij")` has sizes n_i, n_j and a_nnz, and arrays a_indptr, a_indices, a.
Data comes from `rows`, a list of column lists (unsorted columns and duplicates are allowed).

    case = spmm(csr_case("a", "ij", [[0, 2], [], [1]], 3), 5, "sum");  run_coord(*case.args)["y"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

import numpy as np

from tilewright.analysis.domain import covers
from tilewright.ir import coord
from tilewright.ir.coord import Assign, Axis, Index, Reduce, Tensor
from tilewright.ir.expr import Buffer, Const, Expr, Load, Var
from tilewright.ir.monoid import monoids

Rows = Sequence[Sequence[int]]


@cache
def size(name: str) -> Var:
    """The one size variable of this name."""
    return Var(f"n_{name}" if len(name) == 1 else name)


@cache
def index(name: str) -> Index:
    return Index(name)


def at(t: Tensor, indices: str) -> Load:
    """t[i, j]"""
    return Load(t, tuple(index(c) for c in indices))


def reduce(monoid: str, over: str, *args: Expr, part: int = 0, dtype: str = "f32") -> Reduce:
    return Reduce(monoids(dtype)[monoid], tuple(index(c) for c in over), args, part)


# --- tensors ----------------------------------------------------------------------------------------


def dense(name: str, indices: str, role: str = "in", dtype: str = "f32") -> Tensor:
    shape = tuple(size(c) for c in indices)
    return Tensor(name, dtype, shape, role, values=Buffer(name, dtype, shape, role))


def _index(name: str, *shape: Expr) -> Buffer:
    return Buffer(name, "i32", shape, "index")


def csr(name: str, ij: str, role: str = "in", dtype: str = "f32", ones: bool = False) -> Tensor:
    """i dense, j compressed under it."""
    i, j = ij
    nnz = size(f"{name}_nnz")
    ai = Axis(i, "dense", "fixed", size(i))
    ptr, idx = _index(f"{name}_indptr", size(i) + 1), _index(f"{name}_indices", nnz)
    aj = Axis(j, "sparse", "variable", None, ai, ptr, idx)
    values = None if ones else Buffer(name, dtype, (nnz,), role)
    return Tensor(name, dtype, (size(i), size(j)), role, (ai, aj), (((ai, 1),), ((aj, 1),)), values)


def csc(name: str, ij: str, dtype: str = "f32") -> Tensor:
    """j dense, i compressed under it: the reduction axis of a product is outside the spatial one."""
    i, j = ij
    nnz = size(f"{name}_nnz")
    aj = Axis(j, "dense", "fixed", size(j))
    ptr, idx = _index(f"{name}_indptr", size(j) + 1), _index(f"{name}_indices", nnz)
    ai = Axis(i, "sparse", "variable", None, aj, ptr, idx)
    values = Buffer(name, dtype, (nnz,))
    return Tensor(name, dtype, (size(i), size(j)), "in", (aj, ai), (((ai, 1),), ((aj, 1),)), values)


def coo(
    name: str, ij: str, role: str = "in", dtype: str = "f32", like: Tensor | None = None
) -> Tensor:
    """Entries (i, j); `like` shares another tensor's structure."""
    i, j = ij
    nnz = size(f"{like.name if like else name}_nnz")
    values = Buffer(name, dtype, (nnz,), role)
    if like is not None:
        return Tensor(name, dtype, like.shape, role, like.axes, like.coords, values)
    ai = Axis(i, "sparse", "fixed", nnz, None, None, _index(f"{name}_rows", nnz))
    aj = Axis(j, "sparse", "fixed", Const(1, "i64"), ai, None, _index(f"{name}_indices", nnz))
    return Tensor(name, dtype, (size(i), size(j)), role, (ai, aj), (((ai, 1),), ((aj, 1),)), values)


def bsr(
    name: str, ij: str, block: tuple[int, int], dtype: str = "f32", ones: bool = False
) -> Tensor:
    """Blocks: block row dense, block column compressed, then the two dense axes inside a block."""
    i, j = ij
    (bi, bj), nnz = block, size(f"{name}_nnz")
    outer = Axis(i.upper(), "dense", "fixed", (size(i) + (bi - 1)) // bi)
    ptr = _index(f"{name}_indptr", (size(i) + (bi - 1)) // bi + 1)
    stored = Axis(j.upper(), "sparse", "variable", None, outer, ptr, _index(f"{name}_indices", nnz))
    ii = Axis(i * 2, "dense", "fixed", Const(bi, "i64"))
    jj = Axis(j * 2, "dense", "fixed", Const(bj, "i64"))
    shape = (nnz, Const(bi, "i64"), Const(bj, "i64"))
    values = None if ones else Buffer(name, dtype, shape)
    coords = (((outer, bi), (ii, 1)), ((stored, bj), (jj, 1)))
    return Tensor(name, dtype, (size(i), size(j)), "in", (outer, stored, ii, jj), coords, values)


def ragged(name: str, ij: str, dtype: str = "f32") -> Tensor:
    """Rows of different lengths: j counts from the start of its row."""
    i, j = ij
    nnz = size(f"{name}_nnz")
    ai = Axis(i, "dense", "fixed", size(i))
    aj = Axis(j, "dense", "variable", None, ai, _index(f"{name}_indptr", size(i) + 1))
    values = Buffer(name, dtype, (nnz,))
    return Tensor(name, dtype, (size(i), size(j)), "in", (ai, aj), (((ai, 1),), ((aj, 1),)), values)


# --- data -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program with its arrays and sizes, and what the answer should be."""

    program: coord.Program
    arrays: dict[str, np.ndarray]
    sizes: dict[str, int]
    scalars: dict[str, float] = field(default_factory=dict)
    want: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def args(self) -> tuple[object, ...]:
        return self.program, self.arrays, self.sizes, self.scalars

    def at(self, program: object) -> tuple[object, ...]:
        """The same data for the program at a later stage."""
        return program, self.arrays, self.sizes, self.scalars, zeroed(self.program)

    def having(self, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> Case:
        return replace(self, arrays={**self.arrays, **arrays}, sizes={**self.sizes, **sizes})


def zeroed(p: coord.Program) -> tuple[str, ...]:
    """The outputs that must start at zero."""
    return tuple(t.values.name for t in p.outputs if t.values is not None and not covers(p, t))


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def row_arrays(name: str, rows: Rows) -> dict[str, np.ndarray]:
    """indptr, rows and indices of a list of column lists."""
    lengths = [len(r) for r in rows]
    return {
        f"{name}_indptr": np.cumsum([0, *lengths]).astype(np.int32),
        f"{name}_rows": np.repeat(np.arange(len(rows)), lengths).astype(np.int32),
        f"{name}_indices": np.array([c for r in rows for c in r], np.int32),
    }


def column_rows(rows: Rows, columns: int) -> list[list[int]]:
    """The transpose of a list of column lists."""
    return [[i for i, r in enumerate(rows) for c in r if c == j] for j in range(columns)]


def to_dense(rows: Rows, columns: int, values: np.ndarray) -> np.ndarray:
    """The matrix of a list of column lists; duplicates add up."""
    made = np.zeros((len(rows), columns, *values.shape[1:]), values.dtype)
    places = [(i, c) for i, r in enumerate(rows) for c in r]
    for (i, c), v in zip(places, values, strict=True):
        made[i, c] += v
    return made


def spmm(rows: Rows, columns: int, width: int, monoid: str = "sum") -> Case:
    """y[i, f] = sum(j, a[i, j] * x[j, f]), or softmax_sum(j, a[i, j], x[j, f]); a in CSR"""
    a, x, y = csr("a", "ij"), dense("x", "jf"), dense("y", "if", "out")
    args = (at(a, "ij"), at(x, "jf")) if monoid == "softmax_sum" else (at(a, "ij") * at(x, "jf"),)
    p = coord.Program(
        "spmm", (a, x, y), (), (Assign((at(y, "if"),), (reduce(monoid, "j", *args),)),)
    )
    arrays = row_arrays("a", rows)
    n = len(arrays["a_indices"])
    arrays |= {"a": numbers(1, n), "x": numbers(2, columns, width)}
    unused = sorted(set(range(columns)) - {c for r in rows for c in r})
    arrays["x"][unused] = np.nan  # what no entry uses must not matter
    if unused:
        arrays["x"][unused[0]] = np.inf
    sizes = {"n_i": len(rows), "n_j": columns, "n_f": width, "a_nnz": n}
    want = np.stack([row_result(monoid, c, v, arrays["x"]) for c, v in _by_row(rows, arrays["a"])])
    return Case(p, arrays, sizes, want={"y": want})


def _by_row(rows: Rows, values: np.ndarray) -> list[tuple[list[int], np.ndarray]]:
    ends = np.cumsum([0, *(len(r) for r in rows)])
    return [(list(r), values[s:e]) for r, s, e in zip(rows, ends, ends[1:], strict=False)]


def row_result(monoid: str, columns: list[int], a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One row of y, by NumPy in f64."""
    a, x = a.astype(np.float64), x[columns].astype(np.float64)
    terms = a[:, None] * x
    if not len(columns):
        return np.full(x.shape[1], -np.inf if monoid in ("max", "logsumexp") else 0.0)
    if monoid == "softmax_sum":
        w = np.exp(a - a.max())
        return (w / w.sum()) @ x
    if monoid == "logsumexp":
        top = terms.max(0)
        return top + np.log(np.exp(terms - top).sum(0))
    return {"sum": terms.sum(0), "max": terms.max(0), "mean": terms.mean(0)}[monoid]


def sddmm(rows: Rows, columns: int, depth: int) -> Case:
    """b[i, j] = a[i, j] * sum(k, x[i, k] * z[j, k]) on the entries of a COO tree"""
    a = coo("a", "ij")
    b = coo("b", "ij", "out", like=a)
    x, z = dense("x", "ik"), dense("z", "jk")
    value = at(a, "ij") * reduce("sum", "k", at(x, "ik") * at(z, "jk"))
    p = coord.Program("sddmm", (a, x, z, b), (), (Assign((at(b, "ij"),), (value,)),))
    arrays = row_arrays("a", rows)
    i, j = arrays["a_rows"], arrays["a_indices"]
    arrays |= {
        "a": numbers(1, len(i)),
        "x": numbers(2, len(rows), depth),
        "z": numbers(3, columns, depth),
    }
    sizes = {"n_i": len(rows), "n_j": columns, "n_k": depth, "a_nnz": len(i)}
    want = arrays["a"] * (arrays["x"][i] * arrays["z"][j]).sum(1)
    return Case(p, arrays, sizes, want={"b": want})


def block_product(rows: Rows, shape: tuple[int, int], block: int, width: int) -> Case:
    """y[i, f] = sum(k, a[i, k] * x[k, f]); a in blocks, `rows` lists block columns"""
    a, x, y = bsr("a", "ik", (block, block)), dense("x", "kf"), dense("y", "if", "out")
    value = reduce("sum", "k", at(a, "ik") * at(x, "kf"))
    p = coord.Program("bsr", (a, x, y), (), (Assign((at(y, "if"),), (value,)),))
    arrays = row_arrays("a", rows)
    n, columns = len(arrays["a_indices"]), -(-shape[1] // block)
    arrays |= {"a": numbers(1, n, block, block), "x": numbers(2, shape[1], width)}
    sizes = {"n_i": shape[0], "n_k": shape[1], "n_f": width, "a_nnz": n}
    whole = to_dense(rows, columns, arrays["a"]).transpose(0, 2, 1, 3)
    whole = whole.reshape(len(rows) * block, columns * block)[: shape[0], : shape[1]]
    return Case(p, arrays, sizes, want={"y": whole @ arrays["x"]})


def ragged_sums(lengths: Sequence[int]) -> Case:
    """y[i] = sum(j, a[i, j]) over rows of different lengths"""
    a, y = ragged("a", "ij"), dense("y", "i", "out")
    p = coord.Program(
        "ragged", (a, y), (), (Assign((at(y, "i"),), (reduce("sum", "j", at(a, "ij")),)),)
    )
    ptr = np.cumsum([0, *lengths]).astype(np.int32)
    values = numbers(1, int(ptr[-1]))
    sizes = {"n_i": len(lengths), "n_j": max(lengths, default=0), "a_nnz": int(ptr[-1])}
    want = np.array([values[s:e].sum() for s, e in pairwise(ptr)])
    return Case(p, {"a_indptr": ptr, "a": values}, sizes, want={"y": want})


def attention(
    rows: Rows, n: tuple[int, int], block: tuple[int, int], depth: int, width: int
) -> Case:
    """o[i, e], l[i] = softmax over j in a block mask of s * sum(d, q[i, d] * k[j, d]), weighting v[j, e]"""
    m = bsr("m", "ij", block, ones=True)
    q, k, v = dense("q", "id"), dense("k", "jd"), dense("v", "je")
    o, lse = dense("o", "ie", "out"), dense("l", "i", "out")
    scale = Var("scale", "f32")
    score = at(m, "ij") * reduce("sum", "d", at(q, "id") * at(k, "jd")) * scale
    args = (score, at(v, "je"))
    values = (reduce("softmax_sum", "j", *args), reduce("softmax_sum", "j", *args, part=1))
    body = Assign((at(o, "ie"), at(lse, "i")), values)
    p = coord.Program("attention", (m, q, k, v, o, lse), (scale,), (body,))
    arrays = {
        "q": numbers(1, n[0], depth),
        "k": numbers(2, n[1], depth),
        "v": numbers(3, n[1], width),
    }
    arrays |= row_arrays("m", rows)
    sizes = {
        "n_i": n[0],
        "n_j": n[1],
        "n_d": depth,
        "n_e": width,
        "m_nnz": len(arrays["m_indices"]),
    }
    want = masked_softmax(arrays, block_mask(rows, n, block), 0.5)
    return Case(p, arrays, sizes, {"scale": 0.5}, want)


def block_mask(rows: Rows, n: tuple[int, int], block: tuple[int, int]) -> np.ndarray:
    made = np.zeros((len(rows) * block[0], -(-n[1] // block[1]) * block[1]), bool)
    for i, r in enumerate(rows):
        for c in r:
            made[i * block[0] : (i + 1) * block[0], c * block[1] : (c + 1) * block[1]] = True
    return made[: n[0], : n[1]]


def masked_softmax(
    arrays: dict[str, np.ndarray], mask: np.ndarray, scale: float
) -> dict[str, np.ndarray]:
    """Attention by dense NumPy; rows with nothing in the mask give 0 and -inf."""
    s = np.where(mask, arrays["q"].astype(np.float64) @ arrays["k"].T * scale, -np.inf)
    top = np.where(mask.any(1), s.max(1, initial=-np.inf), 0.0)
    w = np.exp(s - top[:, None])
    total = w.sum(1)
    with np.errstate(all="ignore"):
        lse = np.where(total > 0, top + np.log(total), -np.inf)
    return {"o": w @ arrays["v"] / np.where(total > 0, total, 1.0)[:, None], "l": lse}


# --- work lists -------------------------------------------------------------------------------------


def work_units(
    indptr: np.ndarray, lanes: int, long: int, chunk: int
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Units and segments for `schedule.work.work_list`: rows longer than `long` are cut into pieces of
    `chunk` entries, the others stand together, `lanes` in a unit, longest first."""
    degree = np.diff(indptr)
    segs: list[list[tuple[int, int, int]]] = []
    units: list[tuple[int, ...]] = []
    for i in np.flatnonzero(degree > long):
        first, pieces = len(units), -(-int(degree[i]) // chunk)
        for n in range(pieces):
            start = int(indptr[i]) + n * chunk
            stop = min(start + chunk, int(indptr[i + 1]))
            units.append((-(-(stop - start) // lanes), n, pieces, first))
            segs.append([(int(i), start + r, stop) for r in range(lanes)])
    slots = max(len(segs), 1)
    short = sorted(np.flatnonzero(degree <= long), key=lambda i: -degree[i])
    for n in range(0, len(short), lanes):
        group = short[n : n + lanes]
        units.append((int(degree[group[0]]), 0, 0, 0))
        held = [(int(i), int(indptr[i]), int(indptr[i + 1])) for i in group]
        segs.append(held + [(-1, 0, 0)] * (lanes - len(held)))
    arrays = {
        "units": np.array(units, np.int32).reshape(-1, 4),
        "segs": np.array(segs, np.int32).reshape(-1, lanes, 3).transpose(0, 2, 1).copy(),
    }
    return arrays, {"n_units": len(units), "n_slots": slots}
